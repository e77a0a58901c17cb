"""A group of several outputs: one program for each, called one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from haotuner.errors import UsageError
from haotuner.ops.groups import PREFIX

if TYPE_CHECKING:
    from haotuner.runtime.pack import Pack


def named_so(names: Iterable[str], asked: str) -> tuple[str, ...]:
    """The ops of a pack that a group's own name means, without the hash that each ends with: one for each output."""
    return tuple(name for name in names if asked.startswith(f"{PREFIX}_") and name.startswith(f"{asked}_"))


class Outputs:
    """``a, b = group.run(x, y)`` or ``group.run(x, y, out=(a, b))``: operands by name or in the order they first appear."""

    def __init__(self, pack: Pack, names: Sequence[str]) -> None:
        self._each = tuple(pack.op(name) for name in names)
        self.names = tuple(one.entry.output.name for one in self._each)
        self.inputs = tuple(dict.fromkeys(operand.name for one in self._each for operand in one.entry.inputs))

    def run(self, *operands: Any, out: Sequence[Any] | None = None, **named: Any) -> tuple[Any, ...]:
        """All outputs, in the file's order; errors as of one operator."""
        given = dict(zip(self.inputs, operands, strict=False)) | named
        if len(operands) > len(self.inputs) or set(given) != set(self.inputs):
            raise TypeError(f"the group takes {', '.join(self.inputs)}; got {len(operands)} in order and {list(named)}")
        if out is not None and len(out) != len(self._each):
            raise UsageError(f"out= takes {len(self._each)} tensors, for {', '.join(self.names)}; got {len(out)}")
        found = []
        for place, one in enumerate(self._each):
            own = {operand.name: given[operand.name] for operand in one.entry.inputs}
            found.append(one.run(out=None if out is None else out[place], **own))
        return tuple(found)
