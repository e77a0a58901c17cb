"""Features of a problem, of a solver and of a device, for the choice of a solver."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from haotuner.hw_profiles.table import Known
from haotuner.records.miopen import BYTES, ConvProblem

DIRECTIONS = {"F": 0, "B": 1, "W": 2}
LAYOUTS = ("NCHW", "NHWC", "NCDHW", "NDHWC")
# Facts of a device that a kernel's speed hangs on; what is not known of one is NaN.
FACTS = ("compute_units", "wave_width", "fma_pipes", "clock_mhz", "memory_gbps", "l2_bytes", "l1_bytes", "peak_gflops")
# What a solver's name says of how it works (ROCm/MIOpen, src/solver): the algorithm, the language, the units it needs.
WORDS = ("Gemm", "Winograd", "ImplicitGemm", "Igemm", "Direct", "Naive", "fft", "Asm", "Hip", "Ocl", "Mlir", "Ck", "Xdlops",
         "NHWC", "Padded", "Multipass", "Dynamic", "1x1", "3x3", "Universal", "Rest")  # fmt: skip


def problem_frame(texts: Sequence[str]) -> pd.DataFrame:
    """One row a problem's text; every column is a number."""
    return pd.DataFrame([_numbers(ConvProblem.parse(text)) for text in texts])


def _numbers(problem: ConvProblem) -> dict[str, float]:
    m, n, k = gemm_of(problem)
    image, out, window = problem.image, problem.out, problem.filter
    intensity = problem.flops / problem.least_bytes
    return {
        "direction": float(DIRECTIONS[problem.direction]),
        "dtype": float(list(BYTES).index(problem.dtype)),
        "layout": float(LAYOUTS.index(problem.layout)) if problem.layout in LAYOUTS else -1.0,
        "axes": float(len(window)),
        "groups_log2": np.log2(problem.groups),
        "batch_log2": np.log2(problem.batch),
        "image_channels_log2": np.log2(image[0]),
        "out_channels_log2": np.log2(out[0]),
        "image_height_log2": np.log2(image[-2]),
        "image_width_log2": np.log2(image[-1]),
        "out_height_log2": np.log2(out[-2]),
        "out_width_log2": np.log2(out[-1]),
        "image_depth": float(image[1]) if len(image) > 3 else 1.0,
        "filter_height": float(window[-2]),
        "filter_width": float(window[-1]),
        "filter_size": float(np.prod(window)),
        "pad": float(max(problem.pad)),
        "stride": float(max(problem.stride)),
        "dilation": float(max(problem.dilation)),
        "flops_log2": np.log2(problem.flops),
        "bytes_log2": np.log2(problem.least_bytes),
        "intensity_log2": np.log2(intensity),
        "rows_log2": np.log2(m),
        "cols_log2": np.log2(n),
        "depth_log2": np.log2(k),
        "depth_of_4": float(k % 4 == 0) + float(k % 8 == 0) + float(k % 16 == 0) + float(k % 32 == 0),
        "rows_of_32": float(m % 32 == 0) + float(m % 64 == 0) + float(m % 128 == 0),
        "cols_of_32": float(n % 32 == 0) + float(n % 64 == 0) + float(n % 128 == 0),
    }


def solver_frame(names: Sequence[str]) -> pd.DataFrame:
    """One row a solver: which of ``WORDS`` are in its name."""
    return pd.DataFrame([{f"solver_{word}": float(word.lower() in name.lower()) for word in WORDS} for name in names])


def device_row(device: Known) -> dict[str, float]:
    """Facts of a device as they are known, logarithms of those that are sizes."""
    return {f"device_{name}_log2": np.log2(device.facts[name]) if name in device.facts else np.nan for name in FACTS}


def gemm_of(problem: ConvProblem) -> tuple[float, float, float]:
    """Rows, columns and sum of the matrix product that the direction amounts to, of one group."""
    pixels = problem.batch * math.prod(map(float, problem.result[1:]))
    into = problem.result[0] / problem.groups
    of = (problem.image if problem.direction == "F" else problem.out)[0] / problem.groups
    window = of * math.prod(map(float, problem.filter))
    return {"F": (pixels, into, window), "B": (pixels, window, into), "W": (into, window, pixels)}[problem.direction]
