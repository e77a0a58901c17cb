"""Dense and grouped ops of a pack on a device: the weight stays where its owner has it, calls are queued."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from weakref import finalize

import numpy as np

from haotuner.errors import UsageError
from haotuner.ops.dtypes import DTYPES
from haotuner.pack.op import LAYERS, PackOp
from haotuner.runtime.call import REFUSED, check_lazy
from haotuner.runtime.dense import LinearOp
from haotuner.runtime.device_call import DeviceCall, checked_stream, empty_like, exchange_of, explained, kind_of, stream_for
from haotuner.runtime.linear import Closed
from haotuner.runtime.reprs import described_op
from haotuner.spec.composition import Composition

if TYPE_CHECKING:
    from haotuner.runtime.pack import Pack

Served = TypeVar("Served", bound="DeviceLinear")
ALIGNMENT = 128  # of what the library works out once for a weight (native/ht.h, HT_BOUND_ALIGNMENT)


REQUIRED = {  # operands of a call beside x
    "residual": "residual=, a tensor like the result, which the epilogue adds",
    "offsets": "offsets, the row where each of the groups ends, as int32 on the device",
}


class DeviceDenseOp(LinearOp):
    """One op of a pack that was opened for a device."""

    def bind(self, weight: Any, bias: Any = None, *, threads: int | None = None, **channels: Any) -> DeviceLinear:
        """Serve a weight (n, k) ((k, n) for weight=kn) and a bias (n,) that lie on the pack's device; nothing is copied.

        ``channels``: what else the epilogue reads with one value a column, ``scale``, ``low`` and ``high``. Later changes to
        them show. ValueError unless they are contiguous and aligned. Not while a stream is captured.
        """
        return served_weight(DeviceLinear, self._pack, self._op, weight, in_order(self._op, bias, channels), threads)

    def composition(self, m: Any, threads: int | None = None) -> Composition:
        """Composition that serves m rows, from the library's look-up; its share is k4 where k is summed in four parts."""
        parts, splits = self._look_up(0, m)
        return Composition(parts, f"k{splits}" if splits > 1 else "serial")


