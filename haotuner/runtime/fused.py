"""A dense op with an epilogue, bound once: values of a column are bound with the weight, tensors like y are passed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from haotuner.ops.dtypes import DTYPES
from haotuner.pack.op import PackOp
from haotuner.runtime.addresses import ARRAYS, TYPES
from haotuner.runtime.call_errors import REFUSED, check_written, explain, read_only, refuse_grad
from haotuner.runtime.linear import Bound, Linear, channel_row, pack_weight
from haotuner.spec.limits import threads_of

if TYPE_CHECKING:
    from haotuner.runtime.pack import Pack


class FusedLinear(Linear):
    """``y = linear(x)``, or ``linear(x, residual=r)`` for an op whose epilogue adds one, each with ``out=y`` as well.

    x is as in ``Linear``; a residual has the shape of the result, rows evenly spaced, and shares no memory with ``out``.
    """

    __slots__ = ("_made", "_passed")  # numpy's type of outputs that are made, or None; names of what a call passes

    def __call__(self, x: Any, out: Any = None, **inputs: Any) -> Any:
        """The product and its epilogue; TypeError or ValueError name the argument, what was expected and what was found."""
        result = self._by_address(x, out, inputs)
        return self._call_named(x, out, inputs) if result is None else result

    def _by_address(self, x: Any, out: Any, inputs: Mapping[str, Any]) -> Any:
        """What nearly every call of a server is, arrays alone, done; None where it is another, or something is wrong."""
        call, packed, _, addressed, constants = self._state
        if not addressed or type(x) is not np.ndarray:
            return None
        try:
            if out is None and self._made is not None:
                out = np.empty((*x.shape[:-1], self._n), self._made)
            if type(out) is not np.ndarray:
                return None
            if not inputs and not self._passed:
                call(id(x), packed, id(out), addressed, *constants)
                return out
            if tuple(inputs) == self._passed and ARRAYS.issuperset(map(type, inputs.values())):
                call(id(x), packed, id(out), addressed, *constants, *map(id, inputs.values()))
                return out
        except REFUSED:
            pass
        return None

    def _call_named(self, x: Any, out: Any, inputs: Mapping[str, Any]) -> Any:
        """As a call, of any operands. Apart from the usual call: variables that comprehensions share cost it a tenth."""
        call, packed, setting, _, constants = self._state
        if len(inputs) != len(self._passed) or any(name not in inputs for name in self._passed):
            names = ", ".join(f"{name}=" for name in self._passed) or "nothing but out="
            raise TypeError(f"{self.name}: a call takes x and {names}; got {', '.join(inputs) or 'none of it'}")
        arguments = [inputs[name] for name in self._passed]
        for name, value in (("x", x), *inputs.items()):
            negated = getattr(value, "is_neg", None)
            if negated is not None and negated():
                raise ValueError(f"{self.name}: {name} is a lazy negation; pass {name}.resolve_neg()")
            if getattr(value, "requires_grad", False):
                refuse_grad(self.name, name)
        if out is None:
            out = self._empty(x)
        else:
            check_written(self.name, out)
        try:
            call(x, packed, out, setting, *constants, *arguments)
        except REFUSED as error:
            arguments_ = {
                "x": (x, "float32"),
                **{name: (value, "float32") for name, value in inputs.items()},
                "out": (out, "float32"),
            }
            frozen = {name for name, (value, _) in arguments_.items() if name != "out" and read_only(value, "float32")}
            if not frozen:
                raise explain(self.name, arguments_, error) from error
            copies = {name: value.copy() if name in frozen else value for name, value in {"x": x, **inputs}.items()}
            self(copies.pop("x"), out, **copies)
        return out

    @property
    def bare_call(self) -> Callable[..., Any]:
        """A function of (x, out, inputs…) that is the tvm-ffi call and nothing else."""
        call, packed, setting, _, constants = self._state

        def bare(x: Any, out: Any, *inputs: Any) -> None:
            call(x, packed, out, setting, *constants, *inputs)

        return bare

    def serve(self, bound: Bound) -> None:
        """Serve later calls from ``bound``; calls that run now finish as they began."""
        self._bound, self._n = bound, bound.op.n
        name = DTYPES[bound.op.output.dtype].numpy
        self._made = np.dtype(name) if name in TYPES else None  # bfloat16 is whatever x is of
        self._passed = tuple(operand.name for operand in bound.op.extra if operand.role == "input")
        self._state = bound.call, bound.packed, bound.setting, bound.addressed, bound.constants

    def rebind(self, weight: Any, bias: Any = None, **constants: Any) -> None:
        """Serve another weight and other values from the next call on; not while the pack is handed over."""
        bound, inputs = self._bound, constants if bias is None else {"bias": bias, **constants}
        self.serve(fused_bound(self.owner, bound.op, weight, inputs, threads_of(bound.setting)))

    def twin(self) -> FusedLinear:
        """Another linear with the same packed weight; ``rebind`` of one leaves the other as it is."""
        twin = FusedLinear(self._bound)
        self.owner.own(twin)
        return twin


def fused_bound(pack: Pack, op: PackOp, weight: Any, inputs: Mapping[str, Any], threads: int | None) -> Bound:
    """Pack a weight and copy what the epilogue reads with one value a column; TypeError where that is not what it reads."""
    import tvm_ffi

    required = [operand.name for operand in op.extra if operand.role == "constant"]
    if set(inputs) != set(required):
        raise TypeError(
            f"{op.name}: bind takes {', '.join(('weight', *required))}; got {', '.join(('weight', *inputs))}. "
            "A value of a channel is an array (n,), or one number"
        )
    rows = {name: _row(op, name, inputs[name]) for name in required}
    if "low" in rows and not np.all((rows["low"] <= rows["high"]) | np.isnan(rows["low"]) | np.isnan(rows["high"])):
        raise ValueError(f"{op.name}: low is above high in column {int(np.argmax(rows['low'] > rows['high']))}")
    call, setting = pack.entry(op, threads)
    packed = pack_weight(op, weight, pack.arena)
    return Bound(
        op=op,
        call=call,
        setting=setting,
        addressed=pack.addressed(setting),
        packed=tvm_ffi.from_dlpack(packed),
        constants=tuple(tvm_ffi.from_dlpack(row) for row in rows.values()),
        packed_bytes=packed.nbytes,
    )


def _row(op: PackOp, name: str, value: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return np.full(op.n, value, np.float32)
    return channel_row(op, name, value, op.n)
