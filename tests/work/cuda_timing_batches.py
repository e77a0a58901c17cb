"""Products side by side as a timing process launches them: ``python -m tests.work.cuda_timing_batches CUBIN OP``."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from haotuner.backends.cuda import batches, timing_library
from haotuner.backends.cuda.timing_library import CallWords, Loaded, TimingLibrary, kernel_words
from haotuner.isolate.answers import Refusal
from haotuner.words.op import Op
from tests.serving.cuda_packs import PRODUCT_PICKS, family
from tests.standin.client import Driver

EXTENTS = {"b": 3, "m": 5, "n": 7, "k": 16}
LAUNCHES = 3


def timing_batches(cubin: str, op: str, library: str = "") -> None:
    """Every kernel is right, a batch is one launch, and a launch that the driver refuses is said; the next is right."""
    if library:
        timing_library.built = lambda folder: Path(library)
    driver, timed = Driver(), TimingLibrary(0)
    pick, parsed = next(one for one in PRODUCT_PICKS if one.op == op), Op.parse(op)
    module = timed.load(Path(cubin))
    for kernel in pick.kernels:
        launch, depth = family(kernel).launch(kernel), family(kernel).tile(kernel).step["k"]
        words = kernel_words(kernel.name, launch, family(kernel).dtype, kn=parsed.option("layout") == "nn")
        function, (registers, local, _) = timed.function(module, kernel.name, launch.shared_bytes)
        loaded = Loaded(
            words=words, function=function, registers=registers, local_bytes=local, shared_bytes=launch.shared_bytes
        )
        assert batches.verify(parsed, loaded, launch, depth, timed, np.random.default_rng(3)) <= 1
        operands = batches.BatchOperands(timed, parsed, EXTENTS)
        one_launch(driver, timed, operands.call(loaded))
        operands.free()


def one_launch(driver: Driver, timed: TimingLibrary, call: CallWords, launches: int = 1) -> None:
    """A call is one launch, or so many, and is timed; one that the driver refuses is said, and the next goes through."""
    before = driver.count("cuLaunchKernel")
    timed.run(call)
    assert driver.count("cuLaunchKernel") == before + launches
    assert timed.once_us(call) > 0
    timed.prepare(call, LAUNCHES)
    assert timed.replay_us() > 0
    for act in (partial(timed.run, call), partial(timed.prepare, call, LAUNCHES)):
        driver.fail("cuLaunchKernel", "2", launches)
        with pytest.raises(Refusal, match=r"\(2\)"):
            act()
        driver.fail("cuLaunchKernel", "")
        timed.run(call)


if __name__ == "__main__":
    timing_batches(*sys.argv[1:])
