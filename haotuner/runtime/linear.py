"""Linear: an op with its weight packed once, what a server calls; its native call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from haotuner.errors import PackClosed
from haotuner.ops.dtypes import DTYPES
from haotuner.pack.op import PackOp
from haotuner.runtime.arrays import ADDRESSED_TYPES, ARRAYS, channel_values, empty_like, numpy_type
from haotuner.runtime.call import REFUSED, NativeCall, Signature, check_lazy, check_written
from haotuner.runtime.reprs import described_op
from haotuner.runtime.weights import Unpack, pack_weight
from haotuner.spec.limits import CallSetting

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from haotuner.runtime.pack import Pack


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A weight packed for one op of one open pack, and the native call that takes it."""

    op: PackOp
    call: Callable[..., Any]
    setting: int  # plan and threads, see spec/limits.py
    addressed: int = 0  # the same for calls that name numpy's arrays by ``id``; 0: there are none
    packed: Any  # tvm_ffi tensor
    unpack: Unpack
    constants: Mapping[str, Any] = field(
        default_factory=dict
    )  # values of a channel: tvm_ffi tensors, in the order of a call
    packed_bytes: int = 0

    @staticmethod
    def of(pack: Pack, op: PackOp, weight: Any, inputs: Mapping[str, Any], threads: int | None) -> Bound:
        """Pack a weight and copy ``inputs``, which have one value a channel.

        TypeError for another dtype or other names than the op's, ValueError for another shape.
        """
        import tvm_ffi

        call, setting = pack.entry(op, threads)
        rows = _channels(op, inputs)
        packed, unpack = pack_weight(pack, op, weight)
        return Bound(
            op=op,
            call=call,
            setting=setting,
            addressed=pack.addressed(setting),
            packed=tvm_ffi.from_dlpack(packed),
            unpack=unpack,
            constants={name: tvm_ffi.from_dlpack(row) for name, row in rows.items()},
            packed_bytes=packed.nbytes,
        )

    def moved(self, pack: Pack, op: PackOp) -> Bound:
        """This weight for the same op of another pack; packed anew unless both say that its panels are alike."""
        facts = op.operands[1].packed
        if "pw" not in facts or facts != self.op.operands[1].packed:
            constants = {name: np.from_dlpack(row) for name, row in self.constants.items()}
            return Bound.of(pack, op, self.weight(), constants, self.threads)
        call, setting = pack.entry(op, self.threads)
        return replace(self, op=op, call=call, setting=setting, addressed=pack.addressed(setting))

    @property
    def threads(self) -> int:
        """Threads of a call."""
        return CallSetting.decode(self.setting).threads

    @property
    def bias(self) -> Any:
        """The bias of an op without an epilogue; None where there is none."""
        return None if self.op.extra else self.constants.get("bias")

    @property
    def tensors(self) -> dict[str, Any]:
        """All that is bound, by operand."""
        return {"weight": self.packed, **self.constants}

    def weight(self) -> NDArray[Any]:
        """The weight as users store it, in a new array of the op's type; PackClosed after the pack was closed."""
        if self.packed is None:
            self.call()
        return self.unpack()

    def closed(self) -> Bound:
        """Nothing left but the refusal."""
        return Bound(op=self.op, call=Closed(self.op.name), setting=0, packed=None, unpack=lambda: np.zeros(0, np.float32))


class Closed:
    """Stands in for the native call after ``Pack.close``."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *_: Any) -> None:
        """PackClosed."""
        raise PackClosed(f"{self._name}: its pack was closed; load the pack again")


def _channels(op: PackOp, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Copies of what has one value a channel, in the order of a call."""
    required = [operand.name for operand in op.extra if operand.role == "constant"]
    optional = [operand.name for operand in op.operands if operand.optional]
    if set(inputs) != set(required) and (required or not set(inputs) <= set(optional)):
        raise TypeError(_other_names(op, inputs, required, optional))
    axes = {operand.name: op.axis(operand.dims[-1]) for operand in op.operands if operand.name in inputs}
    rows = {name: channel_values(op, name, inputs[name], axes[name].extent or 0) for name in required or inputs}
    if "low" in rows and not np.all((rows["low"] <= rows["high"]) | np.isnan(rows["low"]) | np.isnan(rows["high"])):
        raise ValueError(f"{op.name}: low is above high in column {int(np.argmax(rows['low'] > rows['high']))}")
    return rows


