"""A program whose workers share a folded axis: each folds a part of it into numbers of its own, then the parts are joined.

Said as the runtime runs it (``runtime/native/kinds/sliced.c``), to machines that know all sizes: what is compiled is the
program of one part. So bytes of shared calls are counted exactly, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from haotuner.codegen.builder import Builder, Value
from haotuner.codegen.expressions import INDEX
from haotuner.codegen.rfactor import joined
from haotuner.codegen.schedule import Plan
from haotuner.graph.extents import Extent, dimension, same
from haotuner.spec.limits import PARTIAL_FLOATS

PARTIAL = "partial"  # the tensor of results of parts, one part after the other


def emit_split_reduction(plan: Plan, machine: Builder, whole: Callable[[Builder], None]) -> None:
    """Say ``whole``, the program, for each part of the folded axis, then how results are joined, in the axis's order."""
    axis, how = next(iter(joined(plan.graph).items()))
    shape = [int(machine.size(extent)) for extent in plan.graph.types[plan.output].shape]
    bounds = cuts(int(machine.size(dimension(axis))), plan.schedule.step, plan.schedule.parts, prod(shape))
    if len(bounds) < 2:
        whole(machine)
        return
    machine.scratch(PARTIAL, PARTIAL_FLOATS, "fp32")
    for index, (first, last) in enumerate(bounds):
        whole(_Part(machine, plan, axis, first, last - first, index * prod(shape), shape))
    extent = bounds[-1][1]
    shares = [(last - first) / extent if how == "mean" else 1.0 for first, last in bounds]
    _join(plan, machine, "sum" if how == "mean" else how, shares, shape)


def cuts(extent: int, step: int, parts: int, outputs: int) -> list[tuple[int, int]]:
    """Bounds of the parts of an axis; one where it is too short or their results would not fit. As ``run_folded``."""
    tiles = -(-extent // step)
    slices = max(1, min(parts, tiles, PARTIAL_FLOATS // max(outputs, 1)))
    return [(tiles * s // slices * step, min(tiles * (s + 1) // slices * step, extent)) for s in range(slices)]


def _join(plan: Plan, machine: Builder, how: str, shares: Sequence[float], shape: Sequence[int]) -> None:
    """Each element of the output from the results of all parts."""

    def element(places: Sequence[Value]) -> None:
        if len(places) < len(shape):
            machine.loop(machine.number(shape[len(places)], INDEX), lambda i: element([*places, i]))
            return
        value = None
        for part, share in enumerate(shares):
            at = _flat(machine, places, shape, part * prod(shape))
            own = machine.load(PARTIAL, [at], [0], 1, None)
            if share != 1.0:
                own = machine.apply("mul", [own, machine.number(share, "fp32")], "fp32", 1)
            value = own if value is None else machine.join(how, value, own, "fp32", 1)
        machine.store(plan.output, list(places), [0] * len(shape), value, 1, None)

    element([])


def _flat(machine: Builder, places: Sequence[Value], shape: Sequence[int], base: int) -> Value:
    result = machine.number(0, INDEX)
    for size, extent in zip(places, shape, strict=True):
        result = machine.apply("mul", [result, machine.number(extent, INDEX)], INDEX, 1)
        result = machine.apply("add", [result, size], INDEX, 1)
    return machine.apply("add", [result, machine.number(base, INDEX)], INDEX, 1)


class _Part:
    """A machine that sees a part of an axis as all of it, and the part's own results as the output."""

    def __init__(
        self, machine: Builder, plan: Plan, axis: str, first: int, length: int, base: int, shape: Sequence[int]
    ) -> None:
        self._machine, self._plan, self._axis = machine, plan, dimension(axis)
        self._first, self._length, self._base, self._shape = first, length, base, shape

    def __getattr__(self, name: str) -> Any:
        return getattr(self._machine, name)  # all else is the machine's

    def size(self, extent: Extent) -> Value:
        """Of the axis the part's."""
        return self._machine.number(self._length, INDEX) if same(extent, self._axis) else self._machine.size(extent)

    def load(
        self,
        tensor: str,
        indices: Sequence[Value],
        steps: Sequence[int] | None,
        lanes: int,
        mask: Value,
        symbolic: Sequence[Value] = (),
    ) -> Value:
        """Places along the axis begin with the part; scratch memory is as it is."""
        if tensor not in self._plan.graph.types:
            return self._machine.load(tensor, indices, steps, lanes, mask)
        begin = self._machine.number(self._first, INDEX)
        own = [
            self._machine.apply("add", [size, begin], INDEX, 1) if same(extent, self._axis) else size
            for size, extent in zip(indices, self._plan.graph.types[tensor].shape, strict=True)
        ]
        return self._machine.load(tensor, own, steps, lanes, mask, symbolic)

    def store(
        self, tensor: str, indices: Sequence[Value], steps: Sequence[int], value: Value, lanes: int, mask: Value
    ) -> None:
        """Into the part's own results, where the axis of the lanes has no gaps (``shareable``)."""
        if tensor != self._plan.output:
            self._machine.store(tensor, indices, steps, value, lanes, mask)
            return
        at = _flat(self._machine, indices, self._shape, self._base)
        self._machine.store(PARTIAL, [at], [max(steps, default=0)], value, lanes, mask)
