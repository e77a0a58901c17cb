"""Fields of a job as values: what reaches a child process is JSON, whose text is read here, once, at its entry."""

from __future__ import annotations

from haotuner.isolate.answers import Job
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op

TimedPart = tuple[MicroKernel, str, int]  # a region on a device: its kernel, the library that holds it, tiles


def op_of(job: Job) -> Op:
    """The operator that a job is about."""
    return Op.parse(job["op"])


def micro_kernel(name: str) -> MicroKernel:
    """The micro-kernel of a name in a job; ValueError if there is none."""
    return MicroKernel.parse(name)


def kernels_of(job: Job) -> list[MicroKernel]:
    """The micro-kernels that a job asks for."""
    return [micro_kernel(name) for name in job["kernels"]]


def parts_of(job: Job) -> list[TimedPart]:
    """The regions of a composition that a job times."""
    return [(micro_kernel(name), str(library), int(tiles)) for name, library, tiles in job["parts"]]
