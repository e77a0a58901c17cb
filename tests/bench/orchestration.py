"""The exact plan beside greedy fusion's and the predicted one: ``python -m tests.bench.orchestration --models FOLDER``.

    python -m tests.bench.orchestration --models FOLDER --scratch FOLDER [--only NAME …] [--seconds 60] [--page FILE]

Only generated groups are timed, for products are the same in all plans. The exact plan is the program's by times that a plan
asked for; the predicted one is the program's by expectations alone. Behind it every group of each plan is timed once more,
in records of its own, each in the faster of its two forms: so a choice among many times gains nothing by luck. Times are the
processor's, one thread, the least of some calls. What is known of a model lies in the scratch folder as JSON, and is not
measured again; the page's head is made of all that is there.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from math import exp, fsum, log
from pathlib import Path
from statistics import fmean
from typing import Any

from haotuner.backends.index import own_device
from haotuner.bench import machine_load
from haotuner.frontends.onnx.read import read
from haotuner.graph.graph import Graph
from haotuner.partition.costs import Prices
from haotuner.partition.dim_ranges import requests, spans_of
from haotuner.partition.greedy_fusion import Greedy, Loops, Step
from haotuner.partition.ilp_partition import IlpPartitioner
from haotuner.partition.profiled_costs import ProfiledPrices
from haotuner.partition.program_forms import ProgramSpace
from haotuner.partition.tasks import PRICED
from haotuner.spec.device import Device
from tests.bench.markdown import markdown_table
from tests.bench.measured_models import SUBJECTS, Subject, file_of
from tests.bench.sections import sections_of_others

MODELS = ("yolov4", "efficientvit", "candy", "segformer", "decoder")
PLANS = ("greedy", "predicted", "exact")
AGAIN_S = 300.0  # for timing the groups of the plans once more, at most
HEAD = """# Groups by a binary program beside greedy fusion

Made by `python -m tests.bench.orchestration --models FOLDER --scratch FOLDER --seconds {seconds:g} --page
docs/results/orchestration.md`. Products and what they carry are the same in all plans; only generated groups are priced and
timed, each in the faster of its two forms, on one thread, the mean over {requests} requests of the range. *predicted*: the
program's plan by expectations alone. *measured*: candidates that were timed in {seconds:g} s, because a plan wanted them;
what has no time then is in no plan of timed kernels. *prices*: what the program minimised. *times*: all groups of the three
plans, timed once more afterwards. Above 1 the exact plan is faster.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Plan and time what is not known yet, and write the head of the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, help="ONNX files; see examples/orchestration")
    parser.add_argument("--scratch", type=Path, required=True, help="keeps figures")
    parser.add_argument("--only", nargs="*", default=MODELS)
    parser.add_argument("--seconds", type=float, default=60.0, help="of measuring prices")
    parser.add_argument("--page", type=Path)
    options = parser.parse_args(arguments)
    options.scratch.mkdir(parents=True, exist_ok=True)
    device = own_device("cpu", measure=False, cache_dir=None)
    for subject in (subject for subject in SUBJECTS if subject.name in options.only):
        store = options.scratch / f"{subject.name}.json"
        if not store.exists():
            store.write_text(json.dumps(planned(subject, device, options), indent=1), encoding="utf-8")
            print(subject.name, store.read_text(encoding="utf-8"), flush=True)
    if options.page:
        stores = {name: options.scratch / f"{name}.json" for name in MODELS}
        rows = {name: json.loads(path.read_text(encoding="utf-8")) for name, path in stores.items() if path.exists()}
        options.page.write_text(page(rows, options.seconds) + sections_of_others(options.page), encoding="utf-8")
    return 0


