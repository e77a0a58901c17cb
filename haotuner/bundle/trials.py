"""The trials of a run, planned from the bundle and its suite, without those that are already known."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import Any

from haotuner.bundle.manifest import Entry
from haotuner.bundle.suites import Suite, ragged_shapes
from haotuner.words.op import Op
from haotuner.words.record import Trial
from haotuner.words.shape import Shape

GRANULE = 8  # multiprocessors of the smallest part that a driver splits off on every architecture
CHECK, PEAK, TIME, SUBSET, PEER = "check", "peak", "time", "subset", "peer"
# In this order: the last one leaves its worker on a subset of the multiprocessors.
PEAKS = ("fma", "tensor_fp16", "tensor_bf16", "warpgroup", "read", "write", "copy", "units", "subset")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One thing for a worker to do. Extents are whole: (m, n, k); gaps lie between the rows of X and of Y."""

    stage: str
    kernel: str = ""  # for a peak: which
    dtype: str = ""
    kn: bool = False
    extents: tuple[int, int, int] = (0, 0, 0)
    gaps: tuple[int, int] = (0, 0)
    pattern: str = "spread"
    weights: str = "cold"
    units: int = 0  # multiprocessors of a subset; 0 is the whole device
    code: str = ""  # the kernel's code (Entry.code): a kernel that was mended is a new task

    def key(self) -> str:
        """Stable text that names the task."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    def op(self) -> Op:
        """The op whose row count is dynamic."""
        _, n, k = self.extents
        layout = ("weight", "kn" if self.kn else "nk")
        return Op(kind="dense", static=(("n", n), ("k", k)), dtype=self.dtype, options=(layout,))

    def trial(self) -> Trial:
        """The record store's name of what is measured."""
        return Trial(op=self.op().name, kernel=self.kernel, shape=Shape.of(m=self.extents[0]), weights=self.weights)


def decode(fields: Mapping[str, Any]) -> Task:
    """A task from its JSON form."""
    return Task(**{**fields, "extents": tuple(fields["extents"]), "gaps": tuple(fields["gaps"])})


@dataclass(slots=True)
class Known:
    """Answers of earlier slices, by trial."""

    done: set[str] = field(default_factory=set)  # keys of tasks with an answer
    broken: set[str] = field(default_factory=set)  # kernels that failed a check, or brought a worker down
    times: dict[tuple[str, int], list[tuple[float, str]]] = field(default_factory=dict)  # (op, m): cold medians, kernel


def checks(entries: Sequence[Entry], suite: Suite, known: Known) -> list[Task]:
    """Every kernel on every ragged shape: values that sum exactly, and values that do not.

    The first shape of every kernel comes before anybody's second, the families in turn: what is wrong with a whole family
    shows in the first minute.
    """
    families: dict[str, list[Entry]] = {}
    for entry in entries:
        families.setdefault(entry.family, []).append(entry)
    in_turn = [entry for row in zip_longest(*families.values()) for entry in row if entry is not None]
    numbered: list[tuple[int, Task]] = []
    for entry in in_turn:
        for number, (m, n, k, x_gap, y_gap) in enumerate(ragged_shapes(entry, suite.ragged_limit)):
            pattern = "exact" if number % 2 else "spread"
            gap = -(-x_gap // entry.vector) * entry.vector
            numbered.append((number, Task(
                stage=CHECK, kernel=entry.kernel, dtype=entry.dtype, kn=entry.kn, extents=(m, n, k), gaps=(gap, y_gap),
                pattern=pattern, code=entry.code,
            )))  # fmt: skip
    return _open([task for _, task in sorted(numbered, key=lambda pair: pair[0])], known)


def peaks(arch: str, known: Known) -> list[Task]:
    """Every ceiling that the architecture has."""
    oldest = {"tensor_fp16": 80, "tensor_bf16": 80}  # mma.sync.m16n8k16
    here = int(arch.removeprefix("sm_").rstrip("af"))
    wanted = [what for what in PEAKS if here >= oldest.get(what, 0) and (what != "warpgroup" or arch == "sm_90a")]
    return _open([Task(stage=PEAK, kernel=what) for what in wanted], known)


def times(entries: Sequence[Entry], suite: Suite, known: Known) -> list[Task]:
    """Every kernel on every timed shape it takes; one op after the other, so that a worker keeps its weights."""
    tasks = []
    for workload in suite.timed:
        op = Op.parse(workload.op)
        for entry in entries:
            if entry.dtype == op.dtype and entry.takes(op["n"], op["k"], op.option("weight") == "kn"):
                for m in workload.rows:
                    for weights in ("cold", "hot") if workload.hot else ("cold",):
                        tasks.append(_timed(TIME, entry.kernel, entry.code, op, m, weights=weights))
    return _open([task for task in tasks if task.kernel not in known.broken], known)


def subsets(entries: Sequence[Entry], suite: Suite, units: int, known: Known) -> list[Task]:
    """The fastest kernels of each workload again, on fewer multiprocessors; none where the driver makes no subsets."""
    if "subset" in known.broken:
        return []
    codes = {entry.kernel: entry.code for entry in entries}
    tasks = []
    for share in suite.subset_shares:
        part = whole_units(units * share)
        for workload in suite.timed:
            op = Op.parse(workload.op)
            for m in workload.rows:
                here = [pair for pair in sorted(known.times.get((op.name, m), [])) if pair[1] in codes]
                fastest = [kernel for _, kernel in here[: suite.subset_kernels]]
                tasks += [_timed(SUBSET, kernel, codes[kernel], op, m, units=part) for kernel in fastest]
    return _open([task for task in tasks if task.kernel not in known.broken], known)


def whole_units(wanted: float) -> int:
    """Multiprocessors that a driver grants as asked: multiples of 8 on compute capability 9.0, of 2 before; at least one."""
    return int(wanted) // GRANULE * GRANULE if wanted >= GRANULE else max(1, round(wanted))


def _timed(stage: str, kernel: str, code: str, op: Op, m: int, *, weights: str = "cold", units: int = 0) -> Task:
    return Task(
        stage=stage, kernel=kernel, dtype=op.dtype, kn=op.option("weight") == "kn", extents=(m, op["n"], op["k"]),
        weights=weights, units=units, code=code,
    )  # fmt: skip


def _open(tasks: Iterable[Task], known: Known) -> list[Task]:
    return [task for task in tasks if task.key() not in known.done]
