"""Sources: predictions of known devices' models for kernels on a target device.

Every source gets a forest of program features over half the analytic difference between devices; the sources' forests
are asked about the target's kernels and averaged, near profiles first. One joint forest over resource features joins them,
the more so the nearer the nearest profile: trees interpolate between devices, they do not extrapolate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from haotuner.cost.features import NAMES, PROGRAM_NAMES
from haotuner.cost.forest import Forest, Settings
from haotuner.cost.model import Scores
from haotuner.cost.series import rank_correlation
from haotuner.errors import UsageError
from haotuner.spec.device import Device
from haotuner.transfer.device_table import DeviceTable, Keys, program_keys
from haotuner.transfer.similarity import distance, joint_share, priors_of

# Measured on GEMM and convolution records: slope 0 copies, 1 trusts the analysis fully. Half lifted pairwise accuracy on
# five of eight targets and cost none more than 0.005; 1 lost up to 0.03 on two.
ANALYTIC_SLOPE = 0.5
# Thousands of rows a source bear large trees, and 64,000 rows are to be scored in a second: 70 trees of 63 leaves take as
# long as 100 of 31. Zero-shot best@10 on GEMM and convolution, device and configurations out, eight seeds: these 0.979 and
# 0.940 (pairwise 0.942, 0.760), 100 of 31 0.963 and 0.939 (0.938, 0.760), 60 of 127 at rate 0.15 0.977 and 0.939; slower
# ones: 100 of 127 0.979 and 0.941, 100 of 255 0.983 and 0.941, 200 of 31 0.974 and 0.937.
_GROWN = Settings(trees=70, leaves=63, learning_rate=0.14, feature_share=0.5, slope=ANALYTIC_SLOPE)
SOURCE_TREES = replace(_GROWN, columns=PROGRAM_NAMES)
JOINT_TREES = replace(_GROWN, columns=NAMES)
_PRIOR = "expected_log"
PROGRAMS = 30  # that two devices timed, below which their orders are not held against each other
OPPOSITE = -0.2  # rank correlation; the least of 21 pairs of public sets is -0.06 (convolutions on an NVIDIA and an AMD GPU)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Mean and spread that turn one column of predictions into standard units."""

    mean: float
    spread: float

    @staticmethod
    def of(values: Scores) -> Scale:
        """The scale of some values; constant ones have spread 1."""
        spread = float(np.std(values))
        return Scale(mean=float(np.mean(values)), spread=spread if spread > 1e-9 else 1.0)

    def units(self, values: Scores) -> Scores:
        """Values in standard units."""
        return np.asarray((values - self.mean) / self.spread, dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPrograms:
    """Measurements of a source of single programs, as residuals: measured less what its forest predicts. Keys ascend."""

    keys: Keys
    residuals: Scores

    @staticmethod
    def of(frame: pd.DataFrame, residuals: Scores) -> KnownPrograms:
        """The residuals of measured rows; rows of one program are averaged."""
        keys, where = np.unique(program_keys(frame), return_inverse=True)
        totals = np.bincount(where, weights=residuals, minlength=len(keys))
        return KnownPrograms(keys=keys, residuals=totals / np.bincount(where, minlength=len(keys)))

    def find(self, requested: Keys) -> Scores:
        """The residual of each program by its key; 0 where the source did not measure it."""
        if not len(self.keys):
            return np.zeros(len(requested))
        at = np.minimum(np.searchsorted(self.keys, requested), len(self.keys) - 1)
        return np.where(self.keys[at] == requested, self.residuals[at], 0.0)

    def knows(self, requested: Keys) -> NDArray[np.bool_]:
        """True if the source measured each program."""
        return np.isin(requested, self.keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Fitted forests of the sources of one family, with priors for one target."""

    ids: tuple[str, ...]
    forests: tuple[Forest, ...]
    known_programs: tuple[KnownPrograms, ...]  # what each forest gets wrong of the programs that its source measured
    scales: tuple[Scale, ...]  # of each source's own labels
    analytic: Scale  # of the analytic log efficiency over all sources
    priors: Scores  # how far each source is believed before any measurement, summing to 1
    joint: Forest  # over all sources and all features
    joint_share: float  # how far the joint forest is believed; the sources' own forests have the rest
    distances: Scores  # from each source's device to the target, in doublings of resources

    def columns(self, frame: pd.DataFrame) -> Scores:
        """Predictions of each source, joint forest and analysis for each row, in standard units; ``(rows, sources + 2)``."""
        keys = program_keys(frame)
        values = [
            scale.units(forest.predict(frame) + known.find(keys))
            for forest, known, scale in zip(self.forests, self.known_programs, self.scales, strict=True)
        ]
        joint = _pooled(self.scales).units(self.joint.predict(frame))
        return np.stack([*values, joint, self.analytic.units(np.asarray(frame[_PRIOR], dtype=np.float64))], axis=1)

    def remembered(self, frame: pd.DataFrame, columns: Scores) -> Scores:
        """Measurements by each source of each row's program, in standard units, ``(rows, sources)``; NaN where nothing."""
        keys = program_keys(frame)
        there = np.stack([known.knows(keys) for known in self.known_programs], axis=1)
        return np.where(there, columns[:, : len(self.ids)], np.nan)

    def blend(self, columns: Scores) -> Scores:
        """The prior blend in standard units: the zero-shot ranking."""
        return np.asarray(columns @ self.column_priors(), dtype=np.float64)

    def zero_shot(self, columns: Scores) -> Scores:
        """The blend as log efficiency."""
        level = self.level()
        return np.asarray(level.mean + level.spread * self.blend(columns), dtype=np.float64)

    def column_priors(self) -> Scores:
        """Prior weight of each column, before any measurement; the analysis has 0, it is inside the sources' forests."""
        return np.array([*(1.0 - self.joint_share) * self.priors, self.joint_share, 0.0], dtype=np.float64)

    def level(self) -> Scale:
        """Level and spread of log efficiency that the sources lead one to expect."""
        return Scale(
            mean=float(self.priors @ np.array([scale.mean for scale in self.scales])),
            spread=float(self.priors @ np.array([scale.spread for scale in self.scales])),
        )


def learn_sources(
    tables: Sequence[DeviceTable], target: Device, *, seed: int, forests: Sequence[Forest] | None = None
) -> Sources:
    """Fit the sources of one family for a target device; ``forests``: the sources' own, of their own rows alone, if known.

    Raises:
        UsageError: no source at all.
    """
    if not tables:
        raise UsageError(f"transfer to {target.id} needs records of at least one other device; found none")
    forests = forests or [Forest(seed=seed, settings=SOURCE_TREES).fit(table.frame, table.labels) for table in tables]
    scales = tuple(Scale.of(table.labels) for table in tables)
    return Sources(
        ids=tuple(table.device.id for table in tables),
        forests=tuple(forests),
        known_programs=tuple(
            KnownPrograms.of(table.frame, table.labels - forest.predict(table.frame))
            for table, forest in zip(tables, forests, strict=True)
        ),
        scales=scales,
        analytic=Scale.of(np.concatenate([np.asarray(table.frame[_PRIOR], dtype=np.float64) for table in tables])),
        priors=priors_of([table.device for table in tables], target),
        joint=_joint(tables, scales, seed),
        joint_share=joint_share([table.device for table in tables], target),
        distances=np.array([distance(table.device, target) for table in tables]),
    )


def _joint(tables: Sequence[DeviceTable], scales: Sequence[Scale], seed: int) -> Forest:
    """One forest over every source; each has the same say and the same spread, whatever its rows and its range.

    Without equal spreads the device with the slowest kernels decides every split (AMD: 1 to 100, NVIDIA: 1 to 7).
    """
    frame = pd.concat([table.frame for table in tables], ignore_index=True)
    level = _pooled(scales)
    units = np.concatenate([scale.units(table.labels) for table, scale in zip(tables, scales, strict=True)])
    sample_weight = np.concatenate([np.full(len(table), 1.0 / len(table)) for table in tables])
    return Forest(seed=seed, settings=JOINT_TREES).fit(
        frame, level.mean + level.spread * units, sample_weight * len(sample_weight) / len(tables)
    )


def _pooled(scales: Sequence[Scale]) -> Scale:
    """The plain mean of the sources' scales: that of the joint forest."""
    return Scale(
        mean=float(np.mean([scale.mean for scale in scales])), spread=float(np.mean([scale.spread for scale in scales]))
    )


def copied(text: Scores, priors: Scores) -> Scores:
    """Mean over the sources that measured a trial, by their priors, shape ``(trials,)``; NaN if none did.

    With one prior of 1 this copies that source, with equal priors it is the mean of all.
    """
    there = ~np.isnan(text)
    mass = there @ priors
    total = np.where(there, text, 0.0) @ priors
    return np.asarray(np.where(mass > 0, total / np.where(mass > 0, mass, 1.0), np.nan), dtype=np.float64)


def opposite_orders(tables: Sequence[DeviceTable]) -> Iterator[str]:
    """Words on each pair of devices that rank the programs of one family in opposite orders."""
    for table, other in combinations(sorted(tables, key=lambda item: item.device.id), 2):
        if table.family != other.family or table.device.id == other.device.id:
            continue
        keys, keys_there = program_keys(table.frame), program_keys(other.frame)
        common, at, there = np.intersect1d(keys, keys_there, return_indices=True)
        if len(common) < PROGRAMS:
            continue
        if (order := rank_correlation(table.labels[at], other.labels[there])) < OPPOSITE:
            yield (
                f"{table.device.id} and {other.device.id} contradict each other: their orders of {len(common)} programs of "
                f"{table.family} correlate by {order:.2f}; is one of them another device, or in another unit?"
            )
