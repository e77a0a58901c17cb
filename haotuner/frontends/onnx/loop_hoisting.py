"""Products of a loop's rows, computed of the whole sequence before it: x W of a recurrent layer is one, not one a turn.

A tensor of a turn that is the turn's row of a tensor outside, and what products with constants make of such rows, is read in
place: the body has no node of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from haotuner.frontends.onnx.constant_folding import ConstantFolding
from haotuner.frontends.onnx.scalars import plain
from haotuner.graph.data_dependent_shapes import made_dimensions
from haotuner.graph.extents import Extent, same
from haotuner.graph.graph import Node, sizes_of
from haotuner.graph.types import TensorType

_LIFTED = ("map", "cast", "reshape", "transpose", "contract")


def hoist_loop_invariants(
    g: ConstantFolding, nodes: Iterable[Node], variables: Iterable[str], changing: Iterable[str]
) -> tuple[set[str], set[str]]:
    """Tensors and branches that differ from turn to turn: tensors are those made of a turn's ``variables``.

    ``changing``: dimensions of the variables that differ from turn to turn.
    """
    inputs, result, sizes, branches = set(variables), set[str](), set(changing), set[str]()
    for node in nodes:
        sides = {name for name, _ in g.guards.get(node.output, ())}
        of_data = not sizes.isdisjoint(sizes_of(node, g.types)) or not branches.isdisjoint(sides)
        if of_data or any(tensor in inputs or tensor in result for tensor in node.inputs):
            result.add(node.output)
            sizes.update(made_dimensions(node.primitive, node.attributes))
            branches |= {node.attributes["branch"]} if node.primitive == "decided" else set()
    return result, branches


@dataclass(slots=True)
class HoistedSequences:
    """``counters``: tensors that hold the number of the turn; ``turns``: how many; ``changing``: as of ``of_turns``."""

    g: ConstantFolding
    start: int
    turns: Extent
    counters: Collection[str]
    stacks: dict[str, str]  # of rows: the tensor outside
    changing: Collection[str] = ()
    made: dict[str, Node] = field(default_factory=dict)
    inside: set[str] = field(default_factory=set)
    types: dict[str, TensorType] = field(default_factory=dict)

    def rows(self, variables: Sequence[str], selected: Collection[str]) -> list[tuple[str, str]]:
        """Tensors outside, and their rows that the body reads; nodes that make these leave the body.

        ``variables`` of a turn; ``selected``: what the body must make itself.
        """
        g = self.g
        nodes = g.nodes[self.start :]
        self.made = {node.output: node for node in nodes}
        self.inside = {*variables, *hoist_loop_invariants(g, nodes, variables, self.changing)[0]}
        lifted = self._liftable(nodes)
        required = {node.output for node in nodes if node.output in lifted and node.primitive == "contract"}
        for node in reversed(nodes):
            if node.output in required and node.primitive != "gather":
                required |= {tensor for tensor in node.inputs if tensor in lifted}
        gone = {node.output for node in nodes if node.output in required} - set(selected)
        gone |= {node.output for node in nodes if node.output in lifted and node.primitive == "gather"} - set(selected)
        for node in nodes:
            if node.output in required | gone:
                self.stacks[node.output] = self._lift(node)
        g.nodes[self.start :] = [node for node in g.nodes[self.start :] if node.output not in gone]
        read = {tensor for node in g.nodes[self.start :] for tensor in node.inputs}
        return [(self.stacks[item], item) for item in self.made if item in gone and item in read]

    def _liftable(self, nodes: Sequence[Node]) -> set[str]:
        """Tensors of a turn that are rows of what can be computed outside; none of a side that a turn may not take."""
        result = set(self.stacks)
        for node in nodes:
            if node.output not in self.inside or self.g.guards.get(node.output, ()) != self.g.guard:
                continue
            row = node.primitive == "gather" and self._is_row(node)
            of_rows = node.primitive in _LIFTED and all(
                tensor in result or tensor not in self.inside for tensor in node.inputs
            )
            alone = node.primitive != "contract" or sum(tensor in result for tensor in node.inputs) == 1
            if row or (of_rows and alone):
                result.add(node.output)
        return result

    def _is_row(self, node: Node) -> bool:
        """True if it is the turn's row of a tensor outside that has as many as there are turns."""
        of, index = node.inputs
        kinds = self.g.types
        return (
            of not in self.inside
            and node.attributes["axis"] == 0
            and kinds[index].rank == 0
            and plain(self.made, index) in self.counters
            and same(kinds[of].shape[0], self.turns)
        )

    def _lift(self, node: Node) -> str:
        """The node's result of all rows at once."""
        g, attributes = self.g, dict(node.attributes)
        if node.primitive == "gather":
            return node.inputs[0]
        rank = g.types[node.output].rank
        inputs = [self._stacked(tensor, rank if node.primitive == "map" else 0) for tensor in node.inputs]
        if node.primitive == "contract":
            labels, _, out = attributes["labels"].partition("->")
            new = next(item for item in "zyxwvutsrqponmlkjihgfedcba" if item not in attributes["labels"])
            parts = [
                new + own if part in self.stacks else own for own, part in zip(labels.split(","), node.inputs, strict=True)
            ]
            attributes["labels"] = f"{','.join(parts)}->{new}{out}"
        elif node.primitive == "reshape":
            attributes["shape"] = (self.turns, *attributes["shape"])
        elif node.primitive == "transpose":
            attributes["order"] = (0, *(attribute + 1 for attribute in attributes["order"]))
        return g.add(node.primitive, *inputs, **attributes)

    def _stacked(self, tensor: str, rank: int) -> str:
        """All rows of an operand, with axes of 1 behind the first so that each has ``rank`` axes."""
        result = self.stacks.get(tensor)
        if result is None:
            return tensor
        first, *rest = self.g.types[result].shape
        missing = max(0, rank - len(rest))
        return self.g.add("reshape", result, shape=(first, *(1,) * missing, *rest)) if missing else result
