"""The race of generated kernels: what is hopeless by its own work is never built, what costs the budget is not raced at."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from numpy.typing import ArrayLike, NDArray

from haotuner.cost.roofline import roofline_us
from haotuner.hw_profiles.find import find_device
from haotuner.measure.measurer import GoesOn
from haotuner.microkernels.cpu import typed_source
from haotuner.microkernels.cuda.conv import conv_families
from haotuner.microkernels.index import families_for
from haotuner.plan.table import CellTable
from haotuner.search.cost_extrapolation import LEAST_LIMIT_US, TRIALS, calls_us, compared, expected_at
from haotuner.search.grid_search import SHAPES, predicted_us
from haotuner.search.task import Tuned, Watch
from haotuner.spec.composition import SERIAL, Composition
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.record import Record, Trial
from haotuner.spec.shape import Shape, ShapeRange
from haotuner.spec.traffic import Traffic
from haotuner.tuning.strategies import Task, tune
from tests.search.fake_lab import CORE, FakeLab

pytestmark = pytest.mark.long

SILU = Op.parse("silu")
SOFTMAX = Op.parse("softmax")
RANGE = "m=1..4096;n=8..4096"


class Flat(FakeLab):
    """Every kernel takes a time by its elements, those of the last vectors a little more."""

    def true_us(self, trial: Trial) -> float:
        return trial.shape["m"] * trial.shape["n"] / 1000 * (1.1 if "_u8" in trial.composition.parts[0].kernel else 1.0)


def task(op: Op, shapes: str, budget_s: float) -> Task:
    traffic = Traffic.of_range(ShapeRange.parse(shapes), samples=8)
    return Task(op=op, traffic=traffic, budget_s=budget_s, cache="hot")


def test_a_program_that_repeats_its_reductions_for_every_element_is_never_built() -> None:
    lab = Flat(CORE)
    tuned = tune(task(SOFTMAX, "m=256..512;n=256..512", 3600.0), lab.as_lab(), families_for(SOFTMAX, "cpu")[0])
    assert tuned.kernels and lab.prepared and not [name for name in lab.prepared if "_ax1_" in name]
    assert any("_ax1_" in name for name in (k.name for k in families_for(SOFTMAX, "cpu")[0].points(SOFTMAX, CORE)))


def test_shapes_that_would_eat_the_budget_are_not_raced_at() -> None:
    few = task(SILU, "m=1..8192;n=8..16384", 20.0)
    largest = few.traffic.shapes()[-1]
    assert {shape["m"] * shape["n"] for shape in few.traffic.shapes()} >= {8, 8192 * 16384}
    limit = max(20.0 * 1e6 / TRIALS, LEAST_LIMIT_US) / 1e6 * (CORE.memory_gbps or 0.0) * 1e9  # bytes in that time
    sizes = [8 * shape["m"] * shape["n"] for shape in compared(few, CORE, 16)]
    assert sizes and max(sizes) <= limit < 8 * largest["m"] * largest["n"]
    many = task(SILU, "m=1..8192;n=8..16384", 3600.0)
    assert max(shape["m"] * shape["n"] for shape in compared(many, CORE, 16)) == 8192 * 16384
    only = task(SILU, "m=8192;n=16384", 20.0)
    assert compared(only, CORE, 16) == list(only.traffic.shapes()), "something is raced at in any case"
    long = task(SILU, "m=4096,8192;n=16384", 1.0)
    assert compared(long, CORE, 16) == [long.traffic.shapes()[0]], "the shortest of calls that are all too long"
    assert compared(replace(few, budget_s=2.0, whole_s=20.0), CORE, 16) == compared(few, CORE, 16), "a turn has the same"
    assert compared(replace(few, budget_s=0.0), CORE, 16)[0] == largest == expected_at(few, CORE, 3)[0], "nothing is timed"


class Sized(FakeLab):
    """One vector an iteration is the faster where rows are short, eight where they are long."""

    def true_us(self, trial: Trial) -> float:
        vectors = MicroKernel.parse(trial.composition.parts[0].kernel)["u"]
        return 1 + trial.shape["n"] * (vectors if trial.shape["n"] < 512 else 1 / vectors)


def test_a_batch_invariant_plan_of_kernels_that_add_in_other_orders_has_one() -> None:
    free = task(SOFTMAX, "m=64;n=16..4096", 3600.0)
    family = families_for(SOFTMAX, "cpu")[0]
    assert len(tune(free, Sized(CORE).as_lab(), family).kernels) > 1
    assert len(tune(replace(free, one_order=True), Sized(CORE).as_lab(), family).kernels) == 1


class Tiles(FakeLab):
    """AMX tiles are the faster with many rows alone."""

    def true_us(self, trial: Trial) -> float:
        tiles = "_am1" in trial.composition.parts[0].kernel
        return 1.0 + trial.shape["m"] * (0.1 if tiles else 1.0) + 8.0 * tiles


def test_a_batch_invariant_plan_of_bf16_has_tiles_or_none() -> None:
    op, core = Op.parse("batch_matmul:k=64,layout=nt,dtype=bf16"), replace(CORE, tensor_tflops=2.5)
    free, (family,) = task(op, "b=4;m=1..512;n=64", 3600.0), families_for(op, "cpu")
    kinds = {typed_source.on_tiles(kernel) for kernel in tune(free, Tiles(core).as_lab(), family).kernels}
    assert kinds == {False, True}
    kernels = tune(replace(free, one_order=True), Tiles(core).as_lab(), family).kernels
    assert len({typed_source.on_tiles(kernel) for kernel in kernels}) == 1


class Staged(FakeLab):
    """Rows in stages take a part of the time where they are few, on all threads alone; threads share rows as they can."""

    def true_us(self, trial: Trial) -> float:
        part = trial.composition.parts[0]
        rows, row_us = trial.shape["m"], trial.shape["n"] / 100
        if "_pt" in part.kernel:
            return 10 + 1.4 * rows * row_us / trial.threads
        return 5 + row_us * (-(-rows // trial.threads) if trial.composition.share == "m" else rows)


@pytest.mark.parametrize("search", ["", "random"])
def test_few_long_rows_are_planned_in_stages_on_all_threads(search: str) -> None:
    """Their kernel is behind in every race of single threads, and no plan of one thread has it."""
    search_task = replace(task(SOFTMAX, "m=1,64;n=65536", 3600.0), threads=(1, 2), search=search)
    family, lab = families_for(SOFTMAX, "cpu")[0], Staged(CORE)
    tuned = tune(search_task, lab.as_lab(), family)
    single, two = tuned.tables
    assert isinstance(single, CellTable) and isinstance(two, CellTable)
    assert "_pt4" in two.at(Shape.of(m=1, n=65536)).parts[0].kernel and two.at(Shape.of(m=1, n=65536)).share == "n"
    assert two.at(Shape.of(m=64, n=65536)).share == "m", "many rows are shared as they are"
    assert all("_pt" not in entry.parts[0].kernel for entry in single.entries)
    assert "_pt" not in tuned.kernels[0].name and {part.kernel for table in (single, two) for entry in table.entries
                                                   for part in entry.parts} <= {k.name for k in tuned.kernels}  # fmt: skip
    for alone in (replace(search_task, one_order=True, search=""), replace(search_task, threads=(1,))):
        lab = Staged(CORE)
        assert all("_pt" not in kernel.name for kernel in tune(alone, lab.as_lab(), family).kernels)
        assert not [name for name in lab.prepared if "_pt" in name]


class Shared(FakeLab):
    """Softmax as it was timed: rows as one 183 ns a thousand elements, in stages 265 and 3 us for two handoffs more."""

    def true_us(self, trial: Trial) -> float:
        return self.us(trial.composition, trial.shape, trial.threads)

    def us(self, composition: Composition, shape: Shape, threads: int) -> float:
        rows, thousands = shape["m"], shape["n"] / 1000
        if "_pt" in composition.parts[0].kernel:
            return 1 + 1.5 * threads + 0.265 * thousands * rows / threads
        handoff = 1.5 if rows > 1 and composition.share == "m" else 0.0
        return 1 + handoff + 0.183 * thousands * (-(-rows // threads) if composition.share == "m" else rows)


def test_each_cell_of_few_long_rows_has_what_is_faster_for_as_many_rows() -> None:
    """What two rows lose in stages says nothing of one row, nor two threads' times of four's."""
    traffic = Traffic.of_range(ShapeRange.parse("m=1..8;n=8192..500000"))
    search_task = Task(op=SOFTMAX, traffic=traffic, budget_s=3600.0, cache="hot", threads=(1, 2, 4))
    lab = Shared(CORE)
    tuned = tune(search_task, lab.as_lab(), families_for(SOFTMAX, "cpu")[0])
    ways = [Composition.of(kernel.name, share="n" if "_pt" in kernel.name else "m") for kernel in tuned.kernels]
    *_, table = tuned.tables
    assert isinstance(table, CellTable) and table.threads == 4
    for m, n in ((m, n) for m in (1, 2, 3, 4, 8) for n in (30_000, 100_000, 300_000, 500_000)):
        shape = Shape.of(m=m, n=n)
        best = min(lab.us(way, shape, 4) for way in ways)
        assert lab.us(table.at(shape), shape, 4) <= 1.12 * best, (shape, table.at(shape))
    for shape, times in table.measured.items():
        for composition, us in ((composition, us) for composition, us in times.items() if composition.share != SERIAL):
            assert us == pytest.approx(lab.us(composition, shape, 4), rel=0.02), "timed on as many threads"


class Filtering(FakeLab):
    """Minimal filtering takes half of the time where images are large, and twice of it where they are small."""

    def true_us(self, trial: Trial) -> float:
        by_transforms = "_winograd_" in trial.composition.parts[0].kernel
        return trial.shape["h"] ** 2 * ((0.5 if trial.shape["h"] > 20 else 2.0) if by_transforms else 1.0)


def test_two_families_race_and_each_shape_gets_the_faster() -> None:
    op = Op.parse("conv2d:c=64,f=64,r=3,s=3,pad=1")
    families = tuple(
        family for family in families_for(op, "cpu") if family.name in ("cpu_conv_fp32", "cpu_conv_winograd_fp32")
    )
    search_task = replace(task(op, "b=1;h=8..64;w=h", 3600.0), threads=(1,))
    tuned = tune(search_task, Filtering(CORE).as_lab(), families)
    (table,) = tuned.tables
    assert isinstance(table, CellTable)
    chosen = {entry.parts[0].kernel.split("__")[0] for entry in table.entries}
    assert chosen == {"cpu_conv_fp32", "cpu_conv_winograd_fp32"} and {kernel.family for kernel in tuned.kernels} == chosen
    for alone in (
        replace(search_task, one_order=True),
        replace(search_task, budget_s=0.0),
    ):  # bits of one order; predictions alone
        assert {kernel.family for kernel in tune(alone, Filtering(CORE).as_lab(), families).kernels} == {"cpu_conv_fp32"}


class Foretold(FakeLab):
    """Convolutions take half as long again as is expected of them."""

    def true_us(self, trial: Trial) -> float:
        kernel = MicroKernel.parse(trial.composition.parts[0].kernel)
        (family,) = [family for family in families_for(trial.known_op, "cpu") if family.name == kernel.family]
        few = task(trial.known_op, "b=1;h=7;w=7", 1.0)
        return 1.5 * float(predicted_us(few, family, self.device, None, [kernel], [trial.shape])[0, 0])


def test_shapes_too_long_for_a_race_have_a_say_in_what_is_selected() -> None:
    """Of 512 channels only an image of 7 x 7 is raced at in a second; most of the time goes elsewhere, to other kernels."""
    op = Op.parse("conv2d:c=512,f=512,r=3,s=3,pad=1")
    families = tuple(each for each in families_for(op, "cpu") if each.name in ("cpu_conv_fp32", "cpu_conv_winograd_fp32"))
    wide = replace(task(op, "b=1..16;h=7..56;w=7..56", 3600.0), threads=(1,))
    short, smallest = replace(wide, whole_s=1.0), Shape.of(b=1, h=7, w=7)
    assert compared(short, CORE, SHAPES) == [smallest]
    lab = Foretold(CORE)
    served = []
    for search in (wide, short):
        (table,) = tune(search, lab.as_lab(), families).tables
        assert isinstance(table, CellTable)
        served.append([lab.true_us(Trial.of(op, table.at(shape), shape)) for shape in wide.traffic.shapes()])
        assert {shape for shape, _ in table.guessed} == (set() if search is wide else set(table.measured) - {smallest})
    whole, hurried = np.array(served)
    assert np.log(hurried / whole).mean() < 0.02 and (hurried / whole).max() < 1.1


class Slower(FakeLab):
    """Everything takes half as long again as the analysis expects, small images twice as long."""

    def true_us(self, trial: Trial) -> float:
        op = trial.known_op
        (family,) = [family for family in families_for(op, "cpu") if family.name == "cpu_conv_fp32"]
        kernel = MicroKernel.parse(trial.composition.parts[0].kernel)
        us = predicted_us(task(op, "b=1;h=8;w=8", 1.0), family, self.device, None, [kernel], [trial.shape])[0, 0]
        return float(us) * (1.5 if trial.shape["h"] > 20 else 2.0)


def test_calls_at_shapes_without_a_time_take_what_the_analysis_is_off_at_those_around_them() -> None:
    """By the roofline an image of two rows would take a third of what its tiles take."""
    op = Op.parse("conv2d:c=64,f=64,r=3,s=3,pad=1")
    (family,) = [family for family in families_for(op, "cpu") if family.name == "cpu_conv_fp32"]
    lab = Slower(CORE)
    tuned = tune(task(op, "b=1;h=8,12,40,60;w=h", 3600.0), lab.as_lab(), family)
    timed, between, small = (Shape.of(b=1, h=h, w=h) for h in (40, 45, 2))
    us = calls_us(tuned, [timed, between, small, between], CORE)
    (table,) = tuned.tables
    assert isinstance(table, CellTable)
    assert us[0] == table.measured[timed][table.at(timed)] and us[1] == us[3]
    plan = [Trial.of(op, table.at(shape), shape, threads=1, cache="hot") for shape in (between, small)]
    np.testing.assert_allclose(us[1:3], [lab.true_us(trial) for trial in plan], rtol=0.1)
    least = roofline_us(CORE.with_units(1), op, [timed, small])
    assert us[2] > 2 * us[0] * least[1] / least[0]


def test_calls_of_a_convolution_on_a_device_take_what_the_products_of_its_columns_take() -> None:
    op, device = Op.parse("conv2d:c=64,f=64,r=3,s=3,pad=1"), find_device("h100", measure=False)
    search_task = replace(task(op, "b=1;h=8,12,40,60;w=h", 3600.0), threads=(1,))
    tuned = tune(search_task, Filtering(device).as_lab(), conv_families(op))
    small, between, large = calls_us(tuned, [Shape.of(b=1, h=h, w=h) for h in (9, 45, 300)], device)
    assert 0 < small < between < large < math.inf


class Unmeasured(FakeLab):
    """Measures nothing, as --zero-measure."""

    def measure(self, trials: Iterable[Trial], goes_on: GoesOn = lambda _: True) -> list[Record]:
        return []


class Told:
    """A model that says the same share of the roofline of every kernel."""

    def __init__(self, share: float) -> None:
        self.share = share

    def fit(self, frame: pd.DataFrame, log_efficiency: ArrayLike, sample_weight: ArrayLike | None = None) -> Told:
        return self

    def predict(self, frame: pd.DataFrame) -> NDArray[np.float64]:
        return np.full(len(frame), np.log(self.share))


@pytest.mark.parametrize("share, chosen", [(0.9, "cpu_conv_winograd_fp32"), (0.55, "cpu_conv_fp32")])
def test_where_nothing_is_timed_a_second_family_serves_if_a_model_of_its_own_expects_much_of_it(
    share: float, chosen: str
) -> None:
    """0.55 of the roofline is more than the first family's 0.5, but not by as much as models err."""
    op = Op.parse("conv2d:c=64,f=64,r=3,s=3,pad=1")
    families = tuple(
        family for family in families_for(op, "cpu") if family.name in ("cpu_conv_fp32", "cpu_conv_winograd_fp32")
    )
    others = {"cpu_conv_winograd_fp32": Told(share)}
    search_task = replace(task(op, "b=1..2;h=14..56;w=14..56", 0.0), others=others)
    tuned = tune(search_task, Unmeasured(CORE).as_lab(), families, model=Told(0.5))
    assert {kernel.family for kernel in tuned.kernels} == {chosen}
    one_order = tune(replace(search_task, one_order=True), Unmeasured(CORE).as_lab(), families, model=Told(0.5))
    assert {kernel.family for kernel in one_order.kernels} == {"cpu_conv_fp32"}