def _other_names(op: PackOp, inputs: Mapping[str, Any], required: list[str], optional: list[str]) -> str:
    panels = op.kind == "dense" and "terms" not in op.operands[1].packed
    if panels and not required:
        unknown = ", ".join(name for name in inputs if name not in optional)
        return f"{op.name} has no epilogue that reads {unknown}; it takes a weight and a bias"
    names = ("weight", *required, *(f"perhaps a {name}" for name in ([] if required else optional)))
    text = f"{op.name}: bind takes {', '.join(names)}; got {', '.join(('weight', *inputs))}"
    return f"{text}. A value of a channel is an array (n,), or one number" if panels else text


WARMUP_ROWS = 64  # enough for every plan to use all of its workers
_ARRAY = np.ndarray


class Linear:
    """A dense layer with its weight: ``y = linear(x)`` or ``linear(x, out=y)``.

    x is ``(…, k)`` of the op's type (int8: uint8), inner stride 1, rows evenly spaced. An epilogue that adds a residual
    takes ``residual=``, one that multiplies takes ``multiplier=``: of the shape of the result, rows evenly spaced, and apart
    from ``out``.

    Takes numpy arrays, CPU torch tensors and other DLPack tensors; the result is of x's kind. bfloat16 comes from torch,
    from numpy with ml_dtypes, or as its bits in uint16.

    Concurrent calls are allowed, also while the pack is closed or swapped. With ``out`` nothing is allocated.
    """

    __slots__ = ("__weakref__", "_bound", "_sized", "_state", "owner")
    owner: Pack  # the pack that serves it now; set by ``Pack.own``

    def __init__(self, bound: Bound) -> None:
        self.serve(bound)

    def __call__(self, x: Any, out: Any = None, **inputs: Any) -> Any:
        """The result; TypeError or ValueError name the argument, what was expected and what was found."""
        call, middle, tail, columns, dtype, other, fresh = self._state
        try:  # the usual calls; what is wrong with another is said below
            if type(x) is _ARRAY:
                y = out
                if y is None and dtype is not None:
                    y = np.empty((*x.shape[:-1], columns) if columns else self._size_of(x), dtype)
                if type(y) is _ARRAY and call is not None:
                    if not inputs:
                        call(id(x), *middle, id(y), *tail)
                        return y
                    if tuple(inputs) == other.passed and ARRAYS.issuperset(map(type, inputs.values())):
                        more = map(id, inputs.values())
                        if other.behind:
                            call(id(x), *middle, id(y), *tail, *more)
                        else:
                            call(id(x), *middle, *more, id(y), *tail)
                        return y
            elif not inputs and not (x.is_neg() or x.requires_grad):
                if out is None and fresh is not None:
                    return fresh(x)
                call, middle, tail = other[0]  # by position: names of a tuple cost a call 5 %
                y = out
                if y is None:
                    y = empty_like(x, self._size_of(x), self._bound.op.output.dtype)
                if not getattr(y, "requires_grad", False):
                    call(x, *middle, y, *tail)
                    return y
        except (AttributeError, *REFUSED):
            pass
        return self._call_named(x, out, inputs)

    def _call_named(self, x: Any, out: Any, inputs: Mapping[str, Any]) -> Any:
        """As a call, of any operands. Apart from the usual call: variables that comprehensions share cost it a tenth."""
        other = self._state[5]
        if inputs.keys() != set(other.passed):
            names = ", ".join(f"{name}=" for name in other.passed) or "nothing but out="
            raise TypeError(f"{self.name}: a call takes x and {names}; got {', '.join(inputs) or 'none of it'}")
        operands = {"x": x, **{name: inputs[name] for name in other.passed}}
        for name, value in operands.items():
            check_lazy(self.name, name, value)
        if out is None:
            out = empty_like(x, self._size_of(x), self._bound.op.output.dtype)
        else:
            check_written(self.name, out)
        other.signature.run(other.native, operands, {"out": out})
        return out

    def __repr__(self) -> str:
        return described_op(self)

    @property
    def name(self) -> str:
        """Canonical name of the op."""
        return self._bound.op.name

    @property
    def packed_bytes(self) -> int:
        """Memory of the packed weight."""
        return self._bound.packed_bytes

    @property
    def bare_call(self) -> Callable[..., None]:
        """A function of (x, out, inputs…) that is the tvm-ffi call and nothing else: what ``linear(x, out=out)`` adds to."""
        (call, middle, tail, *_), behind = self._state[5].native, self._state[5].behind
        if behind:
            return lambda x, out, *inputs: call(x, *middle, out, *tail, *inputs)
        return lambda x, out, *inputs: call(x, *middle, *inputs, out, *tail)

    @property
    def bound(self) -> Bound:
        """The packed weight and the call that serve it now."""
        return self._bound

    def serve(self, bound: Bound) -> None:
        """Serve later calls from ``bound``; calls that run now finish as they began."""
        op, tensors = bound.op, bound.tensors
        self._bound = bound
        self._sized: tuple[Any, tuple[int, ...]] = (None, ())  # the shape of the last x, and of its result
        native = NativeCall.of(op, bound.call, bound.setting, tensors)
        usual = NativeCall.of(op, bound.call, bound.addressed, tensors)
        element_type = DTYPES[op.output.dtype].numpy
        dtype = np.dtype(element_type) if element_type in ADDRESSED_TYPES else None  # bfloat16 is whatever x is of
        passed = tuple(operand.name for operand in op.extra if operand.role == "input")
        other = _Other((native.call, native.middle, native.tail), native, Signature(op), passed, op.kind == "dense")
        call = usual.call if bound.addressed else None
        columns, fresh = (op.n, _fresh_call(native)) if op.kind == "dense" else (0, None)
        # One tuple: a call sees all old or all new.
        self._state = call, usual.middle, usual.tail, columns, dtype, other, fresh

    def weight(self) -> NDArray[Any]:
        """The weight as it was bound, unpacked into a new array."""
        return self._bound.weight()

    def rebind(self, weight: Any, bias: Any = None, **constants: Any) -> None:
        """Serve another weight and other values from the next call on; not while the pack is handed over."""
        bound = self._bound
        self.serve(Bound.of(self.owner, bound.op, weight, named_channels(bias, constants), bound.threads))

    def twin(self) -> Linear:
        """Another one with the same packed weight; ``rebind`` of one leaves the other as it is."""
        twin = type(self)(self._bound)
        self.owner.own(twin)
        return twin

    def warm(self) -> None:
        """One call of one row and one of many, so that no request is the first."""
        op = self._bound.op
        for m in (1, min(op.last_m, WARMUP_ROWS)):
            self._warm(np.zeros((m, op.k), numpy_type(op.operands[0].dtype)))

    def close(self) -> None:
        """Drop the packed weight and the library; later calls raise PackClosed. Calls that run now finish."""
        self.serve(self._bound.closed())

    def _warm(self, x: Any) -> None:
        types = {operand.name: numpy_type(operand.dtype) for operand in self._bound.op.extra}
        self(x, **{name: np.zeros(self._size_of(x), types[name]) for name in self._state[5].passed})

    def _size_of(self, x: Any) -> tuple[int, ...]:
        shape, size = self._sized
        if shape is None or shape != getattr(x, "shape", None):
            size = self._output_size(x)
            self._sized = x.shape, size  # shapes come again: finding it took half of a small call
        return size

    def _output_size(self, x: Any) -> tuple[int, ...]:
        shape, op = getattr(x, "shape", None), self._bound.op
        if shape is None or len(shape) == 0:
            expected = self._state[5].signature.expected(op.operands[0])
            raise TypeError(f"{op.name}: {expected}, got {type(x).__name__}")
        return (*shape[:-1], op.n)


def _fresh_call(native: NativeCall) -> Callable[[Any], Any]:
    """A dense call whose output the library gets from torch. Unpacking its few arguments would cost a small call 5 %."""
    call, (weight,), (setting, *channels) = native.call, native.middle, native.tail
    if not channels:
        return lambda x: call(x, weight, None, setting)
    if len(channels) == 1:
        (channel,) = channels
        return lambda x: call(x, weight, None, setting, channel)
    return lambda x: call(x, weight, None, setting, *channels)


class _Other(NamedTuple):
    """Facts for calls other than the usual one."""

    tensors: tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...]]  # the call of tensors, apart: call, middle, tail
    native: NativeCall
    signature: Signature
    passed: tuple[str, ...]  # names of what a call passes beside x
    behind: bool  # whether these follow the output in the library's call


def named_channels(bias: Any, constants: Mapping[str, Any]) -> Mapping[str, Any]:
    """Values that are bound beside a weight, by name."""
    return constants if bias is None else {"bias": bias, **constants}
