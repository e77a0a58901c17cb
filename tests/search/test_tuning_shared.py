"""A search whose start rests on sources that disagree: a kernel that one alone ranks first is kept and measured first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest

from haotuner.cost.features import features
from haotuner.cost.model import Analytic, HasEnsemble, Scores
from haotuner.search import row_cover_search as rows_search
from haotuner.search.observations import expectation
from haotuner.search.probes import FIRST, initial_design
from haotuner.search.propose import rounds
from haotuner.search.row_cover_search import Search
from haotuner.search.select.funnel import Funnel, select
from haotuner.search.task import Clock, Selections, now
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.shape import Shape, ShapeRange
from haotuner.spec.traffic import Traffic
from haotuner.transfer.warm_start import Blend, Shared, Started, shared_of_models
from haotuner.tuning.strategies import tune
from tests.search.fake_gpu_lab import FAMILIES, GPU, FakeGpuLab
from tests.search.fake_gpu_lab import TASK as GPU_TASK
from tests.search.fake_lab import CORE, FAMILY, TASK, FakeLab

SMALL = replace(TASK, traffic=Traffic.of_range(ShapeRange.parse("m=1..96"), samples=16))
ANALYTIC = Analytic()
ONE = CORE.with_units(1)
MMA = tuple(family for family in FAMILIES if "mma" in family.name)


@cache
def funnel(model: Analytic | Started) -> Funnel:
    return select(TASK.op, FAMILY, CORE, SMALL.traffic, expectation(TASK.op, FAMILY, CORE, "cold", model), most=160)


def row_of(kernel: MicroKernel) -> pd.Series:
    return features(ONE, FAMILY, TASK.op, [(kernel, Shape.of(m=64))]).iloc[0]


@dataclass
class Source:
    """Says what the analysis says, and of one program so many log units more."""

    program: pd.Series
    more: float

    def predict(self, frame: pd.DataFrame) -> Scores:
        same = np.all([frame[name] == self.program[name] for name in ("tile_rows_log2", "tile_cols_log2")], axis=0)
        return np.asarray(frame["expected_log"] + self.more * same, dtype=np.float64)


@pytest.fixture(scope="module")
def lone() -> MicroKernel:
    """Of the kernels that selection keeps, one in the worse half by the analysis, of several rows."""
    candidates = funnel(ANALYTIC).candidates
    rows = [c.kernel for c in candidates[len(candidates) // 2 :] if FAMILY.tile(c.kernel).extent["m"] > 4]
    return rows[0]


@pytest.fixture(scope="module")
def start(lone: MicroKernel) -> Started:
    """Four sources; the last alone ranks the lone kernel first, the others last."""
    program = row_of(lone)
    models = [Source(program, -2.0), Source(program, -2.0), Source(program, -2.0), Source(program, 3.0)]
    return shared_of_models(models, [1.0] * 4, Blend(models))


def first_batch(model: Started) -> list[MicroKernel]:
    """What a search measures first."""
    search = Search(SMALL, FakeLab(CORE).as_lab(), FAMILY, funnel(model), model, Clock(now() + 60.0, lambda *_: True))
    batch = next(rounds(search.book, search.ordered, search.rows, search.shares, 0, search.foreseen))
    assert any(FAMILY.tile(MicroKernel.parse(name)).extent["m"] == 1 for name in list(batch)[:1]), "every plan needs one"
    return [MicroKernel.parse(name) for name in batch]


def extents(kernels: Sequence[MicroKernel]) -> list[Mapping[str, int]]:
    return [FAMILY.tile(kernel).extent for kernel in kernels]


def test_a_lone_optimum_of_one_source_is_among_the_first_that_are_measured(lone: MicroKernel, start: Started) -> None:
    assert isinstance(start, HasEnsemble)
    assert FAMILY.tile(lone).extent in extents(first_batch(start))
    assert FAMILY.tile(lone).extent not in extents(first_batch(Started(start.start.ranks)))


def test_selection_keeps_what_one_source_alone_ranks_first_and_orders_by_the_blend(
    lone: MicroKernel, start: Started
) -> None:
    kernels = [c.kernel for c in funnel(ANALYTIC).candidates]
    every = expectation(TASK.op, FAMILY, CORE, "cold", start)(kernels)
    blend = expectation(TASK.op, FAMILY, CORE, "cold", Started(start.start.ranks))(kernels)
    assert every.shape[0] >= 5 and every.shape[1:] == blend.shape and every[0] == pytest.approx(blend)
    tile = FAMILY.tile(lone).extent
    assert tile in extents([kernels[at] for scores in every for at in scores.argmax(axis=0)])
    assert tile not in extents([kernels[at] for at in blend.argmax(axis=0)])
    selected = [c.kernel for c in funnel(start).candidates]
    assert tile in extents(selected) and selected.index(next(k for k in selected if FAMILY.tile(k).extent == tile)) > 3


def test_selection_asks_every_source_once_for_the_blend_and_for_its_own_opinion(lone: MicroKernel) -> None:
    row_counts: list[int] = []

    class Counted(Source):
        def predict(self, frame: pd.DataFrame) -> Scores:
            row_counts.append(len(frame))
            return super().predict(frame)

    models = [Counted(row_of(lone), 0.0), Counted(row_of(lone), 1.0)]
    kernels = [c.kernel for c in funnel(ANALYTIC).candidates[:30]]
    expectation(TASK.op, FAMILY, CORE, "cold", shared_of_models(models, [1.0] * 2, Blend(models)))(kernels)
    assert len(row_counts) == 2 and row_counts[0] == row_counts[1]


def test_a_later_turn_does_not_select_again(monkeypatch: pytest.MonkeyPatch) -> None:
    selected: list[str] = []

    def noted(*arguments: Any, **more: Any) -> Funnel:
        selected.append(arguments[0].name)
        return select(*arguments, **more)

    monkeypatch.setattr(rows_search, "select", noted)
    task = replace(SMALL, budget_s=0.0, selections=Selections())
    first, again = [tune(task, FakeLab(CORE).as_lab(), FAMILY) for _ in range(2)]
    assert selected == [task.op.name] and again.funnel is first.funnel
    other = tune(replace(task, selections=None), FakeLab(CORE).as_lab(), FAMILY)
    assert len(selected) == 2 and other.funnel == first.funnel


def test_where_nobody_can_disagree_nothing_is_asked_first() -> None:
    program = row_of(funnel(ANALYTIC).candidates[0].kernel)
    single_source = shared_of_models([Source(program, 0.0)], [1.0], Blend([Source(program, 0.0)]))
    assert not isinstance(single_source, HasEnsemble)
    frame = features(ONE, FAMILY, TASK.op, [(c.kernel, Shape.of(m=64)) for c in funnel(ANALYTIC).candidates[:20]])
    none = np.zeros(0, np.int64)
    for model in (None, Analytic(), single_source):
        assert initial_design(model, frame, [np.arange(20)], {}, left_out=none) == []


def test_a_head_names_new_rows_that_did_not_fail_until_enough_have_a_time(start: Started) -> None:
    assert isinstance(start, Shared)
    kernels = [c.kernel for c in funnel(ANALYTIC).candidates[:40]]
    frame = features(ONE, FAMILY, TASK.op, [(kernel, Shape.of(m=64)) for kernel in kernels])
    tasks, known = [np.arange(40), np.arange(20)], {0: -1.0, 5: -2.0}
    trials = initial_design(start, frame, tasks, known, left_out=np.array([3, 4]))
    assert trials and len(trials) == len(set(trials)) and not {0, 3, 4, 5} & set(trials)
    assert initial_design(start, frame, tasks, dict.fromkeys(range(FIRST), -1.0), left_out=np.array([3])) == []


def test_on_a_gpu_too_the_first_kernels_are_shared_among_the_sources() -> None:
    task = replace(GPU_TASK, traffic=Traffic.of_range(ShapeRange.parse("m=1..192"), samples=6), budget_s=0.0)
    cold = tune(task, FakeGpuLab().as_lab(), MMA)
    selected = [c.kernel for c in cold.funnel.candidates]
    lone = selected[-1]
    family = next(family for family in MMA if family.name == lone.family)
    program = features(GPU, family, task.op, [(lone, Shape.of(m=64))]).iloc[0]
    models = [Source(program, -2.0), Source(program, -2.0), Source(program, 3.0)]
    extent = family.tile(lone).extent
    lone_measured = []
    for model in (shared_of_models(models, [1.0] * 3, Blend(models)), Started(Blend(models))):
        lab = FakeGpuLab()
        tuned = tune(task, lab.as_lab(), MMA, model=model)
        assert 0 < tuned.measured <= task.effort.least_kernels
        kernels = {MicroKernel.parse(trial.composition.parts[0].kernel) for trial in lab.measured}
        lone_measured.append(extent in [MMA[0].tile(kernel).extent for kernel in kernels])
    assert lone_measured == [True, False]
