"""Latency table: time of every kernel at every number of its tiles, measured where it was, predicted where it was not.

For tiles that are masked at the end of the one dynamic axis: a kernel's time depends on how many tiles it has, so that is
what is predicted. A sum over k in parts is predicted as one of so many times the columns with a part of the depth. Both ask
the device for the same blocks and bytes; what it takes to add the parts up comes on top.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from haotuner.cost.expected import LEAST_SHARE, adding_us, in_parts_of
from haotuner.cost.features import features
from haotuner.cost.forest import Forest
from haotuner.cost.model import Analytic, CostModel, HasEnsemble
from haotuner.cost.roofline import roofline_us
from haotuner.search.probes import initial_design
from haotuner.spec.device import Device
from haotuner.spec.family import Family
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape

Floats = NDArray[np.float64]
Key = tuple[str, int, int, str]  # kernel, tiles along the axis, parts of the sum, state of the weights
LEAST_ROWS = 24  # fewer measured rows teach a forest less than the analytic rule already knows


class LatencyTable:
    """Times of one op's kernels on the whole device, in microseconds."""

    def __init__(
        self,
        op: Op,
        device: Device,
        kernels: Mapping[MicroKernel, Family],
        *,
        cache: str,
        seed: int,
        model: CostModel | None,
    ) -> None:
        self.op, self.device, self.cache = op, device, cache
        self.axis = op.dynamic[0]
        self._families = {kernel.name: family for kernel, family in kernels.items()}
        self._kernels = {kernel.name: kernel for kernel in kernels}
        self.rows = {k.name: f.tile(k).extent[self.axis] for k, f in kernels.items()}
        self._initial_model = model
        self._model: CostModel = model or Analytic()
        self._seed = seed
        self._row_of: dict[Key, int] = {}
        self._frames: list[pd.DataFrame] = []
        self._roof: list[float] = []
        self._extra: list[float] = []
        self._predicted = np.zeros(0)
        self.us: dict[Key, float] = {}

    def note(self, key: Key, us: float) -> None:
        """Take in a measured time; of several the mean in the logarithm."""
        self.us[key] = us if key not in self.us else float(np.sqrt(us * self.us[key]))

    def predicted(self, keys: Sequence[Key]) -> Floats:
        """Predictions of the model in us, shape ``(len(keys),)``."""
        self._ask(keys)
        at = [self._row_of[key] for key in keys]
        return np.asarray(self._predicted[at], np.float64)

    def times(self, keys: Sequence[Key]) -> Floats:
        """Measured times; what was not timed is predicted at the level of the same kernel's times around it."""
        times = self.predicted(keys)
        known = self._levels()
        for index, key in enumerate(keys):
            if key in self.us:
                times[index] = self.us[key]
                continue
            kernel, tiles, parts, _ = key
            level = known.get((kernel, parts)) or known.get((kernel, 1))
            if level is not None:
                times[index] *= float(np.exp(np.interp(np.log(tiles), level[0], level[1])))
        return times

    def learn(self) -> None:
        """Fit a model to what is measured and predict the rest with it."""
        keys = sorted(self.us)
        if len(keys) < LEAST_ROWS:
            return
        self._ask(keys)
        rows = [self._row_of[key] for key in keys]
        frame = pd.concat(self._frames, ignore_index=True)
        roof, extra = np.array(self._roof), np.array(self._extra)
        labels = np.array([self._label(key, row) for key, row in zip(keys, rows, strict=True)])
        self._model = Forest(seed=self._seed).fit(frame.iloc[rows], labels)
        self._predicted = roof / np.exp(self._model.predict(frame)) + extra

    def head(self, tasks: Sequence[Sequence[Key]], failed: set[str]) -> list[Key]:
        """Keys to time first, where the opinions that the given model rests on disagree (``probes.py``).

        ``tasks``: keys that compete with each other. ``failed``: kernels that cannot be timed.
        """
        if not isinstance(self._initial_model, HasEnsemble):
            return []
        self._ask(key for keys in tasks for key in keys)
        of_row = {row: key for key, row in self._row_of.items()}
        labels = {row: self._label(key, row) for row, key in of_row.items() if key in self.us}
        lost = np.array([row for row, key in of_row.items() if key[0] in failed], np.int64)
        groups = [np.array([self._row_of[key] for key in keys], np.int64) for keys in tasks]
        frame = pd.concat(self._frames, ignore_index=True)
        return [of_row[row] for row in initial_design(self._initial_model, frame, groups, labels, left_out=lost)]

    def _label(self, key: Key, row: int) -> float:
        """Log(throughput / roofline) of a measured key, what adding parts up takes left out."""
        own = max(self.us[key] - self._extra[row], self.us[key] * LEAST_SHARE)
        return float(np.log(self._roof[row] / own))

    def _levels(self) -> dict[tuple[str, int], tuple[Floats, Floats]]:
        """Of each kernel and number of parts: log of tiles, and log of measured over predicted there."""
        by: dict[tuple[str, int], list[tuple[float, float]]] = {}
        keys = [key for key in self.us if key[3] == self.cache]
        for key, predicted in zip(keys, self.predicted(keys).tolist() if keys else [], strict=True):
            kernel, tiles, parts, _ = key
            by.setdefault((kernel, parts), []).append((float(np.log(tiles)), float(np.log(self.us[key] / predicted))))
        return {
            of: (np.array([x for x, _ in sorted(points)]), np.array([y for _, y in sorted(points)]))
            for of, points in by.items()
        }

    def _ask(self, keys: Iterable[Key]) -> None:
        """Rows of the frame for keys that have none yet."""
        new = sorted(set(keys) - self._row_of.keys())
        groups: dict[tuple[str, int, str], list[Key]] = {}
        for key in new:
            groups.setdefault((self._families[key[0]].name, key[2], key[3]), []).append(key)
        for (_, parts, cache), group in groups.items():
            family, problem = self._families[group[0][0]], in_parts_of(self.op, parts)
            shapes: dict[int, Shape] = {}
            pairs = []
            for kernel, tiles, _, _ in group:
                extent = tiles * self.rows[kernel]
                pairs.append((self._kernels[kernel], shapes.setdefault(extent, Shape.of({self.axis: extent}))))
            frame = features(self.device, family, problem, pairs, weights=cache)
            roof = np.asarray(roofline_us(self.device, problem, [shape for _, shape in pairs]), np.float64)
            extra = [adding_us(self.op, self.device, shape, parts) for _, shape in pairs]
            self._row_of.update({key: len(self._roof) + index for index, key in enumerate(group)})
            self._frames.append(frame)
            self._roof += roof.tolist()
            self._extra += extra
            self._predicted = np.concatenate([self._predicted, roof / np.exp(self._model.predict(frame)) + extra])