class DeviceLinear:
    """``y = linear(x)`` or ``linear(x, out=y)``; x is ``(…, k)`` of the op's dtype, inner stride 1, rows evenly spaced.

    ``residual=`` of an op whose epilogue adds one has the shape of the result, and rows as far apart as those of ``out``.
    It may be ``out`` itself.

    A grouped op is ``linear(x, offsets)``: int32 ``(g,)`` on the device, the row where each group ends, ascending. A group
    begins where the one before ends, the first at row 0, and may be empty. Offsets are read when the call runs: nothing
    waits for what computes them, and a graph replays with what they hold then. Rows behind the last end are not written.
    Ends that go back or lie outside x are taken as the nearest that do not, so no call reads or writes elsewhere.

    Takes torch, CuPy and other DLPack tensors of the pack's device and returns without waiting. The call is queued on the
    current stream of x's framework, or on ``stream``. Safe while that stream is captured: nothing is loaded, allocated or
    waited for (without ``out`` the framework gives the memory). A graph replays the weight: it is kept as long as this
    linear, also when the pack is closed or handed over.
    """

    __slots__ = ("__weakref__", "_bound", "_state", "owner")
    owner: Pack  # the pack that serves it now; set by ``Pack.own``

    def __init__(self, bound: DeviceBound) -> None:
        self.serve(bound)

    def __call__(self, x: Any, *operands: Any, out: Any = None, stream: int | None = None, **named: Any) -> Any:
        """The result; TypeError, ValueError or RuntimeError name the argument or the driver's error, and what to do.

        Operands beside x come in the op's order or by name; in order ``out`` and ``stream`` may follow them.
        """
        call, record, setting, other = self._state
        kind = kind_of(type(x))
        if operands or named or other.passed:
            more = dict(zip((*other.passed, "out", "stream"), operands, strict=False)) | named
            out, stream = more.pop("out", out), more.pop("stream", stream)
            inputs = {"x": x} | self._named(other.passed, more)
        else:
            inputs = {"x": x}
        stream = checked_stream(self.name, inputs, stream)
        if out is not None:
            check_lazy(self.name, "out", out)
        elif not (kind.gives and other.gives):  # else the library asks x's framework
            out = self._empty(x)
        if len(inputs) > 1 or not kind.plain or not (out is None or kind_of(type(out)).plain):
            made = other.queued.run(inputs, {"out": out}, stream)
            return made if out is None else out
        try:  # the usual call says nothing twice
            made = call(x, record, out, setting, stream)
        except REFUSED as error:
            raise explained(self.name, error, {"x": x, "out": out}) from error
        return made if out is None else out

    def _named(self, passed: tuple[str, ...], operands: Mapping[str, Any]) -> dict[str, Any]:
        """Operands beside x, in the op's order; TypeError for what is missing, and for what is none."""
        missing = next((name for name in passed if operands.get(name) is None), None)
        if missing is not None:
            raise TypeError(f"{self.name}: pass {REQUIRED.get(missing, missing)}")
        unknown = [name for name, value in operands.items() if name not in passed and value is not None]
        if unknown:
            raise TypeError(f"{self.name}: {', '.join(unknown)} is no operand; a call takes {', '.join(('x', *passed))}")
        return {name: operands[name] for name in passed}

    def __repr__(self) -> str:
        return described_op(self)

    @property
    def name(self) -> str:
        """Canonical name of the op."""
        return self._bound.op.name

    @property
    def packed_bytes(self) -> int:
        """Memory of the device that binding took beside the weight: of a convolution the weight turned, or none."""
        return self._bound.kept_bytes

    @property
    def bound(self) -> DeviceBound:
        """Binding that serves this linear now."""
        return self._bound

    def prepare(self, stream: int | None = None) -> None:
        """Have memory ready for calls on a stream (None: that of the weight's framework), so that they may split k.

        Not needed with torch, which gives it to each call. Not while a stream is captured.
        """
        bound = self._bound
        bound.prepare(self.owner, stream_for(self.name, bound.weight) if stream is None else stream)

    def warm(self) -> None:
        """Preparation by ``Pack.warmup``: code was loaded with the pack, what is left is memory for the current stream."""
        if exchange_of(self._bound.weight) is None:
            self.prepare()

    def serve(self, bound: DeviceBound) -> None:
        """Serve later calls from ``bound``; calls that run now finish as they began."""
        op, self._bound = bound.op, bound
        passed = tuple(operand.name for operand in op.inputs[1:] if operand.role == "input")
        queued = DeviceCall.of(op, bound.call, bound.setting, bound.record)
        other = _Other(queued, passed, gives=op.kind in LAYERS)
        self._state = bound.call, bound.record, bound.setting, other  # one tuple: a call sees all old or all new

    def rebind(self, weight: Any, bias: Any = None, **channels: Any) -> None:
        """Serve another weight and bias from the next call on. Graphs captured before replay the old ones: keep those."""
        op = self._bound.op
        self.serve(DeviceBound.of(self.owner, op, weight, in_order(op, bias, channels), keep=True))

    def twin(self) -> DeviceLinear:
        """Another linear with the same weight; ``rebind`` of one leaves the other as it is."""
        twin = type(self)(self._bound)
        self.owner.own(twin)
        return twin

    def close(self) -> None:
        """Let go of the library; later calls raise PackClosed. The weight stays, for graphs may replay it."""
        self.serve(self._bound.closed())

    def _empty(self, x: Any) -> Any:
        return empty_like(self.name, x, self._output_size(x), DTYPES[self._bound.op.output.dtype].numpy)

    def _output_size(self, x: Any) -> tuple[int, ...]:
        shape, op = getattr(x, "shape", None), self._bound.op
        if shape is None or len(shape) == 0:
            raise TypeError(f"{op.name}: x must be a tensor (..., {op.k}) of the pack's device, got {type(x).__name__}")
        return (*(int(extent) for extent in shape[:-1]), op.n)


