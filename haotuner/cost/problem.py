"""Problem from a record's text: an op that haotuner knows, or a foreign one whose extents are in its name."""

from __future__ import annotations

import re
from dataclasses import dataclass

from haotuner.errors import UsageError
from haotuner.ops.groups import GROUPS, PREFIX
from haotuner.ops.index import kind_in
from haotuner.spec.demand import Problem
from haotuner.spec.op import Op
from haotuner.spec.record import OpName
from haotuner.spec.shape import Shape

_FOREIGN = re.compile(r"[a-z][a-z0-9]*(?:_[a-z]+[0-9]{1,10})+")
_FILTER = re.compile(r"_fw[0-9]+")  # imported convolutions name their filter's width so, and no op of ours does
_EXTENT = re.compile(r"_([a-z]+)([0-9]+)")


@dataclass(frozen=True, slots=True)
class Foreign:
    """An imported problem such as ``conv2d_w4096_h4096_fw15_fh15``: ranked and transferred, never built. fp32."""

    name: str
    static: tuple[tuple[str, int], ...]
    dtype: str = "fp32"

    @property
    def axes(self) -> tuple[str, ...]:
        """Axes in the order of the name."""
        return tuple(axis for axis, _ in self.static)

    def extents(self, shape: Shape) -> dict[str, int]:
        """The extents in the name; what the shape gives comes on top."""
        return {**dict(self.static), **shape.as_dict()}


def problem_of(op: Op | OpName) -> Problem:
    """The problem of a record's op; UsageError if its name is neither an op's nor a foreign problem's."""
    if isinstance(op, Op):
        return op
    text = op.name
    known = text in GROUPS or bool(kind_in(text.partition(":")[0]))
    if known and not _FILTER.search(text):
        return Op.parse(text)  # a name in other words than today's, or the reason why it is none
    if text.startswith(f"{PREFIX}_"):  # its file is not at hand, so that its extents are not known
        return Foreign(text, ())
    if not _FOREIGN.fullmatch(text):
        raise UsageError(f"records of {text!r}: neither an op nor a name with extents such as conv2d_w4096_h4096")
    return Foreign(text, tuple((axis, int(extent)) for axis, extent in _EXTENT.findall(text)))
