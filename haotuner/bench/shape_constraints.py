"""Constraints of a pack's model on the sizes of a request: dimensions that a file names apart may have to agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from haotuner.errors import UsageError
from haotuner.runtime.chain import Chain
from haotuner.runtime.model import Model
from haotuner.runtime.schedule import ExecutionPlan


@dataclass(frozen=True, slots=True)
class ShapeConstraints:
    """``alike``: dimensions that are drawn as another one, which comes first; ``schedules``: of parts that always run."""

    alike: Mapping[str, str] = field(default_factory=dict)
    schedules: Sequence[ExecutionPlan] = ()

    def refused(self, sizes: Mapping[str, int]) -> str:
        """Reason that the model takes no such request, as far as sizes tell; empty where it does."""
        for schedule in self.schedules:
            if set(schedule.dims) <= sizes.keys():
                try:
                    schedule.values({name: sizes[name] for name in schedule.dims})
                except UsageError as error:
                    return str(error)
        return ""


def shape_constraints_of(model: Model | Chain, dims: Sequence[str]) -> ShapeConstraints:
    """Of the dimensions that a request decides. What one side of a branch joins is drawn alike, and refuses nothing."""
    if isinstance(model, Chain):
        always = set(model.always)
        every = {name: segment.schedule for name, segment in model.segments.items()}
    else:
        always, every = {model.name}, {model.name: model.schedule}
    alike: dict[str, str] = {}
    for schedule in every.values():
        for pair in schedule.equal:
            lines = [schedule.sizes[position] for position in pair]
            if all(line[0] == "dim" and line[1] in dims for line in lines):
                first, other = sorted((_first(alike, str(line[1])) for line in lines), key=list(dims).index)
                if first != other:
                    alike[other] = first
    return ShapeConstraints(
        {name: _first(alike, name) for name in alike}, [item for name, item in every.items() if name in always]
    )


def _first(alike: Mapping[str, str], name: str) -> str:
    while name in alike:
        name = alike[name]
    return name
