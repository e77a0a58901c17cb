"""What a shipped model saves `haotuner tune`: searches replayed on records, so that they differ in nothing but the start.

``python -m tests.bench.transfer_use`` reads ``tests/bench/records`` and writes ``docs/results/transfer-use.md``; any machine
gives the same figures. Every search is `haotuner tune`'s own loop, its measurements looked up in the first round of the
records; its plan, over the traffic m = 1..2048, is judged by the second round, because the best of many noisy times is the
luckiest, too. A model never saw the op that it is used for.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import numpy as np

from haotuner.cost.features import NAMES
from haotuner.cost.forest import Forest
from haotuner.cost.model import CostModel, Scores
from haotuner.cost.scores import pairwise_accuracy
from haotuner.measure.measurer import GoesOn, Measurer
from haotuner.microkernels.cpu.dense import CpuDense
from haotuner.plan.compose import Curve
from haotuner.search.observations import ObservationTable
from haotuner.search.probes import Probe, probe
from haotuner.spec.composition import Composition
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.record import Record, Timed, Trial
from haotuner.spec.shape import ShapeRange
from haotuner.spec.traffic import Traffic
from haotuner.transfer.device_table import DeviceTable
from haotuner.transfer.similarity import priors_at, start_distance
from haotuner.transfer.warm_start import Blend, Ranks, Started, shared_of_models
from haotuner.tuning.strategies import Task, tune
from tests.bench.own_devices import OPS, ROWS
from tests.bench.own_records import FOLDER, OwnRecords, all_records
from tests.bench.replay import LOOK_EVERY, plan_us
from tests.bench.ship_models import fit_without, held_out, ops_of, scored, table_of, tasks_of
from tests.bench.shipped_trees import SHIPPED_TREES

PLENTY_S = 600.0  # of budget: nothing is waited for, so no search ends because of it
SHARE = 0.98
CLEAR = 0.10  # pairs closer than this are noise in half of the records: one median of 6 ms each, on a shared host
# For one device only: the models that ship leave columns out that mislead on other devices, and are small enough to ship.
LARGER = replace(SHIPPED_TREES, columns=NAMES, trees=600, leaves=127, rows_per_leaf=3, feature_share=0.8)
OTHERS = "all others"
ENOUGH = 100  # recorded kernels of an op, below which a search proves nothing


class Recorded(CpuDense):
    """The family, cut to the kernels that were recorded."""

    def __init__(self, kernels: Sequence[str]) -> None:
        self._kernels = tuple(MicroKernel.parse(name) for name in kernels)

    def points(self, op: Op, device: Device) -> Iterator[MicroKernel]:
        """Recorded kernels."""
        yield from self._kernels


@dataclass
class Replay:
    """A lab that looks measurements up; ``order`` holds the trials in the order in which they were asked for."""

    device: Device
    us: Mapping[Trial, float]
    order: dict[Trial, None] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)

    def known(self, trial: Trial) -> Record | None:
        return None

    def prepare(self, names: Sequence[str], goes_on: GoesOn = lambda _: True) -> None:
        pass

    def gather(self, names: Sequence[str]) -> None:
        pass

    def renew(self) -> None:
        pass

    def measure(self, trials: Iterable[Trial], goes_on: GoesOn = lambda _: True) -> list[Record]:
        records = []
        for trial in trials:
            (name, _), *_ = trial.composition.parts  # a kernel timed once more takes as long again
            first = replace(trial, composition=Composition.of(name, share=trial.composition.share), repeat=0)
            us = self.us[first]
            record = Record(trial=trial, outcome=Timed(samples_us=(us,)), device_id=self.device.id,
                            fingerprint="replay", session="replay", when=0.0)  # fmt: skip
            self.order[first] = None
            records.append(record)
            goes_on(record)
        return records


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One op on one device with every recorded kernel's measurements."""

    own: OwnRecords
    us: Mapping[Trial, float]  # what searches see
    op: Op
    traffic: Traffic
    kernels: tuple[str, ...]
    judge: Mapping[str, Curve]

    @staticmethod
    def of(own: OwnRecords, name: str) -> Case:
        """Kernels whose whole probe was recorded, cold, on one thread."""
        op, traffic = Op.parse(name), Traffic.of_range(ShapeRange.parse(f"m=1..{ROWS}"))
        first = {trial: us[0] for trial, us in own.rounds.items()}
        later = {trial: min(us[1:], default=us[0]) for trial, us in own.rounds.items()}
        probes = {n: _probe(n, op, own.device) for n in sorted({t.kernel for t in own.rounds if t.op.name == name})}
        whole = tuple(n for n, p in probes.items() if all(len(own.rounds.get(t, ())) > 1 for t in p.trials()))
        book = _book(whole, later, op, own.device)
        judge = {curve.kernel: curve for curve in book.curves(whole)}
        return Case(own=own, us=first, op=op, traffic=traffic, kernels=whole, judge=judge)

    def search(self, start: Ranks | None, seed: int) -> Run:
        """The trials in the order measured."""
        lab = Replay(self.own.device, self.us)
        task = Task(op=self.op, traffic=self.traffic, threads=(), budget_s=PLENTY_S, seed=seed)
        model = None if start is None else start if isinstance(start, Started) else Started(start, seed=seed)
        tune(task, cast(Measurer, lab), Recorded(self.kernels), model=model)
        return Run(self, tuple(lab.order), start, seed)

    def value(self, book: ObservationTable, names: Sequence[str]) -> float:
        """Geometric mean time over the traffic of the plan chosen among these kernels by what the book knows."""
        rows = np.array([shape["m"] for shape in self.traffic.shapes()], np.int64)
        shares = np.array([share for _, share in self.traffic], np.float64)
        return plan_us(book, names, self.judge, rows, shares)

    def full(self) -> float:
        """The same with every recorded kernel."""
        return self.value(_book(self.kernels, self.us, self.op, self.own.device), self.kernels)


