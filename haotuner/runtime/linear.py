"""Linear: an op with its weight packed once, what a server calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from haotuner.ops.dtypes import DTYPES
from haotuner.runtime.addresses import ARRAYS, TYPES
from haotuner.runtime.bound import Bound
from haotuner.runtime.call import NativeCall, Signature
from haotuner.runtime.call_errors import REFUSED, check_lazy, check_written
from haotuner.runtime.reprs import described_op
from haotuner.runtime.typed import empty_like, numpy_type

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from haotuner.runtime.pack import Pack

WARMUP_ROWS = 64  # enough for every plan to use all of its workers
_ARRAY = np.ndarray


class Linear:
    """A dense layer with its weight: ``y = linear(x)`` or ``linear(x, out=y)``.

    x is ``(…, k)`` of the op's type (int8: uint8), inner stride 1, rows evenly spaced. An epilogue that adds a residual
    takes ``residual=``: of the shape of the result, rows evenly spaced, and apart from ``out``.

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
        call, middle, tail, columns, made, other = self._state
        try:  # the usual calls; what is wrong with another is said below
            if type(x) is _ARRAY:
                y = out
                if y is None and made is not None:
                    y = np.empty((*x.shape[:-1], columns) if columns else self._size_of(x), made)
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
                call, middle, tail = other[0]  # by position: names of a tuple cost a call 5 %
                y = out
                if y is None:
                    if columns:  # the library asks torch itself for the output
                        return call(x, *middle, None, *tail)
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
        """What serves it now."""
        return self._bound

    def serve(self, bound: Bound) -> None:
        """Serve later calls from ``bound``; calls that run now finish as they began."""
        op, tensors = bound.op, bound.tensors
        self._bound = bound
        self._sized: tuple[Any, tuple[int, ...]] = (None, ())  # the shape of the last x, and of its result
        native = NativeCall.of(op, bound.call, bound.setting, tensors)
        usual = NativeCall.of(op, bound.call, bound.addressed, tensors)
        element_type = DTYPES[op.output.dtype].numpy
        made = np.dtype(element_type) if element_type in TYPES else None  # bfloat16 is whatever x is of
        passed = tuple(operand.name for operand in op.extra if operand.role == "input")
        other = _Other((native.call, native.middle, native.tail), native, Signature(op), passed, op.kind == "dense")
        call = usual.call if bound.addressed else None
        # One tuple: a call sees all old or all new.
        self._state = call, usual.middle, usual.tail, op.n if op.kind == "dense" else 0, made, other

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
