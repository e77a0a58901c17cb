"""Made-up tables of solvers: which is best hangs on the filter and on the generation of the device."""

from __future__ import annotations

import numpy as np

from haotuner.hw_profiles.table import Known, known_arch
from haotuner.records.miopen import SolverTable

SOLVERS = ("ConvWinograd", "GemmFwd", "ConvDirectNaive", "ConvIgemmXdlops")


def known(arch: str, units: int) -> Known:
    device = known_arch(arch, units, name=arch)
    assert device is not None
    return device


def table(arch: str, units: int, *, seed: int = 0, shapes: int = 120) -> SolverTable:
    """Winograd is fast for 3x3, products for 1x1, and on CDNA the units for small matrices for many channels."""
    rng, device = np.random.default_rng(seed), known(arch, units)
    problems, rows = [], []
    for at in range(shapes):
        channels, size, window = 16 * (1 + at % 7), 14 * (1 + at % 3), 1 + 2 * (at % 2)
        pad = window // 2
        texts = f"{channels}-{size}-{size}-{window}x{window}-{32 + at}-{size}-{size}-8-{pad}x{pad}-1x1-1x1-0-NCHW-FP32-F"
        problems.append(texts)
        slow = {"ConvWinograd": 1.0 if window == 3 else 3.0, "GemmFwd": 1.0 if window == 1 else 2.0, "ConvDirectNaive": 8.0}
        slow["ConvIgemmXdlops"] = 0.5 if channels > 64 else 2.5
        for index, name in enumerate(SOLVERS):
            if name == "ConvIgemmXdlops" and device.generation != "cdna":
                continue
            rows.append((at, index, slow[name] * (1.0 + 0.02 * rng.random())))
    problem, solver, ms = (np.array(column) for column in zip(*rows, strict=True))
    return SolverTable(
        device=device,
        problems=tuple(problems),
        solvers=SOLVERS,
        problem=problem,
        solver=solver,
        ms=ms.astype(np.float64),
        workspace=np.zeros(len(ms)),
    )
