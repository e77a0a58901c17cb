"""Features of Xgemm configurations: the program, what the analysis expects of it on a device, and the device."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from haotuner.cost.roofline import expected_us
from haotuner.hw_profiles.table import Known
from haotuner.microkernels.imported.xgemm import xgemm
from haotuner.records.clblast import PARAMETERS, Configs
from haotuner.spec.demand import DemandQuery
from haotuner.spec.device import Device, Kind

Values = NDArray[np.float64]
_SIZE = 1024  # of the problem that CLBlast tunes for, m = n = k
_FACTS = ("compute_units", "wave_width", "fma_pipes", "shared_per_block_bytes", "peak_gflops", "memory_gbps",
          "registers_per_thread", "threads_per_unit", "l2_bytes")  # fmt: skip
# Of a middling GPU; they move all kernels of a device alike.
_USUAL = {"compute_units": 16.0, "wave_width": 32.0, "registers_per_thread": 128.0}
_TYPES = {field.name: str(field.type) for field in fields(Device) if field.name not in ("memory_gbps_unit", "tensor_tflops")}
_SWITCHES = ("GEMMK", "SA", "SB", "STRM", "STRN")


def plain(configs: Configs) -> Values:
    """Parameters as logarithms, switches as they are; what a distance between configurations is taken in."""
    columns = _columns(configs)
    return np.stack([column if name in _SWITCHES else np.log2(column) for name, column in columns.items()], axis=1)


def program(configs: Configs) -> Values:
    """Parameters, and what follows from them: threads, a thread's tile, loads, staged bytes, groups of threads."""
    c = _columns(configs)
    rows, cols, threads = c["MWG"] / c["MDIMC"], c["NWG"] / c["NDIMC"], c["MDIMC"] * c["NDIMC"]
    logs = [
        threads,
        rows,
        cols,
        rows * cols,
        rows / cols,
        (rows + cols) / (rows * cols),
        rows * cols + rows + cols,
        c["MWG"] * c["NWG"],
        c["MWG"] / c["NWG"],
        1.0 + (c["SA"] * c["MWG"] + c["SB"] * c["NWG"]) * c["KWG"] * 4.0,
        rows / c["VWM"],
        cols / c["VWN"],
        c["VWM"] * c["VWN"],
        c["MDIMA"] / c["MDIMC"],
        c["NDIMB"] / c["NDIMC"],
        c["MWG"] / c["MDIMA"] / c["VWM"],
        c["NWG"] / c["NDIMB"] / c["VWN"],
    ]
    counts = [c["SA"] + c["SB"], c["STRM"] + 2.0 * c["STRN"], np.minimum(c["VWM"], c["VWN"])]
    return np.concatenate([plain(configs), np.log2(np.stack(logs, axis=1)), np.stack(counts, axis=1)], axis=1)


def facts(device: Known) -> Values:
    """What is known of a device, NaN where nobody knows; shape ``(facts,)``."""
    known = [np.log2(device.facts[name]) if device.facts.get(name, 0) > 0 else np.nan for name in _FACTS]
    return np.array([float(device.kind == "cpu"), *known])


def analysis(configs: Configs, device: Known) -> Values:
    """Log of the expected time of each configuration on the device, less that of the fastest; shape ``(configs,)``."""
    c, count = _columns(configs), len(configs)
    direct = c["GEMMK"] == 1.0  # nothing staged, steps of KREG
    params = {name.lower(): column for name, column in c.items()}
    params |= {name: np.where(direct, c["KREG"], params[name]) for name in ("kwg", "kwi")}
    extents = {axis: np.full(count, float(_SIZE)) for axis in "mnk"}
    on = stand_in(device)
    requested = DemandQuery(device=on, params=params, extents=extents, element_bytes=4, cold=False, kernels=(),
                  kernel_at=np.zeros(count, np.int64))  # fmt: skip
    with np.errstate(divide="ignore", invalid="ignore"):
        expected = np.log(expected_us(on, xgemm(requested)))
    return np.asarray(expected - expected.min(), np.float64)


def stand_in(known: Known) -> Device:
    """A Device for the analysis of GPUs, which also stands for OpenCL on CPUs; usual numbers where nobody knows better."""
    numbers = {name: value for name, value in (_USUAL | dict(known.facts)).items() if name in _TYPES}
    typed = {name: value if _TYPES[name].startswith("float") else int(value) for name, value in numbers.items()}
    kind: Kind = "hip" if known.arch.startswith("gfx") else "cuda" if known.arch.startswith("sm_") else "opencl"
    return Device(id=known.id, kind=kind, name=known.name, arch=known.arch or "unknown", **typed)  # type: ignore[arg-type]


def _columns(configs: Configs) -> dict[str, Values]:
    return dict(zip(PARAMETERS, configs.T.astype(np.float64), strict=True))
