"""A dense op with its weight packed once: what a server calls."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from haotuner.errors import PackClosed
from haotuner.pack.op import PackOp
from haotuner.runtime.arena import Arena
from haotuner.runtime.call_errors import REFUSED, check_written, explain, read_only, refuse_grad
from haotuner.runtime.reprs import described_op
from haotuner.spec.limits import threads_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from haotuner.runtime.pack import Pack

ONE = ((), (1,))  # shapes of one value for all channels
BLOCK_FLOATS = 1 << 22  # weights are packed 16 MiB at a time, so that a memory-mapped weight is never in memory twice


class Linear:
    """A dense layer with its weight: ``y = linear(x)`` or ``linear(x, out=y)``.

    x is ``(…, k)`` float32, inner stride 1, rows evenly spaced.

    Takes numpy arrays, CPU torch tensors and other DLPack tensors; the result is of x's kind. Concurrent calls are
    allowed, also while the pack is closed or swapped. With ``out`` nothing is allocated.
    """

    __slots__ = ("__weakref__", "_bound", "_n", "_state", "owner")
    owner: Pack  # the pack that serves it now; set by ``Pack.own``

    def __init__(self, bound: Bound) -> None:
        self.serve(bound)

    def __call__(self, x: Any, out: Any = None) -> Any:
        """The product; TypeError or ValueError name the argument, what was expected and what was found."""
        call, packed, setting, addressed, more = self._state
        if addressed and type(x) is np.ndarray:  # the usual call; what is wrong with another is said below
            try:
                y = np.empty((*x.shape[:-1], self._n), np.float32) if out is None else out
                if type(y) is np.ndarray:
                    call(id(x), packed, id(y), addressed, *more)
                    return y
            except REFUSED:
                pass
        negated = getattr(x, "is_neg", None)
        if negated is not None and negated():  # a lazy negation of torch: DLPack hands out the numbers without the sign
            raise ValueError(f"{self.name}: x is a lazy negation; pass x.resolve_neg()")
        if out is None:
            if negated is not None and not x.requires_grad:  # a torch tensor: the library asks torch itself for the output
                try:
                    return call(x, packed, None, setting, *more)
                except REFUSED:
                    pass  # said again below, in words about x; or torch has no exchange table and this is the way
            out = self._empty(x)
        else:
            check_written(self.name, out)
        try:
            call(x, packed, out, setting, *more)
        except REFUSED as error:
            if not read_only(x, "float32"):
                raise explain(self.name, {"x": (x, "float32"), "out": (out, "float32")}, error) from error
            self(x.copy(), out)
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
    def bare_call(self) -> Callable[[Any, Any], None]:
        """A function of (x, out) that is the tvm-ffi call and nothing else: what ``linear(x, out=out)`` adds to."""
        call, packed, setting, _, more = self._state

        def bare(x: Any, out: Any) -> None:
            call(x, packed, out, setting, *more)

        return bare

    @property
    def bound(self) -> Bound:
        """What serves this linear now."""
        return self._bound

    def serve(self, bound: Bound) -> None:
        """Serve later calls from ``bound``; calls that run now finish as they began."""
        self._bound, self._n = bound, bound.op.n
        more = () if bound.bias is None else (bound.bias,)
        # One tuple: a call sees all old or all new.
        self._state = bound.call, bound.packed, bound.setting, bound.addressed, more

    def weight(self) -> NDArray[np.float32]:
        """The weight as it was bound, unpacked into a new array."""
        return self._bound.weight()

    def rebind(self, weight: Any, bias: Any = None) -> None:
        """Serve another weight and bias from the next call on; not while the pack is handed over."""
        bound = self._bound
        self.serve(Bound.of(self.owner, bound.op, weight, bias, threads_of(bound.setting)))

    def twin(self) -> Linear:
        """Another linear with the same packed weight; ``rebind`` of one leaves the other as it is."""
        twin = Linear(self._bound)
        self.owner.own(twin)
        return twin

    def close(self) -> None:
        """Drop the packed weight and the library; later calls raise PackClosed. Calls that run now finish."""
        self.serve(self._bound.closed())

    def _empty(self, x: Any) -> Any:
        """An output for x, of its kind. On the path of every call without ``out``: the common kinds come first."""
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(x, torch.Tensor) and x.dim() > 0:
            if x.requires_grad:
                refuse_grad(self.name, "x")
            shape = x.shape
            # Whole numbers instead of a tuple save half of new_empty's 1.2 us.
            return x.new_empty(shape[0], self._n) if len(shape) == 2 else x.new_empty((*shape[:-1], self._n))
        shape = getattr(x, "shape", None)
        if shape is None or len(shape) == 0:
            op = self._bound.op
            raise TypeError(f"{op.name}: x must be a float32 array or tensor (..., {op.k}), got {type(x).__name__}")
        result = np.empty((*shape[:-1], self._n), np.float32)
        if isinstance(x, np.ndarray):
            return result
        kind = sys.modules.get(type(x).__module__.partition(".")[0])
        same = getattr(kind, "from_dlpack", None)
        return same(result) if callable(same) else result


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A weight packed for one op of one open pack, and the native call that takes it."""

    op: PackOp
    call: Callable[..., Any]
    setting: int  # plan and threads, see spec/limits.py
    addressed: int = 0  # the same for calls that name numpy's arrays by ``id``; 0: there are none
    packed: Any  # tvm_ffi tensor (panels, k, pw)
    bias: Any = None  # tvm_ffi tensor (n,)
    constants: tuple[Any, ...] = ()  # of an epilogue: tvm_ffi tensors (n,)
    packed_bytes: int = 0

    @staticmethod
    def of(pack: Pack, op: PackOp, weight: Any, bias: Any, threads: int | None) -> Bound:
        """Pack a weight and copy a bias (None: none); see ``pack_weight`` for what is refused."""
        import tvm_ffi

        row = None if bias is None else tvm_ffi.from_dlpack(channel_row(op, "bias", bias, op.n))
        call, setting = pack.entry(op, threads)
        packed = pack_weight(op, weight, pack.arena)
        return Bound(
            op=op,
            call=call,
            setting=setting,
            addressed=pack.addressed(setting),
            packed=tvm_ffi.from_dlpack(packed),
            bias=row,
            packed_bytes=packed.nbytes,
        )

    def moved(self, pack: Pack, op: PackOp) -> Bound:
        """The same weight for the same op of another pack; packed anew only where its panels differ."""
        call, setting = pack.entry(op, threads_of(self.setting))
        if (op.pw, op.panels, op.k) == (self.op.pw, self.op.panels, self.op.k):
            return replace(self, op=op, call=call, setting=setting, addressed=pack.addressed(setting))
        import tvm_ffi

        packed = pack_weight(op, self.weight(), pack.arena)
        return replace(
            self,
            op=op,
            call=call,
            setting=setting,
            addressed=pack.addressed(setting),
            packed=tvm_ffi.from_dlpack(packed),
            packed_bytes=packed.nbytes,
        )

    def weight(self) -> NDArray[np.float32]:
        """The weight as users store it, in a new array; PackClosed after the pack was closed."""
        if self.packed is None:
            self.call()
        rows = np.from_dlpack(self.packed).transpose(0, 2, 1).reshape(-1, self.op.k)[: self.op.n]
        return np.array(rows.T if self.op.weight == "kn" else rows, order="C")

    def closed(self) -> Bound:
        """Nothing left but the refusal."""
        return Bound(op=self.op, call=Closed(self.op.name), setting=0, packed=None)


