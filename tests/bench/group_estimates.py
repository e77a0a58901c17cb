"""Expected times of groups beside measured ones: ``python -m tests.bench.group_estimates --models FOLDER --scratch FOLDER``.

Of each model of ``measured_models.py`` up to ``--most`` candidates are timed at the requests of its prices, one thread: all
that greedy fusion or the chosen plan has, then others by chance. Times lie in the scratch folder as JSON, and are not taken
again. Then the rates of a core are fitted to all models but one, and hold for that one; ``--page`` writes what comes of it.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from haotuner.graph.graph import Graph
from haotuner.partition.costs import CORE, Kernel, Prices, Rates
from haotuner.partition.dim_ranges import requests, spans_of
from haotuner.partition.group_times import GroupRecords
from haotuner.partition.ilp_partition import IlpPartitioner
from haotuner.partition.layout import LAYOUTS
from haotuner.partition.loop_counts import FUNCTION, QUOTIENT, SIMPLE
from haotuner.partition.profiled_costs import ProfiledPrices
from haotuner.partition.segments import cut, flattened
from haotuner.partition.tasks import PRICED
from haotuner.verify.model_check import graph_of
from tests.bench.markdown import markdown_table
from tests.bench.measured_models import SUBJECTS, Subject, file_of

TIMED_S = 3600.0
VECTORS = {SIMPLE: "simple", QUOTIENT: "quotient", FUNCTION: "function"}  # whose rates have fields of their own
STAY, SOFT = 0.3, 0.7  # how strongly rates stay where they are; logarithms from which on an error counts less
HEAD = """# Expected times of groups

Made by `python -m tests.bench.group_estimates --models FOLDER --scratch FOLDER --page docs/results/group-estimates.md`.
Candidates of a model are timed at the requests of its prices, one thread. *off*: the factor between what was measured and
what was expected, whichever is larger. *left out*: by rates that were fitted to the other models alone; *as shipped*: by
`CORE` of `haotuner/partition/costs.py`.

"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Time what is not known yet, fit, and print the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--most", type=int, default=45)
    parser.add_argument("--page", type=Path)
    options = parser.parse_args(arguments)
    options.scratch.mkdir(parents=True, exist_ok=True)
    for subject in SUBJECTS:
        store = options.scratch / f"{subject.name}.json"
        if not store.exists() and (not options.only or subject.name in options.only):
            store.write_text(json.dumps(timed(subject, options.models, options.most)), encoding="utf-8")
            print(subject.name, flush=True)
    text = page({path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(options.scratch.glob("*.json"))})
    print(text)
    if options.page:
        options.page.write_text(text, encoding="utf-8")
    return 0


def timed(subject: Subject, folder: Path, most: int) -> list[dict[str, Any]]:
    """Rows of a model: of a candidate at a request its work, its outputs and its microseconds."""
    try:
        graph = graph_of(file_of(subject, folder), subject.shapes)
    except FileNotFoundError as error:
        print(f"{subject.name} is left out: {error}", file=sys.stderr)
        return []
    prices = Prices(requests(spans_of(graph, subject.shapes), PRICED))
    profiled = ProfiledPrices(prices.requests, TIMED_S, GroupRecords())
    rows: list[dict[str, Any]] = []
    for kernel, candidate in _candidates(graph, prices, most):
        profiled.measure([candidate])
        if profiled.knows(kernel):
            us = profiled.expected_us(candidate)
            outputs = len(candidate.outputs)
            rows += [row_of(work, outputs, time_us) for work, time_us in zip(prices.work_of(candidate), us, strict=True)]
    return rows


def row_of(work: Mapping[str, float], outputs: int, us: float) -> dict[str, Any]:
    """A row of a store."""
    return {"work": dict(work), "outputs": outputs, "us": us}


def _candidates(graph: Graph, prices: Prices, most: int) -> list[tuple[Kernel, Graph]]:
    """Candidates of a model, those of plans first."""
    first: dict[Kernel, Graph] = {}
    others: dict[Kernel, Graph] = {}
    for segment in flattened(cut(graph)):
        if segment.graph is None:
            continue
        plan = LAYOUTS["cheapest"](IlpPartitioner(segment.graph, prices))
        for window, solution in zip(plan.windows, plan.solved, strict=True):
            chosen = {kernel.key for kernel in solution} | window.greedy
            for candidate in (candidate for candidate in window.candidates if not candidate.alias):
                (first if candidate.key in chosen else others)[candidate.key] = plan.subgraph(*candidate.key)
    drawn = list(others.items())
    random.Random(0).shuffle(drawn)
    return [*first.items(), *drawn][:most]


def fitted(rows: Sequence[Mapping[str, Any]]) -> Rates:
    """Rates of a core by these rows: the least sum of softened squares of logarithms."""
    from scipy.optimize import least_squares

    names = [*VECTORS, *CORE.loops_ns, "near", "far"]
    start = np.log([*(CORE.counted_ns(name) for name in names[:-2]), 1e3 / CORE.bytes_moved, 1e3 / CORE.bytes_far])
    logs = np.log([row["us"] for row in rows])

    def rates_of(point: Any) -> Rates:
        ns = dict(zip(names, np.exp(point).tolist(), strict=True))
        vectors = {field: 1e3 / ns[kind] for kind, field in VECTORS.items()}
        loops = {kind: ns[kind] for kind in CORE.loops_ns}
        return replace(CORE, **vectors, loops_ns=loops, bytes_moved=1e3 / ns["near"], bytes_far=1e3 / ns["far"])

    def errors(point: Any) -> Any:
        rates = rates_of(point)
        expected = [rates.loops_us(row["work"], row["outputs"]) for row in rows]
        return np.concatenate([np.log(expected) - logs, STAY * (point - start)])

    return rates_of(least_squares(errors, start, loss="soft_l1", f_scale=SOFT).x)


def page(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """The page's text."""
    known = {name: model_rows for name, model_rows in rows.items() if model_rows}
    lines, errors_by_rates = [], dict[str, list[float]]()
    for name, model_rows in known.items():
        rates_by_name = {"as shipped": CORE}
        if len(known) > 1:
            rates_by_name["left out"] = fitted([row for other, others in known.items() if other != name for row in others])
        cells = []
        for word, rates in rates_by_name.items():
            off = [abs(math.log(rates.loops_us(row["work"], row["outputs"]) / row["us"])) for row in model_rows]
            errors_by_rates.setdefault(word, []).extend(off)
            cells += _distribution(off)
        lines.append([name, str(len(model_rows)), *cells])
    cells = [cell for off in errors_by_rates.values() for cell in _distribution(off)]
    lines.append(["**all**", str(sum(map(len, known.values()))), *cells])
    statistics_ = ("median", "mean", "nine in ten", "within 2x")
    names = [f"{word}: {statistic}" for word in errors_by_rates for statistic in statistics_]
    return HEAD + "\n".join(markdown_table(["model", "times", *names], lines))


def _distribution(off: Sequence[float]) -> list[str]:
    """Of logarithms of factors."""
    points = statistics.median(off), statistics.fmean(off), float(np.quantile(off, 0.9))
    within = sum(error <= math.log(2) for error in off) / len(off)
    return [*(f"{math.exp(point):.2f}" for point in points), f"{within:.0%}"]


if __name__ == "__main__":
    sys.exit(main())
