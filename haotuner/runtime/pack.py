"""Pack: an opened pack directory; ops by name, statistics, fit to this host, close."""

from __future__ import annotations

import operator
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np

from haotuner.errors import PackClosed, PackInvalid, UsageError
from haotuner.host.processor import cpu_name, usable_cores
from haotuner.pack.manifest import Manifest
from haotuner.pack.op import PackOp
from haotuner.runtime.chain_bound import ChainBound, is_chain
from haotuner.runtime.device_chain import DeviceChain, DeviceChainBound
from haotuner.runtime.device_linear import DeviceBound, DeviceLinear
from haotuner.runtime.device_memory import find_gpu, ordinal_of, part_of
from haotuner.runtime.device_model import DeviceModel, DeviceModelBound
from haotuner.runtime.group import Outputs, named_so
from haotuner.runtime.host_memory import Arena
from haotuner.runtime.library import Library
from haotuner.runtime.linear import Bound, Linear
from haotuner.runtime.model import Chain, Model, Session, difference_of_ends
from haotuner.runtime.model_bound import ModelBound, OpenModel, opened_model
from haotuner.runtime.native_library import NativeLibrary, NativeModel
from haotuner.runtime.op_registry import handle_for
from haotuner.runtime.reprs import described_pack
from haotuner.spec.limits import MAX_THREADS, CallSetting


def default_threads(manifest: Manifest, cores: int) -> int:
    """The tuned thread count nearest to the cores, of those that do not exceed them if there is one; else all cores."""
    tuned = {count for op in manifest.ops for count in op.threads}
    counts = {count for count in tuned if count <= cores} or tuned
    return min(counts, key=lambda count: abs(count - cores), default=cores)


def reservations(manifest: Manifest, *, on_cpu: bool) -> Iterator[str]:
    """Warnings for a caller before serving: nothing was measured, or another CPU was."""
    if manifest.unverified:
        yield "nothing was measured for it: plans and times are predictions; tune it on this host without --zero-measure"
    device = manifest.document.get("device")
    made_for = device.get("name") if isinstance(device, dict) else None
    here = cpu_name()
    if on_cpu and here and made_for and made_for != here:
        yield f"it was made for {made_for}, this host has {here}: answers are the same, speed may not be; tune it here"


def checked_bytes(most: Any) -> int:
    """``max_request_bytes`` as an int, or UsageError if it is no number of bytes."""
    try:
        count = operator.index(most)
    except TypeError:
        count = 0
    if isinstance(most, bool) or not 1 <= count < 1 << 63:
        raise UsageError(f"max_request_bytes={most!r} must be a whole number of bytes above 0, or None for no bound")
    return count


AnyLinear = Linear | DeviceLinear
AnyBound = Bound | DeviceBound
AnyModelBound = ModelBound | ChainBound


