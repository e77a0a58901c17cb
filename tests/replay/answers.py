"""Times for any trial of a replay: as recorded where it was, otherwise made from records by whole numbers and products.

Knows nothing of haotuner, so that a change of its words cannot change an answer. No logarithm or power is taken: those
differ in the last bit between machines.
"""

from __future__ import annotations

import json
import re
import zlib
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RECORDS = Path(__file__).parents[1] / "bench" / "records"
FAILS_OF = 23  # one kernel in so many has no time, so that a replay goes through failures as well
FEW = 100  # kernels of an op; one with fewer (a column block) answers for no other
NOISE = 0.04  # of a time that was not recorded
HANDOFF_US = 2.0  # of a call that threads share, in a time that was not recorded
State = tuple[str, int, str]  # op, threads, weights
Points = dict[int, tuple[float, ...]]  # rows -> medians of the rounds


@dataclass(frozen=True, slots=True)
class Asked:
    """One trial in plain words; ``kernel`` is a name or ``NAME*tiles+NAME*tiles``."""

    op: str
    kernel: str
    m: int
    threads: int
    weights: str
    split: str
    repeat: int

    def __str__(self) -> str:
        return f"{self.op} {self.kernel} m={self.m} threads={self.threads} {self.weights} {self.split} {self.repeat}"


class Answers:
    """All recorded times of one device, and an answer to what was not recorded."""

    def __init__(self, device: str) -> None:
        self.device: Mapping[str, Any] = {}
        self._states: dict[State, dict[str, Points]] = {}
        for path in (RECORDS / "held_out" / f"{device}.json", RECORDS / f"{device}.json"):  # the latter has the last word
            self._read(path)
        self._nearest: dict[tuple[State, str], Points] = {}

    def _read(self, path: Path) -> None:
        if not path.exists():
            return
        first, *lines = path.read_text(encoding="utf-8").splitlines()
        head: dict[str, Any] = json.loads(first)
        self.device = head["device"]
        for op, threads, weights, _, by in map(json.loads, lines):
            state = self._states.setdefault((op, threads, weights), {})
            for m, rows in by.items():
                for at, *medians in rows:
                    state.setdefault(head["kernels"][at], {})[int(m)] = tuple(medians)

    def us(self, trial: Asked) -> float | None:
        """Microseconds; None: it fails."""
        regions = [part.partition("*")[::2] for part in trial.kernel.split("+")]
        if any(zlib.crc32(name.encode()) % FAILS_OF == 0 and _numbers(name)["mr"] > 1 for name, _ in regions):
            return None
        single = len(regions) == 1 and not regions[0][1]
        state = (trial.op, trial.threads, trial.weights)
        known = self._states.get(state, {}).get(regions[0][0], {}).get(trial.m) if single else None
        if known is not None:
            return min(known) if trial.repeat == 0 else known[trial.repeat % len(known)]
        rows = [int(tiles) * _numbers(name)["mr"] if tiles else trial.m for name, tiles in regions]
        alone = [self._alone(trial, name, count) for (name, _), count in zip(regions, rows, strict=True)]
        # Behind the first region the weight is in cache: what more rows take of a call of many.
        behind = [self._alone(trial, name, 256) * count / 256 for (name, _), count in zip(regions, rows, strict=True)]
        us = alone[0] + sum(behind[1:])
        return us * (1 + NOISE * zlib.crc32(str(trial).encode()) / 2**32)

    def _alone(self, trial: Asked, kernel: str, rows: int) -> float:
        """One region of so many rows."""
        state = self._state(trial)
        target, recorded = _numbers(trial.op), _numbers(state[0])
        us = _between(self._points(state, kernel), rows) * (target["n"] * target["k"]) / (recorded["n"] * recorded["k"])
        return us if state[1] == trial.threads else us * state[1] / trial.threads + HANDOFF_US

    def _state(self, trial: Asked) -> State:
        """The recorded state nearest to what is asked: the op's own, or that with the most equal weight."""
        target = _numbers(trial.op)

        def apart(state: State) -> tuple[Any, ...]:
            recorded = _numbers(state[0])
            sizes = sorted((target["n"] * target["k"], recorded["n"] * recorded["k"]))
            other = (state[0] != trial.op, state[2] != trial.weights, state[1] != trial.threads)
            return len(self._states[state]) < FEW, *other, sizes[1] / sizes[0], state

        return min(self._states, key=apart)

    def _points(self, state: State, kernel: str) -> Points:
        """Times of the kernel, or of the one with the most equal parameters, those that matter most first."""
        key = (state, kernel)
        if key not in self._nearest:
            target = _numbers(kernel)

            def apart(name: str) -> tuple[Any, ...]:
                recorded = _numbers(name)
                return *(abs(recorded[word] - target[word]) for word in ("mr", "nr", "pw", "ku", "pf")), name

            every = self._states[state]
            self._nearest[key] = every[kernel if kernel in every else min(every, key=apart)]
        return self._nearest[key]


def _numbers(name: str) -> dict[str, int]:
    return {word: int(value) for word, value in re.findall(r"_([a-z]+)([0-9]+)", name)}


def _between(points: Points, rows: int) -> float:
    """On lines between recorded points; before the first in proportion to half of the rows, behind the last to all."""
    known = sorted(points)
    at = bisect_left(known, rows)
    if at == len(known):
        return min(points[known[-1]]) * rows / known[-1]
    right = min(points[known[at]])
    if known[at] == rows:
        return right
    if at == 0:
        return right * (known[0] + rows) / (2 * known[0])
    left, low, high = min(points[known[at - 1]]), known[at - 1], known[at]
    return left + (right - left) * (rows - low) / (high - low)
