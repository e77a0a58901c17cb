"""Times of generated groups among the records, so that no run measures one twice: ``--resume`` finds them again.

A group's name is a hash of what its C means, of the arithmetic of its sizes and, of a program, of its generated code. So
equal groups, of one model or of several, are one measurement, and names of locals and comments of the C orphan none. Its
records are of the trial ``loops_HASH`` or ``program_HASH``, kernel ``c_loops__v1``, at the sizes of a request that its
extents follow from, under a fingerprint of their own: the host, the C compiler and how groups are timed.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from haotuner.backends.cpu.compile import RUNTIME_SOURCES
from haotuner.backends.cpu.pack_source import GROUP_FLAGS
from haotuner.backends.fingerprint import Policy, fingerprint, included, meaning
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
        self.types = [graph.types[tensor].dtype for tensor in self.group.tensors]
        self.code = [] if form is None else [code]
        self.name = self._name(meaning(self.group.source), _meaning_of_head(head_of([self.group.source])))
        self.dims = sorted({str(line[1]) for line in self.sizes.lines if line[0] == "dim"})

    @property
    def text_name(self) -> str:
        """Name by the text of its C, as older records have it."""
        return self._name(self.group.source, head_of([self.group.source]))

    def _name(self, source: str, head: str) -> str:
        values = [source, self.loops, self.shapes, self.types, self.sizes.lines, head, GROUP_FLAGS, *self.code]
        kind = "loops_" if self.form is None else "program_"
        return kind + hashlib.sha256(json.dumps(values).encode()).hexdigest()[:20]

    def source(self, name: str) -> str:
        """C of the group as the exported function ``name``, with the tables that it uses."""
        if self.form is None:
            return self.group.source.replace(f"static void {NAMELESS}", f"void {name}", 1)
        arguments = "const int64_t* s, void* const* t, const int64_t* lo, const int64_t* hi"
        call = f"ht_program_run(&{name}_program, {len(self.group.tensors)}, s, t, lo, hi)"
        return f"{self.group.source.replace(NAMELESS, name)}\nvoid {name}({arguments}) {{ if ({call} != 0) abort(); }}"

    def trial(self, request: Mapping[str, int], name: str = "") -> Trial:
        """Trial that times it at a request. ``name``: another than its own."""
        shape = Shape.of({dim: request[dim] for dim in self.dims})
        return Trial.of(OpName(name or self.name), Composition.of(KERNEL, share=SERIAL), shape, cache="hot")


@lru_cache(maxsize=16)  # the same few heads for all groups
def _meaning_of_head(head: str) -> str:
    """C before a group's function and the headers that it includes, without names of locals and comments."""
    headers = included([head], [RUNTIME_SOURCES])
    return "\n".join(map(meaning, (head, *(header.read_text(encoding="utf-8") for header in headers))))


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

    def rename(self, group: NamedGroup, requests: Sequence[Mapping[str, int]]) -> None:
        """Store times that older records have under the text of a group's C under its name, too."""
        if not self.reused:
            return
        former, times = group.text_name, dict[str, tuple[Trial, float]]()
        for request in requests:
            trial, past = group.trial(request), self.known(group.trial(request, former))
            if isinstance(past, Timed) and self.known(trial) is None:
                times[trial.key()] = trial, past.median_us
        self.keep(list(times.values()))

    def keep(self, times: Sequence[tuple[Trial, float]]) -> None:
        """Microseconds of trials: stored at once."""
        made = [(trial, Timed(samples_us=(us,))) for trial, us in times]
        self._known |= {trial.key(): outcome for trial, outcome in made}
        if self._store is not None and self._device is not None and made:
            more: dict[str, Any] = {"device_id": self._device.id, "fingerprint": self._fingerprint}
            more |= {"session": self._session, "when": time.time()}
            self._store.append([Record(trial=trial, outcome=outcome, **more) for trial, outcome in made])
