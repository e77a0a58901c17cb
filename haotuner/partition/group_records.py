"""Times of generated groups among the records, so that no run measures one twice: ``--resume`` finds them again.

A group's name is a hash of its C and of the arithmetic of its sizes: equal groups, of one model or of several, are one
measurement. Its records are of the trial ``loops_HASH``, kernel ``c_loops__v1``, at the sizes of a request that its extents
follow from, under a fingerprint of their own: the host, the C compiler and how groups are timed.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from haotuner.backends.cpu.compile import RUNTIME_SOURCES
from haotuner.backends.cpu.pack_source import GROUP_FLAGS
from haotuner.backends.policy import Policy
from haotuner.backends.sources import fingerprint, meaning
from haotuner.backends.toolchain import Toolchain
from haotuner.codegen.loops.c_loops import loops_of
from haotuner.codegen.loops.c_math import head_of
from haotuner.codegen.loops.collapse import collapsed
from haotuner.codegen.loops.loop_nest import Group
from haotuner.graph.graph import Graph
from haotuner.measure.rekeying import rekeyed_whole
from haotuner.partition.size_table import SizeTable
from haotuner.records import RecordStore
from haotuner.spec.composition import SERIAL, Composition
from haotuner.spec.device import Device
from haotuner.spec.record import OpName, Outcome, Record, Timed, Trial
from haotuner.spec.shape import Shape

KERNEL = "c_loops__v1"
NAMELESS = "GROUP"  # what the C of a group is called before it has a place


class NamedGroup:
    """A group's C, its own table of sizes, and its name."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.sizes = graph, SizeTable()
        graph = collapsed(graph)
        self.group: Group = loops_of(graph, NAMELESS, self.sizes.place)
        self.loops = self.sizes.places(self.group.loops)
        self.shapes = [self.sizes.places(graph.types[tensor].shape) for tensor in self.group.tensors]
        types = [graph.types[tensor].dtype for tensor in self.group.tensors]
        values = [
            self.group.source,
            self.loops,
            self.shapes,
            types,
            self.sizes.lines,
            head_of([self.group.source]),
            GROUP_FLAGS,
        ]
        self.name = "loops_" + hashlib.sha256(json.dumps(values).encode()).hexdigest()[:20]
        self.dims = sorted({str(line[1]) for line in self.sizes.lines if line[0] == "dim"})

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
