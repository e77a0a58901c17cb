"""Canonical form and structural hash: equal for expressions that differ in names, in the order of factors, sums and axes.

Iterators differ by where they stand, in rounds of refinement (Weisfeiler and Leman 1968); of equals that remain the first
is marked. So a hash of two different expressions differs, up to 64 bits; two writings of the same
one may rarely differ, which costs a state and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b

from haotuner.derive.affine import Affine, Atom, Quotient, Remainder, mapped
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
    """The nest by colours; ``result`` receives for each iterator the reads that it stands in."""

    def index_colours(e: Affine) -> tuple[str, ...]:
        return (*sorted(f"{factor}*{_atom(atom, colours)}" for atom, factor in e.terms), extents.text(e.const))

    def body_colour(body: Body, path: str) -> str:
        if isinstance(body, Number):
            return repr(body.value)
        if isinstance(body, Apply):
            operand_path = f"{path}/{body.function}"
            parts = [
                body_colour(operand, operand_path if _commutes(body) else f"{operand_path}{at}")
                for at, operand in enumerate(body.operands)
            ]
            return _digest((body.function, sorted(parts) if _commutes(body) else parts))
        if isinstance(body.source, Scope):
            inner = _spots(body.source, colours, f"{path}/in", result)
            axes = [colours[loop.name] for loop in body.source.spatial]
        else:
            inner, axes = f"{body.source.name}{body.source.constant}", [str(at) for at in range(len(body.index))]
        indices = list(zip(axes, map(index_colours, body.index), strict=True))
        read_colour = _digest((inner, sorted(indices)))
        for (axis, _), e in zip(indices, body.index, strict=True):
            index_colour = index_colours(e)
            for atom, factor in e.terms:
                for name in {atom} if isinstance(atom, str) else atom.dividend.names:
                    shape = "" if isinstance(atom, str) else _division(atom) + str(index_colours(atom.dividend))
                    result[name].append((path, read_colour, axis, factor, shape, index_colour))
        if isinstance(body.source, Scope):
            for loop, e in zip(body.source.spatial, body.index, strict=True):
                result[loop.name].append((path, "axis", index_colours(e)))
        return read_colour

    nest_colour = body_colour(scope.body, path)
    return _digest((sorted(colours[loop.name] for loop in (*scope.spatial, *scope.sums)), nest_colour))


def _division(atom: Quotient | Remainder) -> str:
    return f"{type(atom).__name__}{atom.divisor}"


def _atom(atom: Atom, colours: Mapping[str, str]) -> str:
    if isinstance(atom, str):
        return colours[atom]
    dividend = atom.dividend
    inner = (*sorted(f"{factor}*{_atom(a, colours)}" for a, factor in dividend.terms), extents.text(dividend.const))
    return f"{_division(atom)}{inner}"


def _commutes(body: Apply) -> bool:
    return body.function in ("add", "mul", "max", "min")


def _key(loop: Loop) -> int:
    return int(loop.name[1:])


def _sorted(scope: Scope, root: bool = True) -> Scope:
    def sorted_read(read: Read) -> Read:
        if not isinstance(read.source, Scope):
            return read
        inner = _sorted(read.source, root=False)
        order = {loop.name: e for loop, e in zip(read.source.spatial, read.index, strict=True)}
        return Read(inner, tuple(order[loop.name] for loop in inner.spatial))

    body = _ordered(with_reads(scope.body, sorted_read))
    spatial = scope.spatial if root else tuple(sorted(scope.spatial, key=_key))
    return Scope(spatial, tuple(sorted(scope.sums, key=_key)), body)


def _ordered(body: Body) -> Body:
    if not isinstance(body, Apply):
        return Read(body.source, tuple(mapped(e, str) for e in body.index)) if isinstance(body, Read) else body
    operands = tuple(_ordered(operand) for operand in body.operands)
    return Apply(body.function, tuple(sorted(operands, key=body_text)) if _commutes(body) else operands)
