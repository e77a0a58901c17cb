"""One way of a call on a device: operands are checked, handed over in the order of a stream, and queued."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from haotuner.pack.op import PackOp
from haotuner.runtime.call_errors import REFUSED, check_lazy
from haotuner.runtime.on_device import explained, stream_for
from haotuner.runtime.streams import still


class DeviceCall(NamedTuple):
    """A function of a pack's library with what it is passed at every call.

    Layers and products are ``call(first operands[, record], outs, setting, stream, further operands)``, every other op is
    ``call(setting, stream, operands, outs)``.
    """

    name: str
    call: Any
    setting: int
    first: int  # operands before the output; 0: the setting comes first and the outputs last
    record: tuple[Any, ...] = ()  # what the library worked out for a bound weight

    @staticmethod
    def of(op: PackOp, call: Any, setting: int, record: Any = None) -> DeviceCall:
        """The call of an op with a setting; ``record`` of one whose weight is bound."""
        bound = () if record is None else (record,)
        optional = any(operand.optional for operand in op.operands)
        return DeviceCall(op.name, call, setting, 1 if bound else len(op.inputs) if optional else 0, bound)

    def run(self, inputs: Mapping[str, Any], outs: Mapping[str, Any], stream: int | None) -> Any:
        """Queue one call; gives the output that the library made in the place of None.

        TypeError, ValueError or RuntimeError name the operand or the driver's error, and what to do.
        """
        try:
            values, written = [_still(item, stream) for item in inputs.values()], [still(y, stream) for y in outs.values()]
            return self._queue(values, written, stream)
        except REFUSED as error:
            names = list(inputs)
            ordered = {name: inputs[name] for name in names[: self.first]} | dict(outs) | dict(inputs)
            raise explained(self.name, error, ordered) from error

    def _queue(self, values: Sequence[Any], outs: Sequence[Any], stream: int | None) -> Any:
        if self.first:
            first, behind = values[: self.first], values[self.first :]
            return self.call(*first, *self.record, *outs, self.setting, stream, *behind)
        return self.call(self.setting, stream, *values, *outs)


def checked_stream(op: str, inputs: Mapping[str, Any], stream: int | None) -> int | None:
    """The stream that is given, or the current one of the first operand's framework.

    ValueError where that does not say one, or where an operand is a lazy negation or wants a gradient.
    """
    for name, value in inputs.items():
        check_lazy(op, name, value)
    return stream_for(op, next(iter(inputs.values()))) if stream is None else stream


def _still(value: Any, stream: int | None) -> Any:
    """An operand that may be left out, or be a number in memory of the host."""
    number = isinstance(value, np.ndarray) and value.ndim == 0
    return value if value is None or number else still(value, stream)
