"""One plan for a range, or plans by region: ``python -m tests.bench.plan_regions MODEL.onnx SHAPES [--page FILE]``.

Generated groups are priced by measured times at some requests of the range, those that plans of single requests want, too.
Of each request: what its groups take by the one plan, by the cheapest of all plans there, and by the plan of its region, as
tuning would have it. Where there are regions both plans are timed once more afterwards, for a choice among many times is too
hopeful about what it chose. ``--page`` appends the rows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from haotuner.frontends.onnx.read import read
from haotuner.partition.dim_ranges import requests, spans_of
from haotuner.partition.greedy_fusion import Loops, Specialization, Step
from haotuner.partition.ilp_partition import IlpPartitioner
from haotuner.partition.profiled_costs import ProfiledPrices
from haotuner.partition.specializations import Choice, ways_of
from haotuner.partition.tasks import PRICED
from tests.bench.orchestration import plan_times

WAYS_S = 60.0  # for timing what plans of single requests want, beside --seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each request and what the regions are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("shapes")
    parser.add_argument("--seconds", type=float, default=180.0, help="for measuring prices of the one plan")
    parser.add_argument("--page", type=Path)
    args = parser.parse_args(arguments)
    graph = read(args.model)
    prices = ProfiledPrices(requests(spans_of(graph, args.shapes), PRICED), args.seconds)
    plan = IlpPartitioner(graph, prices)
    whole = Specialization(plan.steps)
    prices.allow(WAYS_S)
    ways, choice = ways_of(plan), Choice(plan)
    choice.add_own()
    least = choice.costs.min(axis=0)

    def us(steps: Sequence[Step], at: int) -> float:
        return sum(prices.expected_us(item.graph)[at] for item in steps if isinstance(item, Loops))

    rows = []
    for at, dims in enumerate(prices.requests):
        way = next(part for part in ways if part.serves(dims))
        again = plan_times({"one plan": whole.steps, "own": way.steps}, [dims]).values() if len(ways) > 1 else ()
        one_us, way_us = us(whole.steps, at), us(way.steps, at)
        rows.append(
            f"| {args.model.stem} | {_said(dims)} | {one_us:,.1f} | {least[at]:,.1f} | {one_us / least[at] - 1:.1%} "
            f"| {way_us:,.1f} ({ways.index(way) + 1} of {len(ways)}) | {' / '.join(f'{us_:,.0f}' for us_ in again) or '-'} |"
        )
    text = "\n".join(rows)
    lines = [f"{item['where']}: {item['own_kernels']} kernels of its own" for item in plan.report.ways]
    print(text)
    print(f"{args.model.stem}: {'; '.join(lines) or 'one plan dominates'}")
    if args.page:
        with args.page.open("a", encoding="utf-8") as page:
            page.write(text + "\n")
    return 0


def _said(dims: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size}" for name, size in dims.items())


if __name__ == "__main__":
    sys.exit(main())
