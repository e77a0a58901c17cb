"""Task of a search, its effort, and its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from haotuner.codegen.template import Template
from haotuner.cost.model import CostModel
from haotuner.plan.cover import Cover
from haotuner.plan.table import PlanTable, RowTable
from haotuner.search.selections import Selections
from haotuner.select.funnel import Funnel
from haotuner.spec.family import Family
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.record import Record
from haotuner.spec.traffic import Traffic

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
