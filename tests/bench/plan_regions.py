"""One plan for the range, or one a region of shapes: ``python -m tests.bench.plan_regions MODEL.onnx SHAPES [--page FILE]``.

Prices are measured where a plan wants them, once for all. Then the program is solved for the mean of all requests, and for
each request alone. What the one plan loses at a request is what a plan of its own would save there, before the price of
choosing between plans. ``--page`` appends a row for each request.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from haotuner.graph.graph import Graph
from haotuner.importing.read import read
from haotuner.orchestrate.costs import Prices
from haotuner.orchestrate.exact import Exact
from haotuner.orchestrate.greedy import Loops
from haotuner.orchestrate.measured import Measured
from haotuner.orchestrate.tasks import requests, spans_of

REQUESTS = 6
NOISE = 0.03  # of a request's time: less is no difference


class AtOne(Prices):
    """The prices of some requests at one of them."""

    def __init__(self, every: Measured, place: int) -> None:
        super().__init__([every.requests[place]])
        self.every, self.place = every, place

    def each_us(self, graph: Graph) -> list[float]:
        """Of the one request."""
        return [self.every.each_us(graph)[self.place]]

    def measure(self, graphs: Sequence[Graph]) -> bool:
        """Kernels are timed at all requests."""
        return self.every.measure(graphs)

    def knows(self, output: str, nodes: frozenset[str]) -> bool:
        """Whether the kernel has times."""
        return self.every.knows(output, nodes)


def groups_of(plan: Exact) -> dict[str, Graph]:
    """The generated kernels of a plan."""
    return {one.output: one.graph for one in plan.steps if isinstance(one, Loops)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each request and whether one plan dominates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("shapes")
    parser.add_argument("--seconds", type=float, default=240.0, help="for measuring prices")
    parser.add_argument("--page", type=Path)
    asked = parser.parse_args(arguments)
    graph = read(asked.model)
    prices = Measured(requests(spans_of(graph, asked.shapes), REQUESTS), asked.seconds)
    whole = groups_of(Exact(graph, prices))
    own = [groups_of(Exact(graph, AtOne(prices, place))) for place in range(len(prices.requests))]
    rows, worst = [], 0.0
    for place, (dims, plan) in enumerate(zip(prices.requests, own, strict=True)):
        one, other = (sum(prices.expected_us(group)[place] for group in groups.values()) for groups in (whole, plan))
        apart = sum(_kernel(group) not in set(map(_kernel, whole.values())) for group in plan.values())
        worst = max(worst, one / other - 1)
        sizes = ", ".join(f"{name} {size}" for name, size in dims.items())
        rows.append(
            f"| {asked.model.stem} | {sizes} | {one:,.0f} | {other:,.0f} | {one / other - 1:.1%} | {apart} of {len(plan)} |"
        )
    text = "\n".join(rows)
    print(text)
    print(f"{asked.model.stem}: {'one plan dominates' if worst < NOISE else 'regions differ'}, at most {worst:.1%} are lost")
    if asked.page:
        with asked.page.open("a", encoding="utf-8") as page:
            page.write(text + "\n")
    return 0


def _kernel(group: Graph) -> tuple[str, frozenset[str]]:
    return group.outputs[0], frozenset(node.output for node in group.nodes)


if __name__ == "__main__":
    sys.exit(main())
