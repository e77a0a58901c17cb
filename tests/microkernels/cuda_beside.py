"""CUDA programs with several outputs, on the emulator: ``python -m tests.microkernels.cuda_beside LIBRARY SYMBOL…``."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from haotuner.codegen.schedule import Plan, Schedule, levels_of_folds, planned
from haotuner.codegen.sibling_outputs import written
from haotuner.graph.extents import evaluate
from haotuner.graph.graph import Graph
from haotuner.graph.interpret import interpret
from haotuner.spec import numerics
from tests.codegen.groups_beside import deep, maps, norm
from tests.codegen.test_beside import ordered
from tests.emulator import build
from tests.microkernels.cuda_generated import Arguments
from tests.runtime.empty_models import nowhere


def plan_of(graph: Graph, **how: Any) -> Plan:
    """Along the last axis of the first output, unless said otherwise."""
    last = graph.types[graph.outputs[0]].rank - 1
    return planned(graph, Schedule(**({"lane_axis": last, "lanes": 32, "unroll": 2} | how)))


NORM, DEEP = ordered(norm(), 2), ordered(deep(), 1)
PROGRAMS: dict[str, tuple[Plan, str]] = {
    "norm": (plan_of(NORM), "fp32"),
    "norm_short": (plan_of(NORM, lanes=8, unroll=4, packed=4, peeled=True), "fp32"),
    "norm_fp16": (plan_of(NORM, unroll=4, packed=4, peeled=True), "fp16"),
    "norm_block": (plan_of(NORM, lanes=64, unroll=1, peeled=True), "fp32"),
    "norm_stages": (plan_of(NORM, lanes=64, unroll=2, parts=4), "fp16"),
    "deep": (plan_of(DEEP, lane_axis=-1), "fp32"),
    "maps": (plan_of(maps(), unroll=4, packed=4), "fp16"),
}


def wrong(library: ctypes.CDLL, symbol: str, sizes: dict[str, int], gap: int, blocks: int) -> str:
    """What is wrong with a call at these sizes, rows so far apart; empty if nothing is."""
    (plan, dtype), rng = PROGRAMS[symbol], np.random.default_rng(0)
    graph, storage_dtype = plan.graph, numerics.numpy_dtype(dtype)

    def shape(name: str) -> list[int]:
        return [evaluate(extent, sizes) for extent in graph.types[name].shape]

    inputs = {name: rng.standard_normal(shape(name)).astype(storage_dtype) for name in graph.inputs}
    outs = {name: numerics.Guarded(tuple(shape(name)), dtype) for name in written(graph)}
    arrays = [
        *(numerics.spaced(array, gap) if gap else array for array in inputs.values()),
        *(guarded.inner for guarded in outs.values()),
    ]
    arguments = Arguments()
    for index, array in enumerate(arrays):
        arguments.data[index] = array.ctypes.data if array.size else nowhere()
        arguments.strides[index][: array.ndim] = [stride // storage_dtype.itemsize for stride in array.strides]
    arguments.sizes[: len(graph.dimensions)] = [sizes[name] for name in graph.dimensions]
    levels = levels_of_folds(plan) if plan.schedule.parts > 1 else ()
    tiles = -(-sizes["n"] // (plan.schedule.lanes * plan.schedule.unroll))
    parts = min(plan.schedule.parts, max(tiles, 1))
    partial = np.full(max(1, parts * sizes["m"] * sum(map(len, levels))), np.nan, np.float32)
    arguments.partial = partial.ctypes.data
    error, threads = 0, max(plan.schedule.lanes, 32)
    for phase in range(1, 2 + len(levels)) if parts > 1 else (0,):
        arguments.phase, arguments.parts = phase, parts
        error = error or library[f"run_{symbol}"](ctypes.byref(arguments), blocks, threads)
    errors = [f"error {error}"] * bool(error)
    expected = interpret(graph, {name: array.astype(np.float32) for name, array in inputs.items()})
    for name, out in outs.items():
        close = 2e-5 if dtype == "fp32" else 2e-3
        errors += [f"{name} is wrong"] * (
            not np.allclose(out.inner.astype(np.float32), expected[name], rtol=close, atol=close)
        )
        errors += [f"wrote outside {name}"] * out.touched()
    return f"{symbol} {sizes}: {', '.join(errors)}" if errors else ""


def main(library: str, symbols: Sequence[str]) -> None:
    """The programs at ragged sizes, by fewer groups than rows and by more; no row, and rows of nothing."""
    ctypes.CDLL(str(build.machine()), ctypes.RTLD_GLOBAL)
    loaded = ctypes.CDLL(library)
    for symbol in symbols:
        for m, n, gap, blocks in ((3, 37, 3, 1), (2, 131, 0, 2), (1, 1, 0, 1), (5, 300, 1, 3), (0, 5, 0, 1), (3, 0, 0, 1)):
            if n == 0 and symbol == "deep":
                continue  # the largest of nothing less itself is no number
            if message := wrong(loaded, symbol, {"k": 2, "m": m, "n": n}, gap, blocks):
                print(message)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
