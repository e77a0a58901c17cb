"""Forest: the learned cost model, gradient-boosted trees (LightGBM) over resource features.

The trees learn what the analytic time misses: they start from a line through ``expected_log`` fitted to the same rows. So a
model of twenty rows ranks nearly as well as the analysis, and one of thousands is free of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from haotuner.cost.features import NAMES
from haotuner.cost.model import Scores, check_columns, check_rows, predict_alike

if TYPE_CHECKING:  # it takes a second to import: functions that grow or read trees do
    import lightgbm

# Fewest rows that a tree can split with two on each side; below it the line alone is the model.
FEWEST_ROWS = 8
_PRIOR = "expected_log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a forest's training. Defaults were chosen on held-out devices of public GEMM and convolution records."""

    trees: int = 100
    learning_rate: float = 0.1
    leaves: int = 31
    rows_per_leaf: int = 10  # fewest rows of a leaf; less when there are few rows, see ``parameters``
    feature_share: float = 0.7  # of the columns, offered to each tree
    l2: float = 1.0
    slope: float | None = None  # of the analytic line; None fits it
    columns: tuple[str, ...] = NAMES  # that the trees may use
    # Ridge of a linear model in every leaf (Shi, Li and Li, 2019) in place of one value; None: one value
    linear: float | None = None

    def parameters(self, rows: int, *, seed: int, threads: int) -> dict[str, Any]:
        """LightGBM parameters for that many rows; the same rows and seed give the same trees."""
        return {
            "objective": "regression",
            "learning_rate": self.learning_rate,
            "num_leaves": max(2, min(self.leaves, rows // 4)),
            "min_data_in_leaf": max(2, min(self.rows_per_leaf, rows // 10)),
            "min_data_in_bin": 1 if rows < 1000 else 3,
            "feature_fraction": self.feature_share,
            "lambda_l2": self.l2,
            "seed": seed,
            "num_threads": threads,
            "deterministic": True,
            "force_row_wise": True,  # the choice between row-wise and column-wise is by timing, so not repeatable
            "feature_pre_filter": False,
            "verbosity": -1,
            **({} if self.linear is None else {"linear_tree": True, "linear_lambda": self.linear}),
        }


# For one device alone, from ``FEWEST_OWN_ROWS`` on. Shapes held out on six devices (``tests/bench/held_out``), mean pairwise
# accuracy: 0.936; trees of 31 leaves 0.935; without lines 1,000 trees of 63 leaves 0.936 in five times the time, 300 of 31
# 0.929 in half of it. Kernels held out of imported devices, 300 linear trees of 31 leaves against ``Settings()``: TITAN RTX,
# GEMM, 6,000 rows 0.967 -> 0.980, convolution, 2,000 rows 0.951 -> 0.961, W6600 0.968 -> 0.974; level from 60 to 600 rows.
# For other devices nobody knows where a line leads.
ONE_DEVICE = Settings(trees=300, leaves=47, learning_rate=0.06, feature_share=0.5, linear=0.01)
FEWEST_OWN_ROWS = 500


def one_device(rows: int) -> Settings:
    """Settings of a model of one device's own measurements, of which there are so many rows."""
    return ONE_DEVICE if rows >= FEWEST_OWN_ROWS else Settings()


class Forest:
    """A cost model learned from measurements of one family on any number of devices."""

    def __init__(self, seed: int = 0, threads: int = 1, settings: Settings | None = None) -> None:
        self.seed = seed
        self.threads = threads
        self.settings = settings or Settings()
        self.line = (0.0, 0.0)  # intercept and slope over the analytic log efficiency
        self.booster: lightgbm.Booster | None = None
        self.facts: dict[str, Any] = {}  # provenance that travels with the saved model
        self.fitted = False

    @property
    def uses(self) -> tuple[str, ...]:
        """Columns that the model reads; frames may have others, in any order."""
        return tuple(dict.fromkeys((*self.settings.columns, _PRIOR)))

    def fit(self, frame: pd.DataFrame, log_efficiency: ArrayLike, sample_weight: ArrayLike | None = None) -> Forest:
        """Learn from rows of measured log(throughput / roofline); works from one row up."""
        import lightgbm

        check_columns(frame, self.uses)
        labels, weights = check_rows(frame, log_efficiency, sample_weight)
        prior = frame[_PRIOR].to_numpy(dtype=np.float64)
        self.line = line_through(prior, labels, weights, self.settings.slope)
        self.booster = None
        if len(labels) >= FEWEST_ROWS and np.ptp(labels) > 0:
            data = self._data(frame, labels - self._base(prior), weights)
            parameters = self.settings.parameters(len(labels), seed=self.seed, threads=self.threads)
            # kept as it was trained: by default LightGBM writes the trees as text and reads them back, half of a small fit
            self.booster = lightgbm.train(
                parameters, data, num_boost_round=self.settings.trees, keep_training_booster=True
            ).free_dataset()
        self.fitted = True
        return self

    def predict(self, frame: pd.DataFrame) -> Scores:
        """Predicted log(throughput / roofline) of shape ``(rows,)``; higher is better."""
        if not self.fitted:
            raise ValueError("this forest was not fitted; call fit, or load a saved one")
        check_columns(frame, self.uses)
        total = self._base(frame[_PRIOR].to_numpy(dtype=np.float64))
        if self.booster is not None and len(frame):
            # putting rows in order costs a few percent of the time and saves half of it where leaves hold lines
            total = total + (self._trees(frame) if self.settings.linear is None else predict_alike(frame, self._trees))
        return np.asarray(total, dtype=np.float64)

    def state(self) -> tuple[Mapping[str, Any], tuple[str, ...]]:
        """State to save: a mapping that JSON can hold, and LightGBM's text of the trees (none if there are none)."""
        if not self.fitted:
            raise ValueError("this forest was not fitted; there is nothing to save")
        settings = {**asdict(self.settings), "columns": list(self.settings.columns)}
        state = {"line": list(self.line), "facts": self.facts, "settings": settings, "seed": self.seed}
        return state, () if self.booster is None else (_finite(self.booster.model_to_string()),)

    @staticmethod
    def restored(state: Mapping[str, Any], texts: Sequence[str], *, threads: int = 1) -> Forest:
        """A forest from what ``state`` gave; the caller has verified that the texts are undamaged."""
        import lightgbm

        settings = Settings(**{**state["settings"], "columns": tuple(state["settings"]["columns"])})
        forest = Forest(seed=int(state["seed"]), threads=threads, settings=settings)
        forest.line = (float(state["line"][0]), float(state["line"][1]))
        forest.facts = dict(state["facts"])
        forest.booster = lightgbm.Booster(model_str=texts[0]) if texts else None
        forest.fitted = True
        return forest

    def _base(self, prior: Scores) -> Scores:
        return self.line[0] + self.line[1] * prior

    def _trees(self, frame: pd.DataFrame) -> Scores:
        assert self.booster is not None
        return np.asarray(self.booster.predict(self._matrix(frame), num_threads=self.threads), dtype=np.float64)

    def _matrix(self, frame: pd.DataFrame) -> Scores:
        return np.asarray(frame[list(self.settings.columns)], dtype=np.float64)

    def _data(self, frame: pd.DataFrame, labels: Scores, weights: Scores | None) -> lightgbm.Dataset:
        import lightgbm

        return lightgbm.Dataset(self._matrix(frame), labels, weight=weights, feature_name=list(self.settings.columns))


def _finite(text: str) -> str:
    """LightGBM's text of trees without infinite thresholds, by which it tells a number from none; as long as before.

    Its header says how long each tree is. No feature comes near 9e9.
    """
    return re.sub(r"^threshold=.*$", lambda line: line[0].replace("inf", "9e9"), text, flags=re.MULTILINE)


def line_through(prior: Scores, labels: Scores, weights: Scores | None, slope: float | None) -> tuple[float, float]:
    """Intercept and slope by weighted least squares, or the intercept alone for a given slope.

    A slope outside 0..1 would reverse or exaggerate the analysis, so it is kept within 0..1. Two rows' worth of belief in
    slope 1 (ridge) keeps one or two measurements from turning the ranking round.
    """
    mass = np.ones_like(labels) if weights is None else weights
    mean_prior, mean_label = float(np.average(prior, weights=mass)), float(np.average(labels, weights=mass))
    if slope is None:
        spread = float(np.sum(mass * (prior - mean_prior) ** 2))
        together = float(np.sum(mass * (prior - mean_prior) * (labels - mean_label)))
        belief = 2.0 * float(np.mean(mass))
        slope = min(max((together + belief) / (spread + belief), 0.0), 1.0)
    return mean_label - slope * mean_prior, slope
