"""Memory of one check on a device: what is put there is given back together, however the check ends."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from haotuner.backends.cuda.timing_library import TimingLibrary


class DeviceScratch:
    """``with Held(native) as held: address = held.put(values)``."""

    def __init__(self, native: TimingLibrary) -> None:
        self._native, self._places = native, list[int]()

    def put(self, values: NDArray[Any]) -> int:
        """The address of a copy; Refusal where there is no memory for one."""
        self._places.append(self._native.allocate(values.nbytes))
        self._native.put(self._places[-1], np.ascontiguousarray(values))
        return self._places[-1]

    def poisoned(self, size: int) -> int:
        """The address of so many bytes that nobody should read."""
        self._places.append(self._native.allocate(size))
        self._native.poison(self._places[-1], size)
        return self._places[-1]

    def __enter__(self) -> DeviceScratch:
        return self

    def __exit__(self, *_: object) -> None:
        for position in self._places:
            self._native.free(position)
