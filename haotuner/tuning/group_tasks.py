"""Generated groups of whole models as tasks of the budget: a turn times those that a model's plan wants, and plans again."""

from __future__ import annotations

import time
from statistics import fmean

from haotuner.measure.device_measurer import DeviceMeasurer
from haotuner.partition.cost_estimate import groups_us
from haotuner.partition.group_times import GroupRecords
from haotuner.partition.profiled_costs import ProfiledPrices
from haotuner.partition.tasks import ModelTask, reassembled
from haotuner.search.task_scheduler import Shared, TurnResult
from haotuner.tuning.op_tasks import SIGNAL, Watch
from haotuner.tuning.request import Request

KIND = "groups"  # of these tasks, beside kinds of ops


class GroupTasks:
    """The groups of a request's models, one task a model. ``models``: as the turns so far have planned them."""

    def __init__(self, request: Request, lab: DeviceMeasurer, watch: Watch, phase_of: str) -> None:
        """``phase_of``: the name that ``watch`` sees beside the phase."""
        self.models: tuple[ModelTask, ...] = tuple(request.models)
        self._lab, self._watch, self._phase_of, self._stopped = lab, watch, phase_of, False
        self._records: GroupRecords | None = None
        self._profiled: dict[tuple[int, int], ProfiledPrices] = {}
        if request.times_groups:
            self._records = GroupRecords(lab.store, lab.device, resume=request.resume)
            for index in range(len(self.models) if self.reused else 0):
                for form in range(self.models[index].form_count):
                    prices = self._prices_of(index, form)
                    prices.allow_records()
                    self.models[index].price(form, prices)
                self.models = reassembled(self.models, index)

    @property
    def reused(self) -> int:
        """Number of measurements that an earlier run had made."""
        return 0 if self._records is None else self._records.reused

    @property
    def tasks(self) -> list[Shared]:
        """A task for each model whose groups can be timed here; work as operations of products that take as long."""
        if self._records is None:
            return []
        rows = []
        for index, model in enumerate(self.models):
            calls = tuple(float(other == index) for other in range(len(self.models)))
            us = fmean(groups_us(model))
            rows.append(Shared(KIND, us * model.prices.rates.flops, calls, f"groups of {model.written.name}"))
        return rows

    def run_turn(self, index: int, seconds: float) -> TurnResult:
        """Result of timing groups of one model for so many seconds; the call is one request, the mean over its sizes.

        It ends as "exhausted" where every kernel that the plan wants has a time.
        """
        until, count = time.monotonic() + seconds, self.models[index].form_count
        for form in range(count):
            prices = self._prices_of(index, form)
            prices.allow(max(0.0, until - time.monotonic()) / (count - form))
            self.models[index].price(form, prices)
        self.models = reassembled(self.models, index)
        timings = sum(self._prices_of(index, form).count for form in range(count))  # plans by range were timed just now, too
        late = time.monotonic() > until
        stopped = SIGNAL if self._stopped else "budget" if late else "exhausted"
        return TurnResult(fmean(groups_us(self.models[index])), timings, stopped)

    def _prices_of(self, index: int, form: int) -> ProfiledPrices:
        """Prices of one form of a model: a tensor's name means something in one graph alone."""
        if (index, form) not in self._profiled:
            prices = self.models[index].prices
            requests, programs = prices.requests, prices.programs
            if programs is not None:
                programs = programs.compiled_by(self._lab.compile_object, self._lab.codes_in_groups)
            self._profiled[index, form] = ProfiledPrices(
                requests, 0.0, self._records, self._goes_on, programs, self._lab.time_groups
            )
        return self._profiled[index, form]

    def _goes_on(self) -> bool:
        self._stopped = self._stopped or not self._watch(self._phase_of, "timing generated groups", None)
        return not self._stopped
