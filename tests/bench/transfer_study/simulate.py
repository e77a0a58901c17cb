"""Simulate: one run of transfer on a target whose records are known, from no measurement to the last count, scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from haotuner.cost.model import Scores
from haotuner.transfer.device_table import NOTHING, DeviceTable, Rows
from haotuner.transfer.experts import ANALYSIS, COPY_OF, SHARES, Shares
from haotuner.transfer.portfolio import Opinion, Portfolio
from haotuner.transfer.similarity import priors_of
from haotuner.transfer.sources import learn_sources
from haotuner.transfer.warm_start import Ranks
from tests.bench.transfer_study.calibrate import TargetScores
from tests.bench.transfer_study.curves import curve_of, first_reaching, mean_of, walk_down
from tests.bench.transfer_study.modes import (
    HEAD,
    LEARNING,
    SAMPLE_FREE,
    ModeChoice,
    Pool,
    Sample,
    choose_mode,
    fit_residual_on,
    held_out,
    make_pool,
    rank,
    with_heads,
)
from tests.bench.transfer_study.opinions import measured_by, single_opinions
from tests.bench.transfer_study.samples import grow
from tests.bench.transfer_study.started_mode import GUIDED, STARTED, rank_started

OPINIONATED = ("residual", "from-scratch")  # modes that have a say in the portfolio: the others err as these do
UNAIDED_BEST = 0.625  # of a batch of a search that nobody helps, what goes to the top of its own model
REACH = (0.95, 0.97, 0.99)
MOST_HEADS = 16  # tasks whose heads are portfolios once there are samples; of more the best of all are shared out
LONGEST_WALK = 512  # measurements after which a search that has not arrived counts as this many
Point = dict[str, float]
Leg = tuple[Rows, Rows]  # rows sampled in the order they were measured, and the walk down the ranking learnt from them


@dataclass(slots=True)
class SimulatedRun:
    """What one seed gave: scores by mode and sample count, the chosen ones, baselines, measurements to each share."""

    modes: dict[str, dict[int, Point]] = field(default_factory=dict)
    chosen: dict[int, Point] = field(default_factory=dict)
    choices: dict[int, ModeChoice] = field(default_factory=dict)
    baselines: dict[str, Point] = field(default_factory=dict)
    measurements: dict[str, dict[float, int]] = field(default_factory=dict)
    curves: dict[str, Scores] = field(default_factory=dict)  # best found after each measurement


def simulate(
    target: DeviceTable,
    tables: Sequence[DeviceTable],
    counts: Sequence[int],
    seed: int,
    start: Ranks | None = None,
    shares: Shares = SHARES,
) -> SimulatedRun:
    """One run; the seed decides forests, folds and random samples.

    Transferring modes share one sample, chosen with the sources' help. From scratch is a search whose samples
    owe nothing to sources or analysis; its forest has the features that all have. *Guided* is one that samples as transfer
    does, helped by the analysis only: what is ahead of it is owed to the sources and not to the analysis or a better search.
    ``start`` is what ``tune`` would start from; with one the run has the mode *started*, on the transferring modes' sample.
    """
    sources = learn_sources(tables, target.device, seed=seed)
    known = measured_by(tables, target.trials)
    single, scores = single_opinions(target, tables, known, seed), TargetScores.of(target)
    pool = make_pool(sources, tables, target, known=known, single=single, shares=shares)
    done = SimulatedRun(baselines=_baselines(target, tables, single, scores, seed))
    if start is not None:
        done.baselines["start"] = scores.score(start.predict(target.frame))
    for mode in SAMPLE_FREE:
        if mode != "copy" or not np.isnan(known).all():
            done.modes[mode] = {0: scores.score(rank(mode, pool, None, seed))}
    _transfer_arm(done, pool, scores, target, counts, seed, start)
    _scratch_arm(done, pool, scores, target, counts, seed)
    _guided_arm(done, pool, scores, target, counts, seed)
    return done


def _transfer_arm(
    done: SimulatedRun,
    pool: Pool,
    scores: TargetScores,
    target: DeviceTable,
    counts: Sequence[int],
    seed: int,
    start: Ranks | None,
) -> None:
    choice = choose_mode(pool, None, seed)
    if 0 in counts:
        done.chosen[0], done.choices[0] = scores.score(rank(choice.mode, pool, None, seed)), choice
    opinions, rng = pool.opinions(), np.random.default_rng([seed, 2])
    portfolio, drawn = pool.portfolio(opinions, [seed, 2]), NOTHING
    started = () if start is None else (STARTED,)
    legs: dict[str, list[Leg]] = {mode: [] for mode in (*LEARNING, *started, "chosen") if mode != "from-scratch"}
    for count, more in _steps(counts):
        drawn = grow(portfolio, count - len(portfolio.rows), len(target), target.labels.item, rng, drawn)
        sampled = portfolio.rows
        sample = Sample(rows=sampled, labels=target.labels[sampled])
        residual = fit_residual_on(pool, sample, seed)
        by_mode = {mode: rank(mode, pool, sample, seed) for mode in LEARNING if mode != "residual"}
        if start is not None:
            by_mode[STARTED] = rank_started(start, pool, sample, seed)
        by_mode["residual"] = residual.predict(pool.frame, pool.columns)
        stored = held_out(pool, sample, seed, residual)
        choice = _with_note(choose_mode(pool, sample, seed, stored), count, len(target))
        portfolio = informed(pool, opinions, sample, by_mode, stored, [seed, 2, count])
        prediction = by_mode[choice.mode] if choice.mode in by_mode else rank(choice.mode, pool, None, seed)
        prediction = with_heads(prediction, [portfolio.best(HEAD * min(len(scores.groups), MOST_HEADS))])
        if count in counts:
            for mode in legs.keys() - {"chosen"}:
                done.modes.setdefault(mode, {})[count] = scores.score(by_mode[mode], sampled)
            done.chosen[count], done.choices[count] = scores.score(prediction, sampled), choice
        for mode, parts in legs.items():
            parts.append((sampled, walk_down(scores, prediction if mode == "chosen" else by_mode[mode], sampled, more)))
    for mode, parts in legs.items():
        _note_legs(done, mode, scores, parts)
    for mode in done.modes.keys() & set(SAMPLE_FREE):
        _note_legs(done, mode, scores, [(NOTHING, walk_down(scores, rank(mode, pool, None, seed), NOTHING, LONGEST_WALK))])


def _with_note(choice: ModeChoice, count: int, rows: int) -> ModeChoice:
    if count <= rows:
        return choice
    note = f"{count} samples asked for, all {rows} rows taken"
    return replace(choice, note=f"{note}; {choice.note}" if choice.note else note)


def _scratch_arm(
    done: SimulatedRun, pool: Pool, scores: TargetScores, target: DeviceTable, counts: Sequence[int], seed: int
) -> None:
    """From scratch: the first samples by chance, later ones by the model of the samples before."""
    rng, sampled = np.random.default_rng([seed, 4]), NOTHING
    opinions: list[Scores] = []
    legs: list[Leg] = []
    for count, more in _steps(counts):
        batch = unaided_batch(opinions=opinions, taken=sampled, count=count - len(sampled), rows=len(target), rng=rng)
        sampled = np.concatenate([sampled, batch])
        answer = rank("from-scratch", pool, Sample(rows=sampled, labels=target.labels[sampled]), seed)
        opinions = [answer]
        if count in counts:
            done.modes.setdefault("from-scratch", {})[count] = scores.score(answer, sampled)
        legs.append((sampled, walk_down(scores, answer, sampled, more)))
    _note_legs(done, "from-scratch", scores, legs)


def _guided_arm(
    done: SimulatedRun, pool: Pool, scores: TargetScores, target: DeviceTable, counts: Sequence[int], seed: int
) -> None:
    """The same with samples chosen as transfer chooses its own, helped by the analysis only."""
    rng = np.random.default_rng([seed, 3])
    analysis = [opinion for opinion in pool.opinions() if opinion.name == ANALYSIS]
    portfolio, drawn = pool.portfolio(analysis, [seed, 3]), NOTHING
    legs: list[Leg] = []
    for count, more in _steps(counts):
        drawn = grow(portfolio, count - len(portfolio.rows), len(target), target.labels.item, rng, drawn)
        sampled = portfolio.rows
        sample = Sample(rows=sampled, labels=target.labels[sampled])
        answer = rank("from-scratch", pool, sample, seed)
        stored = held_out(pool, sample, seed, modes=("from-scratch",))
        portfolio = informed(pool, analysis, sample, {"from-scratch": answer}, stored, [seed, 3, count])
        if count in counts:
            done.modes.setdefault(GUIDED, {})[count] = scores.score(answer, sampled)
        legs.append((sampled, walk_down(scores, answer, sampled, more)))
    _note_legs(done, GUIDED, scores, legs)


def informed(
    pool: Pool,
    opinions: Sequence[Opinion],
    sample: Sample,
    by_mode: Mapping[str, Scores],
    stored: Mapping[str, Scores],
    seed: Sequence[int],
) -> Portfolio:
    """A portfolio that knows a sample, with what was learnt of it as further opinions.

    Args:
        pool: the rows.
        opinions: of before the sample.
        sample: what was measured.
        by_mode: what each mode says of every row.
        stored: what modes say of the sample from fits that did not see it; modes without are not asked.
        seed: of the draws.
    """
    learnt = [
        Opinion(name=mode, prediction=by_mode[mode], weight=pool.shares.learnt, unseen=stored[mode])
        for mode in OPINIONATED
        if mode in stored
    ]
    every = [*opinions, *learnt]
    portfolio = pool.portfolio(every, seed)
    portfolio.update(sample.rows, sample.labels, [item.unseen for item in every])
    return portfolio


def unaided_batch(*, opinions: Sequence[Scores], taken: Rows, count: int, rows: int, rng: np.random.Generator) -> Rows:
    """At most ``count`` of ``rows`` rows for a search that nobody helps: by chance at first, then most by its own model."""
    free = np.setdiff1d(np.arange(rows), taken)
    top = free[np.argsort(-opinions[0][free], kind="stable")][: round(count * UNAIDED_BEST)] if opinions else free[:0]
    rest = rng.permutation(np.setdiff1d(free, top))[: max(count - len(top), 0)]
    return np.concatenate([top, rest]).astype(np.int64)[:count]


def _steps(counts: Sequence[int]) -> list[tuple[int, int]]:
    """Sample counts, and how far to walk down the ranking before the next batch is due."""
    requested = sorted(count for count in counts if count > 0)
    gaps = [b - a for a, b in zip(requested, requested[1:], strict=False)] + (
        [LONGEST_WALK - requested[-1]] if requested else []
    )
    return list(zip(requested, (max(gap, 0) for gap in gaps), strict=True))


def _note_legs(done: SimulatedRun, mode: str, scores: TargetScores, legs: Sequence[Leg]) -> None:
    """Best found after each number of measurements: the largest sample that they pay for, the rest down its ranking.

    Every entry is the result of one policy that can be carried out, so the curve may fall where a larger sample begins.
    """
    if not legs:
        return
    curve = np.zeros(LONGEST_WALK)
    for samples, walk in legs:
        result = curve_of(scores, np.concatenate([samples, walk])[:LONGEST_WALK])
        # entry i is for i + 1 measurements; before the first sample is complete they are spent in its own order
        first = min(len(samples), len(result)) - 1 if curve.any() else 0
        curve[first : len(result)] = result[first:]
        curve[len(result) :] = result[-1]
    done.curves[mode] = curve
    done.measurements[mode] = {share: first_reaching(curve, share) or LONGEST_WALK for share in REACH}


def _baselines(
    target: DeviceTable, tables: Sequence[DeviceTable], single: Mapping[str, Scores], scores: TargetScores, seed: int
) -> dict[str, Point]:
    """Every opinion alone, the copy of the nearest source by its own name as well, and chance."""
    result = {name: scores.score(item) for name, item in single.items()}
    nearest = tables[int(np.argmax(priors_of([table.device for table in tables], target.device)))].device.id
    if COPY_OF + nearest in result:
        result["copy"] = result[COPY_OF + nearest]
    return result | {
        "random": mean_of([scores.score(np.random.default_rng([seed, 4, i]).random(len(target))) for i in range(3)])
    }
