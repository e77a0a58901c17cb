"""Kernels that compute a nest, by the iterator mapping table (OLLIE, section 4.3).

The table says of each iterator whether the first operand, the second and the result hang on it. A matrix product has ``m``
in the first and the result, ``n`` in the second and the result, ``k`` in both operands, ``b`` in all. A convolution also has
axes of the first operand on which an ``m`` and a ``k`` stand together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from haotuner.derive.affine import Affine
from haotuner.derive.expression import Read, Scope, Tensor, factors, reads
from haotuner.graph.extents import is_symbolic

ROLES = {(True, False, True): "m", (False, True, True): "n", (True, True, False): "k", (True, True, True): "b"}
MOST_SIDES = 2  # axes of an image that convolutions have kernels for


@dataclass(frozen=True, slots=True)
class Window:
    """An axis of the first operand: its number, iterators of position and window, stride and dilation."""

    axis: int
    position: str
    tap: str
    stride: int
    dilation: int


@dataclass(frozen=True, slots=True)
class Kernel:
    """``kind``: matmul, batch_matmul, conv or band; ``roles``: iterators by role, in the nest's order."""

    kind: str
    roles: Mapping[str, tuple[str, ...]]
    first: Read
    second: Read
    windows: tuple[Window, ...] = ()

    def alike(self, other: Kernel) -> bool:
        """True if another nest's kernel has the same iterators in the same roles, with its operands in the same order."""
        return (self.kind, self.roles, self.windows, hangs_on(self.first)) == (
            other.kind, other.roles, other.windows, hangs_on(other.first)
        )  # fmt: skip

    def __str__(self) -> str:
        named = "; ".join(f"{role} = {', '.join(iterators)}" for role, iterators in sorted(self.roles.items()) if iterators)
        return f"{self.kind} ({named})"


def product_of(scope: Scope) -> tuple[Read, Read] | None:
    """Both operands where a nest sums products of two and of no number; None otherwise."""
    parts = factors(scope.body)
    if not scope.sums or len(parts) != 2:
        return None
    first, second = parts
    return (first, second) if isinstance(first, Read) and isinstance(second, Read) else None


def hangs_on(read: Read) -> frozenset[str]:
    """Iterators in the indices of a read."""
    return frozenset().union(*(e.names for e in read.index))


def table(scope: Scope, first: Read, second: Read) -> dict[str, str]:
    """Role of every iterator; empty for one that has none."""
    left, other = hangs_on(first), hangs_on(second)
    axes = {loop.name for loop in scope.spatial}
    return {
        loop.name: ROLES.get((loop.name in left, loop.name in other, loop.name in axes), "")
        for loop in (*scope.spatial, *scope.sums)
    }


def is_constant(read: Read) -> bool:
    """True if all numbers that are read are known before a request."""
    source = read.source
    if isinstance(source, Tensor):
        return source.constant
    return not source.sums and all(map(is_constant, reads(source.body)))


def is_plain(read: Read) -> bool:
    """True if each axis is an iterator of its own, whatever is added to it."""
    heads = [e.terms for e in read.index if e.terms]
    atoms = [terms[0][0] for terms in heads]
    return all(len(terms) == 1 and terms[0][1] == 1 and isinstance(terms[0][0], str) for terms in heads) and (
        len(set(atoms)) == len(atoms)
    )


def kernels(scope: Scope) -> Iterator[Kernel]:
    """Kernels of a nest, a product first; its operands in either order."""
    operands = product_of(scope)
    if operands is None:
        return
    first, second = operands if not is_constant(operands[0]) else operands[::-1]
    roles = table(scope, first, second)
    if "" in roles.values():
        return
    grouped = {role: tuple(name for name, role_ in roles.items() if role_ == role) for role in "bmnk"}
    if grouped["k"]:
        yield Kernel("batch_matmul" if grouped["b"] else "matmul", grouped, first, second)
    for data, other in ((first, second), (second, first)):
        windows = _windows(scope, data, other)
        if windows:
            yield Kernel("conv", {**grouped, "m": grouped["m"] if data is first else grouped["n"],
                                  "n": grouped["n"] if data is first else grouped["m"]}, data, other, windows)  # fmt: skip
        if _is_band(data, other, roles):
            yield Kernel("band", grouped, other, data)


def _windows(scope: Scope, data: Read, weight: Read) -> tuple[Window, ...]:
    """Axes of a convolution; none where it is no convolution or has more than ``MOST_SIDES``."""
    sums = {loop.name: loop for loop in scope.sums}
    result, seen = [], set[str]()
    plain = all(len(e.terms) <= 1 and all(f == 1 and isinstance(a, str) for a, f in e.terms) for e in weight.index)
    if not plain and not is_constant(weight):
        return ()
    beside = hangs_on(weight)
    for axis, e in enumerate(data.index):
        if any(not isinstance(atom, str) for atom, _ in e.terms) or seen & e.names:
            return ()
        seen |= e.names
        if len(e.terms) == 1 and e.terms[0][1] == 1 or not e.terms:
            continue
        taps = [(name, factor) for name, factor in e.terms if isinstance(name, str) and name in sums]
        spots = [(name, factor) for name, factor in e.terms if isinstance(name, str) and name not in sums]
        if len(taps) != 1 or len(spots) != 1 or taps[0][1] < 1 or spots[0][1] < 1:
            return ()
        (tap, dilation), (spot, stride) = taps[0], spots[0]
        if is_symbolic(sums[tap].extent) or spot in beside or tap not in beside:
            return ()
        result.append(Window(axis, spot, tap, stride, dilation))
    axes = {loop.name for loop in scope.spatial}
    if any(name in axes and name in beside for name in hangs_on(data)):
        return ()  # groups
    return tuple(result) if len(result) <= MOST_SIDES else ()


def _is_band(data: Read, other: Read, roles: Mapping[str, str]) -> bool:
    """True if one operand is read at a row and its neighbours, as the other one's rows are: ``D[i + w, k] O[i, k]``."""
    if not is_plain(other):
        return False
    bands = [e for e in data.index if len(e.terms) > 1]
    rest = [e for e in data.index if len(e.terms) == 1]
    return (
        len(bands) == 1
        and all(e.terms[0][1] == 1 and isinstance(e.terms[0][0], str) for e in rest)
        and _is_dense_band(bands[0], roles)
        and is_plain(Read(data.source, tuple(rest)))
    )


def _is_dense_band(e: Affine, roles: Mapping[str, str]) -> bool:
    if len(e.terms) != 2 or any(factor != 1 or not isinstance(atom, str) for atom, factor in e.terms):
        return False
    return sorted(roles.get(str(atom), "") for atom, _ in e.terms) in (["b", "n"], ["b", "m"])
