"""What the book says of its model, and what is asked next: uses that compete, layouts that can serve."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
from numpy.typing import ArrayLike

from haotuner.cost.model import Analytic, Scores
from haotuner.cost.roofline import roofline_us
from haotuner.search.observations import ObservationTable
from haotuner.search.probes import Probe, probe
from haotuner.search.propose import propose
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.record import Record, Timed
from tests.search.fake_lab import CORE, FAMILY, OP

BULK = 128  # rows: more than the 32 of a probe, fewer than its 256
# From 13 rows on two tiles are what comes nearest to 32 rows: such probes have three shapes, the others four.
KERNELS = [FAMILY.kernel(mr, 16, 16, ku, 16) for mr in (*range(1, 9), *range(13, 21)) for ku in (1, 2, 4)]


class Told(Analytic):
    """Says what it is told of each row of the book, whatever it is fitted to."""

    def __init__(self, predictions: Sequence[float]) -> None:
        self._said = np.array(predictions)

    def fit(self, frame: pd.DataFrame, log_efficiency: ArrayLike, weights: ArrayLike | None = None) -> Told:
        return self

    def predict(self, frame: pd.DataFrame) -> Scores:
        return np.asarray(self._said[frame.index], np.float64)


def probes(kernels: Sequence[MicroKernel], most: int = 256) -> list[Probe]:
    return [probe(kernel, OP, FAMILY, CORE, most, cache="cold") for kernel in kernels]


def book(kernel_probes: Sequence[Probe], predictions: Sequence[float]) -> ObservationTable:
    return ObservationTable(OP, FAMILY, CORE, kernel_probes, cache="cold", seed=0, model=Told(predictions))


def scores(most: int, *, bulk: float = 0.0, wrong_at: int = 0) -> dict[str, float]:
    """Of a model that is right, but for all times in bulk alike and for the order of the kernels at so many tiles."""
    kernel_probes = probes(KERNELS, most)
    quality = np.random.default_rng(0).permutation(len(KERNELS)) / 100
    trials = [
        (right, tiles, trial)
        for right, kernel_probe in zip(quality, kernel_probes, strict=True)
        for tiles, trial in kernel_probe.lead
    ]
    known = book(
        kernel_probes,
        [right * (-1 if tiles == wrong_at else 1) + bulk * (t.shape["m"] > BULK) for right, tiles, t in trials],
    )
    roof = roofline_us(CORE.with_units(1), OP, [trial.shape for _, _, trial in trials])
    for (right, _, trial), least in zip(trials, roof, strict=True):
        outcome = Timed(samples_us=(float(least / np.exp(right)),))
        known.note(Record(trial=trial, outcome=outcome, device_id=CORE.id, fingerprint="f", session="s", when=0.0))
    return known.scores()


@pytest.mark.parametrize("bulk", [-9.0, 9.0])
def test_kernels_compete_in_one_use_whatever_their_height(bulk: float) -> None:
    assert scores(256, bulk=bulk) == pytest.approx({"pairwise": 1.0, "best@1": 1.0, "best@10": 1.0})


def test_every_use_counts_once() -> None:
    """Uses of these probes: one tile, 32 rows, 256, two tiles; the first alone is ranked the wrong way round."""
    assert scores(256, wrong_at=1)["pairwise"] == pytest.approx(0.75)
    assert scores(1, wrong_at=1)["pairwise"] == 0.0, "under traffic of single rows all uses are one"


def layouts() -> ObservationTable:
    """A panel width with a kernel of one row, and another without one that would be e times faster."""
    kernels = [FAMILY.kernel(mr, pw, pw, 1, 16) for mr, pw in ((1, 16), (4, 16), (8, 16), (8, 32))]
    kernel_probes = probes(kernels)
    return book(
        kernel_probes, [float(kernel_probe.kernel["pw"] == 32) for kernel_probe in kernel_probes for _ in kernel_probe.lead]
    )


def test_no_plan_rests_on_a_layout_without_a_one_row_kernel_even_where_its_tiles_fit() -> None:
    known, rows = layouts(), np.array([8, 16, 64])
    proposed = propose(known, list(known.probes), rows, np.ones(3), 4, np.random.default_rng(0))
    assert known.probes[proposed[0]].kernel["pw"] == 16


def test_a_mistake_is_not_taken_for_a_layout_that_cannot_serve() -> None:
    known = layouts()
    with pytest.raises(ValueError, match="cannot be covered"):
        propose(known, list(known.probes), np.array([0, 8]), np.ones(2), 4, np.random.default_rng(0))
