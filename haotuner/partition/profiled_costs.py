"""Profiled prices: kernels that a plan wants are measured, others count with what is expected of them, or with a bound.

As Korch prices kernels (ASPLOS 2024), but lazily. First the program counts with expectations, corrected by times of kernels
that share primitives. Then with bounds under them, so that it looks at whatever might be cheaper. It is solved again until
all kernels of its plan have times, or time is over (``ilp_partition.py``).
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, fsum
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from haotuner.backends.cpu.group_jobs import NOTHING, GroupJob, timed_here
from haotuner.codegen.loops.c_math import head_of
from haotuner.codegen.loops.c_ordered import ordered_node
from haotuner.errors import HaotunerError
from haotuner.graph.graph import Graph
from haotuner.graph.types import numpy_dtype
from haotuner.partition.costs import LEAST_US, Kernel, Prices, kernel_of
from haotuner.partition.group_times import GroupRecords, NamedGroup
from haotuner.partition.program_forms import ProgramForm, ProgramSpace
from haotuner.spec.record import Timed, Trial

BOUND = 0.4  # of what an unmeasured kernel is expected to take
PRIOR = 0.5  # weight of "as expected" beside timed kernels, each of which weighs the share of primitives that are common
LARGEST_BYTES = 1 << 25  # of a kernel's tensors at a measured request
BATCH, FIRST_BATCH = 24, 6  # groups compiled and timed at a time, at most: between two of them the clock is looked at
FIRST_PROGRAMS = 2  # the same of programs, each of which takes a second or two of a core
CHILD_LIMIT_S, GRACE_S = 120.0, 5.0
MOST_OVER_LOOPS = 1.5  # of their time, what is expected of a program that is timed beside them


class ProfiledPrices(Prices):
    """Prices at some requests; ``measure`` times kernels, one thread, until ``limit_s`` is over.

    ``records``: times that are known before, and where new ones go; ``goes_on``: False to stop early. ``programs``: of
    groups, timed beside plain loops. ``carry_out``: a job's lines, by default of this host (``group_jobs.py``).
    """

    def __init__(
        self,
        requests: Sequence[Mapping[str, int]],
        limit_s: float,
        records: GroupRecords | None = None,
        goes_on: Callable[[], bool] = lambda: True,
        programs: ProgramSpace | None = None,
        carry_out: Callable[[GroupJob], list[str]] = timed_here,
    ) -> None:
        super().__init__(requests, programs=programs)
        self._carry_out = carry_out
        self.are_times = True
        self._until = time.monotonic() + limit_s
        self._records, self._goes_on = records or GroupRecords(), goes_on
        self._known: dict[Kernel, list[float]] = {}
        self._forms: dict[Kernel, ProgramForm | None] = {}
        self._loops_only: set[Kernel] = set()  # known by the time of plain loops alone
        self._untimed: set[Kernel] = set()  # that no request gives a time: too large, recurrent, or refused
        self._errors: dict[Kernel, float] = {}  # logarithm of the time over what was expected
        self._timed_with: dict[str, list[Kernel]] = {}  # kernels with a time by their primitives
        self._corrections: dict[Kernel, float] = {}
        self._records_only = False
        self._group_s: dict[bool, float] = {}  # what plain loops (False) and programs (True) took in the last batch, each
        self._silent: set[str] = set()  # trials that did not answer in this run
        self.ratios: list[float] = []  # of their times over what was expected

    def each_us(self, graph: Graph) -> list[float]:
        """Measured, or as ``each_of``."""
        return list(self.each_of(kernel_of(graph), super().each_us(graph)))

    def expected_us(self, graph: Graph) -> list[float]:
        """Measured, or what the bound is a bound of."""
        return self._known.get(kernel_of(graph)) or super().each_us(graph)

    def each_of(self, kernel: Kernel, usual_us: Sequence[float]) -> Sequence[float]:
        """Measured, or a bound of what is expected; where bounds do not count, that itself, corrected."""
        known = self._known.get(kernel)
        if known is not None:
            return known
        share = BOUND if self.by_bounds and kernel not in self._untimed else self._correction(kernel)
        return [share * time_us for time_us in usual_us]

    def least_us(self, usual_us: float) -> float:
        """A bound of what is expected of it; that itself where bounds do not count."""
        return BOUND * usual_us if self.by_bounds else usual_us

    def knows(self, kernel: Kernel) -> bool:
        """True if this kernel has a time."""
        return kernel in self._known

    def _correction(self, kernel: Kernel) -> float:
        """Factor by which expectations fell short for timed kernels that share primitives with this one; at least 1.

        A program picks what is expected too short, so no correction makes a kernel without a time cheaper.
        """
        if kernel not in self._corrections:
            nodes = kernel[1]
            near = {other for name in nodes for other in self._timed_with.get(name, ())}
            shares = [(len(nodes & other[1]) / len(nodes | other[1]), self._errors[other]) for other in near]
            weight = PRIOR + fsum(share for share, _ in shares)
            self._corrections[kernel] = max(1.0, exp(fsum(share * error for share, error in shares) / weight))
        return self._corrections[kernel]

    def allow(self, seconds: float) -> None:
        """As much time from now on; expectations count first again."""
        self._until, self.by_bounds, self._records_only = time.monotonic() + seconds, False, False

    def allow_records(self) -> None:
        """From now on nothing is timed, but plans are made again as long as records know what they want."""
        self._until, self.by_bounds, self._records_only = time.monotonic(), False, True

    def more(self) -> bool:
        """True if there is time for more, or records may know more."""
        return (self._records_only or time.monotonic() < self._until) and self._goes_on()

    def forms_of(self, graphs: Sequence[Graph]) -> dict[Kernel, ProgramForm]:
        """The forms that took least; of groups without a time, as where nothing is measured."""
        timed = {key: form for graph in graphs if (form := self._forms.get(key := kernel_of(graph))) is not None}
        return timed | super().forms_of([graph for graph in graphs if kernel_of(graph) not in self._forms])

    def measure(self, graphs: Sequence[Graph]) -> bool:
        """Time what has no time yet, in this order, plain loops before programs; False where nothing new is known."""
        known = self._known.keys() - self._loops_only | self._untimed
        new = {key: graph for graph in graphs if (key := kernel_of(graph)) not in known}
        waiting = [WaitingGroup(key, graph, self.requests, Prices.each_us(self, graph)) for key, graph in new.items()]
        learned = False
        while waiting:
            missing_forms = [group.forms[0] for group in waiting if self._lacks(group.forms[0])]
            if not missing_forms:
                open_groups = [group for group in waiting if self._open(group)]
                for group in waiting:
                    if group not in open_groups:
                        self._learn(group)
                        learned = True
                waiting = open_groups
                missing_forms = [form for group in waiting for form in group.forms if self._lacks(form)]
            apart = list({form.group.name: form for form in reversed(missing_forms)}.values())[::-1]  # equal ones once
            if not waiting or self._over():
                for group in waiting:
                    if self._lacks(group.forms[0]):
                        continue
                    whole = not self._open(group)
                    if whole or group.key not in self._known:
                        self._learn(group)
                        learned = True
                    if not whole and group.key in self._known:  # its program has no time yet
                        self._loops_only.add(group.key)
                return learned and (self._records_only or time.monotonic() <= self._until)  # else nobody plans again
            programs = apart[0].group.form is not None
            batch, began = apart[: self._fitting(programs=programs)], time.monotonic()
            self._time(batch)
            self._group_s[programs] = (time.monotonic() - began) / len(batch)
        return learned

    def _over(self) -> bool:
        return time.monotonic() > self._until or not self._goes_on()

    def _fitting(self, *, programs: bool) -> int:
        """Number of groups that fit into the time left, by what the last ones took: a busy host compiles slowly."""
        if programs not in self._group_s:
            return FIRST_PROGRAMS if programs else FIRST_BATCH
        return max(1, min(BATCH, int((self._until - time.monotonic()) / self._group_s[programs])))

    def _lacks(self, form: TimedForm) -> bool:
        return any(
            trial.key() not in self._silent and self._records.known(trial) is None for trial, _ in form.trials.values()
        )

    def _open(self, waiting: WaitingGroup) -> bool:
        """True if some form has no time yet. A program is one where plain loops have a time that it may save."""
        if any(map(self._lacks, waiting.forms)):
            return True
        if self.programs is None or waiting.closed:
            return False
        if self._over() and not self._records_only:
            return True
        waiting.closed = True
        loops = self._times(waiting.forms[0])
        if not loops or fmean(loops.values()) < LEAST_US:
            return False
        program = self.programs.best(waiting.graph)
        if program is None or sum(program.us) > MOST_OVER_LOOPS * sum(loops.values()) * len(waiting.expected) / len(loops):
            return False
        code = self.programs.code_of(program)
        if not code:
            return False
        waiting.forms.append(TimedForm.of(waiting.graph, self.requests, program, code))
        return self._lacks(waiting.forms[1])

    def _times(self, form: TimedForm) -> dict[int, float]:
        """Microseconds by the number of the request."""
        outcomes = {number: self._records.known(trial) for number, (trial, _) in form.trials.items()}
        return {number: outcome.median_us for number, outcome in outcomes.items() if isinstance(outcome, Timed)}

    def _learn(self, waiting: WaitingGroup) -> None:
        """The price at each request: of the form that takes least at those at which all have times."""
        timed_forms = [(form, times) for form in waiting.forms if (times := self._times(form))]
        common = set.intersection(*(set(times) for _, times in timed_forms)) if timed_forms else set[int]()
        comparable = timed_forms if common else timed_forms[:1]  # plain loops come first
        form, raw = min(
            comparable, key=lambda item: sum(item[1][number] for number in common), default=(waiting.forms[0], {})
        )
        times = {number: self.rates.step_us + us for number, us in raw.items()}
        ratios = [us / waiting.expected[number] for number, us in times.items()]
        if not ratios:
            self._untimed.add(waiting.key)
            return
        error = float(np.mean(np.log(ratios)))
        self.ratios += ratios
        self._known[waiting.key] = [
            times.get(number, exp(error) * expected) for number, expected in enumerate(waiting.expected)
        ]
        self.count = len(self._known)
        for name in waiting.key[1] if waiting.key not in self._errors else ():
            self._timed_with.setdefault(name, []).append(waiting.key)
        self._errors[waiting.key] = error
        self._corrections.clear()
        self._loops_only.discard(waiting.key)
        self._forms[waiting.key] = form.group.form

    def _time(self, forms: Sequence[TimedForm]) -> None:
        """Compile and time forms at the requests at which they have no time; every outcome is recorded."""
        trials: dict[tuple[int, int], Trial] = {}
        tasks: list[dict[str, Any]] = []
        for at, form in enumerate(forms):
            for number, (trial, tensors) in form.trials.items():
                if self._records.known(trial) is None:
                    trials[at, number] = trial
                    tasks.append({"group": at, "loops": form.group.loops, "request": number, "tensors": tensors})
        result: list[tuple[Trial, float]] = []
        for line in self._answers([form.group for form in forms], tasks):
            if line.endswith("]"):
                at, number, us = json.loads(line)
                result.append((trials[at, number], us))
        self._records.keep(result)
        answered = {trial.key() for trial, _ in result}
        silent = [trial.key() for trial in trials.values() if trial.key() not in answered]
        # Behind the one that ended the process others were not begun; where time ended it, none is to blame.
        blamed = 1 if answered else len(silent)
        self._silent |= set(silent[: 0 if time.monotonic() > self._until else blamed])

    def _answers(self, groups: Sequence[NamedGroup], tasks: Sequence[Mapping[str, Any]]) -> list[str]:
        """Lines of a process that times; none where a program of the groups cannot be compiled."""
        try:
            programs = self._programs_of(groups)
        except (OSError, RuntimeError, HaotunerError):
            return []
        text = "\n".join(group.source(f"ht_group_{at}") for at, group in enumerate(groups))
        empty = f"void {NOTHING}(const int64_t* s, void* const* t, const int64_t* lo, const int64_t* hi) {{}}"
        heads = [head_of([text]), *(["#include <stdlib.h>", '#include "programs.h"'] if programs else [])]
        return self._carry_out(
            GroupJob(
                source="\n".join((*heads, text, empty, "")),
                programs=programs,
                values=[[group.sizes.values(request) for request in self.requests] for group in groups],
                tasks=tasks,
                limit_s=min(CHILD_LIMIT_S, max(0.0, self._until - time.monotonic()) + GRACE_S),
            )
        )

    def _programs_of(self, groups: Sequence[NamedGroup]) -> bytes:
        """Object code of the groups' programs, empty of none; RuntimeError with the compiler's words."""
        kernels = list(dict.fromkeys(kernel for group in groups if group.form is not None for kernel in group.form.kernels))
        if not kernels or self.programs is None:
            return b""
        with tempfile.TemporaryDirectory() as scratch:
            compiled = Path(scratch) / "programs.o"
            self.programs.compile_object(kernels, self.programs.device.arch, compiled)
            return compiled.read_bytes()


@dataclass(frozen=True, slots=True)
class TimedForm:
    """A form of a group. ``trials``: by the number of the request the trial that times it, and its tensors."""

    group: NamedGroup
    trials: Mapping[int, tuple[Trial, Any]]

    @staticmethod
    def of(
        graph: Graph, requests: Sequence[Mapping[str, int]], form: ProgramForm | None = None, code: str = ""
    ) -> TimedForm:
        """Without trials where tensors are too large or empty. ``code``: hash of a program's."""
        group = NamedGroup(graph, form, code)
        tensors_by_request = {number: _tensors(group, request) for number, request in enumerate(requests)}
        trials = {n: (group.trial(requests[n]), tensors) for n, tensors in tensors_by_request.items() if tensors is not None}
        return TimedForm(group, trials)


class WaitingGroup:
    """A group without a time. ``forms``: plain loops, and a program where it is to be timed; ``closed``: none will join."""

    def __init__(self, key: Kernel, graph: Graph, requests: Sequence[Mapping[str, int]], expected: Sequence[float]) -> None:
        self.key, self.graph, self.expected = key, graph, expected
        self.forms, self.closed = [TimedForm.of(graph, requests)], False


def _tensors(group: NamedGroup, dims: Mapping[str, int]) -> list[Any] | None:
    """Element types and shapes of what a call passes; None where it is too large or empty.

    None, too, of a recurrent layer: made-up lengths say nothing of it, and no plan has another kernel of it.
    """
    ordered = ordered_node(group.graph)
    if ordered is not None and ordered.primitive == "recurrent":
        return None
    result, total, values = [], 0, group.sizes.values(dims)
    for name, places in zip(group.group.tensors, group.shapes, strict=True):
        shape = [values[position] for position in places]
        dtype = numpy_dtype(group.graph.types[name].dtype)
        total += int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        result.append([dtype.name, shape])
    return result if 0 < total <= LARGEST_BYTES else None
