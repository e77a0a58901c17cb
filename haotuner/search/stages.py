"""Kernels whose rows all threads share in stages: no race of single threads tells what they are worth.

The best of a few is timed at every shape on all threads, beside what the plan has; a cell gets it where it is faster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from haotuner.search.task import Task
from haotuner.spec.composition import Composition
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel, shares_terms
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape

Us = Mapping[Composition, Mapping[Shape, float]]
Timing = Callable[[Sequence[Composition], Sequence[Shape]], None]  # notes microseconds on a task's most threads


@runtime_checkable
class InStages(Protocol):
    """A family some of whose kernels need all threads."""

    def staged(self, op: Op, device: Device, workers: int) -> tuple[str, list[MicroKernel]]:
        """The axis that is shared, and such kernels; no axis and none where the op has none."""
        ...


def staged(task: Task, device: Device, family: object) -> tuple[str, list[MicroKernel]]:
    """Axis and kernels of stages for a task: none for one thread, nor where bits may not depend on how a call is shared."""
    if max(task.threads) == 1 or task.one_order or not isinstance(family, InStages):
        return "", []
    return family.staged(task.op, device, max(task.threads))


@dataclass(frozen=True, slots=True)
class Sharers:
    """Such kernels of a task, and the axis that their threads share."""

    along: str
    kernels: tuple[MicroKernel, ...]

    @staticmethod
    def of(task: Task, device: Device, family: object, result: Sequence[MicroKernel]) -> Sharers:
        """Those that a policy found, else the family's own."""
        along, usual = staged(task, device, family)
        own = [kernel for kernel in result if shares_terms(kernel)] if along else []
        return Sharers(along, tuple(own or usual))

    def without(self, kernels: Sequence[MicroKernel]) -> list[MicroKernel]:
        """The others among some kernels."""
        return [kernel for kernel in kernels if kernel not in self.kernels]

    def composition(self, kernel: MicroKernel) -> Composition:
        """A call of one."""
        return Composition.of(kernel.name, share=self.along)

    def timed(self, shapes: Sequence[Shape], op: Op, time: Timing, us: Us) -> Us:
        """Times of the one that is fastest where rows are fewest and longest, at every shape that there is time for.

        Few long rows come first: there it may win. Empty where none could be timed.
        """
        first, *others = sorted(shapes, key=lambda shape: -self._length(op, shape))
        every = [self.composition(kernel) for kernel in self.kernels]
        time(every, [first])
        result = sorted((us[kernel][first], kernel) for kernel in every if first in us.get(kernel, {}))[:1]
        for _, best in result:
            time([best], others)
        return {best: us[best] for _, best in result}

    def _length(self, op: Op, shape: Shape) -> float:
        """A row's length over how many rows there are."""
        extents = op.extents(shape)
        rows = 1.0
        for axis in op.parallel:
            rows *= extents[axis] if axis != self.along else 1
        return float(extents[self.along] / max(rows, 1.0))
