"""What of a model runs on no GPU, step by step: said before anything is tuned."""

from __future__ import annotations

from collections.abc import Sequence

from haotuner.errors import UsageError
from haotuner.graph.graph import Graph
from haotuner.orchestrate.cuda_loops import NOT_SERVED
from haotuner.orchestrate.greedy import Loops, Step
from haotuner.orchestrate.segments import data_dimensions, origins

SHOWN = 8  # the others are counted


def check_steps(name: str, graph: Graph, steps: Sequence[Step], segments: int) -> None:
    """UsageError that names what no kernel of a GPU computes: layers of many steps, sizes that data tell."""
    found = [
        f"{node.output}: a {node.attributes.get('kind', node.primitive)} layer goes through its steps one by one"
        for step in steps
        if isinstance(step, Loops)
        for node in step.graph.nodes
        if node.primitive in NOT_SERVED
    ]
    told = data_dimensions(graph)
    found += [f"{one}: a size that {origin} tells from data" for one, origin in origins(graph, told)]
    if segments > 1 and not told:
        found.append(f"{segments - 1} cuts where a size depends on data")
    if found:
        more = [f"… and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
        lines = "".join(f"\n  {one}" for one in [*found[:SHOWN], *more])
        raise UsageError(f"{name} cannot run on a GPU; tune it for the CPU: leave --device out\n{lines[1:]}")