class _Other(NamedTuple):
    """Facts for calls other than the usual one."""

    queued: DeviceCall
    passed: tuple[str, ...]  # names of what a call passes beside x
    gives: bool  # whether the library asks torch for an output that a call does not bring


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceBound:
    """A weight on a device, what the library worked out for it, and the native call that takes both."""

    op: PackOp
    call: Callable[..., Any]
    setting: int  # plan, and whether it was made for this device: see ``Pack.entry``
    record: Any  # tvm_ffi tensor: bytes on the host that the library filled
    weight: Any  # the caller's own
    channels: tuple[Any, ...]  # what has one value a channel, in the op's order
    kept_bytes: int = 0  # of the device

    @staticmethod
    def of(pack: Pack, op: PackOp, weight: Any, channels: tuple[Any, ...], *, keep: bool = False) -> DeviceBound:
        """Check and register a weight; ValueError or TypeError say what is wrong, RuntimeError what the driver said.

        ``keep``: the weight is not to change any more, so that what calls would lay out of it is laid out once. It is freed
        with the record, unless a graph may read it.
        """
        call, setting = pack.entry(op)
        position = pack.table_index(op)
        memory, record = _record(pack.library().function("ht_bound_bytes")(position))
        first, *more = [_device_array(op, "bias", channel) for channel in channels or (None,)]
        try:
            pack.library().function("ht_bind")(position, _device_array(op, "weight", weight), first, record, *more)
            selected = pack.library().function("ht_keep")(position, record) if keep else 0
        except REFUSED as error:
            raise error if str(error).startswith(op.name) else type(error)(f"{op.name}: {error}") from error
        if selected:  # calls that run when this is forgotten hold the record
            finalize(memory, pack.library().function("ht_let_go"), selected).atexit = False
        taken = pack.library().function("ht_kept_bytes")(selected) if selected else 0
        return DeviceBound(
            op=op, call=call, setting=setting, record=record, weight=weight, channels=channels, kept_bytes=taken
        )

    def moved(self, pack: Pack, op: PackOp) -> DeviceBound:
        """Binding of the same weight to the same op of another pack."""
        if self.record is None:
            self.call()
        return DeviceBound.of(pack, op, self.weight, self.channels, keep=True)

    def prepare(self, pack: Pack, stream: int | None) -> None:
        """Memory for calls on a stream."""
        pack.library().function("ht_prepare")(pack.table_index(self.op), self.record, stream or 0)

    def closed(self) -> DeviceBound:
        """Nothing left but the refusal, and the weight that graphs may replay."""
        return replace(self, call=Closed(self.op.name), setting=0, record=None, kept_bytes=0)


def served_weight(
    kind: type[Served], pack: Pack, op: PackOp, weight: Any, channels: tuple[Any, ...], threads: int | None
) -> Served:
    """A layer that a pack serves from now on; UsageError for a thread count, which a device has not."""
    if threads is not None:
        raise UsageError(f"{op.name}: threads={threads!r}: a device has no thread counts; leave it out")
    made = kind(DeviceBound.of(pack, op, weight, channels, keep=True))
    pack.own(made)
    return made


def in_order(op: PackOp, bias: Any, channels: Mapping[str, Any]) -> tuple[Any, ...]:
    """Operands of one value a channel, in the op's order; TypeError for a name that its epilogue does not read."""
    required = [operand.name for operand in op.extra if operand.role == "constant"]
    if unknown := [name for name in channels if name not in required]:
        raise TypeError(
            f"{op.name}: bind takes {', '.join(('weight', *required)) if required else 'a weight'}; got {', '.join(unknown)}"
        )
    inputs = {"bias": bias, **channels}
    beside = () if "bias" in required or bias is None else (bias,)
    return (*(inputs.get(name) for name in required), *beside)


def _record(size: int) -> tuple[Any, Any]:
    """Memory that lives as long as what is made of it, and a tensor of its aligned part."""
    import tvm_ffi

    memory = np.zeros(size + ALIGNMENT, np.uint8)
    offset = -memory.ctypes.data % ALIGNMENT
    return memory, tvm_ffi.from_dlpack(memory[offset : offset + size])


def _device_array(op: PackOp, name: str, value: Any) -> Any:
    """A weight or bias as the library takes it, without copying or waiting."""
    if value is None and name != "weight":
        return None
    detach = getattr(value, "detach", None)
    if detach is not None:
        return detach()
    if not hasattr(value, "__dlpack__") and exchange_of(value) is None:
        raise TypeError(f"{op.name}: {name} is a {type(value).__name__}; pass a tensor of the pack's device")
    return value


class GroupedOp(DeviceDenseOp):
    """One grouped op of a pack that was opened for a device.

    ``bind`` takes weights (g, n, k) ((g, k, n) for weight=kn) and values (g, n) of the columns of each group.
    """

    @property
    def groups(self) -> int:
        """Matrices, one for each group of rows."""
        return self.entry.axis("g").extent or 0
