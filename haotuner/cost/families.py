"""Families and problems by their names: those of haotuner, and foreign ones that are only ranked.

Demands of any family by its name: those of micro-kernels, and imported ones that are only ranked.

Problem from a record's text: an op that haotuner knows, or a foreign one whose extents are in its name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from haotuner.errors import UsageError
from haotuner.microkernels.imported.conv2d import conv2d
from haotuner.microkernels.imported.dedispersion import dedispersion
from haotuner.microkernels.imported.solvers import FAMILY as MIOPEN
from haotuner.microkernels.imported.solvers import solvers
from haotuner.microkernels.imported.xgemm import xgemm
from haotuner.microkernels.index import FAMILIES
from haotuner.ops.dtypes import DTYPE_BYTES
from haotuner.ops.groups import GROUPS, PREFIX
from haotuner.ops.index import kind_in
from haotuner.spec.demand import Demand, DemandOf, Problem, demand_query
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.record import OpName
from haotuner.spec.shape import Shape

# The index is explicit: a family without an entry has no cost model, and says so.
DEMANDS: tuple[tuple[str, DemandOf], ...] = (
    *((family.name, family.demand) for family in FAMILIES),
    ("clblast_xgemm", xgemm),  # imported records: ranked and transferred, never built
    ("kt_conv2d", conv2d),
    ("kt_dedispersion", dedispersion),
    (MIOPEN, solvers),
)


class Named(Protocol):
    """Anything that names a family; a ``Family`` does."""

    @property
    def name(self) -> str:
        """The family's name, as micro-kernels carry it."""
        ...


def demand(
    device: Device, family: Named, problem: Problem, pairs: Sequence[tuple[MicroKernel, Shape]], *, weights: str = "cold"
) -> Demand:
    """Demand of each (micro-kernel, shape) on the device, as columns of shape ``(len(pairs),)``.

    ``family``: one that can tell its demand, or the name of one. ``device`` has as many units as threads will run
    (``Device.with_units``). ``weights`` is ``cold`` or ``hot``.
    """
    of: DemandOf | None = getattr(family, "demand", None) or dict(DEMANDS).get(family.name)
    if of is None:
        raise ValueError(f"no demand function for family {family.name!r}; known: {', '.join(name for name, _ in DEMANDS)}")
    if not pairs:
        raise ValueError("no (micro-kernel, shape) pairs were given")
    strays = {kernel.family for kernel, _ in pairs} - {family.name}
    if strays:
        raise ValueError(f"asked for family {family.name}, found micro-kernels of {', '.join(sorted(strays))}")
    return of(demand_query(device, problem, pairs, element_bytes=DTYPE_BYTES[problem.dtype], cold=weights == "cold"))


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
