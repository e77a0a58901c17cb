"""Request: what to tune and where to put it. Light to import, so that a wrong request is answered at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from haotuner.errors import UsageError
from haotuner.microkernels.index import families_for
from haotuner.pack.write import check_destination
from haotuner.trace import traffic_of
from haotuner.words.op import Op

BUDGET_PER_OP_S = 50.0  # four ops, the report and a fresh environment then end within five minutes on two busy cores


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to tune and where to put it; checked by ``check`` before anything is measured."""

    ops: tuple[Op, ...]
    shapes: str = "dynamic"
    device: str = "cpu"
    threads: tuple[int, ...] = ()  # 0: all cores; empty: one, and all cores
    budget_s: float | None = None
    out: Path = Path("pack")
    db: str | None = None
    seed: int = 0
    resume: bool = False
    weights: str = "cold"
    batch_invariant: bool = False  # promise that a row's result does not depend on how many rows come with it
    model: str | None = None  # a file to start from, "none" for a start from cold; None: the nearest shipped model
    zero_measure: bool = False  # measure nothing: the pack's plans are predictions, and it says so
    cache: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)  # of the measuring processes

    def check(self) -> None:
        """UsageError for what can be known to be wrong without looking at the device."""
        if not self.ops:
            raise UsageError("no op to tune; name one with --op dense:n=2304,k=768 or a --workload")
        if len({op.name for op in self.ops}) != len(self.ops):
            raise UsageError("an op is named twice; name each once")
        if self.budget_s is not None and not 0 < self.budget_s < float("inf"):
            raise UsageError(f"--budget {self.budget_s:g}s leaves no time to measure; give for example --budget 60s")
        if self.weights not in ("cold", "hot"):
            raise UsageError(f"--weights {self.weights!r}: write cold or hot")
        if self.zero_measure and self.resume:
            raise UsageError(
                "--zero-measure and --resume exclude each other: one uses no measurements, the other earlier ones"
            )
        if self.seed < 0:
            raise UsageError(f"--seed {self.seed}: must be 0 or more")
        for op in self.ops:
            traffic_of(self.shapes, op)
            families_for(op, "cpu")
        check_destination(self.out)
