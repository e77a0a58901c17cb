"""Family: all micro-kernels of one kind for one backend, with what they compute, ask for and cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from haotuner.spec.constraint import Laws
from haotuner.spec.demand import Demand, DemandQuery, Expectation
from haotuner.spec.device import Device
from haotuner.spec.kernel import Footprint, MicroKernel, Tile
from haotuner.spec.op import Op
from haotuner.spec.traffic import Traffic

Layout = tuple[int, ...]  # of the packed constants; opaque, and orderable so that ties are broken in one way


class Family(Protocol):
    """All micro-kernels of one kind for one backend.

    Only a family and its backend know what the parameters of its kernels mean. Every method is pure and cheap but
    ``schedule``, which imports the compiler.
    """

    name: str
    backend: str  # the kind of device: "cpu", "cuda"
    frontier: int  # candidates that selection keeps at most

    def serves(self, op: Op) -> bool:
        """True if micro-kernels of this family compute the op."""
        ...

    def suits(self, device: Device) -> bool:
        """True if the device is of the backend's kind and has the instructions that the programs use."""
        ...

    def points(self, op: Op, device: Device) -> Iterator[MicroKernel]:
        """The whole search space, legal or not, in a fixed order."""
        ...

    def tile(self, kernel: MicroKernel) -> Tile:
        """Tile that the micro-kernel computes at a time."""
        ...

    def computed(self, kernel: MicroKernel, axis: str, extent: int) -> int:
        """Extent that is really computed along a parallel axis for an output of ``extent``; what is over it is padding."""
        ...

    def layout(self, kernel: MicroKernel) -> Layout:
        """Layout of the packed constants that the micro-kernel reads; those of one layout can share them."""
        ...

    def footprint(self, kernel: MicroKernel) -> Footprint:
        """Resources that the micro-kernel takes of a device."""
        ...

    def laws(self, op: Op, device: Device) -> Laws:
        """Inequalities that micro-kernels of this family must obey beyond those of every family, in their order."""
        ...

    def demand(self, requested: DemandQuery) -> Demand:
        """Demand of each row's micro-kernel on the device for its shape: what cost models read."""
        ...

    def expectation(self, op: Op, device: Device, traffic: Traffic) -> Expectation | None:
        """The family's own expectation of its micro-kernels over the traffic; None leaves it to a cost model."""
        ...

    def schedule(self, kernel: MicroKernel, symbol: str) -> Any:
        """The program for the backend's compiler: a TVM ``IRModule`` with a function of that global symbol."""
        ...


@dataclass(frozen=True, slots=True)
class Form:
    """A layout of a weight that a pack holds beside the plain one if a kernel reads it; ``size``: times the plain one."""

    name: int
    size: float


@runtime_checkable
class Formed(Protocol):
    """A family whose micro-kernels read forms of the weight beside the plain one."""

    def form(self, kernel: MicroKernel, op: Op) -> Form:
        """The form that a micro-kernel reads."""
        ...


def weight_form(family: Family, kernel: MicroKernel, op: Op) -> Form | None:
    """The form of the weight that a micro-kernel reads; None: the plain one."""
    return family.form(kernel, op) if isinstance(family, Formed) else None


def rounded_up(tile: Tile, axis: str, extent: int) -> int:
    """Extent computed by whole tiles: what ``computed`` is for families without a program for the rest."""
    size = tile.extent.get(axis, 1)
    return -(-extent // size) * size
