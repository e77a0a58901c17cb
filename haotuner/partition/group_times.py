"""Times of generated groups: measured in a process of their own, kept among the records.

Times of generated groups among the records, so that no run measures one twice: ``--resume`` finds them again.

A group's name is a hash of its C, of the arithmetic of its sizes and, of a program, of its generated code. So equal groups,
of one model or of several, are one measurement. Its records are of the trial ``loops_HASH`` or ``program_HASH``, kernel
``c_loops__v1``, at the sizes of a request that its extents follow from, under a fingerprint of their own: the host, the C
compiler and how groups are timed.

Timer of groups in a process of their own: ``python -m haotuner.partition.group_times`` reads a task, prints a line each.

Generated code that crashes takes nothing else along; what was printed before counts.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from haotuner.backends.cpu.compile import RUNTIME_SOURCES
from haotuner.backends.cpu.pack_source import GROUP_FLAGS
from haotuner.backends.fingerprint import Policy, fingerprint, meaning
from haotuner.backends.toolchain import Toolchain
from haotuner.codegen.loops.c_loops import loops_of
from haotuner.codegen.loops.c_math import head_of
from haotuner.codegen.loops.loop_nest import Group, collapsed
from haotuner.graph.graph import Graph
from haotuner.measure.rekeying import rekeyed_whole
from haotuner.partition.program_forms import ProgramForm
from haotuner.partition.segmented_model import SizeTable
from haotuner.records import RecordStore
from haotuner.spec.composition import SERIAL, Composition
from haotuner.spec.device import Device
from haotuner.spec.record import OpName, Outcome, Record, Timed, Trial
from haotuner.spec.shape import Shape

KERNEL = "c_loops__v1"
NAMELESS = "GROUP"  # what the C of a group is called before it has a place


class NamedGroup:
    """A group's C in one of its forms, its own table of sizes, and its name.

    ``form``: None of plain loops. ``code``: hash of a program's generated code (``ProgramSpace.code_of``).
    """

    def __init__(self, graph: Graph, form: ProgramForm | None = None, code: str = "") -> None:
        self.graph, self.form, self.sizes = graph, form, SizeTable()
        graph = collapsed(graph)
        size = self.sizes.index
        self.group: Group = loops_of(graph, NAMELESS, size) if form is None else form.group(NAMELESS, size)
        self.loops = self.sizes.indices(self.group.loops)
        self.shapes = [self.sizes.indices(graph.types[tensor].shape) for tensor in self.group.tensors]
        types = [graph.types[tensor].dtype for tensor in self.group.tensors]
        values = [
            self.group.source,
            self.loops,
            self.shapes,
            types,
            self.sizes.lines,
            head_of([self.group.source]),
            GROUP_FLAGS,
            *([] if form is None else [code]),
        ]
        self.name = ("loops_" if form is None else "program_") + hashlib.sha256(json.dumps(values).encode()).hexdigest()[:20]
        self.dims = sorted({str(line[1]) for line in self.sizes.lines if line[0] == "dim"})

    def source(self, name: str) -> str:
        """C of the group as the exported function ``name``, with the tables that it uses."""
        if self.form is None:
            return self.group.source.replace(f"static void {NAMELESS}", f"void {name}", 1)
        arguments = "const int64_t* s, void* const* t, const int64_t* lo, const int64_t* hi"
        call = f"ht_program_run(&{name}_program, {len(self.group.tensors)}, s, t, lo, hi)"
        return f"{self.group.source.replace(NAMELESS, name)}\nvoid {name}({arguments}) {{ if ({call} != 0) abort(); }}"

    def trial(self, request: Mapping[str, int]) -> Trial:
        """Trial that times it at a request."""
        shape = Shape.of({name: request[name] for name in self.dims})
        return Trial.of(OpName(self.name), Composition.of(KERNEL, share=SERIAL), shape, cache="hot")


def groups_fingerprint(device: Device) -> str:
    """Fingerprint of groups' times: a trial's name covers a group's own C, and this what that C includes."""
    included = meaning((RUNTIME_SOURCES / "kinds" / "turn.h").read_text(encoding="utf-8"))
    return fingerprint(device, Policy(), {**Toolchain.find().words(), "groups": included})


