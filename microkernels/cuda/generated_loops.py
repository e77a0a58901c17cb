"""Loops of a generated program as CUDA C++: written one inside the other, or as one loop that groups of threads share."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

_PURE = re.compile(r"const (?:\w+ )+([vs]i?\d+(?:_\d+)?) = (.*);")
_NAME = re.compile(r"\b[vis]i?\d+(?:_\d+)?\b")
_LOAD = re.compile(r"\bt\d+\[")


@dataclass(slots=True)
class Loop:
    """A loop and what is known of its body: statements and loops, in their order."""

    variable: str
    count: str
    items: list[str | Loop] = field(default_factory=list)
    stores: bool = False
    carries: bool = False  # a variable from outside changes in it: its rounds are not independent
    known: dict[tuple[str, ...], str] = field(default_factory=dict)  # registers that hold what was loaded, by what it is
    ordered: bool = False  # its own statements, those of loops inside aside, write: their order counts


def plain(items: Sequence[str | Loop]) -> list[str]:
    """Statements as they stand, loops inside loops."""
    lines: list[str] = []
    for item in items:
        if isinstance(item, str):
            lines.append(item)
            continue
        i = item.variable
        lines.append(f"for (long long {i} = 0; {i} < {item.count}; {i} += 1) {{")
        lines += [f"  {line}" for line in plain(item.items)]
        lines.append("}")
    return lines


def spread(loop: Loop, first: str, step: str, *, apart: bool) -> list[str]:
    """A loop that writes, its rounds shared: every ``step``-th one from ``first`` on.

    Where its body is nothing but further such loops, all their rounds are numbered through and shared together: few rows of
    many columns keep a GPU busy. What they have in common is computed in each round.
    ``apart``: no loop reads what another wrote.
    """
    flat = _flat(loop) if apart else _leaf(loop)
    at = f"f{loop.variable}"
    return [
        *flat.before,
        f"const long long n{loop.variable} = {flat.rounds};",
        f"for (long long {at} = {first}; {at} < n{loop.variable}; {at} += {step}) {{",
        *(f"  {line}" for line in flat.body(at)),
        "}",
    ]


@dataclass(frozen=True, slots=True)
class _Flat:
    before: list[str]  # what the number of rounds is computed from
    rounds: str
    body: Callable[[str], list[str]]  # of the round of a number


def _leaf(loop: Loop) -> _Flat:
    return _Flat([], loop.count, lambda at: [f"const long long {loop.variable} = {at};", *plain(loop.items)])


def _flat(loop: Loop) -> _Flat:
    inner = [item for item in loop.items if isinstance(item, Loop)]
    if not inner or loop.ordered or any(item.carries or not item.stores for item in inner):
        return _leaf(loop)
    parts = [_flat(item) for item in inner]
    tainted = {loop.variable}
    before: list[str] = []
    own: list[str] = []
    for line in [item for item in loop.items if isinstance(item, str)] + [line for part in parts for line in part.before]:
        pure = _PURE.fullmatch(line)
        if pure and not _LOAD.search(pure[2]) and not tainted & set(_NAME.findall(pure[2])):
            before.append(line)
            continue
        own.append(line)
        tainted |= set(re.findall(r"\b(v\d+) = ", line))
    needed = [line for part in parts for line in part.before]
    if set(needed) & set(own) or any(tainted & set(_NAME.findall(part.rounds)) for part in parts):
        return _leaf(loop)
    i = loop.variable
    ends = [f"s{i}_{index}" for index in range(len(parts))]
    for index, (end, part) in enumerate(zip(ends, parts, strict=True)):
        before.append(f"const long long {end} = {f'{ends[index - 1]} + ' if index else ''}{part.rounds};")

    def body(at: str) -> list[str]:
        whole = f"ht_flat ? 0 : ht_quotient({at}, {ends[-1]})"
        lines = [f"const long long {i} = {whole};", f"const long long r{i} = {at} - {i} * {ends[-1]};"]
        lines += own
        for index, (end, part) in enumerate(zip(ends, parts, strict=True)):
            last = index == len(parts) - 1
            head = "{" if index == 0 and last else f"if (r{i} < {end}) {{" if index == 0 else "} else {" if last else (
                f"}} else if (r{i} < {end}) {{"
            )  # fmt: skip
            base = f"r{i} - {ends[index - 1]}" if index else f"r{i}"
            lines += [head, f"  const long long q{i} = {base};", *(f"  {line}" for line in part.body(f"q{i}"))]
        return [*lines, "}"]

    return _Flat(before, f"{loop.count} * {ends[-1]}", body)
