"""What a search does once it is told to stop: nothing that takes time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest

from haotuner.microkernels.index import family_named
from haotuner.plan import cover as covering
from haotuner.plan.compose import Curve, best_us
from haotuner.plan.cover import cover
from haotuner.search import row_cover_search as rows_search
from haotuner.search.task import Task
from haotuner.spec.op import Op
from haotuner.spec.record import Record, Trial
from haotuner.spec.shape import ShapeRange
from haotuner.spec.traffic import Traffic
from haotuner.tuning.strategies import tune
from tests.cost.cost_examples import BIG_CORE
from tests.search.fake_lab import FakeLab

OP = Op.parse("dense:n=96,k=64")
FAMILY = family_named("cpu_dense_fp32")


def task(**more: Any) -> Task:
    return Task(op=OP, traffic=Traffic.of_range(ShapeRange.parse("m=1..64")), threads=(1,), budget_s=600.0, **more)


class Counting(FakeLab):
    """Stops the search after so many records, and counts what is asked for later."""

    def __init__(self, after: int) -> None:
        super().__init__(BIG_CORE)
        self.after, self.late = after, 0

    def stopped(self) -> bool:
        return len(self.measured) >= self.after

    def watch(self, phase: str, record: Record | None) -> bool:
        return not self.stopped()

    def prepare(self, names: Sequence[str], goes_on: Any = lambda _: True) -> None:
        self.late += bool(names) and self.stopped()
        super().prepare(names)

    def measure(self, trials: Iterable[Trial], goes_on: Any = lambda _: True) -> list[Record]:
        before = len(self.measured)
        late = self.stopped()
        records = super().measure(trials, goes_on)
        self.late += late and len(self.measured) > before
        return records


@pytest.mark.parametrize("after", [0, 1, 40, 200])
def test_nothing_is_built_measured_or_solved_after_the_wish_to_stop(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Counting(after)
    monkeypatch.setattr(covering, "milp", lambda *_, **__: pytest.fail("solved") if lab.stopped() else _milp(*_, **__))
    monkeypatch.setattr(rows_search, "again", lambda *_, **__: pytest.fail("timed again"))
    tuned = tune(task(), lab.as_lab(), FAMILY, lab.watch)
    assert tuned.stopped == "signal" and tuned.kernels and len(tuned.tables[0].entries) == 64
    assert lab.late == 0 and tuned.model == {}
    assert (tuned.measured > 0) == (after >= 40)


_milp = vars(covering)["milp"]


def test_kernels_at_hand_are_enough_if_they_serve_every_shape() -> None:
    lab = Counting(0)
    every = tune(task(), lab.as_lab(), FAMILY, lab.watch)
    few = tune(task(among=every.kernels), lab.as_lab(), FAMILY, lab.watch)
    assert few.funnel.points == len(every.kernels) and set(few.kernels) <= set(every.kernels)
    tall = tuple(kernel for kernel in every.kernels if kernel["mr"] > 1)
    assert tune(task(among=tall), lab.as_lab(), FAMILY, lab.watch).funnel.points > len(every.kernels)


def test_the_greedy_cover_serves_every_shape() -> None:
    curves = [
        Curve.of(f"cpu_dense_fp32__mr{rows}", rows, {1: 1.0 + rows, 64: 40.0 * rows}, 0.6 * rows) for rows in (1, 2, 3, 5, 8)
    ]
    rows, shares = np.arange(1, 65), np.full(64, 1 / 64)
    rough, exact = (cover({"a": curves}, rows, shares, exact=way) for way in (False, True))  # type: ignore[dict-item]
    assert np.isfinite(best_us(rough.curves, rows)[0]).all()
    assert exact.objective_us <= rough.objective_us * 1.02 and len(rough.curves) <= covering.MAX_KEPT
