"""Convolutions without columns as a timing process launches them: ``python -m tests.work.cuda_timing_direct CUBIN OP``."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from haotuner.backends.cuda import direct_calls, timing_library
from haotuner.backends.cuda.timing_library import Loaded, TimingLibrary, kernel_words
from haotuner.words.op import Op
from haotuner.words.shape import Shape
from tests.serving.cuda_packs import DIRECT_PICKS, family
from tests.standin.client import Driver
from tests.work.cuda_timing_batches import one_launch

SIZES = {"b": 2, "h": 9, "w": 12}


def timing_direct(cubin: str, op: str, library: str = "") -> None:
    """Every kernel is right and a call is one launch; after one that the driver refuses the next is right."""
    if library:
        timing_library.built = lambda folder: Path(library)
    driver, timed = Driver(), TimingLibrary(0)
    pick, parsed = next(one for one in DIRECT_PICKS if one.op == op), Op.parse(op)
    module = timed.load(Path(cubin))
    for kernel in pick.kernels:
        launch = family(kernel).launch(kernel)
        function, (registers, local, _) = timed.function(module, kernel.name, launch.shared_bytes)
        words = kernel_words(kernel.name, launch, family(kernel).dtype, kn=False)
        loaded = Loaded(
            words=words, function=function, registers=registers, local_bytes=local, shared_bytes=launch.shared_bytes
        )
        assert direct_calls.verify(parsed, kernel, loaded, timed, np.random.default_rng(3)) <= 1
        operands = direct_calls.DirectOperands(timed, parsed, Shape.of({axis: SIZES[axis] for axis in parsed.dynamic}))
        one_launch(driver, timed, operands.call(loaded))
        operands.free()


if __name__ == "__main__":
    timing_direct(*sys.argv[1:])
