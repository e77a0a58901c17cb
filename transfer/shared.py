"""Shared: the cost model of ``tune`` where a start rests on several sources: their portfolio names what is measured first.

Where sources disagree about the best kernels, the blend of all of them may rank a kernel low that one of them, rightly,
holds for the best. The rows to measure first are shared among the opinions as the zero-shot head and the first samples are
in ``python -m tests.bench.transfer_study report`` (docs/decisions/155); what came back is told to the portfolio, and to
the cost model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from haotuner.cost.model import Scores
from haotuner.transfer.experts import ANALYSIS, COPY_MEAN, SHARES, Shares, weighted_opinions
from haotuner.transfer.portfolio import Opinion, Portfolio, program_units
from haotuner.transfer.saved_model import Transferred
from haotuner.transfer.sources import Scale
from haotuner.transfer.warm_start import Blend, Ranks, Started

Opinions = Callable[[pd.DataFrame], Sequence[Opinion]]
FEWEST = 2  # sources, below which there is nobody to disagree


class Shared(Started):
    """An ``HasSpread`` and ``HasEnsemble`` cost model: ``Started``, and the opinions that its start is made of."""

    def __init__(self, start: Ranks, opinions: Opinions, *, shares: Shares = SHARES, seed: int = 0) -> None:
        super().__init__(start, seed)
        self._opinions, self._shares = opinions, shares

    def opinions(self, frame: pd.DataFrame) -> Scores:
        """Opinions before any measurement, in log efficiency, ``(opinions, rows)``."""
        return np.stack([opinion.said for opinion in self._opinions(frame)])

    def head(
        self, frame: pd.DataFrame, tasks: NDArray[np.int64], count: int, measured: NDArray[np.int64], labels: ArrayLike
    ) -> NDArray[np.int64]:
        """At most ``count`` rows to measure next, by a portfolio that knows what was measured; see ``HasEnsemble``."""
        portfolio = Portfolio(
            self._opinions(frame),
            program_units(frame),
            tasks,
            spread=Scale.of(self.start.predict(frame)).spread,
            doubt=self._shares.doubt,
            rng=np.random.default_rng([self.seed, 2, len(measured)]),
        )
        portfolio.update(measured, np.asarray(labels, dtype=np.float64))
        return portfolio.best(count)


def shared_of_sources(model: Transferred, seed: int = 0) -> Started:
    """A start from what ``transfer fit`` wrote: its opinions as long as no sample of the target has told who is right."""
    sources = model.sources
    if len(sources.ids) < FEWEST or model.residual is not None:
        return Started(model, seed=seed)

    def opinions(frame: pd.DataFrame) -> list[Opinion]:
        columns = sources.columns(frame)
        return weighted_opinions(sources, columns, sources.remembered(frame, columns), {}, shares)

    shares = shares_of(model.facts)
    return Shared(model, opinions, shares=shares, seed=seed)


def shared_of_models(models: Sequence[Ranks], distances: Sequence[float], blend: Blend, seed: int = 0) -> Started:
    """A start from models of single devices, so many doublings of resources away: each, their mean, and the analysis."""
    if len(models) < FEWEST:
        return Started(blend, seed=seed)
    near = np.exp2(-np.asarray(distances, dtype=np.float64) / SHARES.halving)

    def opinions(frame: pd.DataFrame) -> list[Opinion]:
        answer = blend.each(frame)
        result = [Opinion(name=f"model {at}", said=each, weight=float(near[at])) for at, each in enumerate(answer)]
        together = SHARES.together * float(near.max())
        result.append(Opinion(name="blend", said=np.asarray(blend.priors @ answer), weight=together))
        result.append(Opinion(name=COPY_MEAN, said=answer.mean(axis=0), weight=together))
        analysis = np.asarray(frame["expected_log"], dtype=np.float64)
        return [*result, Opinion(name=ANALYSIS, said=analysis, weight=SHARES.analysis)]

    return Shared(blend, opinions, seed=seed)


def shares_of(facts: dict[str, Any]) -> Shares:
    """Prior weights of opinions, as ``transfer fit`` chose them on the sources; the default of files that do not say."""
    selected = facts.get("shares")
    return Shares(**{name: float(value) for name, value in selected.items()}) if isinstance(selected, dict) else SHARES