class Predicted(FakeLab):
    """Every kernel takes twice what is expected of it, but for the noise."""

    def true_us(self, trial: Trial) -> float:
        kernel = MicroKernel.parse(trial.composition.parts[0].kernel)
        family = families_for(SOFTMAX, "cpu")[0]
        return 2.0 * float(predicted_us(task(SOFTMAX, RANGE, 15.0), family, CORE, None, [kernel], [trial.shape])[0, 0])


def stopping(after: int) -> Watch:
    """Asks to stop after so many measurements."""
    seen: list[Record] = []

    def watch(_: str, record: Record | None) -> bool:
        seen.extend([record] if record is not None else [])
        return len(seen) < after

    return watch


def plan_us(tuned: Tuned) -> float:
    """Geometric mean of the plan's expected times over the traffic, weighed by its shares."""
    (table,) = tuned.tables
    assert isinstance(table, CellTable)
    shapes = tuned.task.traffic.shapes()
    kernels = {kernel.name: kernel for kernel in tuned.kernels}
    us = predicted_us(tuned.task, tuned.family, CORE, None, list(kernels.values()), shapes)
    rows = {name: row for name, row in zip(kernels, us, strict=True)}
    chosen = [np.log(rows[table.at(shape).parts[0].kernel][index]) for index, shape in enumerate(shapes)]
    return float(np.exp(np.average(chosen, weights=[share for _, share in tuned.task.traffic])))


