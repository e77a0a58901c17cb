"""Search: one run on one target, from no measurement to the last sample count, scored along the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from haotuner.cost.model import Analytic, Scores
from haotuner.transfer.copying import copied, said_by
from haotuner.transfer.gauge import Verdict, judge
from haotuner.transfer.judging import Bench, first_reaching, mean_of
from haotuner.transfer.modes import GUIDED, LEARNING, SAMPLE_FREE, Pool, Sample, fit_residual_on, rank, shared_head
from haotuner.transfer.nearness import weights_of
from haotuner.transfer.samples import next_batch, program_units, unaided_batch
from haotuner.transfer.sources import Sources, learn_sources, plain
from haotuner.transfer.table import NOTHING, Rows, Table

REACH = (0.95, 0.97, 0.99)
LONGEST_WALK = 512  # measurements after which a search that has not arrived counts as this many
Point = dict[str, float]
Pick = Callable[..., Rows]  # (opinions, taken, count) -> the rows to measure next
Leg = tuple[Rows, Rows]  # rows sampled in the order they were measured, and the walk down the ranking learnt from them


@dataclass(slots=True)
class Run:
    """What one seed gave: scores by mode and sample count, the chosen ones, baselines, measurements to each share."""

    modes: dict[str, dict[int, Point]] = field(default_factory=dict)
    chosen: dict[int, Point] = field(default_factory=dict)
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    baselines: dict[str, Point] = field(default_factory=dict)
    measurements: dict[str, dict[float, int]] = field(default_factory=dict)
    curves: dict[str, Scores] = field(default_factory=dict)  # best found after each measurement


def make_pool(sources: Sources, tables: Sequence[Table], target: Table, known: Scores | None = None) -> Pool:
    """The target's rows with what the sources say and measured; ``known`` as ``said_by`` gives it, if known."""
    known = said_by(tables, target.trials) if known is None else known
    return Pool(
        frame=target.frame,
        sources=sources,
        columns=sources.columns(target.frame),
        copied=copied(known, sources.weights),
        agreed=copied(known, np.ones(len(tables))),
        tasks=target.tasks,
    )


def run(target: Table, tables: Sequence[Table], counts: Sequence[int], seed: int) -> Run:
    """One run; the seed decides forests, folds and random samples.

    Transferring modes share one sample, chosen with the sources' help. From scratch is a search whose samples
    owe nothing to sources or analysis; its forest has the features that all have. *Guided* is one that samples as transfer
    does, helped by the analysis only: what is ahead of it is owed to the sources and not to the analysis or a better search.
    """
    sources = learn_sources(tables, target.device, seed=seed)
    known = said_by(tables, target.trials)
    pool, bench = make_pool(sources, tables, target, known), Bench.of(target)
    done = Run(baselines=_baselines(target, tables, known, bench, seed))
    can_copy = not np.isnan(pool.copied).all()
    for mode in SAMPLE_FREE:
        if mode != "copy" or can_copy:
            done.modes[mode] = {0: bench.score(rank(mode, pool, None, seed))}
    _transfer_arm(done, pool, bench, target, counts, seed)
    _scratch_arm(done, pool, bench, target, counts, seed)
    _guided_arm(done, pool, bench, target, counts, seed)
    return done


def _transfer_arm(done: Run, pool: Pool, bench: Bench, target: Table, counts: Sequence[int], seed: int) -> None:
    pick = _sampler(pool, target, pool.analysis(), pool.sources.level().spread, [seed, 2])
    verdict = judge(pool, None, seed)
    said, opinions = rank(verdict.mode, pool, None, seed), pool.opinions()
    consensus = opinions[-1]
    if 0 in counts:
        done.chosen[0], done.verdicts[0] = bench.score(said), verdict
    taken = NOTHING
    legs: dict[str, list[Leg]] = {mode: [] for mode in (*LEARNING, "chosen") if mode != "from-scratch"}
    for count, more in _steps(counts):
        batch = pick(opinions=opinions, taken=taken, count=count - len(taken))
        taken = np.concatenate([taken, batch])
        sample = Sample(rows=taken, labels=target.labels[taken])
        residual = fit_residual_on(pool, sample, seed)
        by_mode = {mode: rank(mode, pool, sample, seed) for mode in LEARNING if mode != "residual"}
        by_mode["residual"] = residual.predict(pool.frame, pool.columns)
        verdict = _with_note(judge(pool, sample, seed, residual), count, len(target))
        said = by_mode[verdict.mode] if verdict.mode in by_mode else rank(verdict.mode, pool, None, seed)
        said = shared_head(said, (said, *(by_mode[mode] for mode in verdict.level)), pool.tasks, taken)
        # one opinion owes nothing to the sources, so misleading ones cannot keep the search away from the best
        opinions = [said, by_mode["from-scratch"], consensus]
        if count in counts:
            for mode in legs.keys() - {"chosen"}:
                done.modes.setdefault(mode, {})[count] = bench.score(by_mode[mode], taken)
            done.chosen[count], done.verdicts[count] = bench.score(said, taken), verdict
        for mode, parts in legs.items():
            parts.append((taken, bench.walk(said if mode == "chosen" else by_mode[mode], taken, more)))
    for mode, parts in legs.items():
        _note_legs(done, mode, bench, parts)
    for mode in done.modes.keys() & set(SAMPLE_FREE):
        _note_legs(done, mode, bench, [(NOTHING, bench.walk(rank(mode, pool, None, seed), NOTHING, LONGEST_WALK))])


