"""One kernel on one ragged shape: against the float64 reference, on poisoned and guarded memory."""

from __future__ import annotations

from dataclasses import dataclass

from haotuner.bundle.kernels import Kernels
from haotuner.bundle.operands import POISON, place, stray_bytes
from haotuner.bundle.probe import GpuError, Probe
from haotuner.bundle.trials import Task

RUNS = 3  # of the same launch on poisoned output: a race seldom shows twice the same way


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The worst of all runs; right when nothing is wrong, unwritten or stray."""

    max_error: float
    wrong: int
    unwritten: int
    stray_bytes: int

    @property
    def right(self) -> bool:
        """True if the kernel may be used."""
        return self.wrong == 0 and self.unwritten == 0 and self.stray_bytes == 0


def check(task: Task, probe: Probe, kernels: Kernels) -> Checked:
    """Run and compare; GpuError where the kernel faults or memory is short."""
    m, n, k = task.extents
    x_gap, y_gap = task.gaps
    x = y = w = None
    try:
        x = place(probe, m, k, dtype=task.dtype, gap=x_gap)
        w = place(probe, *((k, n) if task.kn else (n, k)), dtype=task.dtype)
        y = place(probe, m, n, dtype=task.dtype, gap=y_gap)
        probe.fill(x.data, x.count, task.dtype, task.pattern, seed=1)
        probe.fill(w.data, w.count, task.dtype, task.pattern, seed=2)
        worst, wrong, unwritten, stray = 0.0, 0, 0, 0
        for _ in range(RUNS):
            probe.set_bytes(y.data, POISON, y.size)
            with kernels.streamed():
                kernels.launch(task.kernel, x, w, y)
            probe.finish()
            found = probe.compare(x.data, w.data, y.data, task.extents, (x.stride, y.stride), task.dtype, task.kn)
            worst, wrong = max(worst, found.max_error), max(wrong, found.wrong)
            unwritten, stray = max(unwritten, found.unwritten), max(stray, stray_bytes(probe, y))
        return Checked(max_error=worst, wrong=wrong, unwritten=unwritten, stray_bytes=stray)
    finally:
        for matrix in (x, w, y):
            if matrix is not None:
                _release(probe, matrix.base)


def _release(probe: Probe, base: int) -> None:
    try:
        probe.release(base)
    except GpuError:  # the context is gone and the memory with it; the fault that did it is on its way up
        return
