"""The tiers of the tests: what a change to the CPU side can break is run by ``make test``, the rest by name."""

from __future__ import annotations

import re
from pathlib import PurePath

# The CUDA side without a GPU: over the stand-in driver, in the emulator, as text for nvcc.
_DEVICE = re.compile(r"cuda|gpu|bundle|standin|emulator|on_devices|op_kernel_device|test_driver")


def is_device(path: PurePath) -> bool:
    """Whether a test file, relative to ``tests/``, is about the CUDA side alone."""
    return _DEVICE.search(path.as_posix()) is not None
