"""A group of several outputs: programs that write one or some of them each, called one after the other."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from haotuner.errors import UsageError
from haotuner.ops.groups import PREFIX
from haotuner.pack.op import PackOp

if TYPE_CHECKING:
    from haotuner.runtime.pack import Pack


def named_so(outputs: Mapping[str, str], requested: str) -> tuple[str, ...]:
    """The ops of a pack that a group's own name means, without the hash that each ends with: one for each output.

    ``outputs``: the output's name by that of each op. A group of one output has no more than the hash behind its own name;
    of several the output's name stands between: another group's name may begin with this one's.
    """
    if not requested.startswith(f"{PREFIX}_"):
        return ()
    behind = {name: name.removeprefix(f"{requested}_") for name in outputs if name.startswith(f"{requested}_")}
    whole = tuple(name for name, rest in behind.items() if "_" not in rest)
    several = (name for name, rest in behind.items() if _letters(rest.rpartition("_")[0]) == _letters(outputs[name]))
    return whole or tuple(several)


def _letters(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower())


class Outputs:
    """``a, b = group.run(x, y)`` or ``group.run(x, y, out=(a, b))``: operands by name or in the order they first appear."""

    def __init__(self, pack: Pack, names: Sequence[str]) -> None:
        self._each = tuple(pack.op(name) for name in names)
        self._indices = _output_indices([group.entry for group in self._each])
        named = sorted(
            (argument, operand.name)
            for group, places in zip(self._each, self._indices, strict=True)
            for argument, operand in zip(places, group.entry.written, strict=True)
        )
        self.names = tuple(name for _, name in named)
        self.inputs = tuple(dict.fromkeys(operand.name for group in self._each for operand in group.entry.inputs))

    def run(
        self, *operands: Any, out: Sequence[Any] | None = None, stream: int | None = None, **named: Any
    ) -> tuple[Any, ...]:
        """All outputs, in the file's order, on a device in the order of ``stream``; errors as of one operator."""
        inputs = dict(zip(self.inputs, operands, strict=False)) | named
        if len(operands) > len(self.inputs) or set(inputs) != set(self.inputs):
            raise TypeError(f"the group takes {', '.join(self.inputs)}; got {len(operands)} in order and {list(named)}")
        if out is not None and len(out) != len(self.names):
            raise UsageError(f"out= takes {len(self.names)} tensors, for {', '.join(self.names)}; got {len(out)}")
        result: dict[int, Any] = {}
        queue = {} if stream is None else {"stream": stream}
        for group, places in zip(self._each, self._indices, strict=True):
            own = {operand.name: inputs[operand.name] for operand in group.entry.inputs}
            order = sorted(places)  # an op takes its outputs in the file's order, too
            into = None if out is None else out[order[0]] if len(order) == 1 else tuple(out[position] for position in order)
            made = group.run(out=into, **queue, **own)
            result |= zip(order, made if len(order) > 1 else (made,), strict=True)
        return tuple(result[position] for position in sorted(result))


def _output_indices(entries: Sequence[PackOp]) -> tuple[tuple[int, ...], ...]:
    """Indices of the file's outputs that each op writes, in its call's order; those that do not say it take what is left."""
    taken = {position for entry in entries for position in entry.output_indices}
    free = iter(index for index in range(sum(len(entry.written) for entry in entries)) if index not in taken)
    return tuple(entry.output_indices or (next(free),) for entry in entries)
