"""Caches of a decoder: a graph's input that grows along one axis and is an output again, such as past and present keys.

A step of its own puts the rows of a call behind those that are there, so that a buffer may serve as both (cache_buffers.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from haotuner.graph.graph import Node
from haotuner.graph.types import axis_of
from haotuner.partition.products import Finder, View


@dataclass(frozen=True, slots=True)
class Append:
    """The input ``past`` with rows of ``new`` behind it along an axis are ``output``, an output of the graph."""

    output: str
    past: str
    new: View
    axis: int

    @property
    def nodes(self) -> tuple[str, ...]:
        """Outputs of the nodes that it computes."""
        return (self.output,)

    @property
    def reads(self) -> tuple[str, ...]:
        """Tensors that must be in memory."""
        return (self.past, self.new.tensor)


def appends_of(finder: Finder) -> Iterator[Append]:
    """Every cache of a graph."""
    graph = finder.graph
    for node in graph.nodes:
        if node.primitive == "concat" and len(node.inputs) == 2 and graph.outputs.count(node.output) == 1:
            past, new = node.inputs
            axis = axis_of(node.attributes["axis"], graph.types[past].rank, "concat")
            if _is_past(finder, node, past, axis):
                view = _memory(finder, new)
                if view.tensor not in graph.constants:
                    yield Append(node.output, past, view, axis)


def _is_past(finder: Finder, node: Node, past: str, axis: int) -> bool:
    """True if a tensor is an input that nothing else reads, and grows along the axis."""
    graph = finder.graph
    graph_input = past in graph.inputs and past not in graph.constants and past not in graph.outputs
    return graph_input and len(finder.readers[past]) == 1 and not isinstance(graph.types[past].shape[axis], int)


def _memory(finder: Finder, tensor: str) -> View:
    """View of a tensor in memory, in which elements of a row lie side by side."""
    view = finder.seen(tensor)
    if not view.order or view.order[-1] != len(view.order) - 1:
        return View(tensor, finder.graph.types[tensor].shape, tuple(range(finder.graph.types[tensor].rank)))
    return view
