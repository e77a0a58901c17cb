"""Timed, Failed, Record: result of one measurement. A failed measurement is data."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

from haotuner.spec.composition import COLUMNS, SERIAL, Composition
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape

RECORD_SCHEMA = 1
_KEY = json.JSONEncoder(sort_keys=True, separators=(",", ":"))  # `json.dumps` would build one a call
STAGES = ("build", "load", "verify", "run", "time")
REASONS = ("compile_error", "timeout", "crash", "wrong", "out_of_bounds", "memory", "unstable", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Samples of one measurement; all are kept, the median is quoted."""

    samples_us: tuple[float, ...]
    max_error: float = 0.0  # largest error over the tolerance seen in verification, as a share of it

    def __post_init__(self) -> None:
        if not self.samples_us or not all(math.isfinite(s) and s > 0 for s in self.samples_us):
            raise ValueError(f"samples must be positive and finite microseconds, got {self.samples_us[:5]}")

    @property
    def median_us(self) -> float:
        """Median of the samples."""
        return statistics.median(self.samples_us)

    @property
    def spread(self) -> float:
        """Median absolute deviation over the median: a fraction."""
        middle = self.median_us
        return statistics.median(abs(s - middle) for s in self.samples_us) / middle


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """Reason why there is no time: where it stopped and what was seen."""

    stage: str
    reason: str
    detail: str = ""

    def __post_init__(self) -> None:
        if self.stage not in STAGES or self.reason not in REASONS:
            raise ValueError(f"failure {self.stage}/{self.reason}: stage must be one of {STAGES}, reason one of {REASONS}")


Outcome = Timed | Failed


@dataclass(frozen=True, slots=True)
class OpName:
    """An operator known by its name alone: of another tool, a model's group, or a kind that this process does not know."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trial:
    """Measurement to be made. Two equal trials under one fingerprint are the same measurement."""

    op: Op | OpName
    composition: Composition  # the micro-kernels, and how threads share the output
    shape: Shape
    threads: int = 1
    weights: str = "cold"  # state of the weights before a sample: cold | hot
    repeat: int = 0  # the same once more, to be timed in another process: 1 is the second time
    kernel: str = field(init=False, repr=False)  # the composition's text: a micro-kernel's name, or NAME*tiles+NAME*tiles
    _key: str = field(init=False, repr=False)  # a search asks for it some hundred thousand times

    def __post_init__(self) -> None:
        if not 0 <= self.repeat < 2**63:
            raise ValueError(f"trial: repeat {self.repeat} must be in 0..2^63-1, which every database can hold")
        if self.threads == 1 and self.composition.share == COLUMNS:  # records say both in the same words
            object.__setattr__(self, "composition", Composition(self.composition.parts, SERIAL))
        object.__setattr__(self, "kernel", self.composition.text)
        first = [self.op.name, self.kernel, self.shape.as_dict(), self.threads, self.weights, self.split]
        object.__setattr__(self, "_key", _KEY.encode([*first, self.repeat] if self.repeat else first))

    @staticmethod
    def of(
        op: Op | OpName, composition: Composition, shape: Shape, *, threads: int = 1, cache: str = "cold", repeat: int = 0
    ) -> Trial:
        """Trial that times a composition. One that threads do not share is the same trial whatever their number."""
        threads = 1 if composition.share == SERIAL else threads
        return Trial(op=op, composition=composition, shape=shape, threads=threads, weights=cache, repeat=repeat)

    @property
    def split(self) -> str:
        """Axis that threads share, as records say it: of one thread alone that of columns, which it has for itself."""
        return COLUMNS if self.composition.share == SERIAL else self.composition.share

    @property
    def known_op(self) -> Op:
        """The operator. ValueError where its name alone is known."""
        if isinstance(self.op, OpName):
            raise ValueError(f"trial of {self.op.name!r}: this process knows no such operator; install what brings its kind")
        return self.op

    def __eq__(self, other: object) -> bool:
        return self._key == other._key if isinstance(other, Trial) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key)

    def key(self) -> str:
        """Stable text that names the trial; the first time has none of a repeat, as records from before there were any."""
        return self._key


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One row of the store: a trial, its outcome, and where and when it was seen. Never changed once written."""

    trial: Trial
    outcome: Outcome
    device_id: str
    fingerprint: str  # hash of all that makes times comparable: device, toolchain, policy, code of the kernels
    session: str
    when: float  # seconds since the epoch
    seed: int = 0
    facts: Mapping[str, float | str] = field(default_factory=dict)  # from outside: spills, clocks, original columns

    def __post_init__(self) -> None:
        if not math.isfinite(self.when):
            raise ValueError(f"record: when is {self.when}, must be finite seconds since the epoch")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"record: seed {self.seed} must be in 0..2^63-1, which every database can hold")
        for name, fact in self.facts.items():
            if not isinstance(fact, str) and not math.isfinite(fact):
                raise ValueError(f"record: fact {name} is {fact}; leave out what could not be read")

    @property
    def id(self) -> str:
        """Content hash; the same measurement delivered twice is stored once."""
        outcome = self.outcome
        seen = (
            ["timed", [float(s) for s in outcome.samples_us]]
            if isinstance(outcome, Timed)
            else ["failed", outcome.stage, outcome.reason, outcome.detail]
        )
        text = json.dumps([self.trial.key(), seen, self.device_id, self.fingerprint, self.session, float(self.when)])
        return hashlib.sha256(text.encode()).hexdigest()[:32]
