"""Generated programs as a timing process launches them: ``python -m tests.backends.cuda_timing_generated CUBIN OP``."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from haotuner.backends.cuda.generated_calls import GeneratedOperands, verify_generated
from haotuner.backends.cuda.timer_process import TimerProcess
from haotuner.backends.cuda.timing_library import DeviceScratch
from haotuner.spec.kernel import shares_terms
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.backends.cuda_timing_shared import loaded, one_launch, opened
from tests.runtime.cuda_packs import GENERATED_PICKS, ONE_FOLD_PICKS, family


def timing_generated(cubin: str, op: str, library: str = "") -> None:
    """Every program is right, a call is one launch, two where blocks share a fold; after a refused one the next is right."""
    driver, timed = opened(library)
    pick, parsed = next(pick for pick in (*GENERATED_PICKS, *ONE_FOLD_PICKS) if pick.op == op), Op.parse(op)
    module = timed.load(Path(cubin))
    for kernel in pick.kernels:
        of, placed = family(kernel), loaded(timed, module, kernel)
        assert verify_generated(parsed, kernel, of, placed, timed, np.random.default_rng(3)) <= 1
        shape = dict(zip(parsed.dynamic, (9, 150) if len(parsed.dynamic) == 2 else (2, 3, 70), strict=True))
        with DeviceScratch(timed) as scratch:
            operands = GeneratedOperands(scratch, parsed, Shape.of(shape))
            one_launch(
                driver, timed, operands.call(placed, of, kernel), (of.cut(kernel).stages or 2) if shares_terms(kernel) else 1
            )
        job = {"op": op, "kernel": kernel.name, "library": cubin, "seed": 3}
        assert TimerProcess(0).verify(job)["max_error"] <= 1


if __name__ == "__main__":
    timing_generated(*sys.argv[1:])