@dataclass(frozen=True, slots=True)
class Run:
    """A search: what it measured, in order, and what it started from."""

    case: Case
    order: tuple[Trial, ...]
    start: Ranks | None
    seed: int

    @property
    def kernels(self) -> int:
        """How many kernels have a time."""
        return len({trial.kernel for trial in self.order})

    def value(self, count: int | None = None) -> float:
        """Time of the plan after that many measurements; None: all of them."""
        case, seen = self.case, self.order[:count]
        names = list(dict.fromkeys(trial.kernel for trial in seen))
        start = self.start
        model = None if start is None else start if isinstance(start, Started) else Started(start, seed=self.seed)
        book = _book(names, {trial: case.us[trial] for trial in seen}, case.op, case.own.device, model)
        if model is not None:
            book.learn()
        return case.value(book, book.judged(names))

    def needed(self, enough: float) -> int:
        """How many measurements it takes until the plan is as fast as ``enough``; all of them if it never is."""
        looks = range(LOOK_EVERY, len(self.order), LOOK_EVERY)
        return next((count for count in looks if self.value(count) <= enough), len(self.order))


def _probe(name: str, op: Op, device: Device) -> Probe:
    return probe(MicroKernel.parse(name), op, CpuDense(), device, ROWS, cache="cold")


def _book(
    names: Sequence[str], us: Mapping[Trial, float], op: Op, device: Device, model: CostModel | None = None
) -> ObservationTable:
    """A book of these kernels that knows these times."""
    probes = [_probe(name, op, device) for name in names]
    book = ObservationTable(op, CpuDense(), device, probes, cache="cold", seed=0, model=model)
    for trial in (trial for item in probes for trial in item.trials() if trial in us):
        book.note(Record(trial=trial, outcome=Timed(samples_us=(us[trial],)), fingerprint="replay",
                         device_id=device.id, session="replay", when=0.0))  # fmt: skip
    return book


def compared(case: Case, sources: Mapping[str, OwnRecords], seeds: int, starts_: Sequence[str] = ()) -> list[list[str]]:
    """A row for each start, or for those asked for: kernels measured, what they were needed for, loss."""
    cold = [case.search(None, seed) for seed in range(seeds)]
    full, usual = case.full(), float(np.mean([run.value() for run in cold]))
    count = float(np.mean([len(run.order) for run in cold]))
    tenth = max(1, round(count / 10))
    rows = [_row(case, "cold", cold, usual, full)]
    forests = {name: fit_without(source, case.op.name) for name, source in sources.items()}
    starts: dict[str, Ranks] = {**forests, OTHERS: _others(case, sources, forests)}
    for name, start in ((name, start) for name, start in starts.items() if not starts_ or name in starts_):
        runs = [case.search(start, seed) for seed in range(seeds)]
        row = _row(case, name, runs, usual, full)
        row[5] = f"{float(row[4]) / count:.2f}"
        row[7] = f"{np.mean([run.value(tenth) for run in runs]) / usual - 1:+.1%}"
        rows.append(row)
    return rows


