"""Race loop: which contender runs when, row by row. One runs at a time; all others are stopped."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from haotuner.bench import machine_load
from haotuner.bench.contender import MACHINE, OURS, OURS_AGAIN, Setting
from haotuner.bench.contest import MOST_ROUNDS, Budget, Contest
from haotuner.bench.machine_load import ScatteredPages
from haotuner.bench.processes import Processes
from haotuner.bench.retry import RetryContended, Throttling
from haotuner.bench.rotation import HOT, Rotation
from haotuner.isolate.answers import ChildNotResponding
from haotuner.spec.op import Op
from haotuner.spec.record import Failed
from haotuner.spec.shape import Shape

OVERHEAD_S = 0.3  # some thousand pairs of batches, whose median settles within a few ns
OVERHEAD_LIMIT_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One op at one shape, thread count and weight state: microseconds a call, by contender and round."""

    op: Op
    shape: Shape
    threads: int
    weights: str
    blocks_us: Mapping[str, tuple[float, ...]]  # equal lengths; entry r of each was taken in round r
    failed: Mapping[str, Failed]
    foreign_cores: float  # other load while it was timed
    crowded: float = 0.0  # share of the blocks that threads sharing a core or a GPU that slowed itself down may have spoilt
    composition: str = ""  # what ours runs at this shape
    rotation: Rotation = HOT  # what the calls took in turn
    machine_flops: float | None = None  # of one call of the machine's own multiply-adds
    machine_bytes: float | None = None  # or, where memory is the limit, of one call of its reads

    @staticmethod
    def empty(op: Op, shape: Shape, threads: int, weights: str, failed: Mapping[str, Failed]) -> Row:
        """A row before it is raced; ``failed`` are those who cannot take part."""
        return Row(op=op, shape=shape, threads=threads, weights=weights, blocks_us={}, failed=failed, foreign_cores=0.0)

    @property
    def contended(self) -> bool:
        """True if other load may have shaped the times."""
        return self.foreign_cores > machine_load.CONTENDED_CORES or self.crowded > machine_load.CROWDED_BLOCKS


@dataclass(slots=True, kw_only=True)
class Outcome:
    """Everything a race left behind."""

    rows: list[Row] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)  # peer: why
    versions: dict[str, str] = field(default_factory=dict)
    overhead_ns: dict[int, float] = field(default_factory=dict)  # by threads
    watched: str = ""  # what was watched for, or why nothing was
    skipped: int = 0  # rows for which no time was left
    stopped: bool = False  # by Ctrl-C, with some rows raced
    seconds: float = 0.0


Retry = RetryContended | Throttling
Listen = Callable[[Row, int, int], None]  # row, rows done, rows in all


def run(contest: Contest, listen: Listen | None = None) -> Outcome:
    """Race all rows. Peers that fail are left out of the row where they did.

    KeyboardInterrupt ends every process; with rows already raced it is an ordinary end (``Outcome.stopped``).
    """
    contest.check_memory()
    begun = time.monotonic()
    outcome = Outcome()
    budget = Budget(contest)
    try:
        for threads in contest.threads:
            with contextlib.closing(_rows(contest, threads, outcome, budget)) as rows:  # a listener's error ends them too
                for row in rows:
                    outcome.rows.append(row)
                    if listen is not None:
                        listen(row, len(outcome.rows), contest.rows())
    except KeyboardInterrupt:
        if not outcome.rows:
            raise
        outcome.stopped = True
    outcome.seconds = time.monotonic() - begun
    return outcome


