"""Direct convolutions as a timing process launches them: ``python -m tests.backends.cuda_timing_direct CUBIN OP``."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from haotuner.backends.cuda import direct_calls
from haotuner.backends.cuda.timing_library import DeviceScratch
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.backends.cuda_timing_shared import loaded, one_launch, opened
from tests.runtime.cuda_packs import DIRECT_PICKS

SIZES = {"b": 2, "h": 9, "w": 12}


def timing_direct(cubin: str, op: str, library: str = "") -> None:
    """Every kernel is right and a call is one launch; after one that the driver refuses the next is right."""
    driver, timed = opened(library)
    pick, parsed = next(pick for pick in DIRECT_PICKS if pick.op == op), Op.parse(op)
    module = timed.load(Path(cubin))
    for kernel in pick.kernels:
        placed = loaded(timed, module, kernel)
        assert direct_calls.verify(parsed, kernel, placed, timed, np.random.default_rng(3)) <= 1
        with DeviceScratch(timed) as scratch:
            operands = direct_calls.DirectOperands(scratch, parsed, Shape.of({axis: SIZES[axis] for axis in parsed.dynamic}))
            one_launch(driver, timed, operands.call(placed))


if __name__ == "__main__":
    timing_direct(*sys.argv[1:])
