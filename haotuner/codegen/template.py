"""Template of schedules: knobs of a space with the values that a user allows, as AutoTVM and FlexTensor have them.

A knob that a template leaves out keeps its whole range. Knobs that mean nothing in a program do not bind it.
Sources: Chen et al., "Learning to Optimize Tensor Programs", NeurIPS 2018; Zheng et al., "FlexTensor", ASPLOS 2020.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from haotuner.errors import UsageError

FOLD_UNROLL = "fold_unroll"  # the knob of all folds that have vectors of their own; ``unroll`` is that of the output


@dataclass(frozen=True, slots=True)
class Values:
    """Allowed values of a knob: some by name, or all from ``least`` to ``most``."""

    named: tuple[int, ...] = ()
    least: int | None = None
    most: int | None = None

    def __contains__(self, value: int) -> bool:
        """True if the knob may have this value."""
        if self.named:
            return value in self.named
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)


@dataclass(frozen=True, slots=True)
class Template:
    """Allowed values by knob; ``source`` names the template in messages."""

    knobs: Mapping[str, Values]
    source: str = "the template"

    @staticmethod
    def of(document: Mapping[str, object], source: str = "the template") -> Template:
        """The template of a table: a knob has a value, a list of values, or a table with ``min`` and ``max``.

        UsageError says which knob is none of these.
        """
        return Template({knob: _values(value, knob, source) for knob, value in document.items()}, source)

    def allows(self, knob: str, value: int) -> bool:
        """True if a knob may have a value."""
        return knob not in self.knobs or value in self.knobs[knob]

    def check(self, choices: Mapping[str, Sequence[int]], op: str) -> None:
        """UsageError for a knob that an op's space does not have, and for a value that the knob cannot have there."""
        for knob, values in self.knobs.items():
            if knob not in choices:
                raise UsageError(f"{self.source}: {op} has no knob {knob!r}; it has {_listed(choices)}")
            wrong = [value for value in values.named if value not in choices[knob]]
            if wrong or not any(value in values for value in choices[knob]):
                what = ", ".join(map(str, wrong)) or "no value in this range"
                legal = ", ".join(map(str, choices[knob]))
                raise UsageError(f"{self.source}: knob {knob} of {op} cannot be {what}; it can be {legal}")


def _values(value: object, knob: str, source: str) -> Values:
    items = value if isinstance(value, list) else [value]
    named = tuple(int(item) for item in items if isinstance(item, int))  # true and false are 1 and 0
    if items and len(named) == len(items):
        return Values(named)
    if isinstance(value, Mapping) and value and value.keys() <= {"min", "max"}:
        least, most = value.get("min"), value.get("max")
        if isinstance(least, int | None) and isinstance(most, int | None):
            return Values((), least, most)
    raise UsageError(
        f"{source}: knob {knob} is {str(value)[:60]!r}; write a whole number, a list of them such as [1, 2], "
        "or {min = 1, max = 4}"
    )


def _listed(choices: Mapping[str, Sequence[int]]) -> str:
    return "; ".join(f"{knob}: {', '.join(map(str, values))}" for knob, values in choices.items())