def _rows(contest: Contest, threads: int, outcome: Outcome, budget: Budget) -> Generator[Row, None, None]:
    own = {OURS_AGAIN: contest.ours} if contest.noise_floor else {}
    machine = {MACHINE: contest.field.machine} if contest.machine and contest.field.machine else {}
    specs = {OURS: contest.ours, **own, **contest.peers, **machine}
    pack = None if contest.pack is None else str(contest.pack)
    packs = {name: pack for name in (OURS, OURS_AGAIN) if pack is not None}
    setting = Setting(threads=threads, isa=contest.isa, ordinal=contest.ordinal)
    # What a GPU reads is not in this machine's memory.
    scattered = ScatteredPages() if contest.ordinal is None else contextlib.nullcontext()
    with scattered, Processes(specs, setting, contest.environment, packs) as processes:
        retry: Retry = Throttling(contest.ordinal) if contest.ordinal is not None else RetryContended(processes, threads)
        outcome.watched = retry.watched
        for op in contest.ops:
            ready: set[str] = set()
            for state in contest.weights:
                budget.next_group()
                for index, shape in enumerate(contest.shapes):
                    failed = _prepare(processes, ready, op, contest)
                    seconds = budget.row_seconds(len(contest.shapes) - index)
                    if index and not seconds:
                        outcome.skipped += 1
                        continue
                    yield _row(processes, retry, contest, seconds, Row.empty(op, shape, threads, state, failed))
                    ready &= set(processes.names())  # who was replaced has to prepare again
            outcome.missing.update({name: why for name, why in processes.missing.items() if name != MACHINE})
            outcome.versions.update(processes.versions)
        overhead = _overhead_ns(processes)
        if overhead is not None:
            outcome.overhead_ns[threads] = overhead


def _prepare(processes: Processes, ready: set[str], op: Op, contest: Contest) -> dict[str, Failed]:
    """Bring everybody to the point where they can be aimed at a shape of this op; who could not be."""
    failed = processes.start()
    request = {"do": "prepare", "op": op.name, "shape": contest.shapes[0].as_dict(),
               "count": contest.weights_of(op), "seed": contest.seed}  # fmt: skip
    requests = {name: request for name in processes.names() if name not in ready}
    answers, refused = processes.ask_all(requests, contest.prepare_limit_s)
    ready |= set(answers)
    return failed | refused


def _row(processes: Processes, retry: Retry, contest: Contest, seconds: float, start: Row) -> Row:
    """Race one row: ``start`` with its times, its failures and the load meanwhile."""
    timed = {"do": "time", "seconds": contest.block_s}
    failed = dict(start.failed)
    turn_over = contest.rotation(start.op, start.shape, start.weights)
    request = {"do": "aim", "shape": start.shape.as_dict(), "count": turn_over.copies,
               "evicted": turn_over.evicted_bytes, "seed": contest.seed}  # fmt: skip
    requests = {name: request for name in processes.names() if name not in failed}
    aimed, refused = processes.ask_all(requests, contest.prepare_limit_s)
    failed |= refused
    order = [name for name in processes.names() if name in aimed]
    expected_s = {name: max(contest.block_s, aimed[name]["unit_us"] / 1e6) for name in order}
    rounds = max(contest.least_rounds, min(MOST_ROUNDS, int(seconds / max(sum(expected_s.values()), 1e-9))))
    blocks: dict[str, list[float]] = {name: [] for name in order}
    crowded: list[bool] = []
    before = machine_load.read(processes.pids())
    for turn in range(rounds):
        for name in _rotated(order, turn):
            if name in failed:
                continue
            try:
                seen, shared = retry.block(partial(processes.ask, name, timed, contest.hang_limit_s + 20 * expected_s[name]))
            except ChildNotResponding as error:
                failed[name] = error.failed("run")
                continue
            blocks[name].append(float(seen["us"]))
            crowded.append(shared)
    after = machine_load.read(processes.pids())
    return replace(
        start,
        blocks_us={name: tuple(times) for name, times in blocks.items() if name not in failed},
        failed=failed,
        foreign_cores=machine_load.foreign_cores(before, after) if contest.field.on_host else 0.0,
        crowded=sum(crowded) / max(len(crowded), 1),
        rotation=turn_over,
        composition=str(aimed.get(OURS, {}).get("plan", "")),
        machine_flops=aimed.get(MACHINE, {}).get("flops"),
        machine_bytes=aimed.get(MACHINE, {}).get("bytes"),
    )


def _rotated(order: Sequence[str], turn: int) -> list[str]:
    """Everybody once: forwards in even turns, backwards in odd ones, so that nobody always follows the same neighbour."""
    first = turn // 2 % max(len(order), 1)
    turned = [*order[first:], *order[:first]]
    return turned[::-1] if turn % 2 else turned


def _overhead_ns(processes: Processes) -> float | None:
    """Our Python call over the bare foreign call, on what ours was last aimed at."""
    if OURS not in processes.names():
        return None
    try:
        result = processes.ask(OURS, {"do": "overhead", "seconds": OVERHEAD_S}, OVERHEAD_LIMIT_S)["overhead_ns"]
    except ChildNotResponding:
        return None
    return None if result is None else float(result)
