"""Convex sets of a window's primitives, as bits by their order, and a bound under what a kernel of such a set takes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from haotuner.graph.graph import Graph, Node
from haotuner.partition.costs import Prices

# Primitives of which each element of what they read is read for some element of what they make.
WHOLE = frozenset({"map", "cast", "reduce", "reshape", "transpose", "broadcast", "pad", "concat"})


def bits(mask: int) -> Iterator[int]:
    """The places of ones, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class ConvexSets:
    """Sets of the primitives ``names``, in the graph's order. ``required``: tensors that lie in memory.

    ``passing``: tensors that are in every set that has their only reader.
    """

    def __init__(
        self, names: Sequence[str], made: Mapping[str, Node], required: Collection[str], passing: Collection[str]
    ) -> None:
        self.names = names
        self.index = {name: index for index, name in enumerate(names)}
        self.inputs = [
            sum(1 << self.index[tensor] for tensor in {*made[name].inputs} if tensor in self.index) for name in names
        ]
        self.passing = self.mask(name for name in names if name in passing)
        self.required = self.mask(name for name in names if name in required)
        self.before, self.behind = [0] * len(names), [0] * len(names)
        for index, read in enumerate(self.inputs):
            for tensor in bits(read):
                self.before[index] |= self.before[tensor] | 1 << tensor
        for index in reversed(range(len(names))):
            for tensor in bits(self.inputs[index]):
                self.behind[tensor] |= self.behind[index] | 1 << index

    def mask(self, names: Iterator[str] | Collection[str]) -> int:
        """The set of these primitives."""
        return sum(1 << self.index[name] for name in names)

    def nodes(self, mask: int) -> frozenset[str]:
        """The primitives of a set."""
        return frozenset(self.names[index] for index in bits(mask))

    def first(self, root: int) -> int:
        """The least set with this output."""
        return self.with_passing(0, 1 << root)

    def outputs(self) -> list[int]:
        """Primitives whose result a set may have as its output."""
        return [index for index in range(len(self.names)) if not self.passing >> index & 1]

    def more_than(self, most: int, most_nodes: int) -> bool:
        """True if there are more sets, those that repeat a reduction counted, too."""
        count = 0
        for root in self.outputs():
            seen = {self.first(root)}
            waiting = list(seen)
            for mask in waiting:
                new = set(self.grown(mask, 0, most_nodes)) - seen
                seen |= new
                waiting += new
                if count + len(waiting) > most:
                    return True
            count += len(waiting)
        return False

    def grown(self, mask: int, barred: int, most: int) -> Iterator[int]:
        """The set with one more primitive that it reads and none of ``barred``, made convex again.

        Those of more primitives than ``most`` are left out; what is passed on does not count.
        """
        after, ahead, read = 0, 0, 0
        for index in bits(mask):
            after |= self.behind[index]
            ahead |= self.before[index]
            read |= self.inputs[index]
        for tensor in bits(read & ~(mask | self.required | barred)):
            between = (after | self.behind[tensor]) & (ahead | self.before[tensor])
            more = self.with_passing(mask, (1 << tensor | between) & ~mask)
            if not more & barred and (more & ~self.passing).bit_count() <= most:
                yield more

    def closed(self, mask: int) -> int:
        """With all primitives between two of the set, and those that pass on to it."""
        after, ahead = 0, 0
        for index in bits(mask):
            after |= self.behind[index]
            ahead |= self.before[index]
        return self.with_passing(0, mask | (after & ahead))

    def with_passing(self, mask: int, more: int) -> int:
        """The union of both sets with what none but it reads on its way to it; the first one has that already."""
        mask |= more
        while more:
            read = 0
            for index in bits(more):
                read |= self.inputs[index]
            more = read & self.passing & ~mask
            mask |= more
        return mask

    def reads(self, mask: int) -> int:
        """Primitives of the window that a set reads."""
        result = 0
        for index in bits(mask):
            result |= self.inputs[index]
        return result & ~mask


@dataclass(frozen=True, slots=True)
class Floors:
    """Bounds under expected times of kernels: a step, and the bytes that it moves or the numbers that it computes.

    ``bytes_of`` each primitive's result; ``computed_us`` of each primitive's arithmetic, once an element; ``outside``: the
    other tensors that each primitive reads, as bits of ``outside_bytes``; ``part``: primitives that may read a part of their
    operands alone.
    """

    sets: ConvexSets
    prices: Prices
    bytes_of: Sequence[float]
    computed_us: Sequence[float]
    outside: Sequence[int]
    outside_bytes: Sequence[float]
    part: int

    @staticmethod
    def of(sets: ConvexSets, graph: Graph, made: Mapping[str, Node], prices: Prices) -> Floors:
        """The bounds of a window's sets at some prices."""
        others: dict[str, int] = {}
        for name in sets.names:
            for tensor in made[name].inputs:
                value = graph.constants.get(tensor)
                if tensor not in sets.index and (value is None or value.size != 1):
                    others.setdefault(tensor, len(others))
        return Floors(
            sets,
            prices,
            [prices.mean_bytes(graph, name) for name in sets.names],
            [prices.computed_us(graph, made[name]) for name in sets.names],
            [sum(1 << others[tensor] for tensor in {*made[name].inputs} if tensor in others) for name in sets.names],
            [prices.mean_bytes(graph, name) for name in others],
            sum(1 << index for index, name in enumerate(sets.names) if made[name].primitive not in WHOLE),
        )

    def whole(self, root: int) -> int:
        """Primitives of whose operands a kernel with this output reads every element."""
        return sum(
            1 << index
            for index in bits(self.sets.before[root] | 1 << root)
            if not self.part & (1 << index | 1 << root | (self.sets.behind[index] & self.sets.before[root]))
        )

    def us(self, root: int, mask: int, whole: int, stays: int) -> float:
        """Bound of a set with this output in us; of what it reads of the window, only what is in ``stays`` counts."""
        outside, inside = 0, 0
        for index in bits(mask & whole):
            outside |= self.outside[index]
            inside |= self.sets.inputs[index]
        moved = self.bytes_of[root] + sum(self.outside_bytes[index] for index in bits(outside))
        moved += sum(self.bytes_of[index] for index in bits(inside & ~mask & stays))
        computed_us = sum(self.computed_us[index] for index in bits(mask & whole))
        return self.prices.rates.step_us + max(self.prices.rates.moved_us(moved), computed_us)
