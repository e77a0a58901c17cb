"""Contest: the configuration of a race, checked before any process starts, and its time budget."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from haotuner.bench.contender import ISA_VARIABLES
from haotuner.bench.field import HOST, Field
from haotuner.bench.operands import binds_weight
from haotuner.bench.rotation import HOT, Rotation, resting, resting_bytes
from haotuner.errors import EnvironmentMissing, UsageError
from haotuner.host.memory import available_bytes
from haotuner.spec.cold import UNKNOWN_CACHE_BYTES
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape

STATES = ("cold", "hot")
BLOCK_S = 0.05  # waking a stopped pool and refilling caches takes some ms; over 50 ms it is no longer seen
MOST_ROUNDS = 31  # more rounds narrow the interval by less than the machine drifts meanwhile
COPIES = 3  # of every weight that a contender holds: as given, prepared, and in numpy's case prepared twice


def usual_weights(field: Field, ops: Sequence[Op]) -> tuple[str, ...]:
    """Cold, as a server finds them; hot of ops whose operands all come with the call, which were just written."""
    return ("cold",) if all(field.can_be_cold(op) and binds_weight(op) for op in ops) else ("hot",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """Ops, shapes and contenders of one race. ``peers`` maps names to ``module:Class``."""

    pack: Path | None
    ops: tuple[Op, ...]
    shapes: tuple[Shape, ...]
    peers: Mapping[str, str]
    environment: Mapping[str, str]  # the caller's; see environment.child_environment
    field: Field = HOST
    ordinal: int | None = None  # of the GPU that is raced on
    ours: str = HOST.ours
    threads: tuple[int, ...] = (1,)
    weights: tuple[str, ...] = ("cold",)
    seconds_per_row: float = 4.0
    seconds: float | None = None  # for everything; shapes for which no time is left are skipped, the later ones first
    block_s: float = BLOCK_S
    least_rounds: int = 5
    noise_floor: bool = True  # race ours against ours too
    machine: bool = False  # time the machine's own multiply-adds as well: what shares of peak are of
    cache_bytes: int = UNKNOWN_CACHE_BYTES  # last level, as one process sees it
    isa: str | None = None
    seed: int = 0
    prepare_limit_s: float = 600.0  # for getting ready for an op or a shape; Inductor compiles meanwhile
    hang_limit_s: float = 20.0  # beyond what a block should take

    def __post_init__(self) -> None:
        for op in self.ops:
            if not self.field.raceable(op):
                raise UsageError(
                    f"bench: {op.name} cannot be raced; peers are set up for {self.field.what}; name others with --ops"
                )
        for shape in self.shapes:
            for op in self.ops:
                if set(shape.as_dict()) != set(op.dynamic):
                    needs = "m, the dynamic axis of dense; write m=1,5,37" if op.kind == "dense" else ", ".join(op.dynamic)
                    raise UsageError(
                        f"bench: shape {shape} does not give exactly {needs}: race {op.name} by itself with --op"
                    )
        if len({self.field.peers_of(op) for op in self.ops}) > 1:
            raise UsageError(
                f"bench: {', '.join(op.name for op in self.ops)} do not all have the same peers; race them one after the "
                "other with --op"
            )
        hot = [op for op in self.ops if not self.field.can_be_cold(op)]
        if "cold" in self.weights and hot:
            why = "is raced hot on GPUs" if resting(hot[0]) else "has no operand that could be cold"
            raise UsageError(f"bench: {hot[0].kind} {why}; leave --cache-state out, or say hot")
        unknown = sorted(set(self.weights) - set(STATES))
        if unknown or not self.weights:
            raise UsageError(f"bench: --cache-state {','.join(unknown) or '(empty)'}; known states are {', '.join(STATES)}")
        if not self.ops or not self.shapes or not self.threads or min(self.threads) < 1:
            raise UsageError("bench: at least one op, one shape and one thread count of 1 or more are needed")
        if self.ordinal is not None and (self.threads != (1,) or self.isa is not None):
            raise UsageError("bench: --threads and --isa are for CPUs; leave them out with --device cuda:N")
        if self.isa is not None and self.isa not in ISA_VARIABLES:
            raise UsageError(f"bench: --isa {self.isa}; known limits are {', '.join(ISA_VARIABLES)}")
        if not 0 < self.seconds_per_row < float("inf"):
            raise UsageError(f"bench: --seconds-per-row {self.seconds_per_row} must be positive")

    def rows(self) -> int:
        """Number of rows that there will be."""
        return len(self.threads) * len(self.ops) * len(self.weights) * len(self.shapes)

    def rotation(self, op: Op, shape: Shape, state: str) -> Rotation:
        """Rotation of the copies that calls take in turn, in that state of the weights."""
        return self.field.cold(op, shape, self.cache_bytes) if state == "cold" else HOT

    def weights_of(self, op: Op) -> int:
        """Number of copies of its weight that the op needs for all rows."""
        return max(self.rotation(op, shape, state).copies for shape in self.shapes for state in self.weights)

    def check_memory(self) -> None:
        """EnvironmentMissing if the weights of all contenders together would not fit."""
        if "cold" not in self.weights:
            return
        contenders = len(self.peers) + 1 + self.noise_floor
        needed, free = contenders * max(self._cold_bytes(op) for op in self.ops), available_bytes()
        if free is not None and needed > free:
            raise EnvironmentMissing(
                f"bench: cold weights ({self.field.caches} x the last-level cache) of {contenders} contenders take "
                f"{needed / 1e9:.1f} GB and {free / 1e9:.1f} GB are free; name fewer peers with --peers, or race with "
                "--cache-state hot"
            )

    def _cold_bytes(self, op: Op) -> int:
        """Of the largest row: copies, and what is read between rounds."""
        turns = [(resting_bytes(op, shape), self.rotation(op, shape, "cold")) for shape in self.shapes]
        return max(COPIES * size * turn.copies + turn.evicted_bytes for size, turn in turns)


class Budget:
    """Shares what is left of ``Contest.seconds`` among what is left to do.

    A group is the rows of one op, state and thread count: so no op goes without rows because others came first.
    """

    def __init__(self, contest: Contest) -> None:
        self._contest = contest
        self._end = time.monotonic() + (contest.seconds or 0.0)
        self._groups = contest.rows() // len(contest.shapes)
        self._group_end = self._end

    def next_group(self) -> None:
        """A group begins."""
        now = time.monotonic()
        self._group_end = now + max(0.0, self._end - now) / self._groups
        self._groups -= 1

    def row_seconds(self, rows_left: int) -> float:
        """Time for the next of so many rows of this group; 0 when there is none left."""
        if self._contest.seconds is None:
            return self._contest.seconds_per_row
        return max(0.0, self._group_end - time.monotonic()) / rows_left
