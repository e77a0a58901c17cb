"""Check of a model for GPUs, before anything is tuned: what of it runs on none."""

from __future__ import annotations

from collections.abc import Sequence

from haotuner.codegen.loops.c_recurrent import fits_block
from haotuner.errors import UsageError
from haotuner.graph.graph import Graph, bodies
from haotuner.graph.types import NUMPY_NAMES
from haotuner.partition.greedy_fusion import Loops, Step
from haotuner.partition.segmented_model import RANDOM

SHOWN = 8  # the others are counted


def check_draws(name: str, graph: Graph) -> None:
    """UsageError that names random numbers of types that a pack's library does not draw, as it must on a GPU."""
    every = (node for body in (graph, *(body.graph for body in bodies(graph))) for node in body.nodes)
    draws = [(node.output, NUMPY_NAMES[node.attributes["dtype"]]) for node in every if node.primitive == "random"]
    lost = [(out, dtype) for out, dtype in draws if dtype not in RANDOM]
    _refuse(name, [f"{out}: random numbers of {dtype}; those of {' and '.join(RANDOM)} are drawn" for out, dtype in lost])


def check_steps(name: str, steps: Sequence[Step]) -> None:
    """UsageError that names the steps which no kernel of a GPU computes: recurrent layers that are too wide for a block."""
    nodes = [
        (node, step.graph.types[node.output].dtype) for step in steps if isinstance(step, Loops) for node in step.graph.nodes
    ]
    lost = [node for node, dtype in nodes if node.primitive == "recurrent" and not fits_block(node.attributes, dtype)]
    steps_ = [(step.output, step.attributes["kind"], step.attributes["hidden"]) for step in lost]
    _refuse(name, [f"{out}: the gates of a layer ({kind}) of {hidden} states fit no block" for out, kind, hidden in steps_])


def _refuse(name: str, names: Sequence[str]) -> None:
    if not names:
        return
    more = [f"… and {len(names) - SHOWN} more"] if len(names) > SHOWN else []
    lines = "".join(f"\n  {name}" for name in [*names[:SHOWN], *more])
    raise UsageError(f"{name} cannot run on a GPU; tune it for the CPU: leave --device out{lines}")
