"""A group of several outputs on a device that one launch writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from haotuner.ops.dtypes import DTYPES
from haotuner.pack.op import PackOperand
from haotuner.runtime.call_errors import REFUSED
from haotuner.runtime.device_operator import DeviceOperator
from haotuner.runtime.multi_output import MultiOutputBase
from haotuner.runtime.on_device import empty_like, explained
from haotuner.runtime.streams import still


class DeviceGroup(MultiOutputBase, DeviceOperator):
    """``a, b = op.run(x)`` or ``op.run(x, out=(a, b), stream=…)``, outputs in the file's order.

    All else is as of a ``DeviceOperator``. No output may share memory with an operand or with another output.
    """

    def run(self, *operands: Any, out: Sequence[Any] | None = None, stream: int | None = None, **named: Any) -> Any:
        """All outputs, in ``out`` if that is given, else new ones of the first operand's kind; errors as of one output.

        UsageError for ``out`` of another number of tensors.
        """
        inputs, stream = self._asked(operands, named, stream)
        called = self._written(inputs, out)
        try:
            every = (*inputs.values(), *called.values())
            self._call(self._setting, stream, *(still(value, stream) for value in every))
        except REFUSED as error:
            raise explained(self.name, error, {**inputs, **called}) from error
        return tuple(called[output.name] for output in self.outputs)

    def _new(self, operand: PackOperand, size: tuple[int, ...], inputs: Mapping[str, Any]) -> Any:
        """Memory of the device."""
        return empty_like(self.name, next(iter(inputs.values())), size, DTYPES[operand.dtype].numpy)
