"""Outputs of a graph that one program writes: those over the same rows, whose folds run along them.

Each output is asked for in turn, the widest first, and joins a program that can write it too. What stays apart says why.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from haotuner.codegen.expressions import Fold, free_variables, parts
from haotuner.codegen.online_softmax import match_online_softmax
from haotuner.codegen.rfactor import joined
from haotuner.codegen.schedule import Schedule, levels_of_folds, planned, tileable
from haotuner.codegen.sketch import sketches
from haotuner.errors import UsageError
from haotuner.graph.graph import Graph


@dataclass(frozen=True, slots=True)
class OutputGroup:
    """Outputs of one program, the one whose points the loops are first; ``apart``: why one has a program of its own."""

    outputs: tuple[str, ...]
    apart: str = ""


def part_of(graph: Graph, outputs: tuple[str, ...]) -> Graph:
    """Subgraph that some outputs need. UsageError for one that is an input, or depends on none."""
    needed, selected = set(outputs), []
    for node in reversed(graph.nodes):
        if node.output in needed:
            selected.append(node)
            needed.update(node.inputs)
    for output in outputs:
        if graph.producer(output) is None:
            raise UsageError(f"output {output} is an input as it came: there is nothing to compute")
    inputs = tuple(name for name in graph.inputs if name in needed)
    if not inputs:
        raise UsageError(f"output {outputs[0]} depends on no input")
    return Graph(
        inputs=inputs,
        outputs=outputs,
        nodes=tuple(reversed(selected)),
        types={name: tensor_type for name, tensor_type in graph.types.items() if name in needed},
        constants={name: constant for name, constant in graph.constants.items() if name in needed},
    )


def output_groups(graph: Graph, fits: Callable[[Graph], None]) -> tuple[OutputGroup, ...]:
    """All outputs; ``fits`` raises UsageError for what has no room."""
    left = sorted(dict.fromkeys(graph.outputs), key=lambda item: -_width(graph, item))
    result, why = [], dict[str, str]()
    while left:
        own: tuple[str, ...] = (left.pop(0),)
        for other in tuple(left):
            try:
                _joinable(part_of(graph, (*own, other)), fits)
            except UsageError as error:
                why.setdefault(other, f"not written with {', '.join(own)}: {error}")
                why.setdefault(own[0], f"not written with {other}: {error}")  # said where none joins it
                continue
            own = (*own, other)
            left.remove(other)
        result.append(own)
    return tuple(OutputGroup(own, why.get(own[0], "") if len(own) == 1 else "") for own in result)


def _width(graph: Graph, output: str) -> int:
    """Axes that are more than one point: rows have fewer than what lies along them."""
    return sum(extent != 1 for extent in graph.types[output].shape)


def _joinable(graph: Graph, fits: Callable[[Graph], None]) -> None:
    """UsageError says why no program writes all outputs, or why separate ones do better."""
    first, *_ = graph.outputs
    alone = {tensor: part_of(graph, (tensor,)) for tensor in graph.outputs}
    for left, own in alone.items():
        last = graph.types[left].rank - 1
        if match_online_softmax(own) is not None or any(sketch.tiled for sketch in sketches(own)) and tileable(own, last):
            raise UsageError(f"{left} has tiles of its own, whose operands are used again")
    plan = planned(graph, Schedule(lane_axis=graph.types[first].rank - 1, lanes=2, unroll=1))
    folds = {part for value in plan.values() for part in parts(value) if isinstance(part, Fold)}
    lanes = plan.loops[-1][0].name
    if len({lanes in free_variables(fold) for fold in folds}) > 1:
        raise UsageError("some of them fold along rows, others across")
    cut = next((first for first, own in alone.items() if joined(own)), None)
    if cut is not None and not levels_of_folds(plan):
        raise UsageError(f"blocks share the fold of {cut} where rows are few and long, which beside others they could not")
    fits(graph)