class Pack:
    """An open pack. ``with`` closes it; calls that run while it is closed finish."""

    def __init__(
        self,
        path: str | Path,
        threads: SupportsIndex | None = None,
        device: Any = None,
        *,
        check_weights: bool = True,
        max_request_bytes: SupportsIndex | None = None,
    ) -> None:
        """``check_weights``: whether opening a whole model compares its weights with their checksums."""
        self.path = Path(path)
        self.check_weights = check_weights
        self._most_bytes = 0 if max_request_bytes is None else checked_bytes(max_request_bytes)
        ordinal = ordinal_of(device)
        self.gpu = None if ordinal is None else part_of(find_gpu(ordinal), device)
        if threads is not None:
            threads = checked_threads(threads)
        self._library: Library | None = Library(self.path, self.gpu)
        self.is_open = True  # whether it was not closed: every call asks
        self.manifest = self._library.manifest
        if threads is None:  # a tenth of the load of a small pack: cores are counted where they decide something
            threads = default_threads(self.manifest, min(usable_cores(), MAX_THREADS))
        self.threads: int = threads
        self._ops = {op.name: op for op in self.manifest.ops}
        # By identity, so that a snapshot is one step while other threads bind (a WeakSet's is not). No lock: a child may be
        # forked while another thread would hold it.
        self._served: dict[int, weakref.ref[AnyLinear | Model | Chain]] = {}
        self._next: Pack | None = None  # who serves what is bound from now on, once this pack is being handed over
        self.arena = Arena()
        self._models: dict[str, AnyModelBound] = {}
        self._watched: Callable[[Model | Chain], None] | None = None

    def __repr__(self) -> str:
        return described_pack(self)

    @property
    def ops(self) -> tuple[str, ...]:
        """Names of the ops, in the pack's order."""
        return tuple(self._ops)

    @property
    def device(self) -> str:
        """Id of the device the pack was tuned on."""
        return self.manifest.device_id

    def op(self, name: str) -> Any:
        """One op by its canonical name: a ``DenseOp``, or an ``Operator`` of another kind. UsageError lists the names.

        A group may be named without the hash at its end; one of several outputs gives all of them.
        """
        groups = {name: op.output.name for name, op in self._ops.items() if op.group}
        meant = () if name in self._ops else named_so(groups, name)
        if len(meant) > 1:
            return Outputs(self, meant)
        entry = self.op_entry(*meant or (name,))
        return handle_for(entry.kind, placed=self.gpu is not None)(self, entry)

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the whole models."""
        return tuple(self.manifest.models)

    def model(self, name: str) -> Any:
        """A whole model, a ``Model``; its weights are packed when it is first asked for. UsageError lists the names.

        One whose sizes depend on data is a ``Chain`` of such models, its segments, which the pack holds beside it.
        """
        try:
            handle = self._handle(self._bound_model(name))
            self.own(handle)
            if self._watched is not None:
                self._watched(handle)
            return handle
        except PackClosed:
            if self._next is None:
                raise
            return self._next.model(name)  # handed over meanwhile

    def _bound_model(self, name: str) -> AnyModelBound:
        if name not in self.manifest.models:
            raise UsageError(f"{self.path} holds no model {name!r}; it holds {', '.join(self.models) or 'none'}")
        return self._models.get(name) or self._remembered(name, self._opened(name, self._segment))

    def _remembered(self, name: str, opened: AnyModelBound) -> AnyModelBound:
        """``opened``, or what another thread opened first. A pack that was let go of meanwhile holds neither."""
        bound = self._models.setdefault(name, opened)
        if self._library is None:
            self._models.pop(name, None)
        return bound

    @staticmethod
    def _handle(bound: AnyModelBound) -> Model | Chain:
        if isinstance(bound, ChainBound):
            return DeviceChain(bound) if isinstance(bound, DeviceChainBound) else Chain(bound)
        return DeviceModel(bound) if isinstance(bound, DeviceModelBound) else Model(bound)

    def _opened(self, name: str, segment: Callable[[str], ModelBound] | None) -> AnyModelBound:
        """``segment``: opens those of a chain; None where a chain is none that may be here. PackInvalid."""
        opened = self._opened_freely(name, segment)
        if self._most_bytes and opened.native is not None:
            opened.native.limit(self._most_bytes)
        return opened

    def _opened_freely(self, name: str, segment: Callable[[str], ModelBound] | None) -> AnyModelBound:
        mapped = self.library().mapped
        hashed = self.check_weights and not mapped.compiled.compares_weights(name)
        with opened_model(self.path, self.manifest, name, hashed=hashed) as files:
            if not is_chain(files.schedule):
                kind = ModelBound if self.gpu is None else DeviceModelBound
                return kind(self, mapped, name, files)
            if segment is None:
                raise PackInvalid(f"{files.where}: a segment of a model has segments itself; restore the pack or tune again")
            native = self._chain(mapped, name, files)
            if self.gpu is None:
                return ChainBound(self, files.schedule, files.where, segment, native)
            if native is None:
                raise PackInvalid(f"{files.where} is a model in segments that its library has not; tune again")
            return DeviceChainBound(self, files.schedule, files.where, segment, native)

    def _chain(self, mapped: NativeLibrary, name: str, files: OpenModel) -> NativeModel | None:
        """The chain as the library runs it; None where Python goes through its segments."""
        if mapped.placed is None or (files.bytecode is None and name not in mapped.compiled.names):
            return None
        threads, device = (self.threads, None) if self.gpu is None else (1, self.gpu.ordinal)
        return NativeModel(mapped, name, files.bytecode, -1, threads, device)

    def _segment(self, name: str) -> ModelBound:
        result = self._models.get(name)
        if result is None and name in self.manifest.models:
            result = self._remembered(name, self._opened(name, None))
        if not isinstance(result, ModelBound):
            raise PackInvalid(f"{self.path} holds no segment {name!r} of a model; restore the pack or tune again")
        return result

    def session(self, name: str) -> Session:
        """A whole model with ONNX Runtime's calls: ``run(names, feeds)``, ``get_inputs()``, ``get_outputs()``."""
        return Session(self.model(name))

    def op_entry(self, name: str) -> PackOp:
        """Manifest entry of an op; UsageError lists the names."""
        if name not in self._ops:
            raise UsageError(f"{self.path} holds no op {name!r}; it holds {', '.join(self._ops)}")
        return self._ops[name]

    def table_index(self, op: PackOp) -> int:
        """The op's place in the library's tables."""
        return list(self._ops).index(op.name)

    def stats(self) -> dict[str, dict[str, int]]:
        """Calls, fallbacks (served by what was not tuned for them) and out-of-range shapes of each op.

        A fallback is a call with a thread count that has no plan. On a device it is one that another device's plan serves,
        or another kernel than the planned one: the tensors' alignment, or memory for partial sums, was not there.
        """
        function = self.library().function("ht_stats")
        result = {}
        for index, name in enumerate(self._ops):
            values = np.zeros(3, np.int64)
            function(index, values)
            result[name] = {"calls": int(values[0]), "fallbacks": int(values[1]), "out_of_range": int(values[2])}
        return result

    def model_stats(self) -> dict[str, dict[str, int]]:
        """Calls, memory and shapes out of range of each whole model that was asked for; see ``Model.stats``."""
        return {name: bound.stats() for name, bound in list(self._models.items())}

    def watch(self, watched: Callable[[Model | Chain], None]) -> None:
        """Tell of every handle of a whole model that callers have, and will ask this pack for."""
        self._watched = watched
        for handle in self._handles():
            if isinstance(handle, Model | Chain):
                watched(handle)

    def warmup(self) -> None:
        """Run every bound linear once at one row and once at many.

        No request then pays for starting workers, mapping code or reading a weight for the first time. The calls are
        counted like any other. On a device nothing is run: code is loaded with the pack, and memory for the current stream
        is made ready here.
        """
        for linear in self.linears():
            linear.warm()

    def close(self) -> None:
        """Let go of the library; later calls raise PackClosed. Calling it twice is harmless."""
        self._let_go()
        for handle in self._handles():
            handle.close()

    def _let_go(self) -> None:
        self._library, self.is_open = None, False
        self._models.clear()
        self.arena.clear()

    def library(self) -> Library:
        """The open library; PackClosed after ``close``."""
        if self._library is None:
            raise PackClosed(f"{self.path} was closed; load the pack again")
        return self._library

    def plan_index(self, op: PackOp, threads: int | None = None) -> int:
        """Index of the op's plan that serves a thread count (None: the pack's): the exact one, or the nearest."""
        count = threads or self.threads
        return min(range(len(op.threads)), key=lambda i: (abs(op.threads[i] - count), op.threads[i]))

    def entry(self, op: PackOp, threads: int | None = None) -> tuple[Callable[..., Any], int]:
        """The native call of an op and the setting it wants for a thread count (None: the pack's)."""
        if self.gpu is not None:  # a device has no thread counts: 1, or 2 for a plan that was made for another device
            setting = CallSetting(plan=0, threads=1 if self.gpu.is_planned_for(self.manifest) else 2)
            return self.library().function(op.name), setting.encode()
        count = self.threads if threads is None else checked_threads(threads)
        return self.library().function(op.name), CallSetting(plan=self.plan_index(op, count), threads=count).encode()

    def addressed(self, setting: int) -> int:
        """The setting of calls that name numpy's arrays by ``id``; 0 where the library cannot take them so."""
        addressed = replace(CallSetting.decode(setting), by_address=True)
        return addressed.encode() if self.gpu is None and self.library().takes_addresses else 0

    def own(self, handle: AnyLinear | Model | Chain) -> None:
        """Serve this linear or model until the pack is closed or handed over, which another thread may do at this moment."""
        handle.owner = self
        self._served[id(handle)] = weakref.ref(handle, _forget(self._served, id(handle)))
        if self._next is not None:
            self._next.take(handle)
            self._served.pop(id(handle), None)
        elif self._library is None:
            handle.close()

    def _handles(self) -> list[AnyLinear | Model | Chain]:
        """Every linear and model that this pack serves now."""
        return [handle for item in list(self._served.values()) if (handle := item()) is not None]

    def linears(self) -> list[AnyLinear]:
        """Every linear that this pack serves now."""
        return [handle for handle in self._handles() if not isinstance(handle, Model | Chain)]

    def take(self, handle: AnyLinear | Model | Chain, bound: AnyBound | AnyModelBound | None = None) -> None:
        """Serve one of another pack from its next call on, as ``bound`` if that was made ready with ``ready``."""
        serve: Callable[[Any], None] = handle.serve  # of the handle's own kind, as `ready` saw to
        serve(self.ready(handle) if bound is None else bound)
        self.own(handle)

    def ready(self, handle: AnyLinear | Model | Chain) -> AnyBound | AnyModelBound:
        """Binding that serves it here, weights laid out. UsageError if the pack has no such op or another such model."""
        if isinstance(handle, Model | Chain):
            return self._ready_model(handle.bound)
        bound = handle.bound
        op = self.op_entry(bound.op.name)
        self._check_same_device(isinstance(bound, DeviceBound))
        return bound.moved(self, op)

    def _ready_model(self, old: AnyModelBound) -> AnyModelBound:
        self._check_same_device(old.pack.gpu is not None)
        new = self._bound_model(old.name)
        difference = difference_of_ends(old, new)
        if isinstance(new, ChainBound) != isinstance(old, ChainBound):
            difference = "sizes depend on data in one of both packs alone"
        if difference:
            raise UsageError(
                f"{self.path} has another model {old.name}: {difference}; load it beside the old pack and change its callers"
            )
        return new

    def _check_same_device(self, placed: bool) -> None:
        if placed != (self.gpu is not None):
            raise UsageError(
                f"{self.path} is open for {self._place()}; hand over to a pack that is open for the same device"
            )

    def _place(self) -> str:
        return "the CPU" if self.gpu is None else f"cuda:{self.gpu.ordinal}"

    def hand_over(self, new: Pack) -> None:
        """Serve every linear and model of this pack from ``new`` from its next call on, then close this pack.

        Weights are packed anew where the new pack lays them out differently, those of models always: both lie in memory
        until the last call of the old pack ends. All are ready before the first is switched, and each is switched in one
        step, so calls go on throughout. What other threads bind meanwhile is handed over, too. UsageError, and nothing is
        switched, if ``new`` lacks an op or a model in use, or has a model of that name with other inputs or outputs.
        """
        if not isinstance(new, Pack) or new is self or self._next is not None:
            raise UsageError(f"{self.path} cannot be handed over to {new!r}; pass another open pack, once")
        new.library()
        ready = [(handle, new.ready(handle)) for handle in self._handles()]
        self._next = new  # from here on `own` sees to what is bound
        try:
            known = {id(handle) for handle, _ in ready}
            late = [handle for handle in self._handles() if id(handle) not in known]
            ready += [(handle, new.ready(handle)) for handle in late]
        except BaseException:
            self._next = None
            raise
        for handle, bound in ready:
            new.take(handle, bound)
            self._served.pop(id(handle), None)
        self._let_go()  # whatever is still listed is on its way to `new`, in the thread that bound it

    def __enter__(self) -> Pack:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _forget(handles: dict[int, weakref.ref[AnyLinear | Model | Chain]], key: int) -> Callable[[object], None]:
    """Callback at a handle's end. Its address may be another's by then: only its own entry goes."""

    def gone(reference: object) -> None:
        if handles.get(key) is reference:
            del handles[key]

    return gone


