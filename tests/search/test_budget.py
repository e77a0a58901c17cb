"""A budget of time holds for all that is measured within it, to the kernel that is under way when it ends."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from haotuner.measure.measurer import GoesOn
from haotuner.partition.profiled_costs import BATCH, FIRST_BATCH, FIRST_PROGRAMS, ProfiledPrices
from haotuner.search.task import Clock, Effort
from haotuner.spec.device import Device
from haotuner.spec.op import Op
from haotuner.spec.record import Record, Trial
from haotuner.tuning import op_tasks
from haotuner.tuning.strategies import tune
from tests.search.fake_lab import CORE, FAMILY, TASK, FakeLab
from tests.search.test_tuning import check_served

BUDGET_S = 20.0


class BusyHost(FakeLab):
    """A host on which building a kernel takes seconds of a clock of its own, and a measurement a tenth of one."""

    build_s, measure_s = 3.0, 0.1

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.now, self.begun = 0.0, list[float]()

    def prepare(self, names: Sequence[str], goes_on: GoesOn = lambda _: True) -> None:
        for name in names:
            if name in self.prepared:
                continue
            self.begun.append(self.now)
            self.now += self.build_s
            self.prepared.append(name)
            if not goes_on(None):
                return

    def renew(self) -> None:
        self.begun.append(self.now)
        self.now += self.build_s

    def measure(self, trials: Iterable[Trial], goes_on: GoesOn = lambda _: True) -> list[Record]:
        records: list[Record] = []
        for trial in trials:
            if self.known(trial) is None:
                if not goes_on(None):
                    break
                self.prepare([name for name, _ in trial.composition.parts])
                self.begun.append(self.now)
                self.now += self.measure_s
            records += super().measure([trial])
            goes_on(records[-1])
        return records


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> BusyHost:
    fake = BusyHost(CORE)
    monkeypatch.setattr("haotuner.search.task.time", SimpleNamespace(monotonic=lambda: fake.now))
    return fake


def test_nothing_is_built_or_measured_after_the_budget_of_a_busy_host(busy: BusyHost) -> None:
    result = tune(replace(TASK, budget_s=BUDGET_S), busy.as_lab(), FAMILY)
    assert result.stopped == "budget" and result.measured > 0
    assert max(busy.begun) < BUDGET_S and busy.now < BUDGET_S + busy.build_s
    check_served(result.row_tables[0])


def test_one_kernel_is_measured_where_the_first_build_takes_longer_than_the_budget(busy: BusyHost) -> None:
    busy.build_s = 30.0
    result = tune(replace(TASK, budget_s=BUDGET_S), busy.as_lab(), FAMILY)
    assert result.measured == 1 and result.stopped == "budget"
    assert busy.now < busy.build_s + 10 * busy.measure_s


def test_what_the_first_ops_take_too_long_the_last_ones_are_not_measured_for(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = itertools.count(0.0, 25.0)  # each look at the clock is 25 s later
    calls: list[tuple[float, Effort | None]] = []

    def one(*arguments: Any) -> Any:
        calls.append((arguments[6], arguments[9]))
        return SimpleNamespace(stopped="budget", kernels=())

    monkeypatch.setattr("haotuner.tuning.op_tasks.time", SimpleNamespace(monotonic=lambda: next(moments)))
    monkeypatch.setattr(op_tasks, "tune_one", one)
    ops = tuple(Op.parse(f"dense:n={n},k=8") for n in (8, 16, 24, 32))
    request: Any = SimpleNamespace(ops=ops, seconds=60.0, zero_measure=False)
    op_tasks.tune_every(request, None, (1,), None, None)  # type: ignore[arg-type]
    assert [seconds for seconds, _ in calls] == pytest.approx([35 / 4, 10 / 3, 0.0, 0.0])
    assert [effort for _, effort in calls] == [None, None, *[Effort(least_kernels=0)] * 2]


def test_a_clock_that_was_given_up_lets_nothing_begin() -> None:
    clock = Clock(1e9, lambda phase, record: False)
    assert not clock.goes_on() and clock.given_up and not clock.expired


def test_groups_are_compiled_in_batches_that_fit_into_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    prices = ProfiledPrices([{"batch": 1}], 60.0)
    assert prices._fitting(programs=False) == FIRST_BATCH > prices._fitting(programs=True) == FIRST_PROGRAMS
    monkeypatch.setattr("haotuner.partition.profiled_costs.time", SimpleNamespace(monotonic=lambda: prices._until - 30.0))
    for group_s, count in ((0.5, BATCH), (5.0, 6), (50.0, 1)):
        prices._group_s[True] = group_s
        assert prices._fitting(programs=True) == count
    assert prices._fitting(programs=False) == FIRST_BATCH, "plain loops take less than programs"
