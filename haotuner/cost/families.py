"""Which demand function belongs to which family of micro-kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from haotuner.cost.demand_conv import conv2d
from haotuner.cost.demand_cpu import cpu_dense
from haotuner.cost.demand_xgemm import xgemm
from haotuner.ops.dtypes import DTYPE_BYTES
from haotuner.words.demand import Demand, DemandOf, Problem, asked
from haotuner.words.device import Device
from haotuner.words.kernel import MicroKernel
from haotuner.words.shape import Shape

# The index is explicit: a family without an entry has no cost model, and says so.
DEMANDS: tuple[tuple[str, DemandOf], ...] = (
    ("cpu_dense_fp32", cpu_dense),
    ("clblast_xgemm", xgemm),  # imported records of Kernel Tuner: ranked and transferred, never built
    ("kt_conv2d", conv2d),
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

    ``device`` has as many units as threads will run (``Device.with_units``). ``weights`` is ``cold`` or ``hot``.
    """
    known = dict(DEMANDS)
    if family.name not in known:
        raise ValueError(f"no demand function for family {family.name!r}; known: {', '.join(known)}")
    if not pairs:
        raise ValueError("no (micro-kernel, shape) pairs were given")
    strays = {kernel.family for kernel, _ in pairs} - {family.name}
    if strays:
        raise ValueError(f"asked for family {family.name}, found micro-kernels of {', '.join(sorted(strays))}")
    rows = asked(device, problem, pairs, element_bytes=DTYPE_BYTES[problem.dtype], cold=weights == "cold")
    return known[family.name](rows)