def checked_threads(threads: Any) -> int:
    """``threads`` as an int, or UsageError if it is no thread count."""
    try:
        count = operator.index(threads)  # numpy's whole numbers, too
    except TypeError:
        count = 0
    if isinstance(threads, bool) or not 1 <= count <= MAX_THREADS:
        raise UsageError(
            f"threads={threads!r} must be a whole number in 1..{MAX_THREADS}, or None for the tuned count nearest to "
            f"{usable_cores()} cores"
        )
    return count


def load(
    path: str | Path,
    threads: SupportsIndex | None = None,
    device: Any = None,
    *,
    check_weights: bool = True,
    max_request_bytes: SupportsIndex | None = None,
) -> Pack:
    """An open pack that serves with ``threads`` threads.

    None: the tuned count that is nearest to the cores and CPU time that this process may use, and not above where there is
    one. A warning says of an unverified pack, and of one that was made for another CPU, that it is.

    ``device`` (``"cuda:0"``, ``"cuda"`` for the first) serves tensors of that device; otherwise it is the CPU, whatever the
    pack holds. ``"cuda:0/64"`` serves by the plans for 64 of its multiprocessors; it is the caller who limits the process to
    them (MPS). Code for a device stays loaded as long as the process.

    Opening a whole model compares its weights with their checksums while they are read. ``check_weights=False`` leaves that
    out, for a server that cannot wait; damaged weights then give wrong numbers.

    ``max_request_bytes``: what one request to a whole model may take of working memory (``Model.memory_bytes``) and outputs
    together. A larger one is refused with a UsageError before anything is allocated. None: no bound.

    A pack is code: its library runs in this process with all rights of this process. Hashes find damage, not malice, so load
    only packs that you would run as a program.

    Raises:
        PackInvalid: files are missing, changed or no pack's. None of its code was run, except where the message says that
            the library lacks a function.
        PackMismatch: the pack needs another CPU, device, driver or platform.
        EnvironmentMissing: there is no such device, or no driver.
    """
    pack = Pack(path, threads, device, check_weights=check_weights, max_request_bytes=max_request_bytes)
    for words in reservations(pack.manifest, on_cpu=pack.gpu is None):
        warnings.warn(f"{path}: {words}", stacklevel=2)
    return pack
