"""The tuning loop of one op: propose, measure, record, learn, stop; then cover, and a plan for every thread count."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from haotuner.backends.cpu.setting import Setting
from haotuner.cost.model import CostModel
from haotuner.errors import HaotunerError
from haotuner.measure.laboratory import Laboratory
from haotuner.plan.compose import best_us, mean_us
from haotuner.plan.cover import Cover, cover, sketch
from haotuner.plan.curves import Curve
from haotuner.search.book import MEASURED_ONLY, Book, expectation, names
from haotuner.search.contenders import again, contend, curves
from haotuner.search.planning import Table, decide
from haotuner.search.probes import Probe, probe
from haotuner.search.propose import rounds
from haotuner.select.funnel import Funnel, select
from haotuner.words.family import Family
from haotuner.words.kernel import MicroKernel
from haotuner.words.op import Op
from haotuner.words.record import Record, Timed, Trial
from haotuner.words.traffic import Traffic

STARTED_QUIET_ROUNDS = 6  # of the small rounds of a model learnt elsewhere; two ended some searches 4 % short
USUAL_SPREAD = 0.15  # log units; up to it starts are patient for that many rounds, beyond it longer by the ratio's square
QUIET_ROUNDS = 4  # rounds without a better plan before the search stops
CAUTION = 1.0  # spreads that a prediction is taken to be slower where a plan is judged that has not all its times
BETTER = 0.003  # a smaller gain of the plan is noise
LEAST_KERNELS = 4  # measured however short the budget, so that a plan rests on something; about a second
CONFIRM_ROUNDS = 6  # the first times at most ten kernels, a second; later ones what only the exact cover keeps, or new names
SEARCH_SHARE = 0.6  # of the time budget; then what would be kept is timed once more
CONFIRM_SHARE = 0.7  # of the time budget; then the kept kernels are measured for every thread count
CURVES_SHARE = 0.6  # of what is then left: all else is worth as much as the curves are
CONTEND_SHARE = 0.7  # of what is left after that; the rest is for times in more processes, and goes back if not needed
MEASURE_SHARE = 0.85  # of the time budget; tables of 4,096 rows for two thread counts and the model's scores take 5 s more


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What to tune: an op for its traffic, and how."""

    op: Op
    traffic: Traffic
    threads: tuple[int, ...] = (1,)
    weights: str = "cold"
    budget_s: float = 60.0
    seed: int = 0
    one_order: bool = False  # every element sums its terms in one order, whatever m and threads: a batch-invariant pack


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What came out for one op."""

    task: Task
    family: Family
    funnel: Funnel
    cover: Cover
    tables: tuple[Table, ...]
    measured: int  # kernels that have a time
    timings: int  # of kernels at shapes, before compositions are timed
    seconds: float
    stopped: str  # "converged", "exhausted", "budget" or "signal"
    model: dict[str, float] = field(default_factory=dict)

    @property
    def kernels(self) -> tuple[MicroKernel, ...]:
        """The kept micro-kernels; plan tables index into them."""
        return tuple(MicroKernel.parse(curve.kernel) for curve in self.cover.kept)

    def setting(self, lab: Laboratory) -> Setting:
        """Layout of the packed weight."""
        return Setting.of(self.task.op, self.kernels, lab.device)


Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Watch = Callable[[str, Record | None], bool]  # told the phase and each record; False asks to stop


def tune(
    task: Task, lab: Laboratory, family: Family, watch: Watch = lambda *_: True, model: CostModel | None = None
) -> Tuned:
    """Tune one op. Always ends with a plan that can be served, unless every candidate failed (HaotunerError)."""
    begin = time.monotonic()
    rows = np.array([shape["m"] for shape in task.traffic.shapes()], np.int64)
    weights = np.array([weight for _, weight in task.traffic], np.float64)
    expected = expectation(task.op, family, lab.device, task.weights, model)
    funnel = select(task.op, family, lab.device, task.traffic, expected)
    ordered = names(funnel.kept)
    most = int(rows.max())
    probes = [probe(c.kernel, task.op, lab.device, most, weights=task.weights) for c in funnel.kept]
    book = Book(task.op, family, lab.device, probes, weights=task.weights, seed=task.seed, model=model)
    clock = _Clock(begin + task.budget_s * SEARCH_SHARE, watch)
    stopped = _search(book, ordered, rows, weights, lab, clock, task.seed)
    if stopped == "budget" or not book.started:
        # What an earlier run recorded counts, even if there was no time to come to it.
        _recall(book, ordered, lab, clock)
    if not book.judged(ordered):
        _whole(book, [curve.kernel for curve in sketch(book.layouts(ordered), rows, weights)][:LEAST_KERNELS], lab, clock)
    clock = _Clock(begin + task.budget_s * CONFIRM_SHARE, watch, phase="plan", given_up=clock.given_up)
    whole = _confirm(book, ordered, rows, weights, lab, clock)
    kept = cover(_complete(book, book.finished(ordered) if whole else book.judged(ordered), ordered, lab), rows, weights)
    if everything := _measured_us(book, ordered, rows):  # kept kernels alone may be timed whole; all that has a time counts
        kept = replace(kept, unlimited_us=min(kept.unlimited_us, float(weights @ np.min(everything, axis=0))))
    tables = _tables(task, kept, lab, clock, begin + task.budget_s * MEASURE_SHARE)
    return Tuned(
        task=task,
        family=family,
        funnel=funnel,
        cover=kept,
        tables=tables,
        measured=len(book.judged(ordered)),
        timings=len(book.us),
        seconds=time.monotonic() - begin,
        stopped="signal" if clock.given_up else ("budget" if clock.expired else stopped),
        model=book.scores(),
    )


class _Clock:
    """Says when to stop: at the deadline, or when whoever watches asks for it."""

    def __init__(self, until: float, watch: Watch, phase: str = "search", *, given_up: bool = False) -> None:
        self._until, self._watch, self.phase = until, watch, phase
        self.expired, self.given_up = False, given_up

    def not_given_up(self, record: Record | None = None) -> bool:
        """Whether nobody asked to stop, whatever the time."""
        if not self._watch(self.phase, record):
            self.given_up = True
        return not self.given_up

    def goes_on(self, record: Record | None = None) -> bool:
        """Whether there is time left and nobody asked to stop."""
        self.not_given_up(record)
        late = time.monotonic() >= self._until
        self.expired |= late
        return not (late or self.given_up)

    def move(self, until: float) -> None:
        """Another deadline, for the next step; that one was missed is not forgotten."""
        self._until = until


def _tables(task: Task, kept: Cover, lab: Laboratory, clock: _Clock, until: float) -> tuple[Table, ...]:
    """A plan for every thread count.

    The time that is left is shared by what there is to time, so that none goes without. What remains serves all together.
    """
    clock.move(_part(until, CURVES_SHARE))
    timings = curves(
        lab, task.op, kept.kept, task.traffic, task.threads, task.weights, clock.goes_on, one_order=task.one_order
    )
    clock.move(_part(until, CONTEND_SHARE))
    timings = contend(lab, timings, task.traffic, task.weights, clock.goes_on)
    clock.move(until)
    timings = again(lab, timings, task.weights, clock.goes_on)
    return tuple(map(decide, contend(lab, timings, task.traffic, task.weights, clock.goes_on)))


def _part(until: float, share: float) -> float:
    """The moment when that share of the time from now on is over."""
    now = time.monotonic()
    return now + (until - now) * share


def _search(
    book: Book, ordered: Sequence[str], rows: Ints, weights: Floats, lab: Laboratory, clock: _Clock, seed: int
) -> str:
    batches = rounds(book, ordered, rows, weights, seed)
    batch = next(batches, {})
    if not book.started:
        _recall(book, list(batch), lab, clock)
        _whole(book, list(batch)[:LEAST_KERNELS], lab, clock)
    quiet, best = 0, np.inf
    while batch and clock.goes_on():
        if not book.started:  # single shapes are recalled as they are asked for, so that a run taken up again asks the same
            _recall(book, list(batch), lab, clock)
        todo = {name: book.open(trials) for name, trials in batch.items() if not book.done(name)}
        lab.prepare([name for name, trials in todo.items() if any(lab.known(trial) is None for trial in trials)])
        for trials in todo.values():
            for record in lab.measure(trials, clock.goes_on):
                book.note(record)
            if clock.expired or clock.given_up:
                return "budget"
        book.learn()
        value = min((mean_us(us, weights) for us in _measured_us(book, ordered, rows)), default=np.inf)
        quiet = quiet + 1 if value > best * (1 - BETTER) else 0
        best = min(best, value)
        if quiet >= patience(book):
            return "converged"
        batch = next(batches, {})
    return "budget" if batch else "exhausted"


def patience(book: Book) -> int:
    """Rounds without a better plan before the search stops: more where a start turns out to be further off than usual."""
    if not book.started:
        return QUIET_ROUNDS
    return round(STARTED_QUIET_ROUNDS * max(1.0, book.spread / USUAL_SPREAD) ** 2)


def _whole(book: Book, names: Sequence[str], lab: Laboratory, clock: _Clock) -> None:
    """Whole probes of these kernels, whatever the time, so that a plan rests on something."""
    open_ = [name for name in names if not book.done(name)]
    lab.prepare(open_)
    for name in open_:
        for record in lab.measure(book.open(book.probes[name].trials()), clock.not_given_up):
            book.note(record)


def _recall(book: Book, asked: Sequence[str], lab: Laboratory, clock: _Clock) -> None:
    """Note what is already recorded of these kernels; in a search by whole probes of those whose every trial is."""
    for name in asked:
        if book.done(name):  # nobody is told of a record twice
            continue
        found = [lab.known(trial) for trial in book.open(book.probes[name].trials())]
        if book.started or all(record is not None for record in found):
            for record in found:
                if record is not None:
                    book.note(record)
                    clock.not_given_up(record)


def _measured_us(book: Book, ordered: Sequence[str], rows: Ints) -> list[Floats]:
    """For each layout the least time of every shape, by measured times alone; none if nothing is measured.

    Predictions change from round to round, and what a start promised too much is never beaten.
    """
    layouts = book.layouts(book.judged(ordered), MEASURED_ONLY)
    return [best_us(curves, rows)[0] for curves in layouts.values()]


def _confirm(book: Book, ordered: Sequence[str], rows: Ints, weights: Floats, lab: Laboratory, clock: _Clock) -> bool:
    """Time those once more that would be kept, until the set stands: the best of many noisy times is the luckiest, too.

    In other processes, where code and data lie elsewhere, and as compositions of one region, so that the second time is a
    record of its own. Of a kernel that was timed at some shapes of its probe only, the others come first. False if it was
    cut short.
    """
    confirmed: set[str] = set()
    for _ in range(CONFIRM_ROUNDS):
        layouts = book.layouts(book.judged(ordered), CAUTION)
        fresh = [curve.kernel for curve in sketch(layouts, rows, weights) if curve.kernel not in confirmed]
        if not fresh and confirmed and clock.goes_on():  # the sketch stands; the exact program may still choose others
            fresh = [curve.kernel for curve in cover(layouts, rows, weights).kept if curve.kernel not in confirmed]
        if not fresh:
            break
        again = {name: _as_regions(book.probes[name]) for name in fresh}
        if any(lab.known(trial) is None for trials in again.values() for trial in trials):
            lab.renew()
        for name, trials in again.items():
            for record in lab.measure(book.open(book.probes[name].trials()), clock.goes_on):
                book.note(record)
            records = lab.measure(trials, clock.goes_on) if book.measured(name) else []
            for (_, trial), record in zip(book.probes[name].lead, records, strict=False):
                if isinstance(record.outcome, Timed):
                    book.confirm(trial, record.outcome.median_us)
            if len(records) < len(trials) and name not in book.failed:
                return False
        confirmed.update(fresh)
    return True


def _complete(book: Book, known: Sequence[str], ordered: Sequence[str], lab: Laboratory) -> dict[int, list[Curve]]:
    """Layouts that can cover every m: those with a one-row kernel, of known kernels if there are any.

    A run that was stopped before anything was measured still gets a plan, from predictions alone; the caller sees
    ``measured == 0``. HaotunerError when every candidate failed, or every one of those with one row.
    """
    for layouts in (book.layouts(known, CAUTION), book.layouts(ordered)):
        found = {pw: curves for pw, curves in layouts.items() if any(c.mr == 1 for c in curves)}
        if found:
            return found
    seen = ", ".join(f"{count} {reason}" for reason, count in sorted(lab.failures.items()))
    what = "candidate" if book.failed.issuperset(ordered) else "kernel of one row, which some m cannot do without,"
    raise HaotunerError(
        f"{book.op.name}: every {what} failed ({seen}); look at them with `haotuner records check`, "
        "or at the toolchain with `haotuner doctor`"
    )


def _as_regions(probe_: Probe) -> list[Trial]:
    """The leading trials of a probe as compositions of one region, timed once more."""
    return [replace(trial, kernel=f"{trial.kernel}*{tiles}", repeat=1) for tiles, trial in probe_.lead]
