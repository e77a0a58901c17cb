"""A dense op in bf16, fp16 or int8, bound once: its weight lies in words of several terms, packed by the pack's library."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from haotuner.ops.dtypes import DTYPES
from haotuner.pack.op import PackOp
from haotuner.runtime.call_errors import REFUSED, check_written, explain, read_only, refuse_grad
from haotuner.runtime.fused import FusedLinear
from haotuner.runtime.linear import ONE, Bound
from haotuner.spec.limits import threads_of

if TYPE_CHECKING:
    from haotuner.runtime.pack import Pack

_BITS = "uint16"  # of bfloat16 in arrays of a numpy that knows none


def is_typed(op: PackOp) -> bool:
    """Whether a dense op's weight is packed as words, by the library."""
    return op.kind == "dense" and "terms" in op.operands[1].packed


class TypedLinear(FusedLinear):
    """``y = linear(x)``, with ``residual=`` where the epilogue adds one; x as in ``Linear``, of the op's type (int8: uint8).

    bfloat16 is taken from torch, from numpy with ml_dtypes, or as uint16 arrays of its bits. Values of a channel (a bias, a
    scale) are float32 inside, and taken in float32 or in the op's type.
    """

    __slots__ = ()

    def __call__(self, x: Any, out: Any = None, **inputs: Any) -> Any:
        """The product; TypeError or ValueError name the argument, what was expected and what was found."""
        result = self._by_address(x, out, inputs)
        if result is not None:
            return result
        call, packed, setting, _, constants = self._state
        if out is not None and not inputs and not self._passed:  # the usual call says nothing twice
            negated = getattr(x, "is_neg", None)
            if negated is None or not (negated() or x.requires_grad or getattr(out, "requires_grad", False)):
                try:
                    call(x, packed, out, setting, *constants)
                    return out
                except REFUSED:
                    pass  # bfloat16 of numpy, a read-only array, or what is said in words below
        if len(inputs) != len(self._passed) or any(name not in inputs for name in self._passed):
            names = ", ".join(f"{name}=" for name in self._passed) or "nothing but out="
            raise TypeError(f"{self.name}: a call takes x and {names}; got {', '.join(inputs) or 'none of it'}")
        arguments = {"x": x, **{name: inputs[name] for name in self._passed}}
        for name, value in arguments.items():
            self._refuse_lazy(name, value)
        if out is None:
            out = self._empty(x)
        else:
            check_written(self.name, out)
        first, *more = (as_bits(value) for value in arguments.values())
        try:
            call(first, packed, as_bits(out), setting, *constants, *more)
        except REFUSED as error:
            op = self._bound.op
            types = {o.name: DTYPES[o.dtype].numpy for o in (*op.inputs, op.output)}
            arguments_ = {name: (value, taken(value, types[name])) for name, value in arguments.items()}
            frozen = {name for name, (value, dtype) in arguments_.items() if read_only(value, dtype)}
            if not frozen:
                arguments_["out"] = (out, taken(out, types[op.output.name]))
                raise explain(self.name, arguments_, error) from error
            copies = {name: value.copy() if name in frozen else value for name, value in arguments.items()}
            self(copies.pop("x"), out, **copies)
        return out

    @property
    def bound(self) -> TypedBound:
        """What serves this linear now."""
        assert isinstance(self._bound, TypedBound)
        return self._bound

    def rebind(self, weight: Any, bias: Any = None, **constants: Any) -> None:
        """Serve another weight and other values from the next call on; not while the pack is handed over."""
        inputs = constants if bias is None else {"bias": bias, **constants}
        self.serve(TypedBound.made(self.owner, self._bound.op, weight, inputs, threads_of(self._bound.setting)))

    def twin(self) -> TypedLinear:
        """Another linear with the same packed weight; ``rebind`` of one leaves the other as it is."""
        twin = TypedLinear(self._bound)
        self.owner.own(twin)
        return twin

    def _refuse_lazy(self, name: str, value: Any) -> None:
        negated = getattr(value, "is_neg", None)
        if negated is not None and negated():
            raise ValueError(f"{self.name}: {name} is a lazy negation; pass {name}.resolve_neg()")
        if getattr(value, "requires_grad", False):
            refuse_grad(self.name, name)

    def _empty(self, x: Any) -> Any:
        op, torch = self._bound.op, sys.modules.get("torch")
        element_type = DTYPES[op.output.dtype].numpy
        shape = getattr(x, "shape", None)
        if shape is None or len(shape) == 0:
            raise TypeError(
                f"{op.name}: x must be a {DTYPES[op.operands[0].dtype].numpy} array or tensor (..., {op.k}), "
                f"got {type(x).__name__}"
            )
        size = (*shape[:-1], self._n)
        if torch is not None and isinstance(x, torch.Tensor):
            return x.new_empty(size, dtype=getattr(torch, element_type))
        return empty_like(x, size, op.output.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedBound(Bound):
    """A weight in words, packed by the library of an open pack."""

    @staticmethod
    def made(pack: Pack, op: PackOp, weight: Any, inputs: Mapping[str, Any], threads: int | None) -> TypedBound:
        """Pack a weight and copy what is bound with one value a column.

        TypeError for another dtype or other names than the op's, ValueError for another shape.
        """
        import tvm_ffi

        call, setting = pack.entry(op, threads)
        required = [operand.name for operand in op.extra if operand.role == "constant"]
        optional = [operand.name for operand in op.operands if operand.optional]
        if set(inputs) != set(required) and (required or not set(inputs) <= set(optional)):
            names = ("weight", *required, *(f"perhaps a {name}" for name in optional))
            raise TypeError(f"{op.name}: bind takes {', '.join(names)}; got {', '.join(('weight', *inputs))}")
        rows = {name: channel_values(op, name, inputs[name], op.n) for name in required or inputs}
        if "low" in rows and not np.all((rows["low"] <= rows["high"]) | np.isnan(rows["low"]) | np.isnan(rows["high"])):
            raise ValueError(f"{op.name}: low is above high in column {int(np.argmax(rows['low'] > rows['high']))}")
        packed = typed_weight(pack, op, weight)
        constants = tuple(tvm_ffi.from_dlpack(row) for row in rows.values())
        return TypedBound(
            op=op,
            call=call,
            setting=setting,
            addressed=pack.addressed(setting),
            packed=tvm_ffi.from_dlpack(packed),
            bias=constants[0] if list(rows) == ["bias"] and not required else None,
            constants=constants,
            packed_bytes=packed.nbytes,
        )

    def moved(self, pack: Pack, op: PackOp) -> TypedBound:
        """The same weight for the same op of another pack; packed anew only where its panels differ."""
        call, setting = pack.entry(op, threads_of(self.setting))
        if op.operands[1].packed == self.op.operands[1].packed:
            return replace(self, op=op, call=call, setting=setting, addressed=pack.addressed(setting))
        names = [o.name for o in op.extra if o.role == "constant"] or ["bias"]
        inputs = {name: np.from_dlpack(row) for name, row in zip(names, self.constants, strict=False)}
        return TypedBound.made(pack, op, self.weight(), inputs, threads_of(self.setting))

    def weight(self) -> Any:
        """The weight as users store it, in a new array of the op's type; PackClosed after the pack was closed."""
        if self.packed is None:
            self.call()
        op, terms = self.op, self.op.operands[1].packed["terms"]
        element_type = DTYPES[op.operands[1].dtype]
        depth = -(-op.k // terms)  # behind the panels may lie what sums of signed bytes begin with
        every = np.from_dlpack(self.packed).view(f"uint{element_type.size * 8}")[: op.panels * depth * op.pw * terms]
        words = every.reshape(op.panels, depth, op.pw, terms)
        rows = words.transpose(0, 2, 1, 3).reshape(op.panels * op.pw, -1)[: op.n, : op.k]
        return np.array(rows.T if op.weight == "kn" else rows, order="C").view(numpy_type(op.operands[1].dtype))


def typed_weight(pack: Pack, op: PackOp, weight: Any) -> Any:
    """The packed words of a weight, as float32, in the pack's arena; TypeError and ValueError as ``bind``."""
    values = _weight(op, weight)
    pack_into = pack.library().function("ht_pack")
    position = pack.place(op)
    packed = pack.arena.take((int(pack_into(position, None, None)),))
    pack_into(position, values if values.flags.writeable else values.copy(), packed)
    return packed


def empty_like(x: Any, size: tuple[int, ...], dtype: str) -> Any:
    """A new array of a type: of x's own where that stands for it, and of x's library where that takes DLPack."""
    if isinstance(x, np.ndarray) and x.dtype.name == taken(x, DTYPES[dtype].numpy):
        return np.empty(size, x.dtype)
    result = np.empty(size, numpy_type(dtype))
    if isinstance(x, np.ndarray):
        return result
    same = getattr(sys.modules.get(type(x).__module__.partition(".")[0]), "from_dlpack", None)
    return same(as_bits(result)) if callable(same) else result


def numpy_type(name: str) -> np.dtype[Any]:
    """Numpy's type of a dtype; of bf16 the one of ml_dtypes, or 16 bits where that is not installed."""
    element_type = DTYPES[name].numpy
    if hasattr(np, element_type):
        return np.dtype(element_type)
    try:
        importlib.import_module("ml_dtypes")
    except ImportError:
        return np.dtype(_BITS)
    return np.dtype(element_type)


def channel_values(op: PackOp, name: str, value: Any, count: int) -> Any:
    """A float32 copy of one value a channel: an array of float32 or of the op's type (count,), or one number."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return np.full(count, value, np.float32)
    allowed = {"float32", DTYPES[op.operands[0].dtype].numpy} - {"uint8", "int8"}
    row = typed_array(op, name, value, allowed)
    if row.shape != (count,) and row.shape not in ONE:
        raise ValueError(f"{op.name}: {name} has shape {tuple(row.shape)}; expected ({count},)")
    result = _widened(row) if row.dtype == _BITS else row.astype(np.float32)
    return np.full(count, result.item(), np.float32) if row.shape in ONE else result


def _widened(bits: Any) -> Any:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _weight(op: PackOp, value: Any) -> Any:
    rows = typed_array(op, "weight", value, {DTYPES[op.operands[1].dtype].numpy})
    shape = (op.k, op.n) if op.weight == "kn" else (op.n, op.k)
    if rows.shape != shape:
        raise ValueError(f"{op.name}: weight has shape {tuple(rows.shape)}; expected {shape}")
    return rows


def typed_array(op: PackOp, name: str, value: Any, allowed: set[str]) -> Any:
    """As a numpy array, bfloat16 as its bits. TypeError for another type, ValueError for another device."""
    torch, result = sys.modules.get("torch"), value
    if torch is not None and isinstance(value, torch.Tensor):
        if value.device.type != "cpu":
            raise ValueError(f"{op.name}: {name} is on {value.device}; this pack computes on the CPU: pass {name}.cpu()")
        result = value.detach()
        if value.dtype == torch.bfloat16 and "bfloat16" in allowed:
            return result.view(torch.int16).numpy().view(_BITS)
        if str(value.dtype).removeprefix("torch.") in allowed:
            result = result.numpy()
    elif not isinstance(value, np.ndarray) and hasattr(value, "__dlpack__"):
        result = np.from_dlpack(value)
    dtype = getattr(result, "dtype", None)
    if not isinstance(result, np.ndarray) or not result.dtype.isnative or result.dtype.name not in _taken_names(allowed):
        text = " or ".join(sorted(allowed))
        raise TypeError(f"{op.name}: {name} is {dtype or type(value).__name__}; expected {text} of native byte order")
    return as_bits(result)


def _taken_names(allowed: set[str]) -> set[str]:
    return allowed | ({_BITS} if "bfloat16" in allowed else set())


def taken(value: Any, text: str) -> str:
    """The type that an array is held against: bits stand for bfloat16."""
    return _BITS if text == "bfloat16" and isinstance(value, np.ndarray) and value.dtype == _BITS else text


def as_bits(value: Any) -> Any:
    """What DLPack can pass on: numpy has no bfloat16 of its own."""
    return value.view(_BITS) if isinstance(value, np.ndarray) and value.dtype.kind == "V" else value
