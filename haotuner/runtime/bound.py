"""Bound: a weight packed for one op of one open pack on the CPU, what is bound with it, and the native call of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from haotuner.errors import PackClosed
from haotuner.pack.op import PackOp
from haotuner.runtime.typed import channel_values
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
        """The same weight for the same op of another pack; packed anew unless both say that its panels are alike."""
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
