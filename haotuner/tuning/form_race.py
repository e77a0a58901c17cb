"""Times of two graphs of the same tensors at some requests: both as packs of predictions, raced in turns on this host.

Of each request both graphs have numbers for all dimensions. So what lies inside of a model needs no dimensions of its own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from haotuner.backends.backend import OBJECTS_WORD
from haotuner.backends.index import backend_for, own_device
from haotuner.errors import HaotunerError
from haotuner.graph.fixed_sizes import at_sizes
from haotuner.graph.graph import Graph
from haotuner.host.files import scratch_folder
from haotuner.measure.predictions_only import PredictionsOnly
from haotuner.partition.dim_ranges import UNSAID
from haotuner.partition.tasks import ModelTask, arrivals_of_models, model_task, ops_of
from haotuner.tuning.initial_model import NOTHING, Starts
from haotuner.tuning.op_tasks import tune_every
from haotuner.tuning.publisher import OBJECTS, Plans, Publisher, served
from haotuner.tuning.request import Request, cpu_named
from haotuner.verify.pack_race import form_times

NO_FILE = Path("part of a model")  # nobody reads it again: packs of a race are not checked against files


def raced_forms(
    graphs: Sequence[Graph],
    requests: Sequence[Mapping[str, int]],
    device_name: str,
    environment: Mapping[str, str],
    cache: Path | None = None,
) -> list[tuple[float, ...]]:
    """Least microseconds of a call on one thread, of each graph at each request.

    Args:
        graphs: of the same inputs and outputs, each of dimensions that all requests have.
        requests: sizes of all dimensions.
        device_name: of a CPU, this host's.
        environment: of the processes that compile and race.
        cache: keeps what is compiled; None: nothing does.

    Raises:
        HaotunerError: a graph cannot be planned, compiled or run, in its words.
    """
    device = own_device(device_name, measure=False, cache_dir=cache)
    backend, cpu = backend_for(device, device_name), cpu_named(device_name)
    variants = []
    for graph in graphs:
        tasks = list[ModelTask]()
        for at, sizes in enumerate(requests):
            groups = sum(len(task.written.functions) for task in tasks)
            tasks.append(model_task(f"at{at}", at_sizes(graph, sizes), UNSAID, NO_FILE, groups, device=cpu))
        variants.append(tasks)
    every = [task for tasks in variants for task in tasks]
    request = Request(
        ops=ops_of(every), models=tuple(every), arrivals=arrivals_of_models(every, "its own"), device=device_name,
        threads=(1,), zero_measure=True, cache=cache, environment=dict(environment),
    )  # fmt: skip
    starts = Starts(request.model, device, seed=request.seed)
    words = {**environment, **({} if cache is None else {OBJECTS_WORD: str(cache / OBJECTS)})}
    with (
        scratch_folder() as scratch,
        closing(PredictionsOnly(backend, device, environment=words)) as lab,
    ):
        tuned = tune_every(request, lab, (1,), starts.model, _silent)
        start = starts.of(backend.searched(request.ops[0], device)[0].name) if request.ops else NOTHING
        publisher = Publisher(request, device, lab, start, _silent, time.monotonic())
        try:
            packs = [
                publisher.pack_for_race(Plans(served(tuned, tasks), tasks), scratch / f"form{at}")
                for at, tasks in enumerate(variants)
            ]
        except (OSError, RuntimeError) as error:
            raise HaotunerError(f"a form is not compiled: {error}") from error
        times = form_times(packs, environment)
    names = [(f"at{at}", "") for at in range(len(requests))]
    if times is None or any(name not in row for row in times for name in names):
        raise HaotunerError("the race failed: a form does not run, or takes too long")
    return [tuple(row[name] for name in names) for row in times]


def _silent(op: str, phase: str, record: object) -> bool:
    return True
