"""Products side by side as a timing process launches them: ``python -m tests.backends.cuda_timing_batches CUBIN OP``."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from haotuner.backends.cuda import batches
from haotuner.backends.cuda.timing_library import DeviceScratch
from haotuner.spec.op import Op
from tests.backends.cuda_timing_shared import loaded, one_launch, opened
from tests.runtime.cuda_packs import PRODUCT_PICKS, family

EXTENTS = {"b": 3, "m": 5, "n": 7, "k": 16}


def timing_batches(cubin: str, op: str, library: str = "") -> None:
    """Every kernel is right, a batch is one launch, and a launch that the driver refuses is said; the next is right."""
    driver, timed = opened(library)
    pick, parsed = next(pick for pick in PRODUCT_PICKS if pick.op == op), Op.parse(op)
    module = timed.load(Path(cubin))
    for kernel in pick.kernels:
        launch, depth = family(kernel).launch(kernel), family(kernel).tile(kernel).step["k"]
        placed = loaded(timed, module, kernel, kn=parsed.option("layout") == "nn")
        assert batches.verify(parsed, placed, launch, depth, timed, np.random.default_rng(3)) <= 1
        with DeviceScratch(timed) as scratch:
            operands = batches.BatchOperands(scratch, parsed, EXTENTS)
            one_launch(driver, timed, operands.call(placed))


if __name__ == "__main__":
    timing_batches(*sys.argv[1:])
