"""Interference while something is timed: threads that share a core, and drift of the machine's speed.

Core contention: threads that were given one physical core between them, which no counter of the system shows.

On a shared host a call of two threads takes 1.8 to 2 times as long in spells of tens of milliseconds, at times of seconds:
both run all the time, on processors of their own, nothing waits and nothing is stolen, but each computes half as much, as
two hyperthreads of one core do. One thread alone notices nothing. Of 7,800 trials of two threads 16 to 20 % fell into such
spells. So beside every sample of several threads the worker times multiply-adds on all at once (native/timing.c): these
take 1.0 times as long as on one alone where cores are not shared, and 1.6 times where they are.

Drift of a machine's speed: how much slower than at the start it was while something was timed.

On a shared host other tenants take memory bandwidth, and half a core through its other hyperthread, for tenths of a second
at a time. Beside every sample the worker times two fixed loops (native/watch.h): a read of memory and multiply-adds.
What a trial owes to each is its share of the roofline (Williams, Waterman & Patterson, CACM 2009): bytes over bandwidth and
flops over peak, over the time it took.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from haotuner.ops.dtypes import DTYPE_BYTES
from haotuner.spec.device import Device
from haotuner.spec.op import Op
from haotuner.spec.record import Trial
from haotuner.spec.shape import Shape

CROWDED = 1.3  # the valley between 1.0 and 1.6: 1.2 % of the trials lay between 1.25 and 1.4
FIRST_S = 1.0  # of patience: a spell may be waited for at once
MOST_S = 2.0  # that may come together in quiet times: no trial waits longer, whatever becomes of a budget meanwhile
SHARE = 0.25  # of the time that trials of several threads take may be spent on having them again: so often was it needed
PAUSE_S, LONGEST_PAUSE_S = 0.01, 0.1  # half of the spells are over after two trials
ENOUGH = 3  # samples for a median
Answer = Mapping[str, Sequence[float]]


def core_contention(answer: Answer) -> float:
    """Slowdown of multiply-adds on all threads at once over one alone, a factor; 1 where that was not looked at."""
    together, alone = answer.get("together_us"), answer["compute_us"]
    if not together or not any(together) or not any(alone):
        return 1.0
    return statistics.median(together) / statistics.median(alone)


def clean(answer: Answer, limit: float) -> Answer:
    """Only the samples before and after which a look was within the limit, if there are enough; else the same."""
    if len(answer.get("together_us", ())) < ENOUGH:
        return answer
    alone = statistics.median(answer["compute_us"])
    looks = [us / alone for us in answer["together_us"]]
    indices = [
        i for i, (before, after) in enumerate(zip(looks[:1] + looks, looks, strict=False)) if max(before, after) <= limit
    ]
    return {name: [row[i] for i in indices] for name, row in answer.items()} if len(indices) >= ENOUGH else answer


class RetryPolicy:
    """Has crowded trials timed again, as long as that takes a fair share of the time.

    Crowded is what is so beside the least seen: where threads always share cores, as when all hyperthreads are asked for,
    that is what the machine gives. The first trial has to wait for that: a spell it began in would pass for the machine.
    """

    def __init__(self) -> None:
        self._left_s, self._least, self._known = FIRST_S, 1.0, False

    def least_crowded(self, time_once: Callable[[], Answer]) -> tuple[Answer, float]:
        """Clean part of the first answer that has enough of it, or the least crowded one; and its contention, a factor."""
        begin, first = time.monotonic(), time_once()
        if not any(first.get("together_us", ())):  # one thread's alone, whatever it was given: it says nothing of the others
            return first, 1.0
        result, pause = self._seen(first), PAUSE_S
        self._left_s = min(self._left_s + SHARE * (time.monotonic() - begin), MOST_S)
        while core_contention(result) > CROWDED * self._least and self._left_s > 0:
            begin = time.monotonic()
            time.sleep(pause)
            result, pause = min(result, self._seen(time_once()), key=core_contention), min(2 * pause, LONGEST_PAUSE_S)
            self._left_s -= time.monotonic() - begin
        if not self._known:
            self._least, self._known = max(1.0, core_contention(result)), True
        return result, core_contention(result) / self._least

    def _seen(self, answer: Answer) -> Answer:
        self._least = max(1.0, min(self._least, core_contention(answer)))  # less than alone is noise
        return clean(answer, CROWDED * self._least)


QUIET = 0.25  # quantile of the looks at the start: less than half of them are disturbed, and the least is a lucky one
MOST = 4.0  # a machine this much slower is not measured by dividing; the loops themselves were held up
# A look tells of about this much of a call: a core's clock changes every millisecond or two, and three looks beside calls of
# 20 ms say little of them. 160 quiet trials over 2 ms, four rounds: divided in full they differ by 2.6 %, undivided by 1.8,
# weighed so by 1.7; 60 trials of 6 ms in a disturbed hour by 5.4, 7.1 and 5.3.
LOOK_US = 2000.0
WHOLLY = 1.6  # all of the looks fell into a spell
# What a spell costs where memory is not waited for: hot calls of 6 to 600 rows took 1.90 to 1.96 times as long. With the
# read of the weight left as it is, that foretells cold ones: 24, 96, 600 rows 1.58, 1.83, 1.93 (seen: 1.59, 1.82, 1.87).
SHARED_CORE = 1.95
STREAMED = 8  # rows up to which a cold call waits for memory anyway: 6 took 1.13 times as long, divided they won by luck
_FACTS = ("quiet_memory_us", "quiet_compute_us")


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputProbe:
    """Microseconds that the two loops take; 0: not timed."""

    memory_us: float
    compute_us: float

    @staticmethod
    def quiet(answer: Mapping[str, Sequence[float]]) -> ThroughputProbe:
        """Throughput probe from the looks before anything was timed."""
        return ThroughputProbe(
            memory_us=float(np.quantile(answer["memory_us"], QUIET)),
            compute_us=float(np.quantile(answer["compute_us"], QUIET)),
        )

    @staticmethod
    def from_facts(facts: Mapping[str, float | str]) -> ThroughputProbe | None:
        """Throughput probe from what ``facts`` gave, on a record; None if it has none."""
        result = [facts.get(name) for name in _FACTS]
        memory_us, compute_us = (us if isinstance(us, (int, float)) else None for us in result)
        return (
            None if memory_us is None or compute_us is None else ThroughputProbe(memory_us=memory_us, compute_us=compute_us)
        )

    def facts(self) -> dict[str, float | str]:
        """As facts of a record."""
        return dict(zip(_FACTS, (self.memory_us, self.compute_us), strict=True))

    @staticmethod
    def during(answer: Mapping[str, Sequence[float]]) -> ThroughputProbe:
        """Throughput probe from the looks between the samples of one trial."""
        return ThroughputProbe(
            memory_us=statistics.median(answer["memory_us"]), compute_us=statistics.median(answer["compute_us"])
        )


def drift(trial: Trial, device: Device, us: float, seen: ThroughputProbe, quiet: ThroughputProbe, looks: int) -> float:
    """Slowdown of a trial of ``us`` microseconds by what the machine had lost since it was looked at first, a factor.

    Told by what was seen beside ``looks`` samples, which counts for less beside long calls. Never so much that the trial
    would have run at the device's FMA peak or above: what came near it cannot have lost much, whatever the looks say, and
    two trials that did stay apart. 1 where the device's peaks or the loops' times are unknown. Hot weights owe nothing to
    memory.
    """
    memory, compute = (min(1.0, least / us) for least in _least_us(trial, device))
    both = max(1.0, memory + compute)
    memory_share = 1.0 / (1.0 + us / (LOOK_US * looks))
    result = _slower(seen.memory_us, quiet.memory_us) ** (memory_share * memory / both)
    result *= _slower(seen.compute_us, quiet.compute_us) ** (memory_share * compute / both)
    return _below_peak(result, compute) if compute else float(result)


def _least_us(trial: Trial, device: Device) -> tuple[float, float]:
    """Microseconds that reading the weight takes at least, and the arithmetic; 0 where the device's peak is not known."""
    op = trial.known_op
    gflops = (device.peak_gflops_unit or 0.0) * trial.threads
    gbps = (device.memory_gbps_unit if trial.threads == 1 else device.memory_gbps) or 0.0
    read = cold_bytes(op, trial.shape) if trial.weights == "cold" else 0
    return read / (gbps * 1e3) if gbps else 0.0, op.flops(trial.shape) / (gflops * 1e3) if gflops else 0.0