def test_a_race_that_ends_early_has_timed_what_counts_and_its_plan_keeps_to_predictions_elsewhere() -> None:
    search_task, families = replace(task(SOFTMAX, RANGE, 15.0), threads=(1,)), families_for(SOFTMAX, "cpu")
    first, *_ = shapes = compared(search_task, CORE, 16)
    assert (first["m"] * first["n"]) == max(shape["m"] * shape["n"] for shape in shapes), "most of the time goes there"
    alone = plan_us(tune(search_task, Predicted(CORE).as_lab(), families, stopping(0)))
    for count in (1, 4, 12, 24):
        lab = Predicted(CORE)
        tuned = tune(search_task, lab.as_lab(), families, stopping(count))
        assert tuned.timings == len(lab.measured) == count and tuned.stopped == "signal"
        places: dict[str, set[Shape]] = {}
        for trial in lab.measured:
            places.setdefault(trial.composition.parts[0].kernel, set()).add(trial.shape)
        assert first in set.intersection(*places.values())
        assert len(places) == min(count, 4 * -(-count // 12)), "four at each of three shapes, then the next four"
        assert plan_us(tuned) <= 1.01 * alone, f"{count} measurements made a worse plan than none"


def test_a_gpus_plan_of_predictions_asks_them_in_every_cell() -> None:
    """Of 16 shapes alone it is expected to lose 15 % against the best of all schedules, at the worst of these 2.1 times."""
    device, shapes = find_device("h200", measure=False), "m=1..4096;n=1..4096"
    (family,) = families_for(SOFTMAX, "cuda")
    search_task = replace(task(SOFTMAX, shapes, 0.0), traffic=Traffic.of_range(ShapeRange.parse(shapes)))
    (table,) = tune(search_task, Flat(device).as_lab(), family, lambda *_: False).tables  # nothing is timed
    assert isinstance(table, CellTable)
    drawn = np.exp(np.random.default_rng(0).uniform(0.0, np.log(4096), (40, 2))).astype(int).tolist()
    places, points = [Shape.of(m=m, n=n) for m, n in drawn], list(family.points(SOFTMAX, device))
    us = predicted_us(search_task, family, device, None, points, places)
    names = [kernel.name for kernel in points]
    lost = [us[names.index(table.at(shape).parts[0].kernel), at] / us[:, at].min() for at, shape in enumerate(places)]
    assert np.mean(lost) < 1.08 and max(lost) < 1.5


class Otherwise(FakeLab):
    """Every kernel takes at every shape a time of its own: no prediction knows it."""

    def __init__(self) -> None:
        super().__init__(CORE, noise=0.0)

    def true_us(self, trial: Trial) -> float:
        own = np.random.default_rng(zlib.crc32(f"{trial.composition.parts[0].kernel} {trial.shape}".encode()))
        return math.prod(extent for _, extent in trial.shape.axes) / 1000 * float(np.exp(own.normal(scale=0.3)))


@pytest.mark.parametrize("after", [24, 40])
def test_a_race_however_short_is_no_worse_than_none(after: int) -> None:
    """What a plan without measurements serves at a shape is timed there before anything else."""
    search_task = task(SOFTMAX, "m=1..64;n=8..256", 3600.0)
    shapes = compared(search_task, CORE, SHAPES)
    served = []
    for until in (0, after):
        lab = Otherwise()
        timed: list[bool] = []

        def watch(phase: str, record: Record | None, until: int = until, timed: list[bool] = timed) -> bool:
            timed.append(record is not None)
            return sum(timed) < until

        table = tune(search_task, lab.as_lab(), families_for(SOFTMAX, "cpu")[0], watch).tables[0]
        assert isinstance(table, CellTable)
        served.append([lab.true_us(Trial.of(SOFTMAX, table.at(shape), shape, cache="hot")) for shape in shapes])
    without, short = np.array(served)
    assert short.mean() < without.mean() and np.log(short / without).mean() < 0
    assert (short > without * 1.02).sum() <= 1, "a cell of several shapes serves one of them by what its neighbours take"


def test_threads_share_what_is_long_where_nothing_was_timed_with_them() -> None:
    """A pack of predictions would leave all but one idle; a call shorter than it takes to hand over stays one thread's."""
    for shapes, share in (("m=1,256;n=4096", "m"), ("m=1,2;n=8", SERIAL)):
        search_task = replace(task(SOFTMAX, shapes, 0.0), threads=(1, 2))
        table = tune(search_task, Flat(CORE).as_lab(), families_for(SOFTMAX, "cpu")[0]).tables[1]
        assert isinstance(table, CellTable) and table.threads == 2
        assert table.at(search_task.traffic.shapes()[-1]).share == share
