"""Demand of MIOpen's solvers: what their algorithm multiplies and moves, and the workspace that they write and read.

A find database names a solver and nothing of its tiles. So work is what the algorithm asks for, and the tile is the one
that such kernels commonly have: a block of 256 threads, 8 x 8 results a thread.
"""

from __future__ import annotations

import re

import numpy as np

from haotuner.spec.demand import Demand, DemandQuery, Tiles, Work

FAMILY = "miopen_conv"
NAIVE, DIRECT, GEMM, IMPLICIT, MATRIX, WINOGRAD, FFT = range(7)
_ALGORITHMS = (
    (re.compile("Naive"), NAIVE),
    (re.compile("Winograd"), WINOGRAD),
    (re.compile("fft"), FFT),
    (re.compile("Xdlops|CK|Mlir"), MATRIX),
    (re.compile("ImplicitGemm|Igemm"), IMPLICIT),
    (re.compile("^(Gemm|gemm|mlo?Gemm)"), GEMM),
)
# F(2x2, 3x3) and F(3x3, 2x2) multiply 16 times for 36 (Lavin and Gray 2016); a transform in two dimensions saves about as
# much on small filters.
_SAVED = 2.25
_THREADS, _RESULTS = 256.0, 64.0  # of a block, and of a thread
_NAIVE_RESULTS = 1.0
_WORKSPACE = 2.0  # times that it is moved: written, then read


def algorithm_of(solver: str) -> int:
    """Algorithm that a solver's name says; a direct convolution where it says none."""
    return next((algorithm for pattern, algorithm in _ALGORITHMS if pattern.search(solver)), DIRECT)


def solvers(requested: DemandQuery) -> Demand:
    """Parameters: ``al`` the algorithm, ``ws`` KiB of workspace, ``so`` a number for the solver, which nothing reads."""
    algorithm, workspace = requested.param("al"), requested.param("ws") * 1024.0
    b, c, h, w, f, r, s, p, q = (requested.extents[axis] for axis in "bchwfrspq")
    size, device = float(requested.element_bytes), requested.device
    outputs, depth = b * f * p * q, c * r * s
    saved = np.where((algorithm == WINOGRAD) | (algorithm == FFT), _SAVED, 1.0)
    flops = 2.0 * outputs * depth / saved
    least = (b * c * h * w + f * depth + outputs) * size
    results = np.where(algorithm == NAIVE, _NAIVE_RESULTS, _RESULTS)
    side, thread_side = np.sqrt(_THREADS * results), np.sqrt(results)
    matrix = algorithm == MATRIX
    registers = results + 2.0 * thread_side + 16.0
    shared = np.where(algorithm == NAIVE, 0.0, 2.0 * side * 8.0 * size)
    ones = np.ones_like(b)
    return Demand(
        work=Work(
            flops={"simd": np.where(matrix, 0.0, flops), "tensor": np.where(matrix, flops, 0.0)},
            least_bytes=least,
            far_bytes=least + _WORKSPACE * workspace,
            mid_bytes=flops / side * size + _WORKSPACE * workspace,
            near_bytes=flops / thread_side * size + _WORKSPACE * workspace,
        ),
        tiles=Tiles(
            count=np.ceil(outputs / (_THREADS * results)),
            threads=_THREADS * ones,
            waves=np.ceil(_THREADS / device.wave_width) * ones,
            vector=ones,
            registers=registers,
            shared_bytes=shared,
            l1_set_bytes=shared,
            l2_set_bytes=shared,
        ),
    )
