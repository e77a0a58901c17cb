"""Repeated times: how far times of one program differ between processes, and measured times as far as that allows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from haotuner.search.observations import BETWEEN, MAD_TO_SD, shrunk, variance_of
from haotuner.search.pruner import Us
from haotuner.spec.composition import Composition
from haotuner.spec.record import Timed
from haotuner.spec.shape import Shape

LEAST_PAIRS = 6  # fewer repeats say too little of how far processes differ


@dataclass(slots=True)
class RepeatedTimes:
    """Times of single threads, each of one process or of two, with what is known of their noise. Microseconds."""

    us: Us
    _within: dict[tuple[Composition, Shape], float] = field(default_factory=dict)  # variance of a log time by its samples
    _apart: dict[tuple[Composition, Shape], float] = field(default_factory=dict)  # log of a second time by the first

    def note(self, composition: Composition, shape: Shape, outcome: Timed) -> None:
        """Take the first time of a trial."""
        self.us.setdefault(composition, {})[shape] = outcome.median_us
        self._within[composition, shape] = variance_of(outcome) - BETWEEN**2

    def repeat(self, composition: Composition, shape: Shape, outcome: Timed) -> None:
        """Take a second time, of another process: the mean of both counts from now on."""
        first = self.us[composition][shape]
        self._apart[composition, shape] = float(np.log(outcome.median_us / first))
        self.us[composition][shape] = float(np.sqrt(first * outcome.median_us))

    def repeated(self, composition: Composition, shape: Shape) -> bool:
        """True if a second time was taken."""
        return (composition, shape) in self._apart

    def between(self) -> float:
        """Variance of the logs of a program's times in different processes, by the median of all repeats."""
        if len(self._apart) < LEAST_PAIRS:
            return BETWEEN**2
        return max((MAD_TO_SD * float(np.median(np.abs(list(self._apart.values()))))) ** 2 / 2, BETWEEN**2)

    def drawn_to(self, expected: Mapping[Composition, Mapping[Shape, float]]) -> Us:
        """The times, drawn towards what is expected as far as their noise asks. ``expected``: of each that has times.

        What is expected is put on the level of all times of its shape: programs of one shape are compared, no shapes.
        """
        pairs = [(composition, shape) for composition in expected for shape in self.us[composition]]
        off = defaultdict[Shape, list[float]](list)
        for composition, shape in pairs:
            off[shape].append(float(np.log(self.us[composition][shape] / expected[composition][shape])))
        level = {shape: float(np.exp(np.median(values))) for shape, values in off.items()}
        between = self.between()
        variances = [(self._within.get(pair, 0.0) + between) / (1 + self.repeated(*pair)) for pair in pairs]
        times = shrunk(
            np.array([self.us[composition][shape] for composition, shape in pairs]),
            np.array(variances),
            [level[shape] * expected[composition][shape] for composition, shape in pairs],
            least=BETWEEN,
        )
        result: Us = {composition: {} for composition in expected}
        for (composition, shape), us in zip(pairs, times.tolist(), strict=True):
            result[composition][shape] = us
        return result
