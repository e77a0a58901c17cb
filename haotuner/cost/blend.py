"""Blend: fitted models of several devices as one opinion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from haotuner.cost.model import Scores
from haotuner.cost.order import predict_alike


class Ranks(Protocol):
    """Anything that ranks: log(throughput / roofline) of each row of a frame, higher is better."""

    def predict(self, frame: pd.DataFrame) -> Scores:
        """Scores of shape ``(rows,)``."""
        ...


class Blend:
    """The weighted mean of what models of other devices say: they err differently, and no device is quite like another."""

    def __init__(self, models: Sequence[Ranks], weights: ArrayLike | None = None) -> None:
        """``weights`` of shape ``(models,)``, from 0 up; None gives each equal say. ValueError if none is above 0."""
        given = np.ones(len(models)) if weights is None else np.asarray(weights, dtype=np.float64)
        if given.shape != (len(models),) or not np.isfinite(given).all() or (given < 0).any() or given.sum() <= 0:
            raise ValueError(f"a blend of {len(models)} models needs as many weights from 0 up, not all zero; got {given}")
        self.models, self.weights = tuple(models), given / given.sum()

    def predict(self, frame: pd.DataFrame) -> Scores:
        """Weighted mean of predicted log(throughput / roofline), of shape ``(rows,)``."""
        return predict_alike(frame, self._predict)

    def _predict(self, frame: pd.DataFrame) -> Scores:
        said = np.stack([model.predict(frame) for model in self.models])
        return np.asarray(self.weights @ said, dtype=np.float64)


class Remembered:
    """A fitted model that answers from memory when one of the last two frames comes again, the very object.

    A search asks at every round what it starts from to say of its rows, in turn with the few that are measured; the rows
    stay and the start never changes. Five forests of 150 trees took a tenth of a second for 3,000 rows. Frames must not be
    changed meanwhile.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self._last: list[tuple[pd.DataFrame, Scores]] = []

    def predict(self, frame: pd.DataFrame) -> Scores:
        """What the model says, of shape ``(rows,)``; not to be written to."""
        said = next((said for asked, said in self._last if asked is frame), None)
        if said is None:
            said = self.ranks.predict(frame)
        self._last = [(frame, said), *((asked, old) for asked, old in self._last if asked is not frame)][:2]
        return said
