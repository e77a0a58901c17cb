"""A group of several outputs that one program writes, on the CPU; what it has in common with one on a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from haotuner.errors import UsageError
from haotuner.ops.dtypes import DTYPES
from haotuner.pack.op import PackOp, PackOperand
from haotuner.runtime.call_errors import REFUSED, check_written, explain, read_only
from haotuner.runtime.operator import Operator, empty_like

if TYPE_CHECKING:
    from haotuner.runtime.pack import Pack


class MultiOutputBase(Operator):
    """What a call of several outputs takes and writes."""

    def __init__(self, pack: Pack, op: PackOp, *setting: Any) -> None:
        super().__init__(pack, op, *setting)
        self.outputs = op.in_file_order  # what a call writes, in the file's order
        self._order = {operand.name: self.outputs.index(operand) for operand in op.written}  # of the library's call

    def _written(self, inputs: Mapping[str, Any], out: Sequence[Any] | None) -> dict[str, Any]:
        """What is written, by name in the order of the library's call: as given, else new ones."""
        if out is not None:
            called = self._called(out)
            for value in called.values():
                check_written(self.name, value)
            for output in self.outputs if self._derived else ():
                size, result = self.output_shape(inputs, output), tuple(getattr(called[output.name], "shape", ()))
                if result != size:
                    raise ValueError(f"{self.name}: {output.name} must be of the shape {size}, got {result}")
            return called
        return {
            operand.name: self._new(operand, self.output_shape(inputs, operand), inputs) for operand in self.entry.written
        }

    def _new(self, operand: PackOperand, size: tuple[int, ...], inputs: Mapping[str, Any]) -> Any:
        """Memory of an output."""
        return empty_like(self.name, size, DTYPES[operand.dtype].numpy, inputs)

    def _called(self, out: Sequence[Any]) -> dict[str, Any]:
        """What was given for each output, in the order of the library's call."""
        count = len(out) if isinstance(out, (tuple, list)) else type(out).__name__
        if count != len(self._order):
            names = ", ".join(output.name for output in self.outputs)
            raise UsageError(f"{self.name}: out= takes {len(self._order)} tensors, for {names}; got {count}")
        return {name: out[position] for name, position in self._order.items()}


class MultiOutputOp(MultiOutputBase):
    """``a, b = op.run(x)`` or ``op.run(x, out=(a, b))``, outputs in the file's order.

    All else is as of an ``Operator``. No output may share memory with an operand or with another output.
    """

    def run(self, *operands: Any, out: Sequence[Any] | None = None, **named: Any) -> Any:
        """All outputs, in ``out`` if that is given, else new ones of the first operand's kind; errors as of one output.

        UsageError for ``out`` of another number of tensors.
        """
        if not self._pack.is_open:
            self._pack.library()
        inputs = self._given(operands, named)
        called = self._written(inputs, out)
        try:
            self._call(self._setting, *inputs.values(), *called.values())
        except REFUSED as error:
            frozen = {name: value for name, value in inputs.items() if read_only(value)}
            if not frozen:
                types = {operand.name: DTYPES[operand.dtype].numpy for operand in self.entry.operands}
                every = {name: (value, types[name]) for name, value in {**inputs, **called}.items()}
                raise explain(self.name, every, error) from error
            self.run(
                out=tuple(called[output.name] for output in self.outputs),
                **(inputs | {name: value.copy() for name, value in frozen.items()}),
            )
        return tuple(called[output.name] for output in self.outputs)