class GroupRecords:
    """Records of groups on one device: of this run and, with ``resume``, of the one before it.

    Without a store it is a memory of one run.
    """

    def __init__(self, store: RecordStore | None = None, device: Device | None = None, *, resume: bool = False) -> None:
        self.reused = 0
        self._store, self._device = store, device
        self._known: dict[str, Outcome] = {}
        if store is None or device is None:
            return
        self._fingerprint = groups_fingerprint(device)
        session = store.start(self._fingerprint, resume=resume, what="groups of whole models")
        self._session = session.id
        if resume:
            stored = store.measured(self._fingerprint, session=self._session)
            stored = stored or {r.trial.key(): r for r in rekeyed_whole(store, session, self._fingerprint)}
            self._known = {key: record.outcome for key, record in stored.items()}
            self.reused = len(stored)

    def known(self, trial: Trial) -> Outcome | None:
        """Outcome of a trial; None: it was not measured."""
        return self._known.get(trial.key())

    def keep(self, times: Sequence[tuple[Trial, float]]) -> None:
        """Microseconds of trials: stored at once."""
        made = [(trial, Timed(samples_us=(us,))) for trial, us in times]
        self._known |= {trial.key(): outcome for trial, outcome in made}
        if self._store is not None and self._device is not None and made:
            more: dict[str, Any] = {"device_id": self._device.id, "fingerprint": self._fingerprint}
            more |= {"session": self._session, "when": time.time()}
            self._store.append([Record(trial=trial, outcome=outcome, **more) for trial, outcome in made])


CALLS, ENOUGH_S = 7, 0.05  # the least of so many calls, fewer of long ones
LEAST_S = 1e-8  # a time of nothing is no time
NOTHING = "ht_nothing"  # a function of the library with a group's arguments
AXES = 12  # loops of a group at most (runtime/native/loops.h)


def timed_us(library: Any, task: Mapping[str, Any], sizes: list[int]) -> float:
    """Microseconds of one group's call: the processor's time of one thread, which programs beside it do not lengthen."""
    draw = np.random.default_rng(0)
    arrays = [
        draw.standard_normal(shape).astype(dtype)
        if dtype.startswith("float")
        else np.zeros(shape, "uint16" if dtype == "bfloat16" else dtype)
        for dtype, shape in task["tensors"]
    ]
    table = np.array(sizes or [0], np.int64)
    low, high = np.zeros(AXES, np.int64), np.zeros(AXES, np.int64)
    high[: len(task["loops"])] = [sizes[position] for position in task["loops"]]
    pointers = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
    run = getattr(library, f"ht_group_{task['group']}")
    run.argtypes, run.restype = [ctypes.c_void_p] * 4, None
    arguments = (table.ctypes.data, ctypes.addressof(pointers), low.ctypes.data, high.ctypes.data)
    nothing = getattr(library, NOTHING)
    nothing.argtypes, nothing.restype = [ctypes.c_void_p] * 4, None
    run(*arguments)
    result: list[float] = []
    calls: list[float] = []  # what a call from here costs by itself
    begin = time.perf_counter()
    while len(result) < CALLS and (not result or time.perf_counter() - begin < ENOUGH_S):
        before = time.thread_time()
        run(*arguments)
        result.append(time.thread_time() - before)
        before = time.thread_time()
        nothing(*arguments)
        calls.append(time.thread_time() - before)
    return max(min(result) - min(calls), LEAST_S) * 1e6


def main() -> int:
    """A line ``[group, request, microseconds]`` for each task."""
    job = json.loads(sys.stdin.read())
    library = ctypes.CDLL(job["library"])
    for task in job["tasks"]:
        us = timed_us(library, task, job["values"][task["group"]][task["request"]])
        print(json.dumps([task["group"], task["request"], us]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
