"""What of a model runs on no GPU: said before anything is tuned."""

from __future__ import annotations

from collections.abc import Sequence

from haotuner.errors import UsageError
from haotuner.graph.graph import Graph, bodies
from haotuner.graph.types import NUMPY_NAMES
from haotuner.orchestrate.c_recurrent import fits_block
from haotuner.orchestrate.greedy_fusion import Loops, Step
from haotuner.orchestrate.segmented_model import RANDOM

SHOWN = 8  # the others are counted


def check_draws(name: str, graph: Graph) -> None:
    """UsageError that names random numbers of types that a pack's library does not draw, as it must on a GPU."""
    every = (node for one in (graph, *(body.graph for body in bodies(graph))) for node in one.nodes)
    told = [(node.output, NUMPY_NAMES[node.attributes["dtype"]]) for node in every if node.primitive == "random"]
    lost = [(out, dtype) for out, dtype in told if dtype not in RANDOM]
    _refuse(name, [f"{out}: random numbers of {dtype}; those of {' and '.join(RANDOM)} are drawn" for out, dtype in lost])


def check_steps(name: str, steps: Sequence[Step]) -> None:
    """UsageError that names the steps which no kernel of a GPU computes: recurrent layers that are too wide for a block."""
    nodes = [
        (node, step.graph.types[node.output].dtype) for step in steps if isinstance(step, Loops) for node in step.graph.nodes
    ]
    lost = [node for node, dtype in nodes if node.primitive == "recurrent" and not fits_block(node.attributes, dtype)]
    told = [(one.output, one.attributes["kind"], one.attributes["hidden"]) for one in lost]
    _refuse(name, [f"{out}: the gates of a layer ({kind}) of {hidden} states fit no block" for out, kind, hidden in told])


def _refuse(name: str, found: Sequence[str]) -> None:
    if not found:
        return
    more = [f"… and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
    lines = "".join(f"\n  {one}" for one in [*found[:SHOWN], *more])
    raise UsageError(f"{name} cannot run on a GPU; tune it for the CPU: leave --device out{lines}")
