"""Canonical form and structural hash: equal for expressions that differ in names, in the order of factors, sums and axes.

Iterators are told apart by where they stand, in rounds of refinement (Weisfeiler and Leman 1968); equals that remain are
told apart by choosing the first. So a hash of two different expressions differs, up to 64 bits; two writings of the same
one may rarely differ, which costs a state and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b

from haotuner.derive.affine import Affine, mapped
from haotuner.derive.expression import Apply, Body, Loop, Number, Read, Scope, renamed, scopes, with_reads
from haotuner.derive.text import body_text, text
from haotuner.graph import extents

_ROUNDS = 3


def structural_hash(scope: Scope) -> int:
    """64 bits of the canonical form's text."""
    return int.from_bytes(blake2b(text(canonical_form(scope)).encode(), digest_size=8).digest(), "big")


@lru_cache(1 << 12)
def canonical_form(scope: Scope) -> Scope:
    """The expression with iterators ``i0``, ``i1`` … and sorted factors, sums and axes of inner nests."""
    loops = [(loop, kind, inner) for inner in scopes(scope) for kind, part in ((0, inner.spatial), (1, inner.sums))
             for loop in part]  # fmt: skip
    colours = {loop.name: f"{kind}:{extents.text(loop.low)}..{extents.text(loop.high)}" for loop, kind, _ in loops}
    for position, loop in enumerate(scope.spatial):  # axes of the result have an order
        colours[loop.name] += f"@{position}"
    order: dict[str, int] = {}
    distinct = 0
    while True:
        for _ in range(_ROUNDS):
            colours = _refined(scope, colours)
            number = len(set(colours.values()))
            if number in (distinct, len(colours)):
                break
            distinct = number
        groups: dict[str, list[str]] = {}
        for name, colour in colours.items():
            groups.setdefault(colour, []).append(name)
        ties = sorted((colour, members) for colour, members in groups.items() if len(members) > 1)
        if not ties:
            break
        colours[ties[0][1][0]] += "!"
        distinct = 0
    order = {name: at for at, name in enumerate(sorted(colours, key=colours.__getitem__))}
    return _sorted(renamed(scope, lambda name: f"i{order[name]}"))


def _digest(value: object) -> str:
    return blake2b(repr(value).encode(), digest_size=8).hexdigest()


def _refined(scope: Scope, colours: Mapping[str, str]) -> dict[str, str]:
    """Colours that say where each iterator stands, too: the expression's text by colours, with this iterator marked."""
    spots: dict[str, list[object]] = {name: [] for name in colours}
    _spots(scope, colours, "", spots)
    return {name: _digest((colours[name], sorted(map(repr, spots[name])))) for name in colours}


def _spots(scope: Scope, colours: Mapping[str, str], path: str, result: dict[str, list[object]]) -> str:
    """Puts what each iterator stands in; returns the nest by colours."""

    def of_index(e: Affine) -> tuple[str, ...]:
        return (*sorted(f"{factor}*{_atom(atom, colours)}" for atom, factor in e.terms), extents.text(e.const))

    def of_body(body: Body, path: str) -> str:
        if isinstance(body, Number):
            return repr(body.value)
        if isinstance(body, Apply):
            where = f"{path}/{body.function}"
            parts = [
                of_body(operand, where if _commutes(body) else f"{where}{at}") for at, operand in enumerate(body.operands)
            ]
            return _digest((body.function, sorted(parts) if _commutes(body) else parts))
        if isinstance(body.source, Scope):
            inner = _spots(body.source, colours, f"{path}/in", result)
            axes = [colours[loop.name] for loop in body.source.spatial]
        else:
            inner, axes = f"{body.source.name}{body.source.constant}", [str(at) for at in range(len(body.index))]
        indices = list(zip(axes, map(of_index, body.index), strict=True))
        own = _digest((inner, sorted(indices)))
        for (axis, _), e in zip(indices, body.index, strict=True):
            here = of_index(e)
            for atom, factor in e.terms:
                for name in {atom} if isinstance(atom, str) else atom.of.names:
                    shape = "" if isinstance(atom, str) else type(atom).__name__ + str(atom.by) + str(of_index(atom.of))
                    result[name].append((path, own, axis, factor, shape, here))
        if isinstance(body.source, Scope):
            for loop, e in zip(body.source.spatial, body.index, strict=True):
                result[loop.name].append((path, "axis", of_index(e)))
        return own

    own_body = of_body(scope.body, path)
    return _digest((sorted(colours[loop.name] for loop in (*scope.spatial, *scope.sums)), own_body))


def _atom(atom: object, colours: Mapping[str, str]) -> str:
    if isinstance(atom, str):
        return colours[atom]
    inner = (*sorted(f"{factor}*{_atom(a, colours)}" for a, factor in atom.of.terms), extents.text(atom.of.const))  # type: ignore[attr-defined]
    return f"{type(atom).__name__}{atom.by}{inner}"  # type: ignore[attr-defined]


def _commutes(body: Apply) -> bool:
    return body.function in ("add", "mul", "max", "min")


def _key(loop: Loop) -> int:
    return int(loop.name[1:])


def _sorted(scope: Scope, root: bool = True) -> Scope:
    def of(read: Read) -> Read:
        if not isinstance(read.source, Scope):
            return read
        inner = _sorted(read.source, root=False)
        order = {loop.name: e for loop, e in zip(read.source.spatial, read.index, strict=True)}
        return Read(inner, tuple(order[loop.name] for loop in inner.spatial))

    body = _ordered(with_reads(scope.body, of))
    spatial = scope.spatial if root else tuple(sorted(scope.spatial, key=_key))
    return Scope(spatial, tuple(sorted(scope.sums, key=_key)), body)


def _ordered(body: Body) -> Body:
    if not isinstance(body, Apply):
        return Read(body.source, tuple(mapped(e, str) for e in body.index)) if isinstance(body, Read) else body
    operands = tuple(_ordered(operand) for operand in body.operands)
    return Apply(body.function, tuple(sorted(operands, key=body_text)) if _commutes(body) else operands)
