"""CostModel: ranking of micro-kernels, learned or not; the model that needs no measurement; order of prediction.

Order of prediction: rows that are alike, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from haotuner.cost.features import FEATURES, NAMES

Scores: TypeAlias = NDArray[np.float64]


class CostModel(Protocol):
    """Predicts log(throughput / roofline) of each row of a frame; higher is better.

    Predictions of a row do not depend on the other rows. ``fit`` may be called again and starts afresh.
    """

    def fit(self, frame: pd.DataFrame, log_efficiency: ArrayLike, sample_weight: ArrayLike | None = None) -> CostModel:
        """Learn from measured rows; returns itself. ValueError on NaN, infinities or lengths that differ."""
        ...

    def predict(self, frame: pd.DataFrame) -> Scores:
        """Scores of shape ``(rows,)``."""
        ...


@runtime_checkable
class HasSpread(CostModel, Protocol):
    """A cost model that knows how far off it may be."""

    def spread(self, frame: pd.DataFrame) -> Scores:
        """Standard deviation of the error of ``predict`` on rows it was not fitted to, log units, shape ``(rows,)``."""
        ...


@runtime_checkable
class HasEnsemble(CostModel, Protocol):
    """A cost model that rests on several opinions, which may disagree about what is best."""

    def opinions(self, frame: pd.DataFrame) -> Scores:
        """Predictions of each for every row before measurement, shape ``(opinions, rows)``, in the units of ``predict``."""
        ...

    def head(
        self, frame: pd.DataFrame, tasks: NDArray[np.int64], count: int, measured: NDArray[np.int64], labels: ArrayLike
    ) -> NDArray[np.int64]:
        """At most ``count`` rows to measure next: together they are expected to hold the best of every task.

        Args:
            frame: all rows.
            tasks: the task of each row; rows compete within theirs.
            count: how many are asked for.
            measured: rows that have a time, each once.
            labels: their log(throughput / roofline).
        """
        ...


class Analytic:
    """The analytic expectation as a model: it ranks before anything was measured, and is the baseline."""

    def fit(self, frame: pd.DataFrame, log_efficiency: ArrayLike, sample_weight: ArrayLike | None = None) -> Analytic:
        """Learns nothing."""
        return self

    def predict(self, frame: pd.DataFrame) -> Scores:
        """Log of the share of the roofline that the analytic time means."""
        check_columns(frame, ("expected_log",))
        return np.asarray(frame["expected_log"], dtype=np.float64)


def ensemble_predictions(model: CostModel, frame: pd.DataFrame) -> Scores:
    """Predictions of a model, and after them those of each opinion that it rests on; ``(1 + opinions, rows)``."""
    predicted = model.predict(frame)[np.newaxis]
    return np.concatenate([predicted, model.opinions(frame)]) if isinstance(model, HasEnsemble) else predicted


def check_columns(frame: pd.DataFrame, used: Sequence[str] = NAMES) -> None:
    """ValueError unless the frame has the columns that a model uses, in whatever order and whatever else it has."""
    lacking = [name for name in used if name not in frame.columns]
    if lacking:
        raise ValueError(f"the frame's columns are not the features that the model uses; it lacks {', '.join(lacking[:8])}")


def odd_values(frame: pd.DataFrame) -> NDArray[np.bool_]:
    """Features that are NaN or infinite and must not be, of the frame's shape.

    NaN is right where a family's demand lacks a group of columns: then all of that group in the frame are NaN in a row.
    """
    values = frame.to_numpy(dtype=np.float64)
    odd: NDArray[np.bool_] = ~np.isfinite(values)
    absent = np.isnan(values)
    for group in {feature.group for feature in FEATURES if feature.group}:
        at = np.array([frame.columns.get_loc(f.name) for f in FEATURES if f.group == group and f.name in frame.columns], int)
        whole = absent[:, at].all(axis=1)
        odd[np.ix_(whole, at)] = False
    return odd


def check_rows(
    frame: pd.DataFrame, log_efficiency: ArrayLike, sample_weight: ArrayLike | None
) -> tuple[Scores, Scores | None]:
    """Labels and sample weights as float64 of the frame's length; ValueError says what is wrong with them."""
    labels = np.asarray(log_efficiency, dtype=np.float64)
    if labels.shape != (len(frame),) or not len(frame):
        raise ValueError(f"{len(frame)} rows of features need as many labels, at least one; got shape {labels.shape}")
    if not np.isfinite(labels).all():
        bad = int(np.flatnonzero(~np.isfinite(labels))[0])
        raise ValueError(f"label {bad} is {labels[bad]}; times must be finite and positive before their logarithm is taken")
    odd = odd_values(frame)
    if odd.any():
        names = [name for at, name in enumerate(frame.columns) if odd[:, at].any()]
        raise ValueError(f"features hold NaN or infinity in {', '.join(names)}")
    if sample_weight is None:
        return labels, None
    weights = np.asarray(sample_weight, dtype=np.float64)
    if weights.shape != labels.shape or not np.isfinite(weights).all() or (weights < 0).any() or weights.sum() <= 0:
        raise ValueError("sample weights must be finite, from 0 up, as many as rows, and not all zero")
    return labels, weights


# The tile decides most of what trees ask first. Rows with the same answers take the same branches, and a branch that the
# processor guesses wrong costs more than the comparison: ten forests over 64,000 rows of convolution take 0.78 of the time.
# Tiles of a CPU differ in how they fetch ahead, too: with that 400 linear trees take 0.67 of the time that tiles alone give.
_ALIKE = ("ahead_lines_log2", "tile_rows_log2", "tile_cols_log2", "tile_intensity_log2")


def predict_alike(frame: pd.DataFrame, predict: Callable[[pd.DataFrame], Scores]) -> Scores:
    """Scores of ``predict`` for each row, asked in an order that suits trees.

    Args:
        frame: ``(rows, features)``.
        predict: scores of a frame, whose last axis are its rows; those of a row must not depend on the other rows.
    """
    order = np.lexsort([frame[name].to_numpy() for name in _ALIKE])
    predicted = predict(frame.iloc[order])
    result = np.empty(predicted.shape, dtype=np.float64)
    result[..., order] = predicted
    return result
