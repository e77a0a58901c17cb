"""Objective of a shared budget: one number out of the times of all tasks (Ansor, OSDI 2020, section 6, table 2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from haotuner.errors import UsageError

SUM, GEOMEAN, LATENCY = "sum", "geomean", "latency"


@dataclass(frozen=True, slots=True)
class Objective:
    """``kind``: the weighted sum of all models' times; the geometric mean of their speed-ups; or what lies over targets.

    ``targets_us``: of a latency objective the time of each model that is good enough; one stands for all models.
    """

    kind: str = SUM
    targets_us: tuple[float, ...] = ()

    @staticmethod
    def parse(text: str) -> Objective:
        """``sum``, ``geomean``, or ``latency=5ms`` (several models: ``latency=5ms,20ms``). UsageError says what is wrong."""
        kind, _, targets = text.partition("=")
        if kind in (SUM, GEOMEAN) and not targets:
            return Objective(kind)
        if kind == LATENCY and targets:
            return Objective(LATENCY, tuple(_us(part, text) for part in targets.split(",")))
        raise UsageError(f"--objective {text!r}: write sum, geomean, or latency=5ms (one target a model: latency=5ms,20ms)")

    def check(self, models: int) -> None:
        """UsageError unless there is a target for each of so many models."""
        if self.kind == LATENCY and len(self.targets_us) not in (1, models):
            raise UsageError(f"--objective has {len(self.targets_us)} targets for {models} models; give one, or one a model")

    def slopes(self, latencies: Sequence[float]) -> list[float]:
        """Derivative of the objective by the time of each model, at these times in microseconds; never negative."""
        if self.kind == GEOMEAN:  # -prod(B/L)^(1/m) with B the times now: each model's slope is 1 / (m L)
            return [
                1.0 / (len(latencies) * latency) if latency > 0 and math.isfinite(latency) else 0.0 for latency in latencies
            ]
        if self.kind == LATENCY:
            return [1.0 if latency > self._target(index) else 0.0 for index, latency in enumerate(latencies)]
        return [1.0] * len(latencies)

    def value(self, latencies: Sequence[float], first: Sequence[float]) -> float:
        """The objective itself, lower is better; ``first``: the times that speed-ups are counted from."""
        if self.kind == GEOMEAN:
            return -math.exp(
                sum(math.log(b / latency) for b, latency in zip(first, latencies, strict=True)) / len(latencies)
            )
        if self.kind == LATENCY:
            return sum(max(latency, self._target(index)) for index, latency in enumerate(latencies))
        return sum(latencies)

    def _target(self, index: int) -> float:
        return self.targets_us[index if len(self.targets_us) > 1 else 0]


def _us(text: str, whole: str) -> float:
    for unit, factor in (("ms", 1e3), ("us", 1.0), ("s", 1e6)):
        if text.endswith(unit):
            try:
                result = float(text.removesuffix(unit)) * factor
            except ValueError:
                break
            if 0 < result < math.inf:
                return result
            break
    raise UsageError(f"--objective {whole!r}: {text!r} is no time; write for example 5ms")
