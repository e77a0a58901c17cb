"""What scenarios of the library that times share: the library, kernels as it loads them, and what every call must do."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from haotuner.backends.cuda import timing_library
from haotuner.backends.cuda.timing_library import CallWords, Loaded, TimingLibrary
from haotuner.isolate.answers import Refusal
from haotuner.spec.kernel import MicroKernel
from tests.runtime.cuda_packs import family
from tests.standin.client import Driver

LAUNCHES = 3


def opened(library: str = "") -> tuple[Driver, TimingLibrary]:
    """The stand-in, and the library on device 0: that of the tree, or one that lies elsewhere."""
    if library:
        timing_library.built = lambda folder: Path(library)
    return Driver(), TimingLibrary(0)


def loaded(timed: TimingLibrary, module: Any, kernel: MicroKernel, *, kn: bool = False) -> Loaded:
    """A kernel of a module; ``kn``: it reads weights (k, n)."""
    return timed.loaded(module, kernel.name, family(kernel).launch(kernel), family(kernel).dtype, kn=kn)


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
