"""Analysis of loops: trip counts, sizes that grow from turn to turn, products computed before the loop.

Trip count of loops whose condition is that a counter lies below a limit: TensorFlow writes all loops so.

Sizes of carried values that change from turn to turn, as of a key-value cache to which each turn adds a row.

A turn knows such a size by a dimension of its own. Where every turn adds the same to it, the size behind the last turn
follows from how many there were; otherwise it is a dimension that the turns tell.

Products of a loop's rows, computed of the whole sequence before it: x W of a recurrent layer is one, not one a turn.

A tensor of a turn that is the turn's row of a tensor outside, and what products with constants make of such rows, is read in
place: the body has no node of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from haotuner.errors import UsageError
from haotuner.frontends.onnx.constant_folding import ConstantFolding
from haotuner.frontends.onnx.lengths import new_dimension
from haotuner.frontends.onnx.value_analysis import number_held, plain
from haotuner.graph.control_flow import made_dimensions
from haotuner.graph.extents import Extent, canonical, ceiling_division, dimensions, largest, same, text
from haotuner.graph.graph import Node, sizes_of
from haotuner.graph.typed_extents import never_negative
from haotuner.graph.types import TensorType


def always(g: ConstantFolding, condition: str) -> bool:
    """True if a condition is known to hold."""
    result = g.numbers(condition)
    return result is not None and bool(np.asarray(result).all())


def counted(
    g: ConstantFolding, goes_on: str, condition: str | None, pairs: Sequence[tuple[str, str]], firsts: Sequence[str]
) -> Extent | None:
    """The turns, an extent, of a condition that is no more than ``counter < limit`` behind a turn; else None.

    ``condition``: the condition of the first turn; ``pairs``: carried values before and behind a turn, of ``firsts`` at
    first.
    """
    made = {node.output: node for node in g.nodes}
    sides = _less(g, made, goes_on)
    if sides is None:
        return None
    value, limit = plain(made, sides[0]), _number(g, made, sides[1])
    position = next((at for at, (_, after) in enumerate(pairs) if plain(made, after) == value), None)
    if position is None or limit is None:
        return None
    step, first = _step(g, made, *pairs[position]), _number(g, made, firsts[position])
    if step is None or first is None:
        return None
    turns = ceiling_division(canonical(limit - first), step)
    if condition is None:
        return largest([turns, 1])
    before = _less(g, made, condition)
    alike = before is not None and _alike(_number(g, made, before[0]), first) and _alike(_number(g, made, before[1]), limit)
    return (turns if never_negative(turns) else largest([turns, 0])) if alike else None


def _alike(extent: Extent | None, other: Extent) -> bool:
    return extent is not None and same(extent, other)


def _less(g: ConstantFolding, made: dict[str, Node], tensor: str) -> tuple[str, str] | None:
    """Both sides of ``one < other``, however it is written."""
    node = made.get(plain(made, tensor))
    if node is None or node.primitive != "map":
        return None
    function = node.attributes["function"]
    if function == "less":
        return node.inputs[0], node.inputs[1]
    if function == "greater":
        return node.inputs[1], node.inputs[0]
    if function == "and":
        stored = [tensor for tensor in node.inputs if not always(g, tensor)]
        return _less(g, made, stored[0]) if len(stored) == 1 else None
    return None


def _number(g: ConstantFolding, made: dict[str, Node], tensor: str) -> Extent | None:
    """The whole number, or expression of dimensions, that a tensor of one element holds."""
    result = number_held(g, made, tensor)
    return result if isinstance(result, int) or getattr(result, "is_integer", False) else None


def _step(g: ConstantFolding, made: dict[str, Node], before: str, after: str) -> int | None:
    """Number that a turn adds to a counter, or None."""
    node = made.get(plain(made, after))
    if node is None or node.primitive != "map" or node.attributes["function"] != "add":
        return None
    others = [tensor for tensor in node.inputs if plain(made, tensor) != before]
    result = _number(g, made, others[0]) if len(others) == 1 else None
    return result if isinstance(result, int) and result > 0 else None


def counters(g: ConstantFolding, pairs: Sequence[tuple[str, str]], firsts: Sequence[str]) -> list[str]:
    """Carried values that hold the number of the turn."""
    made = {node.output: node for node in g.nodes}
    return [
        before
        for (before, after), first in zip(pairs, firsts, strict=True)
        if _step(g, made, before, after) == 1 and _number(g, made, first) == 0
    ]


Sizes = dict[tuple[int, int], Extent]  # of a carried value and an axis: its size as a turn has it
NEW = -1  # the size that a turn has no dimension for yet


@dataclass(frozen=True, slots=True)
class Growth:
    """``steps``: what each turn adds to a size, by the carried value and the axis; None: not always the same.

    ``firsts``: that size before the first turn; ``changing``: as a turn has it.
    """

    steps: Mapping[tuple[int, int], Extent | None]
    firsts: Mapping[tuple[int, int], Extent]
    changing: Sizes

    def linear_sizes(self) -> tuple[tuple[str, Extent, Extent], ...]:
        """Of sizes that grow by the same each turn: the dimension of a turn, the first size, the step."""
        known = ((key, step) for key, step in self.steps.items() if step is not None)
        return tuple((str(self.changing[key]), self.firsts[key], step) for key, step in known)

    def last_shape(
        self, g: ConstantFolding, index: int, first: Sequence[Extent], turns: Extent
    ) -> tuple[tuple[Extent, ...], tuple[tuple[int, Extent], ...]]:
        """Of a carried value behind the last turn: its shape, and the axes whose sizes only the turns tell."""
        shape, values = list(first), list[tuple[int, Extent]]()
        for (own, axis), step in self.steps.items():
            if own == index and step is not None:
                shape[axis] = canonical(self.firsts[own, axis] + step * turns)
            elif own == index:
                shape[axis] = new_dimension(g, "grown", {str(item) for _, item in values})
                values.append((axis, shape[axis]))
        return tuple(shape), tuple(values)


def settles(
    g: ConstantFolding, firsts: Sequence[str], known: Sizes, moving: Sequence[tuple[int, str, str]], outside: Collection[str]
) -> bool:
    """True if a turn makes a carried value of a shape that depends on none of its own, unlike the first value's."""
    for position, before, after in moving:
        shape, now = g.types[before].shape, g.types[after].shape
        if len(shape) != len(now):
            return True
        for axis, extent in enumerate(now):
            own = known.get((position, axis))
            first = g.types[firsts[position]].shape[axis]
            if own is not None and own != NEW and dimensions(extent) <= set(outside) and not same(extent, first):
                return True
    return False


