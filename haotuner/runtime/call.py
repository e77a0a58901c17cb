"""One way of a call on the CPU: an op's table of operands says what is passed, checked, copied and explained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from haotuner.ops.dtypes import DTYPES
from haotuner.pack.op import PackOp, PackOperand
from haotuner.runtime.call_errors import REFUSED, explain, read_only
from haotuner.runtime.typed import as_bits, taken


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
