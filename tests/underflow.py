"""Whether code underflows: such a result costs a vector of an Intel core some 150 cycles, though it is right."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

FE_UNDERFLOW = 0x10  # of x86


def underflows(call: Callable[[], object]) -> bool:
    """Whether a call, in this thread, left the processor's flag of underflow behind."""
    libm = ctypes.CDLL("libm.so.6")
    libm.feclearexcept(FE_UNDERFLOW)
    call()
    return bool(libm.fetestexcept(FE_UNDERFLOW))
