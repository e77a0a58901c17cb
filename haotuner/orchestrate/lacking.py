"""What of a model runs on no GPU: said before anything is tuned."""

from __future__ import annotations

from collections.abc import Sequence

from haotuner.errors import UsageError
from haotuner.graph.data_sizes import BRANCHING, HOST, MAKING
from haotuner.graph.graph import Graph
from haotuner.orchestrate.c_recurrent import fits_block
from haotuner.orchestrate.greedy import Loops, Step
from haotuner.orchestrate.segments import data_dimensions, origins

SHOWN = 8  # the others are counted


def check_sizes(name: str, graph: Graph) -> None:
    """UsageError that names what the host does in the midst of a model: sizes that data tell, random numbers."""
    found = [f"{one} is known only from data: {origin}" for one, origin in origins(graph, data_dimensions(graph))]
    made = [node for node in graph.nodes if node.primitive in HOST and node.primitive not in MAKING]
    told = [
        f"{node.output}: {node.primitive} is of the host"
        for node in made
        if node.primitive not in (*BRANCHING, "loop", "loop_result")
    ]
    for node in made:
        if node.primitive == "decided":
            both = ", ".join(one.output for one in made if one.primitive == "chosen" and one.inputs[0] == node.output)
            told.append(f"the branch that makes {both}: the host asks which side is taken")
    loops = [node.output for node in made if node.primitive == "loop"]
    ends = {one: ", ".join(node.output for node in made if node.inputs[:1] == (one,)) for one in loops}
    _refuse(name, [*found, *told, *(f"the loop that makes {end}: the host counts its turns" for end in ends.values())])


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
