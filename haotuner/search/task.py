"""Task of a search: its effort, its deadline, its selections and its result.

Selections found for one op, by family: a search that is taken up in turns asks for the same every time.

Going through ten thousand points, and what several models of other devices say of them, takes seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from haotuner.codegen.template import Template
from haotuner.cost.model import CostModel
from haotuner.plan.cover import Cover
from haotuner.plan.table import PlanTable, RowTable
from haotuner.search.select.funnel import Funnel
from haotuner.spec.family import Family
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.record import Record
from haotuner.spec.traffic import Traffic


class Selections:
    """Of one op, its traffic, its device and one start: nothing else may differ between those who share it."""

    def __init__(self) -> None:
        self._funnels: dict[tuple[str, tuple[MicroKernel, ...]], Funnel] = {}

    def of(self, family: Family, among: Sequence[MicroKernel], select: Callable[[], Funnel]) -> Funnel:
        """The candidates of a family, ``among`` these alone unless empty; ``select`` finds them the first time."""
        key = family.name, tuple(among)
        if key not in self._funnels:
            self._funnels[key] = select()
        return self._funnels[key]


Watch = Callable[[str, Record | None], bool]  # told the phase and each record; False asks to stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Stopping rules of a search, and how its time is divided. Recorded with the run; a replay may pass another."""

    quiet_rounds: int = 4  # rounds without a better plan before the search stops
    started_quiet_rounds: int = 6  # of the small rounds of a model learnt elsewhere; two ended some searches 4 % short
    # Log units. Up to it starts are patient for that many rounds, beyond it longer by the ratio's square.
    usual_spread: float = 0.15
    caution: float = 1.0  # spreads that a prediction is taken to be slower where a plan is judged that has not all its times
    better: float = 0.003  # a smaller gain of the plan is noise
    # Measured first. Of these one is measured however short the budget, so that a plan rests on something; 0: none is.
    least_kernels: int = 4
    # The first times at most ten kernels, a second; later ones what only the exact cover keeps, or new names.
    confirm_rounds: int = 6
    search_share: float = 0.6  # of the time budget; then what would be kept is timed once more
    confirm_share: float = 0.7  # of the time budget; then the kept kernels are measured for every thread count
    curves_share: float = 0.6  # of what is then left: all else is worth as much as the curves are
    # Of what is left after that; the rest is for times in more processes, and goes back if not needed.
    contend_share: float = 0.7
    measure_share: float = 0.85  # of the time budget; tables of 4,096 rows for two thread counts and scores take 5 s more


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Tuning task: an op for its traffic, and how."""

    op: Op
    traffic: Traffic
    threads: tuple[int, ...] = (1,)
    cache: str = "cold"  # where the weights are before a call: cold | hot
    budget_s: float = 60.0
    whole_s: float = 0.0  # of a search that is taken up in turns, the seconds of all of them; 0: there is one turn
    seed: int = 0
    one_order: bool = False  # every element sums its terms in one order, whatever m and threads: a batch-invariant pack
    search: str = ""  # a policy of ``search/policies`` that proposes the candidates; empty: those of selection
    template: Template | None = None  # what the policy may try; None: every schedule
    effort: Effort = field(default_factory=Effort)
    among: tuple[MicroKernel, ...] = ()  # look at these alone if they can serve every shape: of a run that is to end
    others: Mapping[str, CostModel] = field(default_factory=dict)  # learnt elsewhere, of families beside the first, by name
    selections: Selections | None = None  # what earlier turns of this very search selected; None: there was none

    def selected(self, family: Family, among: Sequence[MicroKernel], select: Callable[[], Funnel]) -> Funnel:
        """The candidates of a family, or of ``among`` unless empty; ``select`` finds them if no earlier turn did."""
        return select() if self.selections is None else self.selections.of(family, among, select)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """Result of tuning one op."""

    task: Task
    family: Family
    strategy: str  # how it was searched (haotuner/tuning/strategies.py)
    funnel: Funnel
    kernels: tuple[MicroKernel, ...]  # the kept micro-kernels; plan tables name them
    tables: tuple[PlanTable, ...]
    measured: int  # kernels that have a time
    timings: int  # of kernels at shapes, before compositions are timed
    seconds: float
    stopped: str  # "converged", "exhausted", "budget" or "signal"
    regret: float = 0.0  # fraction lost by keeping few kernels
    cover: Cover | None = None  # how they were chosen, of a strategy that covers
    model: dict[str, float] = field(default_factory=dict)

    @property
    def row_tables(self) -> tuple[RowTable, ...]:
        """The tables that are by rows: all of the strategy "rows", none of others."""
        return tuple(table for table in self.tables if isinstance(table, RowTable))


def now() -> float:
    """Seconds of a clock that only rises."""
    return time.monotonic()


class Clock:
    """A deadline and a watcher. ``expired`` and ``given_up`` say what ended it."""

    def __init__(self, until: float, watch: Watch, phase: str = "search", *, given_up: bool = False) -> None:
        self._until, self._watch, self.phase = until, watch, phase
        self.expired, self.given_up = False, given_up

    def not_given_up(self, record: Record | None = None) -> bool:
        """True if nobody asked to stop, whatever the time."""
        if not self._watch(self.phase, record):
            self.given_up = True
        return not self.given_up

    def goes_on(self, record: Record | None = None, *, needing: float = 0.0) -> bool:
        """True if there is time left, so many seconds if the next step needs them, and nobody asked to stop."""
        self.not_given_up(record)
        late = now() + needing >= self._until
        self.expired |= late
        return not (late or self.given_up)

    def within(self, share: float) -> Callable[[Record | None], bool]:
        """Test for a step that may take this share of the time left; the clock itself does not expire."""
        until = part(self._until, share)

        def goes_on(record: Record | None = None) -> bool:
            return self.not_given_up(record) and now() < until

        return goes_on

    def move(self, until: float) -> None:
        """Another deadline, for the next step; that one was missed is not forgotten."""
        self._until = until

    def next_phase(self, until: float, phase: str) -> Clock:
        """A clock for another phase, which nobody's wish to stop is lost to."""
        return Clock(until, self._watch, phase, given_up=self.given_up)


def part(until: float, share: float) -> float:
    """The moment when that share of the time from now on is over."""
    begin = now()
    return begin + (until - begin) * share
