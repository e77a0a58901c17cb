"""Demands of any family by its name: those of micro-kernels, and imported ones that are only ranked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from haotuner.microkernels.imported.conv2d import conv2d
from haotuner.microkernels.imported.dedispersion import dedispersion
from haotuner.microkernels.imported.xgemm import xgemm
from haotuner.microkernels.index import FAMILIES
from haotuner.ops.dtypes import DTYPE_BYTES
from haotuner.spec.demand import Demand, DemandOf, Problem, demand_query
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.shape import Shape

# The index is explicit: a family without an entry has no cost model, and says so.
DEMANDS: tuple[tuple[str, DemandOf], ...] = (
    *((family.name, family.demand) for family in FAMILIES),
    ("clblast_xgemm", xgemm),  # imported records of Kernel Tuner: ranked and transferred, never built
    ("kt_conv2d", conv2d),
    ("kt_dedispersion", dedispersion),
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
