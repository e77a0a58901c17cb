"""Selections found for one op, by family: a search that is taken up in turns asks for the same every time.

Going through ten thousand points, and what several models of other devices say of them, takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from haotuner.select.funnel import Funnel
from haotuner.spec.family import Family
from haotuner.spec.kernel import MicroKernel


class Selections:
    """Of one op, its traffic, its device and one start: nothing else may differ between those who share it."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, tuple[MicroKernel, ...]], Funnel] = {}

    def of(self, family: Family, among: Sequence[MicroKernel], select: Callable[[], Funnel]) -> Funnel:
        """The candidates of a family, ``among`` these alone unless empty; ``select`` finds them the first time."""
        key = family.name, tuple(among)
        if key not in self._found:
            self._found[key] = select()
        return self._found[key]