def planned(subject: Subject, device: Device, options: argparse.Namespace) -> dict[str, Any]:
    """Figures of a model's three plans."""
    before, graph = machine_load.read(()), read(file_of(subject, options.models))
    at = requests(spans_of(graph, subject.shapes), PRICED)
    programs = ProgramSpace(device, at)
    begin = time.perf_counter()
    predicted = IlpPartitioner(graph, Prices(at))
    plans: dict[str, Sequence[Step]] = {"greedy": Greedy(graph).steps, "predicted": predicted.steps}
    expecting_s = time.perf_counter() - begin
    exact = IlpPartitioner(graph, ProfiledPrices(at, options.seconds, programs=programs))
    plans["exact"] = exact.steps
    report = exact.report
    times = plan_times(plans, at, programs)
    return {
        "windows": report.windows, "candidates": report.candidates, "measured": report.measured, "status": report.status,
        "seconds": [expecting_s, time.perf_counter() - begin], "bound_us": report.bound_us,
        "prices_us": [report.greedy_us, report.chosen_us], "us": times,
        "groups": {name: sum(isinstance(step, Loops) for step in steps) for name, steps in plans.items()},
        "foreign_cores": machine_load.foreign_cores(before, machine_load.read(())),
    }  # fmt: skip


def plan_times(
    plans: Mapping[str, Sequence[Step]], at: Sequence[Mapping[str, int]], programs: ProgramSpace | None = None
) -> dict[str, float]:
    """Microseconds of each plan's groups, the mean over requests, each group timed anew."""
    prices = ProfiledPrices(at, AGAIN_S, programs=programs)
    graphs: dict[str, list[Graph]] = {
        name: [step.graph for step in steps if isinstance(step, Loops)] for name, steps in plans.items()
    }
    while prices.measure([graph for plan in graphs.values() for graph in plan]):
        pass
    return {name: fsum(fmean(prices.expected_us(graph)) for graph in plan) for name, plan in graphs.items()}


def page(rows: Mapping[str, Any], seconds: float) -> str:
    """The text of the page's head."""
    lines, ratios = [], []
    for name, row in rows.items():
        us = [row["us"][plan] for plan in PLANS]
        ratios.append(us[0] / us[2])
        lines.append([
            name, f"{row['windows']}", f"{row['candidates']} / {row['measured']}",
            " / ".join(f"{value:.1f}" for value in row["seconds"]), row["status"], f"{row['bound_us']:,.0f}",
            " / ".join(f"{value:,.0f}" for value in row["prices_us"]),
            " / ".join(str(row["groups"][plan]) for plan in PLANS),
            " / ".join(f"{value:,.0f}" for value in us), f"**{us[0] / us[2]:.2f}**", f"{us[1] / us[2]:.2f}",
        ])  # fmt: skip
    head = ["model", "windows", "candidates / measured", "planning s, predicted / all", "status", "bound us",
            "prices us, greedy / exact", "groups, greedy / predicted / exact", "times us, greedy / predicted / exact",
            "greedy / exact", "predicted / exact"]  # fmt: skip
    lines_of_cpu = (line.partition(":") for line in Path("/proc/cpuinfo").read_text(encoding="ascii").splitlines())
    cpu = next((value.strip() for key, _, value in lines_of_cpu if key.startswith("model name")), platform.machine())
    mean = exp(fmean(map(log, ratios))) if ratios else 1.0
    text = [HEAD.format(seconds=seconds, requests=PRICED), *markdown_table(head, lines)]
    text.append(
        f"{cpu}, {len(os.sched_getaffinity(0))} cores, {datetime.now(UTC):%Y-%m-%d}; other programs kept "
        f"{max((row['foreign_cores'] for row in rows.values()), default=0.0):.1f} cores busy at the most. The exact plan "
        f"is {mean:.2f}x as fast as greedy fusion's in the geometric mean, {min(ratios, default=1.0):.2f}x at the least, "
        f"and 1.3x or more on {sum(ratio >= 1.3 for ratio in ratios)} of {len(ratios)}."
    )
    return "\n".join(text) + "\n"


if __name__ == "__main__":
    sys.exit(main())