def _row(case: Case, name: str, runs: Sequence[Run], usual: float, full: float) -> list[str]:
    """A line of the table; share and loss at a tenth are left open."""
    ends = float(np.mean([run.value() for run in runs]))
    return [case.op.name, short(case.own.device), name, f"{np.mean([len(run.order) for run in runs]):.0f}",
            f"{np.mean([run.needed(usual / SHARE) for run in runs]):.0f}", "", f"{ends / usual - 1:+.1%}", "",
            f"{ends / full - 1:+.1%}", f"{np.mean([run.kernels for run in runs]):.0f}"]  # fmt: skip


def _others(case: Case, sources: Mapping[str, OwnRecords], forests: Mapping[str, Forest]) -> Started:
    """What `haotuner tune` would start from if this device had no model of its own."""
    names = [name for name, source in sources.items() if source.device.id != case.own.device.id]
    distances = [start_distance(sources[name].device, case.own.device) for name in names]
    models = [forests[name] for name in names]
    return shared_of_models(models, distances, Blend(models, priors_at(distances)))


def _compared(records: Path, at: int, op: str, seeds: int, starts_: Sequence[str]) -> list[list[str]]:
    """The same in a process of its own, which reads the records itself; nothing for an op with few of them."""
    owns = all_records(records)
    case = Case.of(owns[at], op)
    return compared(case, {short(own.device): own for own in owns}, seeds, starts_) if len(case.kernels) >= ENOUGH else []


def short(device: Device) -> str:
    """``f26m2-avx512`` of ``cpu-amd-epyc-f26m2-avx512``."""
    return "-".join(device.id.split("-")[-2:])


HEAD = ["op", "device", "start", "measurements", "to 98 % of cold", "share", "loss at its stop", "loss at a tenth",
        "against all recorded", "kernels"]  # fmt: skip
RANKED = ["device", "ranked by", "pairwise", "best@1", "best@10", "pairwise, all pairs alike",
          f"pairwise, over {CLEAR:.0%} apart", "pairwise, all rounds agree", "share that agrees", "tasks"]  # fmt: skip
TEXT = """A measurement is one micro-kernel timed at one shape. Measurements of the search until it stops by itself and those
that complete the kernels it would keep; measurements until its plan is within 2 % of the from-cold result, and that as a
share of what the search from cold measures; loss against the from-cold result where the started search stops, and after a
tenth of the from-cold measurements; loss of its stop against every recorded kernel; kernels measured at some shape.
A search sees the first round of measurements, the later ones (the least of two, where there are three) judge its plan (all
kernels it measured, the best layout; what it has not measured as it predicts it, a spread slower). Means over seeds.
Starts are models of {devices}, each fitted without the op in question; *all others*: those of every other device, the
nearer the more say, as `haotuner tune` starts on a device without a model of its own."""


def ranking(owns: Sequence[OwnRecords]) -> list[list[str]]:
    """Same device: how a model ranks kernels at shapes, or for ops, that it never saw; the analytic rule beside it."""
    rows = []
    for own in owns:
        table = table_of(own, lambda trial: trial.op.name in OPS and trial.weights == "cold" and trial.threads == 1)
        shapes = np.random.default_rng(0).integers(0, 5, int(table.tasks.max()) + 1)[table.tasks].astype(np.float64)
        for name, scores in (
            ("shapes held out", held_out(table, shapes)),
            ("shapes held out, larger trees of all columns", held_out(table, shapes, LARGER)),
            ("ops held out", held_out(table, ops_of(table))),
            ("analytic", np.asarray(table.frame["expected_log"], np.float64)),
        ):
            rows.append(rank_row(own, name, table, scores))
        twice = [row for row, trial in enumerate(table.trials) if len(own.rounds[trial]) > 1]
        if len(twice) >= ENOUGH:
            part = table.take(np.array(twice, np.int64))
            first, second = (-np.log([own.rounds[trial][at] for trial in part.trials]) for at in (0, 1))
            again = rank_row(own, "the same measurements, made again", replace(part, labels=first), second)
            rows.append([*again[:7], "", "", again[9]])  # these rounds are among those that agree
    return rows