def changing_sizes(
    firsts: Sequence[str],
    known: Sizes,
    moving: Sequence[tuple[int, str, str]],
    message: Callable[[int], str],
    g: ConstantFolding,
) -> Sizes:
    """``known`` and the sizes that a turn was found to change; those that grow alike have one dimension.

    ``moving``: places of carried values, with their names before and behind a turn; ``message``: what the file calls one.
    UsageError where the type or the number of axes changes.
    """
    result = dict(known)
    for position, before, after in moving:
        kind, now = g.types[before], g.types[after]
        if kind.dtype != now.dtype or kind.rank != now.rank:
            raise UsageError(
                f"{message(position)!r} is {g.types[firsts[position]]} before the first turn and {now} behind it; "
                "values that a loop carries keep their type and their number of axes: reshape the first one before the loop"
            )
        for axis, pair in enumerate(zip(kind.shape, now.shape, strict=True)):
            if (position, axis) not in result and not same(*pair):
                result[position, axis] = NEW
    if result == known:
        alike: dict[tuple[str, str], Extent] = {}
        behind = {position: after for position, _, after in moving}
        for (index, axis), extent in result.items():
            first, step = g.types[firsts[index]].shape[axis], canonical(g.types[behind[index]].shape[axis] - extent)
            if str(extent) not in dimensions(step):
                result[index, axis] = alike.setdefault((text(first), text(step)), extent)
    return result


def named_anew(g: ConstantFolding, sizes: Sizes) -> Sizes:
    """Copy of the sizes with a dimension for each that has none."""
    result: Sizes = {}
    for key, extent in sizes.items():
        fresh = isinstance(extent, int)
        result[key] = (
            new_dimension(g, "carried", {str(extent) for extent in (*sizes.values(), *result.values())}) if fresh else extent
        )
    return result


def growth_of(
    firsts: Sequence[str], changing: Sizes, behind: Mapping[int, str], outside: Collection[str], g: ConstantFolding
) -> Growth:
    """Growth of sizes. ``behind``: carried values after a turn; ``outside``: dimensions known before the loop."""
    steps: dict[tuple[int, int], Extent | None] = {}
    before: dict[tuple[int, int], Extent] = {}
    for (position, axis), extent in changing.items():
        step = canonical(g.types[behind[position]].shape[axis] - extent)
        steps[position, axis] = step if dimensions(step) <= set(outside) else None
        before[position, axis] = g.types[firsts[position]].shape[axis]
    return Growth(steps, before, changing)


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
    producers: dict[str, Node] = field(default_factory=dict)
    inside: set[str] = field(default_factory=set)
    types: dict[str, TensorType] = field(default_factory=dict)

    def rows(self, variables: Sequence[str], selected: Collection[str]) -> list[tuple[str, str]]:
        """Tensors outside, and their rows that the body reads; nodes that make these leave the body.

        ``variables`` of a turn; ``selected``: what the body must make itself.
        """
        g = self.g
        nodes = g.nodes[self.start :]
        self.producers = {node.output: node for node in nodes}
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
        return [(self.stacks[item], item) for item in self.producers if item in gone and item in read]

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
            and plain(self.producers, index) in self.counters
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
