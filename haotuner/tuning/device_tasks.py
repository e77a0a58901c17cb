"""Several devices tuned at once: one scheduler and one budget over their ops, each device at work on its own.

A task is an op on a device. While a device measures, the others learn from its records (``neighbours.py``). Each device gets
a pack of its own. One that leaves for good ends its own part alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier, BrokenBarrierError, Lock

from haotuner.cost.model import CostModel
from haotuner.errors import UsageError
from haotuner.measure.engine import DeviceEngine
from haotuner.search.cost_extrapolation import traffic_us
from haotuner.search.scheduler_lanes import Lane, lanes
from haotuner.search.task import Effort, Selections
from haotuner.search.task_scheduler import Scheduler, Shared, TurnResult, shared
from haotuner.spec.op import Op
from haotuner.spec.record import Record
from haotuner.tuning.neighbours import Neighbours
from haotuner.tuning.op_tasks import SIGNAL, Watch, Whole, tune_one
from haotuner.tuning.request import Request
from haotuner.tuning.run import Report, Run
from haotuner.tuning.session import prepared
from haotuner.tuning.strategies import Tuned

READY_LIMIT_S = 300.0  # in which all devices have their processes; the budget begins for all of them together


def produce_each(requests: Sequence[Request], engines: Sequence[DeviceEngine], watch: Watch) -> list[Report]:
    """Carry out a request a device, all at once; the reports in the same order.

    Args:
        requests: the same ops and budget, each with a device and an ``out`` of its own.
        engines: of the devices, in the same order.
        watch: of all of them; asked from several threads, one at a time.

    Raises:
        UsageError: requests of whole models, each of which is planned for one device.
        HaotunerError: as ``produce``, of the first device that fails; the others are finished before.
    """
    if any(request.models for request in requests):
        raise UsageError("whole models are tuned for one device at a time; name one, and run once for each")
    counts = [len(request.ops) for request in requests]
    tasks = [task for at, request in enumerate(requests) for task in _tasks(request, at, len(requests))]
    lanes_ = lanes(Scheduler(tasks, requests[0].goal, requests[0].strategy, requests[0].early_stopping), counts)
    neighbours = Neighbours([engine.device for engine in engines], seed=requests[0].seed)
    lock, together = Lock(), Barrier(len(requests))

    def watched(op: str, phase: str, record: Record | None) -> bool:
        with lock:
            return watch(op, phase, record)

    def one_device(at: int) -> Report:
        try:
            with prepared(requests[at], watched, engines[at]) as run:
                together.wait(READY_LIMIT_S)
                report = run.finish(_in_turns(run, lanes_[at], neighbours))
                learned = neighbours.document(run.device)
                return replace(report, document={**report.document, "learned_from": learned}) if learned else report
        except BrokenBarrierError as error:
            raise UsageError("another device of this run could not be prepared; its message says why") from error
        except BaseException:
            together.abort()  # whoever waits for this device is told
            raise

    with ThreadPoolExecutor(len(requests)) as pool:
        running = [pool.submit(one_device, at) for at in range(len(requests))]
    failed = [error for item in running if (error := item.exception()) is not None]
    first = next((error for error in failed if not isinstance(error.__cause__, BrokenBarrierError)), None)
    if first is not None:
        raise first
    return [item.result() for item in running]


def _tasks(request: Request, at: int, devices: int) -> list[Shared]:
    """Ops of a request as tasks: each device counts as a model, which calls its own ops once."""
    calls = tuple(float(other == at) for other in range(devices))
    return [
        Shared(f"{op.kind} {request.device}", _flops(request, op), calls, f"{op.name} on {request.device}")
        for op in request.ops
    ]


def _flops(request: Request, op: Op) -> float:
    return float(sum(share * op.flops(shape) for shape, share in request.traffic(op)))


def _in_turns(run: Run, lane: Lane, neighbours: Neighbours) -> Whole:
    """Result of a device: its ops in turns, those that had none from records and predictions."""
    request, lab = run.request, run.lab
    selections: dict[int, dict[str, Selections]] = {}  # by the model that they were selected with

    def watched(op: str, phase: str, record: Record | None) -> bool:
        if record is not None and record.device_id == lab.device.id:
            neighbours.note(record)
        return run.watch(op, phase, record)

    def tuned_once(op: Op, seconds: float, among: Sequence[Tuned], effort: Effort | None = None) -> Tuned:
        models: dict[str, CostModel | None] = {}

        def model(family: str) -> CostModel | None:
            if family not in models:
                models[family] = neighbours.model(run.device, family, run.starts.of(family), request.model)
            return models[family]

        family = lab.backend.searched(op, lab.device)[0].name
        same = selections.setdefault(id(model(family)), {})
        kernels = among[-1].kernels if among else ()
        return tune_one(request, lab, run.threads, model, watched, op, seconds, kernels, same, effort)

    def run_turn(index: int, seconds: float) -> TurnResult:
        tuned = tuned_once(request.ops[index], seconds, ())
        return TurnResult(traffic_us(tuned, lab.device, run.threads[0]), tuned.timings, tuned.stopped, tuned)

    until = time.monotonic() + request.seconds
    results, turns, stopped = shared(lane, until, run_turn, lambda words: watched("", f"{request.device}: {words}", None))
    whole = _filled(request, results, stopped, lambda op, among: tuned_once(op, 0.0, among, Effort(least_kernels=0)))
    return Whole(whole, request.models, turns, SIGNAL if stopped else "")


def _filled(
    request: Request, results: Mapping[int, TurnResult], stopped: bool, unbegun: Callable[[Op, Sequence[Tuned]], Tuned]
) -> list[Tuned]:
    """Results of all ops; one that had no turn is planned unmeasured, of a run that is to end with few kernels."""
    tuned = {index: result.tuned for index, result in results.items() if result.tuned is not None}
    among = list(tuned.values())[-1:] if stopped else []
    return [tuned.get(index) or unbegun(op, among) for index, op in enumerate(request.ops)]