def _with_note(verdict: Verdict, asked: int, rows: int) -> Verdict:
    if asked <= rows:
        return verdict
    note = f"{asked} samples asked for, all {rows} rows taken"
    return replace(verdict, note=f"{note}; {verdict.note}" if verdict.note else note)


def _scratch_arm(done: Run, pool: Pool, bench: Bench, target: Table, counts: Sequence[int], seed: int) -> None:
    """From scratch: the first samples by chance, later ones by the model of the samples before."""
    rng = np.random.default_rng([seed, 4])
    _alone(done, "from-scratch", partial(unaided_batch, rows=len(target), rng=rng), pool, bench, target, counts, seed)


def _guided_arm(done: Run, pool: Pool, bench: Bench, target: Table, counts: Sequence[int], seed: int) -> None:
    """The same with samples chosen as transfer chooses its own, helped by the analysis only."""
    analysis = Analytic().predict(pool.frame)
    pick = _sampler(pool, target, analysis, float(analysis.std()), [seed, 3])
    _alone(done, GUIDED, pick, pool, bench, target, counts, seed)


def _alone(
    done: Run, name: str, pick: Pick, pool: Pool, bench: Bench, target: Table, counts: Sequence[int], seed: int
) -> None:
    opinions: list[Scores] = []
    taken = NOTHING
    legs: list[Leg] = []
    for count, more in _steps(counts):
        batch = pick(opinions=opinions, taken=taken, count=count - len(taken))
        taken = np.concatenate([taken, batch])
        said = rank("from-scratch", pool, Sample(rows=taken, labels=target.labels[taken]), seed)
        opinions = [said]
        if count in counts:
            done.modes.setdefault(name, {})[count] = bench.score(said, taken)
        legs.append((taken, bench.walk(said, taken, more)))
    _note_legs(done, name, bench, legs)


def _sampler(pool: Pool, target: Table, analysis: Scores, spread: float, seed: Sequence[int]) -> Pick:
    """``next_batch`` on a target; what is left to say is who has an opinion, what is taken, and how many rows to add."""
    return partial(
        next_batch,
        analysis=analysis,
        spread=spread,
        places=program_units(pool.frame),
        tasks=pool.tasks,
        measure=target.labels.item,
        rng=np.random.default_rng(seed),
    )


def _steps(counts: Sequence[int]) -> list[tuple[int, int]]:
    """Sample counts, and how far to walk down the ranking before the next batch is due."""
    asked = sorted(count for count in counts if count > 0)
    gaps = [b - a for a, b in zip(asked, asked[1:], strict=False)] + ([LONGEST_WALK - asked[-1]] if asked else [])
    return list(zip(asked, (max(gap, 0) for gap in gaps), strict=True))


def _note_legs(done: Run, mode: str, bench: Bench, legs: Sequence[Leg]) -> None:
    """Best found after each number of measurements: the largest sample that they pay for, the rest down its ranking.

    Every entry is the result of one policy that can be carried out, so the curve may fall where a larger sample begins.
    """
    if not legs:
        return
    curve = np.zeros(LONGEST_WALK)
    for samples, walk in legs:
        found = bench.curve(np.concatenate([samples, walk])[:LONGEST_WALK])
        # entry i is for i + 1 measurements; before the first sample is complete they are spent in its own order
        first = min(len(samples), len(found)) - 1 if curve.any() else 0
        curve[first : len(found)] = found[first:]
        curve[len(found) :] = found[-1]
    done.curves[mode] = curve
    done.measurements[mode] = {share: first_reaching(curve, share) or LONGEST_WALK for share in REACH}


def _baselines(target: Table, tables: Sequence[Table], known: Scores, bench: Bench, seed: int) -> dict[str, Point]:
    nearest = np.zeros(len(tables))
    nearest[int(np.argmax(weights_of([table.device for table in tables], target.device)))] = 1.0
    found = {
        "plain": bench.score(plain(tables, target, seed)),
        "analytic": bench.score(Analytic().predict(target.frame)),
        "random": mean_of([bench.score(np.random.default_rng([seed, 4, i]).random(len(target))) for i in range(3)]),
    }
    for name, weights in (("copy", nearest), ("copy-mean", np.full(len(tables), 1.0 / len(tables)))):
        values = copied(known, weights)
        if not np.isnan(values).all():
            found[name] = bench.score(np.where(np.isnan(values), np.nanmin(values) - 1.0, values))
    return found