def cold_bytes(op: Op, shape: Shape) -> int:
    """Bytes that a server's next call finds in memory: the constants, or all operands of an op that has none."""
    constants = [o for o in op.meaning.inputs if o.role == "constant"] or list(op.meaning.operands)
    return sum(prod(op.operand_shape(o, shape)) * DTYPE_BYTES[op.dtype_of(o)] for o in constants)


def _below_peak(rate: float, compute: float) -> float:
    """Slowdown ``rate``, the same far from the peak and less near it: a hard limit there made ties of the best kernels.

    ``compute`` is the share of the peak that the clock saw. 432 trials, hot and cold, two sizes, four or five rounds: the
    kernel chosen by one round is 4.8 % behind in the others with the limit, 4.3 % so (undivided 4.8).
    """
    room = 1.0 / compute - 1.0
    if rate <= 1.0:
        return float(rate)
    return float(1.0 - room * np.expm1(-(rate - 1.0) / room)) if room > 0 else 1.0


def _slower(now: float, then: float) -> float:
    return min(max(now / then, 1 / MOST), MOST) if now > 0 and then > 0 else 1.0


def lost(trial: Trial, device: Device, us: float, crowded: float) -> float:
    """Slowdown of a trial of ``us`` microseconds because its threads shared a core, a factor; 1 if they did not.

    Never so much that it would have run above the device's FMA peak: a look that erred must not make a winner.
    """
    op = trial.known_op
    if crowded <= CROWDED or (trial.weights == "cold" and trial.shape[op.dynamic[0]] <= STREAMED):
        return 1.0
    read, fastest = _least_us(trial, device)
    slower = 1.0 + (SHARED_CORE - 1.0) * min(1.0, (crowded - 1.0) / (WHOLLY - 1.0))
    return max(1.0, us / max(fastest, min(read, us) + max(0.0, us - read) / slower))


def undisturbed(
    trial: Trial, device: Device, answer: Mapping[str, Any], quiet: ThroughputProbe, crowded: float = 1.0
) -> tuple[tuple[float, ...], float]:
    """The samples as they would have been at the pace of the start on cores of their own, and what they were divided by."""
    samples = answer["samples_us"]
    us = statistics.median(samples)
    factor = lost(trial, device, us, crowded)
    factor *= drift(trial, device, us / factor, ThroughputProbe.during(answer), quiet, len(samples))
    return tuple(us / factor for us in samples), factor
