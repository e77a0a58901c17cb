"""The tiers of the tests: what a change to the CPU side can break is run by ``make test``, the rest by name."""

from __future__ import annotations

import re
from pathlib import Path, PurePath

# The CUDA side without a GPU: over the stand-in driver, in the emulator, as text for nvcc.
_DEVICE = re.compile(r"cuda|gpu|bundle|standin|emulator|on_devices|op_kernel_device|test_driver")


def is_device(path: PurePath) -> bool:
    """Whether a test file, relative to ``tests/``, is about the CUDA side alone."""
    return _DEVICE.search(path.as_posix()) is not None


def leaves_out(marks: str, path: Path) -> bool:
    """Whether ``pytest -m MARKS`` can run nothing of a file, because it is about the CUDA side alone."""
    tests = Path(__file__).parent
    inside = path.suffix == ".py" and path.is_relative_to(tests)
    return inside and "not device" in marks and " or " not in marks and is_device(path.relative_to(tests))
