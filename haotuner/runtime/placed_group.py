"""A group of several outputs on a device that one launch writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from haotuner.errors import UsageError
from haotuner.ops.dtypes import DTYPES
from haotuner.pack.op import PackOperand
from haotuner.runtime.on_device import empty_like, explained
from haotuner.runtime.placed_operator import PlacedOperator
from haotuner.runtime.refusal import REFUSED
from haotuner.runtime.streams import still


class PlacedGroup(PlacedOperator):
    """``a, b = op.run(x)`` or ``op.run(x, out=(a, b), stream=…)``, outputs in the file's order.

    All else is as of a ``PlacedOperator``. No output may share memory with an operand or with another output.
    """

    @property
    def outputs(self) -> tuple[PackOperand, ...]:
        """What a call writes, in the file's order."""
        return self.entry.in_file_order

    def run(self, *operands: Any, out: Sequence[Any] | None = None, stream: int | None = None, **named: Any) -> Any:
        """All outputs, in ``out`` if that is given, else new ones of the first operand's kind; errors as of one output.

        UsageError for ``out`` of another number of tensors.
        """
        given, stream = self._asked(operands, named, stream)
        written = self.entry.written
        called: dict[str, Any] = {one.name: None for one in written} if out is None else self._called(out)
        first = next(iter(given.values()))
        for one in written:
            size = self.output_shape(given, one) if out is None or self._derived else ()
            if out is None:
                called[one.name] = empty_like(self.name, first, size, DTYPES[one.dtype].numpy)
            elif self._derived and tuple(getattr(called[one.name], "shape", ())) != size:
                raise ValueError(f"{self.name}: {one.name} must be of the shape {size}, got {called[one.name].shape}")
        try:
            every = (*given.values(), *called.values())
            self._call(self._setting, stream, *(still(value, stream) for value in every))
        except REFUSED as error:
            raise explained(self.name, error, {**given, **called}) from error
        return tuple(called[one.name] for one in self.outputs)

    def _called(self, out: Sequence[Any]) -> dict[str, Any]:
        """What was given for each output, in the order of the library's call."""
        names, written = [one.name for one in self.outputs], self.entry.written
        if not isinstance(out, (tuple, list)) or len(out) != len(written):
            found = len(out) if isinstance(out, (tuple, list)) else type(out).__name__
            raise UsageError(f"{self.name}: out= takes {len(written)} tensors, for {', '.join(names)}; got {found}")
        given = dict(zip(names, out, strict=True))
        return {one.name: given[one.name] for one in written}
