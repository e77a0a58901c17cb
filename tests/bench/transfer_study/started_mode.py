"""Modes that reports have beside the six: what ``tune`` runs, and a search from scratch with the help of the analysis."""

from __future__ import annotations

from haotuner.cost.model import Scores
from haotuner.transfer.warm_start import Ranks, Started
from tests.bench.transfer_study.modes import Pool, Sample

STARTED = "started"  # what ``tune`` runs: it is not chosen from, for a search has no other
GUIDED = "guided"  # from scratch, the samples chosen with the help of the analysis


def rank_started(start: Ranks, pool: Pool, sample: Sample, seed: int) -> Scores:
    """Scores of every row of the pool: the blend of near sources' own models, put right by the sample."""
    return Started(start, seed=seed).fit(pool.frame.iloc[sample.rows], sample.labels).predict(pool.frame)
