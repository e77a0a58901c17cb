"""A group of several outputs: one program for each, called one after the other."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from haotuner.errors import UsageError
from haotuner.ops.groups import PREFIX

if TYPE_CHECKING:
    from haotuner.runtime.pack import Pack


def named_so(outputs: Mapping[str, str], asked: str) -> tuple[str, ...]:
    """The ops of a pack that a group's own name means, without the hash that each ends with: one for each output.

    ``outputs``: the output's name by that of each op. A group of one output has no more than the hash behind its own name;
    of several the output's name stands between: another group's name may begin with this one's.
    """
    if not asked.startswith(f"{PREFIX}_"):
        return ()
    behind = {name: name.removeprefix(f"{asked}_") for name in outputs if name.startswith(f"{asked}_")}
    whole = tuple(name for name, rest in behind.items() if "_" not in rest)
    several = (name for name, rest in behind.items() if _letters(rest.rpartition("_")[0]) == _letters(outputs[name]))
    return whole or tuple(several)


def _letters(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower())


class Outputs:
    """``a, b = group.run(x, y)`` or ``group.run(x, y, out=(a, b))``: operands by name or in the order they first appear."""

    def __init__(self, pack: Pack, names: Sequence[str]) -> None:
        self._each = tuple(pack.op(name) for name in names)
        self.names = tuple(one.entry.output.name for one in self._each)
        self.inputs = tuple(dict.fromkeys(operand.name for one in self._each for operand in one.entry.inputs))

    def run(
        self, *operands: Any, out: Sequence[Any] | None = None, stream: int | None = None, **named: Any
    ) -> tuple[Any, ...]:
        """All outputs, in the file's order, on a device in the order of ``stream``; errors as of one operator."""
        given = dict(zip(self.inputs, operands, strict=False)) | named
        if len(operands) > len(self.inputs) or set(given) != set(self.inputs):
            raise TypeError(f"the group takes {', '.join(self.inputs)}; got {len(operands)} in order and {list(named)}")
        if out is not None and len(out) != len(self._each):
            raise UsageError(f"out= takes {len(self._each)} tensors, for {', '.join(self.names)}; got {len(out)}")
        found: list[Any] = []
        queue = {} if stream is None else {"stream": stream}
        for place, one in enumerate(self._each):
            own = {operand.name: given[operand.name] for operand in one.entry.inputs}
            found.append(one.run(out=None if out is None else out[place], **queue, **own))
        return tuple(found)
