"""One way of a call on the CPU by an op's table of operands, and messages for calls that could not be passed on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from haotuner.ops.dtypes import DTYPES
from haotuner.pack.op import PackOp, PackOperand
from haotuner.runtime.arrays import as_bits, taken

REFUSED = (BufferError, TypeError, ValueError, RuntimeError)  # what tvm-ffi and a pack's library raise


def explain(op: str, inputs: Mapping[str, tuple[Any, str]], error: Exception) -> Exception:
    """A clear TypeError or ValueError for a call of ``op`` that failed with ``error``; ``error`` itself if it is clear.

    ``inputs``: of each operand the value and the expected dtype; the output is the last one.
    """
    for index, (name, (value, dtype)) in enumerate(inputs.items()):
        result = _argument(op, name, value, dtype, written=index == len(inputs) - 1)
        if result is not None:
            return result
    return error


def refuse_grad(op: str, name: str) -> None:
    """ValueError for an operand that requires grad, unless the caller has told torch to record none."""
    if sys.modules["torch"].is_grad_enabled():
        raise ValueError(f"{op}: {name} requires grad; a pack only infers: call it under torch.inference_mode()")


def check_lazy(op: str, name: str, value: Any) -> None:
    """Refuse what DLPack would hand out wrongly: lazy negations of torch, and tensors whose gradient is wanted."""
    negated = getattr(value, "is_neg", None)
    if negated is None:
        return
    if negated():  # DLPack hands out the numbers without the sign
        raise ValueError(f"{op}: {name} is a lazy negation; pass {name}.resolve_neg()")
    if value.requires_grad:
        refuse_grad(op, name)


def check_written(op: str, out: Any) -> None:
    """Refuse an output that requires grad, as torch does: what is written there has no gradient."""
    if getattr(out, "requires_grad", False):
        refuse_grad(op, "out")


def read_only(value: Any, dtype: str | None = None) -> bool:
    """True if an operand is right but read-only: DLPack has no such tensors, so the call gets a copy."""
    if not isinstance(value, np.ndarray) or value.flags.writeable:
        return False
    return value.dtype.isnative and dtype in (None, value.dtype.name)


def _argument(op: str, name: str, value: Any, dtype: str, *, written: bool) -> Exception | None:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        if value.dtype != getattr(torch, dtype):
            return TypeError(f"{op}: {name} has dtype {value.dtype}; expected {dtype}")
        if value.device.type != "cpu":
            return ValueError(f"{op}: {name} lives on {value.device}; this pack computes on the CPU: copy it there first")
        if value.layout != torch.strided:
            return ValueError(f"{op}: {name} has layout {value.layout}; expected a strided tensor: pass {name}.to_dense()")
        if value.is_conj() or value.is_neg():
            return ValueError(f"{op}: {name} is a lazy conjugate or negation; pass {name}.resolve_neg()")
        return None
    if isinstance(value, np.ndarray):
        if value.dtype.name != dtype or not value.dtype.isnative:
            return TypeError(f"{op}: {name} has dtype {value.dtype}; expected {dtype} in native byte order")
        if written and not value.flags.writeable:
            return ValueError(f"{op}: {name} is read-only; pass an array that may be written")
        return None
    if not hasattr(value, "__dlpack__"):
        return TypeError(
            f"{op}: {name} is a {type(value).__name__}; pass a numpy array, a torch tensor or another DLPack tensor"
        )
    return None


class NativeCall(NamedTuple):
    """A function of a pack's library, and what it is passed at every call.

    It is ``call(*before, *middle, *between, *outs, *tail, *behind)``: ``first`` and ``last`` cut the operands of a call, in
    their order, into before, between and behind.
    """

    call: Callable[..., Any]
    middle: tuple[Any, ...] = ()  # what is bound and follows the first operands
    tail: tuple[Any, ...] = ()  # what follows the outputs
    first: int = 0
    last: int = 0

    @staticmethod
    def of(op: PackOp, call: Callable[..., Any], setting: int, bound: Mapping[str, Any] | None = None) -> NativeCall:
        """The call of an op with a setting. ``bound``: tensors that do not come with a call, by operand.

        A dense op is ``call(x, weight, out, setting, values of a channel, further operands)``, every other kind
        ``call(setting, operands, out, optional operands)`` in the order of its table. None is bound: a packed weight comes
        with the call as well.
        """
        tensors = bound or {}
        weight = tuple(tensors[name] for name in ("weight",) if name in tensors)
        channels = tuple(value for name, value in tensors.items() if name != "weight")
        if op.kind == "dense":
            passed = 1 if weight else 2
            return NativeCall(call, weight, (setting, *channels), passed, passed)
        required = {operand.name for operand in op.inputs}
        middle = (*weight, *(value for name, value in tensors.items() if name in required and name != "weight"))
        tail = tuple(value for name, value in tensors.items() if name not in required)
        passed = sum(operand.role == "input" for operand in op.inputs) if weight else len(op.inputs)
        return NativeCall(partial(call, setting), middle, tail, 1 if weight else passed, passed)

    def run(self, inputs: list[Any], outs: list[Any]) -> Any:
        """One call. ``inputs``: the operands that come with it, in their order."""
        first, last = self.first, self.last
        return self.call(*inputs[:first], *self.middle, *inputs[first:last], *outs, *self.tail, *inputs[last:])


class Signature:
    """Operands that a call of an op passes and writes, from its table.

    ``types``: numpy's name of the type of each operand; ``out`` is the output of an op that writes one.
    """

    __slots__ = ("name", "op", "optional", "types")

    def __init__(self, op: PackOp) -> None:
        self.op, self.name = op, op.name
        self.optional = frozenset(operand.name for operand in op.operands if operand.optional)
        self.types = {operand.name: DTYPES[operand.dtype].numpy for operand in op.operands}
        self.types["out"] = self.types[op.output.name]

    def run(self, native: NativeCall, inputs: Mapping[str, Any], outs: Mapping[str, Any]) -> None:
        """One native call; read-only arrays are copied, for DLPack has none.

        An optional operand that is left out is None. TypeError or ValueError name the operand, what was expected and what
        was found.
        """
        try:
            native.run(list(map(as_bits, inputs.values())), list(map(as_bits, outs.values())))
        except REFUSED as error:
            left_out = {name for name in self.optional if inputs.get(name) is None}
            every = {name: value for name, value in (*inputs.items(), *outs.items()) if name not in left_out}
            arguments = {name: (value, taken(value, self.types[name])) for name, value in every.items()}
            frozen = [name for name, value in arguments.items() if name not in outs and read_only(*value)]
            if not frozen:
                raise explain(self.name, arguments, error) from error
            copies = {name: every[name].copy() for name in frozen}
            self.run(native, {**inputs, **copies}, outs)

    def expected(self, operand: PackOperand) -> str:
        """Words for an operand as it must be: ``x must be a float32 array or tensor (m, n)``."""
        dims = ", ".join(operand.dims)
        if self.op.kind == "dense":  # rows may have any axes before
            dims = f"..., {self.op.axis(operand.dims[-1]).extent}"
        return f"{operand.name} must be a {self.types[operand.name]} array or tensor ({dims})"
