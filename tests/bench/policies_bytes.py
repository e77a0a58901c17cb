"""What policies choose by predicted bytes, beside exhaustive search: a section of the policies' page."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from haotuner.codegen.memory_traffic import Level, MemoryTraffic
from haotuner.codegen.op_counter import count_ops
from haotuner.codegen.schedule import planned
from haotuner.codegen.space import Point, Space
from haotuner.graph import decompositions
from haotuner.graph.extents import dimension
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.search.policies.index import POLICIES
from haotuner.search.policies.policy import Maker

LOOKS, SEEDS = 48, 2
M, N, K = (dimension(name) for name in "mnk")


def made(build: Callable[[GraphBuilder], str]) -> Graph:
    g = GraphBuilder()
    return g.finish(build(g))


def product(g: GraphBuilder) -> str:
    return g.map("max", g.add("contract", g.input("a", (M, K)), g.input("b", (K, N)), labels="mk,kn->mn"), 0.0)


GROUPS = {  # a group, sizes, a cache: the space's programs differ in what they move over its edge
    "product + relu": (Space(made(product), 16), {"m": 192, "n": 256, "k": 640}, Level(1 << 17, 16)),
    "softmax": (
        Space(made(lambda g: decompositions.softmax(g, g.input("x", (M, N)))), 16), {"m": 64, "n": 4096}, Level(1 << 13, 16),
    ),
    "sum of few long rows, two workers": (
        Space(made(lambda g: g.add("reduce", g.input("x", (M, N)), how="sum", axes=(1,))), 16, workers=2),
        {"m": 2, "n": 1 << 16}, Level(1 << 15, 16),
    ),
    "softmax of few long rows, two workers": (  # four of its points are in stages
        Space(made(lambda g: decompositions.softmax(g, g.input("x", (M, N)))), 16, workers=2),
        {"m": 2, "n": 1 << 16}, Level(1 << 15, 16),
    ),
}  # fmt: skip


def section() -> list[str]:
    """Lines of Markdown."""
    text = [
        "## By predicted bytes, beside exhaustive search",
        "",
        "Bytes over a cache's edge, counted for every point of a space. A policy is given them as what it expects and as "
        f"what it measures. Its best of {LOOKS} looks over the least of all, mean of {SEEDS} seeds.",
        "",
        f"| group | points | least | most | {' | '.join(POLICIES)} |",
        "|---|" + "---|" * (3 + len(POLICIES)),
    ]
    for name, (space, sizes, level) in GROUPS.items():
        known = {point: moved(space, point, sizes, level) for point in space.points}
        least, most = min(known.values()), max(known.values())
        cells = []
        for policy in POLICIES.values():
            ratios = [best_of(policy, space, known, seed) / least for seed in range(SEEDS)]
            cells.append(f"{np.mean(ratios) - 1:.1%}")
        text.append(f"| {name} | {len(known):,} | {least:,.0f} | {most:,.0f} | {' | '.join(cells)} |")
    return [*text, ""]


def moved(space: Space, point: Point, sizes: Mapping[str, int], level: Level) -> float:
    return MemoryTraffic(count_ops(planned(space.graph, space.schedule(point)), sizes), every=1).bytes(level)


def best_of(make: Maker, space: Space, known: dict[Point, float], seed: int) -> float:
    search, measured = make(space, lambda points: np.log([[known[point]] for point in points]), seed), dict[Point, float]()
    while len(measured) < LOOKS and (batch := search.ask(8)):
        measured |= {point: known[point] for point in batch}
        search.tell([(point, float(np.log(known[point]))) for point in batch])
    return min(measured.values())
