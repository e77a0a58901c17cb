"""Families beside the first where nothing is timed: one that has its programs is held against it by the analysis."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from numpy.typing import ArrayLike, NDArray

from haotuner.backends.cpu.backend import CpuBackend
from haotuner.measure.measurer import GoesOn
from haotuner.microkernels.index import families_for
from haotuner.plan.table import CellTable
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.record import Record, Trial
from haotuner.spec.shape import Shape, ShapeRange
from haotuner.spec.traffic import Traffic
from haotuner.tuning.strategies import Task, tune
from tests.search.fake_lab import CORE, FakeLab

OP = Op.parse("conv2d:c=384,f=768,r=1,s=1")
PLAIN, TURNED = "cpu_conv_fp32", "cpu_conv_turned_fp32"
FAMILIES = tuple(family for family in families_for(OP, "cpu") if family.name in (PLAIN, TURNED))
TASK = Task(op=OP, traffic=Traffic.of_range(ShapeRange.parse("b=1;h=2..60;w=2..60"), samples=120), budget_s=0.0)


class Unmeasured(FakeLab):
    """Measures nothing, as --zero-measure."""

    def measure(self, trials: Iterable[Trial], goes_on: GoesOn = lambda _: True) -> list[Record]:
        return []


class Far:
    """A model that says of every kernel a hundredth of the roofline: far from the analysis."""

    def fit(self, frame: pd.DataFrame, log_efficiency: ArrayLike, sample_weight: ArrayLike | None = None) -> Far:
        return self

    def predict(self, frame: pd.DataFrame) -> NDArray[np.float64]:
        return np.full(len(frame), np.log(0.01))


@pytest.mark.parametrize("model", [None, Far()])
def test_few_pixels_are_rows_of_tiles_and_many_are_columns(model: Far | None) -> None:
    tuned = tune(TASK, Unmeasured(CORE).as_lab(), FAMILIES, model=model)
    (table,) = tuned.tables
    assert isinstance(table, CellTable)
    chosen = [MicroKernel.parse(table.at(Shape.of(b=1, h=h, w=w)).parts[0].kernel).family for h, w in ((2, 3), (60, 60))]
    assert chosen == [TURNED, PLAIN]


@pytest.mark.parametrize(
    ("spec", "family"),
    [
        ("conv2d:c=3,f=16,r=3,s=3,stride=2,pad=1", "cpu_conv_lines_fp32"),
        ("conv2d:c=3,f=96,r=4,s=4,stride=4", PLAIN),  # each element is met once: nothing is saved
    ],
)
def test_first_layers_are_read_from_lines_where_that_saves_copies(spec: str, family: str) -> None:
    traffic = Traffic.of_range(ShapeRange.parse("b=1;h=60..120;w=60..120"), samples=20)
    task = Task(op=Op.parse(spec), traffic=traffic, budget_s=0.0)
    tuned = tune(task, Unmeasured(CORE).as_lab(), CpuBackend().searched(task.op, CORE))
    assert {kernel.family for kernel in tuned.kernels} == {family}


def test_an_order_of_sums_that_is_promised_is_the_first_family_s() -> None:
    tuned = tune(replace(TASK, one_order=True), Unmeasured(CORE).as_lab(), FAMILIES)
    assert {kernel.family for kernel in tuned.kernels} == {PLAIN}
