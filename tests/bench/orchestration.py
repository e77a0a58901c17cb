"""The exact plan beside greedy fusion's and the predicted one: ``python -m tests.bench.orchestration MODEL.onnx SHAPES``.

Only generated groups are timed, for products are the same in all plans: every group of each plan is compiled, run at
requests of the range with one thread, and the least times added up: the processor's time, which other programs do not
lengthen. Prices are what the program minimised, measured one by one where a plan wanted them; times are what the plans came
to afterwards. The predicted plan is the exact one by expected times alone.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from haotuner.backends.cpu.pack_source import GROUP_FLAGS
from haotuner.backends.toolchain import Toolchain
from haotuner.frontends.onnx.read import read
from haotuner.graph.extents import evaluate
from haotuner.graph.graph import Graph
from haotuner.graph.types import FLOATS, numpy_dtype
from haotuner.partition.costs import Prices
from haotuner.partition.dim_ranges import requests, spans_of
from haotuner.partition.executable import executable, source_of
from haotuner.partition.greedy_fusion import Greedy, Loops, Step
from haotuner.partition.ilp_partition import IlpPartitioner
from haotuner.partition.profiled_costs import ProfiledPrices
from haotuner.runtime.schedule import ExecutionPlan

REQUESTS = 6
LARGEST = 1 << 27  # bytes of one tensor of a timed request
DOOR = """
void run_group(int group, const int64_t* s, void* const* t) {
  const ht_group* g = &ht_groups[group];
  int64_t lo[HT_GROUP_AXES] = {0}, hi[HT_GROUP_AXES] = {0};
  for (int a = 0; a < g->rank; ++a) hi[a] = s[g->extents[a]];
  g->run(s, t, lo, hi);
}
"""


def timed_us(graph: Graph, steps: Sequence[Step], sizes: Sequence[Mapping[str, int]]) -> float:
    """Microseconds of all groups, the mean over requests."""
    model = executable("plan", graph, steps)
    schedule = ExecutionPlan.of(model.schedule, "plan")
    with tempfile.TemporaryDirectory() as scratch:
        source, library = Path(scratch) / "groups.c", Path(scratch) / "groups.so"
        source.write_text(source_of([model]) + DOOR)
        native = Path(__file__).parents[2] / "haotuner" / "runtime" / "native"
        command = [Toolchain.find().compiler, "-std=c11", "-O3", "-march=native", *GROUP_FLAGS, "-fPIC", "-shared",
                   "-I", str(native), str(source), "-o", str(library), "-lm"]  # fmt: skip
        subprocess.run(command, check=True)
        loaded = ctypes.CDLL(str(library))
        return statistics.mean(_request_us(loaded, graph, schedule, model.weights, one) for one in sizes)


def _request_us(loaded: Any, graph: Graph, schedule: ExecutionPlan, weights: bytes, dims: Mapping[str, int]) -> float:
    values = np.array(schedule.values(dims), np.int64)
    arrays: dict[str, Any] = {}
    for name, one in schedule.weights.items():
        count = int(np.prod(one["shape"], dtype=np.int64))
        kind = numpy_dtype(one["dtype"])
        arrays[name] = np.frombuffer(weights, kind, count, one["offset"]).reshape(one["shape"])
    total = 0.0
    draw = np.random.default_rng(0)
    for step in schedule.steps:
        if step["do"] != "loops":
            continue
        held = []
        for name in step["tensors"]:
            if name in schedule.tensors:
                dtype, shape = schedule.tensors[name]
                extents = [int(values[place]) for place in shape]
                made = draw.standard_normal(extents, np.float32) if dtype in FLOATS else np.zeros(extents)
                held.append(np.ascontiguousarray(made, numpy_dtype(dtype)))
            else:
                held.append(arrays[name])
        pointers = (ctypes.c_void_p * len(held))(*(one.ctypes.data for one in held))

        def call(pointers: Any = pointers, group: int = step["group"]) -> None:
            loaded.run_group(group, values.ctypes.data_as(ctypes.c_void_p), pointers)

        call()
        spent = []
        for _ in range(5):
            begin = time.thread_time()
            call()
            spent.append((time.thread_time() - begin) * 1e6)
        total += min(spent)
    return total


def main() -> int:
    """Print the plans' prices and times; ``--page`` appends the row of a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("shapes")
    parser.add_argument("--seconds", type=float, default=240.0, help="for measuring prices")
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    graph = read(options.model)
    sizes = requests(spans_of(graph, options.shapes), REQUESTS)
    small = [one for one in sizes if all(_bytes(graph, name, one) <= LARGEST for name in graph.types)]
    prices = ProfiledPrices(small, options.seconds)
    begin = time.perf_counter()
    exact = IlpPartitioner(graph, prices)
    best = exact.steps
    seconds = time.perf_counter() - begin
    predicted = IlpPartitioner(graph, Prices(small)).steps
    plans = {"greedy": Greedy(graph).steps, "predicted": predicted, "exact": best}
    times = {name: timed_us(graph, steps, small) for name, steps in plans.items()}
    groups = {name: sum(isinstance(one, Loops) for one in steps) for name, steps in plans.items()}
    report = exact.report
    row = (
        f"| {options.model.stem} | {report.windows} | {report.candidates} / {report.measured} | "
        f"{seconds:.0f}, {report.longest_s:.2f} | {report.status} | {report.bound_us:,.0f} | "
        f"{report.greedy_us:,.0f} / {report.chosen_us:,.0f} | {' / '.join(str(count) for count in groups.values())} | "
        f"{' / '.join(f'{us:,.0f}' for us in times.values())} | {times['greedy'] / times['exact']:.2f} | "
        f"{times['predicted'] / times['exact']:.2f} |"
    )
    print(row)
    if options.page:
        with options.page.open("a", encoding="utf-8") as page:
            page.write(row + "\n")
    return 0


def _bytes(graph: Graph, name: str, sizes: Mapping[str, int]) -> int:
    count = 1
    for extent in graph.types[name].shape:
        count *= evaluate(extent, sizes)
    return count * 4


if __name__ == "__main__":
    sys.exit(main())
