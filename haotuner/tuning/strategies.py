"""Strategies to tune one op: the first that suits its axes and its tiles is taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from haotuner.cost.model import CostModel
from haotuner.errors import UsageError
from haotuner.measure.measurer import Measurer
from haotuner.search import grid_search, row_cover_search, wave_search
from haotuner.search.task import Effort, Task, Tuned, Watch
from haotuner.spec.device import Device
from haotuner.spec.family import Family
from haotuner.spec.op import Op

__all__ = ["STRATEGIES", "Effort", "Strategy", "Task", "Tuned", "Watch", "tune"]


Families = Sequence[Family]  # that a search may look at, best first; never empty


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to search and to plan: which ops it suits, in code and in words, and what it does."""

    name: str
    suits: Callable[[Op, Families, Device], bool]
    words: str
    tune: Callable[[Task, Measurer, Families, Watch, CostModel | None], Tuned]


# The first that suits an op tunes it.
STRATEGIES = (
    Strategy(
        row_cover_search.NAME, row_cover_search.suits, "one dynamic axis, which tiles end exactly", row_cover_search.tune
    ),
    Strategy(wave_search.NAME, wave_search.suits, "one dynamic axis, whose end many tiles at a time mask", wave_search.tune),
    Strategy(grid_search.NAME, grid_search.suits, "any dynamic axes, one micro-kernel a cell of shapes", grid_search.tune),
)


def tune(
    task: Task,
    lab: Measurer,
    family: Family | Families,
    watch: Watch = lambda *_: True,
    model: CostModel | None = None,
) -> Tuned:
    """Tune one op for its traffic, with one family or with several in one search, best first.

    ``watch`` is told the phase and each record; False asks to stop. ``model``: learnt elsewhere, to start from.

    Raises:
        HaotunerError: every candidate failed. In all other cases there is a plan that can be served.
        UsageError: no strategy suits the op.
    """
    families = tuple(family) if isinstance(family, Sequence) else (family,)
    for strategy in STRATEGIES:
        if task.search and strategy.name != grid_search.NAME:
            continue  # it refuses, with the reason
        if strategy.suits(task.op, families, lab.device):
            return strategy.tune(task, lab, families, watch, model)
    known = "; ".join(f"{strategy.name}: {strategy.words}" for strategy in STRATEGIES)
    raise UsageError(
        f"{task.op.name}: no strategy tunes an op of the dynamic axes {', '.join(task.op.dynamic)} with {families[0].name}; "
        f"known are {known}; give all other axes an extent"
    )