class Closed:
    """Stands in for the native call after ``Pack.close``."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *_: Any) -> None:
        """PackClosed."""
        raise PackClosed(f"{self._name}: its pack was closed; load the pack again")


def pack_weight(op: PackOp, weight: Any, arena: Arena) -> NDArray[np.float32]:
    """Panels ``(panels, k, pw)`` of a weight ``(n, k)`` (``(k, n)`` for ops with weight=kn), zero padded, in the arena.

    Accepts read-only and memory-mapped arrays. TypeError for another dtype, ValueError for another shape.
    """
    rows = _as_array(op, weight)
    if op.weight == "kn":
        rows = rows.T
    if rows.shape != (op.n, op.k):
        shape = (op.k, op.n) if op.weight == "kn" else (op.n, op.k)
        raise ValueError(f"{op.name}: weight has shape {tuple(np.shape(weight))}; expected {shape}")
    packed = arena.take((op.panels, op.k, op.pw))
    step = max(1, BLOCK_FLOATS // (op.k * op.pw))
    for first in range(0, op.panels, step):
        block = rows[first * op.pw : (first + step) * op.pw]
        whole = len(block) // op.pw
        panels = packed[first : first + step]
        panels[:whole] = block[: whole * op.pw].reshape(whole, op.pw, op.k).transpose(0, 2, 1)
        left = len(block) - whole * op.pw
        panels[whole:] = 0
        if left:
            panels[whole, :, :left] = block[whole * op.pw :].T
    return packed


def _as_array(op: PackOp, weight: Any) -> NDArray[np.float32]:
    rows = array_of(op, "weight", weight)
    if rows.ndim != 2:
        raise ValueError(f"{op.name}: weight has rank {rows.ndim}; expected 2")
    return rows


def array_of(op: PackOp, name: str, value: Any) -> NDArray[np.float32]:
    """A weight or bias as an array; TypeError for another dtype, ValueError for another device."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        if value.device.type != "cpu":
            raise ValueError(f"{op.name}: {name} is on {value.device}; this pack computes on the CPU: pass {name}.cpu()")
        value = value.detach()
        if value.dtype == torch.float32:
            value = value.numpy()
    elif not isinstance(value, np.ndarray) and hasattr(value, "__dlpack__"):
        value = np.from_dlpack(value)
    if getattr(value, "dtype", None) != np.float32 or not isinstance(value, np.ndarray):
        result = getattr(value, "dtype", type(value).__name__)
        raise TypeError(f"{op.name}: {name} is {result}; expected a float32 array of native byte order")
    return value


def channel_row(op: PackOp, name: str, value: Any, count: int) -> NDArray[np.float32]:
    """A copy of one float32 value a channel, or one for all of them; TypeError or ValueError for another dtype or shape."""
    row = array_of(op, name, value)
    if row.shape in ONE:
        return np.full(count, row.item(), np.float32)
    if row.shape != (count,):
        raise ValueError(f"{op.name}: {name} has shape {tuple(row.shape)}; expected ({count},)")
    return row.copy()
