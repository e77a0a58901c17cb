"""Builder interface of programs: one implementation writes code for a compiler, another interprets and counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from haotuner.graph.extents import Extent

Value = Any  # a machine's


class Cell(Protocol):
    """A variable of the program."""

    def get(self) -> Value:
        """Its value."""
        ...

    def set(self, value: Value) -> None:
        """Give it another value."""
        ...


class Builder(Protocol):
    """Instructions that programs are made of. ``lanes`` is 1 for scalars; ``mask``: the lanes that exist, None for all.

    ``predicates``: whether a vector whose mask leaves lanes out is cheaper than one of clamped indices.
    """

    predicates: bool

    def number(self, value: float, dtype: str) -> Value: ...  # noqa: D102
    def size(self, extent: Extent) -> Value: ...  # noqa: D102
    def loop(self, count: Value, body: Callable[[Value], None]) -> None: ...  # noqa: D102
    def ramp(self, base: Value, lanes: int, pitch: int = 1) -> Value: ...  # noqa: D102
    def mask(self, base: Value, extent: Value, lanes: int, pitch: int = 1) -> Value: ...  # noqa: D102

    def together(self, first: Value, bases: Sequence[Value], pitch: int, limit: Value) -> Sequence[Value]:
        """Bases as given, of vectors that one iteration begun at ``first`` moves; ``limit``: the extent, None: all exist.

        ``pitch``: how far lanes are apart, which is as many vectors as begin at neighbours.
        """
        ...

    def load(
        self,
        tensor: str,
        indices: Sequence[Value],
        steps: Sequence[int] | None,
        lanes: int,
        mask: Value,
        symbolic: Sequence[Value] = (),
    ) -> Value:
        """Elements of a tensor. ``steps``: growth of each index from lane to lane; None: indices are vectors.

        ``symbolic``: sizes; where one of them is 0 nothing is read, and the elements are 0.
        """
        ...

    def store(
        self, tensor: str, indices: Sequence[Value], steps: Sequence[int], value: Value, lanes: int, mask: Value
    ) -> None:
        """Write elements of a tensor."""
        ...

    def scratch(self, name: str, count: int, dtype: str) -> None:
        """Memory of the call's own near the core: a tensor of one axis, whose first contents are not known."""
        ...

    def transposed(self, vectors: Sequence[Value], dtype: str) -> Sequence[Value]:
        """As many vectors as each has lanes, turned over the diagonal: vector i of the result has lane i of each."""
        ...

    def fma(self, value: Value, other: Value, more: Value, dtype: str, lanes: int) -> Value:
        """One * other + more, rounded once where the machine can."""
        ...

    def apply(self, function: str, arguments: Sequence[Value], dtype: str, lanes: int) -> Value: ...  # noqa: D102
    def cell(self, dtype: str, lanes: int, start: Value) -> Cell: ...  # noqa: D102
    # ``any_max``: a maximum that may be anything where a value is NaN
    def join(self, how: str, value: Value, other: Value, dtype: str, lanes: int) -> Value: ...  # noqa: D102
    def neutral(self, how: str, dtype: str) -> Value: ...  # noqa: D102
    def horizontal(self, how: str, value: Value, dtype: str, lanes: int) -> Value: ...  # noqa: D102
