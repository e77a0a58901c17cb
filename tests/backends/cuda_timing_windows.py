"""Windows of images as a timing process launches them: ``python -m tests.backends.cuda_timing_windows CUBIN OP``."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from haotuner.backends.cuda import window_calls
from haotuner.backends.cuda.timing_library import DeviceScratch
from haotuner.isolate.answers import Refusal
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.backends.cuda_timing_shared import loaded, one_launch, opened
from tests.runtime.cuda_packs import family
from tests.runtime.cuda_window_packs import IMAGE_PICKS, PHASE_PICKS, WINDOW_PICKS

SIZES = {"b": 2, "h": 6, "w": 9}


def timing_windows(cubin: str, op: str, library: str = "") -> None:
    """The kernel is right and a call is one launch; images at odd addresses are refused, and the next call is right."""
    driver, timed = opened(library)
    pick, parsed = next(pick for pick in (*WINDOW_PICKS, *IMAGE_PICKS, *PHASE_PICKS) if pick.op == op), Op.parse(op)
    kernel = pick.kernels[-1]
    placed, depth = loaded(timed, timed.load(Path(cubin)), kernel), family(kernel).tile(kernel).step["k"]
    assert window_calls.verify(parsed, placed, timed, np.random.default_rng(3), depth) <= 1
    with DeviceScratch(timed) as scratch:
        operands = window_calls.WindowOperands(scratch, parsed, Shape.of({axis: SIZES[axis] for axis in parsed.dynamic}))
        one_launch(driver, timed, operands.call(placed))
        if parsed.option("layout") in ("nhwc", "nwc"):
            operands._at["x"] += 2
            with pytest.raises(Refusal, match="x"):
                timed.run(operands.call(placed))
            operands._at["x"] -= 2
        timed.run(operands.call(placed))


if __name__ == "__main__":
    timing_windows(*sys.argv[1:])
