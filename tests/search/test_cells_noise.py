"""The race of cells under noise: a tuned plan is not slower than one without measurements. True times of a known surface."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from haotuner.microkernels.index import families_for
from haotuner.plan.table import CellTable
from haotuner.search.grid_search import predicted_us
from haotuner.search.observations import BETWEEN
from haotuner.search.repeated_times import LEAST_PAIRS, RepeatedTimes
from haotuner.search.task import Selections, Tuned
from haotuner.spec.composition import SERIAL, Composition
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.record import Failed, Outcome, Record, Timed, Trial
from haotuner.spec.shape import Shape, ShapeRange
from haotuner.spec.traffic import Traffic
from haotuner.tuning.strategies import Task, tune
from tests.search.fake_lab import CORE, FakeLab

OP = Op.parse("softmax")
FAMILY = families_for(OP, "cpu")[0]
TASK = Task(
    op=OP, traffic=Traffic.of_range(ShapeRange.parse("m=1..512;n=16..4096"), samples=12), budget_s=3600.0, cache="hot",
    selections=Selections(),
)  # fmt: skip
OFF_KERNEL, OFF_SHAPE = 0.03, 0.02  # log units by which predictions are off: nearly right, so that noise decides most
NOISE, SPELLS = 0.1, 0.15  # log units of a process and of a sample; share of trials that a spell of other work slowed


def draw_of(*words: object) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(" ".join(map(str, words)).encode()))


@dataclass
class Surface:
    """True microseconds: what is predicted, times an error of the kernel and one of kernel and shape."""

    number: int
    known: dict[tuple[str, Shape], float] = field(default_factory=dict)

    def us(self, name: str, shape: Shape) -> float:
        if (name, shape) not in self.known:
            ((expected,),) = predicted_us(TASK, FAMILY, CORE, None, [MicroKernel.parse(name)], [shape]).tolist()
            off = OFF_KERNEL * draw_of(self.number, name).standard_normal()
            off += OFF_SHAPE * draw_of(self.number, name, shape).standard_normal()
            self.known[name, shape] = float(expected * np.exp(off))
        return self.known[name, shape]

    def plan(self, tuned: Tuned) -> NDArray[np.float64]:
        """True microseconds of a plan at the shapes of the traffic."""
        (table,) = tuned.tables
        assert isinstance(table, CellTable)
        return np.array([self.us(table.at(shape).parts[0].kernel, shape) for shape in TASK.traffic.shapes()])


class Noisy(FakeLab):
    """Processes that differ, samples that differ, and spells of other work that slow most samples of a trial."""

    surface: Surface

    def true_us(self, trial: Trial) -> float:
        return self.surface.us(trial.composition.parts[0].kernel, trial.shape)

    def _outcome(self, trial: Trial) -> Outcome:
        draw = draw_of(self.seed, trial.key())
        us = self.true_us(trial) * np.exp(self.noise * (draw.standard_normal() + draw.standard_normal(5)))
        us[: draw.integers(3, 6)] *= 1.5 if self.noise and draw.random() < SPELLS else 1.0
        return Timed(samples_us=tuple(us))


class Nothing(FakeLab):
    def measure(self, *_: object) -> list[Record]:
        return []


def ratios(surface: Surface, noise: float, seed: int) -> NDArray[np.float64]:
    """True times of a tuned plan by those of one without measurements."""
    lab = Noisy(CORE, seed=seed, noise=noise)
    lab.surface = surface
    unmeasured = tune(replace(TASK, budget_s=0.0), Nothing(CORE).as_lab(), FAMILY)
    return surface.plan(tune(TASK, lab.as_lab(), FAMILY)) / surface.plan(unmeasured)


def mean(some: NDArray[np.float64]) -> float:
    shares = np.array([share for _, share in TASK.traffic])
    return float(np.exp(np.log(some) @ shares / shares.sum()))


@pytest.mark.long
@pytest.mark.parametrize("number", [0, *(pytest.param(at, marks=pytest.mark.slow) for at in range(1, 6))])
def test_a_tuned_plan_of_cells_is_no_slower_than_one_without_measurements(number: int) -> None:
    surface = Surface(number)
    means = [mean(ratios(surface, NOISE, seed)) for seed in range(4)]
    assert np.mean(means) < 1.01 and max(means) < 1.05
    assert mean(ratios(surface, 0.0, 0)) < 0.999, "without noise measurements are worth something"


class Starved(Noisy):
    """Other programs have the cores: every trial times out but those of some kernels, which take three times as long."""

    timed: tuple[str, ...] = ()

    def true_us(self, trial: Trial) -> float:
        return 3 * super().true_us(trial)

    def _outcome(self, trial: Trial) -> Outcome:
        if trial.composition.parts[0].kernel in self.timed:
            return super()._outcome(trial)
        return Failed(stage="time", reason="timeout", detail="scripted")


@pytest.mark.parametrize("shapes", ["m=512;n=4096", "m=1..512;n=16..4096"])
@pytest.mark.parametrize("count", [1, 3])
def test_few_slow_times_beside_time_outs_are_no_plan(shapes: str, count: int) -> None:
    traffic = Traffic.of_range(ShapeRange.parse(shapes), samples=12)
    task = replace(TASK, traffic=traffic, selections=None)
    unmeasured = tune(replace(task, budget_s=0.0), Nothing(CORE).as_lab(), FAMILY)
    lab, surface = Starved(CORE, noise=0.0), Surface(0)
    times = {c.kernel.name: surface.us(c.kernel.name, traffic.shapes()[-1]) for c in unmeasured.funnel.candidates}
    near = sorted((us, name) for name, us in times.items() if us < 2 * min(times.values()))
    lab.surface, lab.timed = surface, tuple(name for _, name in near[-count:])
    tuned = tune(task, lab.as_lab(), FAMILY)
    assert tuned.measured == count
    (table,), (without,) = tuned.tables, unmeasured.tables
    assert isinstance(table, CellTable) and isinstance(without, CellTable)
    for shape in traffic.shapes():
        assert table.at(shape).parts[0].kernel not in lab.timed
        us, usual = (surface.us(plan.at(shape).parts[0].kernel, shape) for plan in (table, without))
        assert us < 1.1 * usual, shape


PROGRAMS = [Composition.of(f"kernel_{number}", share=SERIAL) for number in range(8)]
ONE = PROGRAMS[0]
SHAPES = [Shape.of(m=m) for m in range(1, 17)]


def test_processes_that_differ_are_told_by_repeats() -> None:
    times = RepeatedTimes({})
    for at, shape in enumerate(SHAPES):
        times.note(ONE, shape, Timed(samples_us=(100.0,) * 5))
        assert times.between() == BETWEEN**2 or at >= LEAST_PAIRS
        times.repeat(ONE, shape, Timed(samples_us=(100.0 * np.exp((-1) ** at * 0.1),) * 5))
    assert times.us[ONE][SHAPES[0]] == pytest.approx(100 * np.exp(0.05)) and times.repeated(ONE, SHAPES[0])
    assert times.between() > 4 * BETWEEN**2


def test_a_time_that_luck_made_is_drawn_to_what_is_expected() -> None:
    times, draw = RepeatedTimes({}), np.random.default_rng(0)
    for composition in PROGRAMS:
        for shape in SHAPES:
            times.note(composition, shape, Timed(samples_us=tuple(100 * np.exp(0.1 * draw.standard_normal(5)))))
    drawn = times.drawn_to({composition: dict.fromkeys(SHAPES, 50.0) for composition in PROGRAMS})
    before, after = (np.log([us[program][shape] / 100 for program in PROGRAMS for shape in SHAPES]).std()
                     for us in (times.us, drawn))  # fmt: skip
    assert after < 0.7 * before
