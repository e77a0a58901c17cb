"""Jobs of processes that time kernels: their fields as values, and the check of a kernel's results.

Fields of a job as values: what reaches a child process is JSON, whose text is read here, once, at its entry.
"""

from __future__ import annotations

from collections.abc import Mapping

from haotuner.isolate.answers import Job, Refusal
from haotuner.spec.call_case import CallCase
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.numerics import Guarded
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


def largest_error(case: CallCase, outputs: Mapping[str, Guarded], where: str = "") -> float:
    """The largest error of a call as a share of the tolerance; Refusal for wrong numbers and writes outside an output.

    ``where``: what the message begins with, the shape where nothing is said.
    """
    verdict, where = case.verdict({name: output.inner for name, output in outputs.items()}), where or str(case.shape)
    if verdict.wrong:
        raise Refusal("verify", "wrong", f"{where}: {verdict}")
    if any(output.touched() for output in outputs.values()):
        raise Refusal("verify", "out_of_bounds", f"{where}: wrote outside the output")
    return verdict.worst