def rank_row(own: OwnRecords, name: str, table: DeviceTable, predicted: Scores) -> list[str]:
    """One line of the table of rankings."""
    scores = scored(table, predicted)
    agreed, share = agreed_pairwise(own, table, predicted)
    over = [pooled_pairwise(table, predicted), clear_pairwise(table, predicted), agreed, share]
    figures = [*(scores[key] for key in ("pairwise", "best@1", "best@10")), *over]
    return [short(own.device), name, *(f"{figure:.3f}" for figure in figures), f"{scores['tasks']:.0f}"]


def pooled_pairwise(table: DeviceTable, scores: Scores) -> float:
    """Pairwise accuracy where every pair counts alike, whatever its task: tasks of many kernels weigh more."""
    groups = tasks_of(table)
    pairs = [len(rows) * (len(rows) - 1) / 2 for rows in groups]
    return float(np.average([pairwise_accuracy(scores[rows], table.labels[rows]) for rows in groups], weights=pairs))


def clear_pairwise(table: DeviceTable, scores: Scores) -> float:
    """Pairwise accuracy over pairs whose measured times differ by more than ``CLEAR``; mean over tasks that have any."""
    shares = []
    for rows in tasks_of(table):
        left, right = np.triu_indices(len(rows), 1)
        truth, guess = table.labels[rows], scores[rows]
        gap = truth[left] - truth[right]
        clear = np.abs(gap) > np.log1p(CLEAR)
        if clear.any():
            shares.append(float(np.mean((guess[left] - guess[right])[clear] * gap[clear] > 0)))
    return float(np.mean(shares))


def agreed_pairwise(own: OwnRecords, table: DeviceTable, scores: Scores) -> tuple[float, float]:
    """Pairwise accuracy over pairs that every round of measurements orders alike, and the share of pairs that are so.

    No threshold: the measurements themselves say which pairs they tell apart. Means over tasks.
    """
    pairs_ = []
    for rows in tasks_of(table):
        left, right = np.triu_indices(len(rows), 1)
        times = [own.rounds[table.trials[row]] for row in rows.tolist()]
        logs = np.log([us[: min(map(len, times))] for us in times])
        signs = np.sign(logs[right] - logs[left])
        agreed = np.abs(signs.sum(axis=1)) == signs.shape[1]
        if agreed.any():
            right_way = (scores[rows][left] - scores[rows][right])[agreed] * signs[agreed, 0] > 0
            pairs_.append((float(np.mean(right_way)), float(np.mean(agreed))))
    accuracy, share = np.mean(pairs_, axis=0)
    return float(accuracy), float(share)


def markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    """A table; the first row is its head."""
    return [f"| {' | '.join(rows[0])} |", "|" + "---|" * len(rows[0]), *(f"| {' | '.join(row)} |" for row in rows[1:])]


def main() -> None:
    """Replay and write."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--records", type=Path, default=FOLDER)
    words.add_argument("--ops", default=",".join(OPS))
    words.add_argument("--on", default="", help="only devices with this in their id; models of all are tried there")
    words.add_argument("--seeds", type=int, default=5)
    words.add_argument("--starts", default="", help=f"only these, such as '{OTHERS}': a quarter of the time")
    words.add_argument("--out", type=Path, default=Path("docs/results"))
    args = words.parse_args()
    starts = args.starts.split(",") if args.starts else []
    owns = all_records(args.records)
    places = [at for at, own in enumerate(owns) if args.on in own.device.id]
    jobs = [(args.records, at, name, args.seeds, starts) for name in args.ops.split(",") for at in places]
    rows = [HEAD]
    with ProcessPoolExecutor() as pool:
        for part in pool.map(_compared, *zip(*jobs, strict=True)):
            rows += part
            print("\n".join(" | ".join(row) for row in part), flush=True)
    text = ["# What a shipped model saves", "",
            f"Made by `python -m tests.bench.transfer_use --ops {args.ops} --seeds {args.seeds} --on '{args.on}'`.", "",
            TEXT.format(devices=", ".join(short(own.device) for own in owns)), "", *markdown(rows), "",
            "## Ranking on the same device", "",
            "Weights cold, one thread; means over tasks (op, shape) of at least ten kernels.", "",
            *markdown([RANKED, *ranking([owns[at] for at in places])]), ""]  # fmt: skip
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "transfer-use.md").write_text("\n".join(text), encoding="utf-8")


if __name__ == "__main__":
    main()
