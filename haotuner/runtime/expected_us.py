"""ExpectedUs: microseconds that a request of a whole model will take, by the times that its pack holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from haotuner.errors import UsageError
from haotuner.runtime.native_library import NativeModel

SIZES = 4096  # of requests whose times are remembered


class ExpectedUs(NamedTuple):
    """Microseconds of one call: ``expected``, and the band in which nine calls of ten lie on the pack's own host."""

    low: float
    expected: float
    high: float


class ExpectedTimes:
    """Expected times of one model. The library computes them; those of sizes seen before are looked up here."""

    __slots__ = ("_known", "_native")

    def __init__(self, native: NativeModel) -> None:
        self._native = native
        self._known: dict[tuple[tuple[str, int], ...], ExpectedUs] = {}

    def of(self, dims: Mapping[str, int]) -> ExpectedUs:
        """Expected times of a request. UsageError for other dimensions, impossible sizes, and packs that say no times."""
        key = tuple(dims.items())
        known = self._known.get(key)
        return self._computed(dims, key) if known is None else known

    def _computed(self, dims: Mapping[str, int], key: tuple[tuple[str, int], ...]) -> ExpectedUs:
        native = self._native
        if dims.keys() != set(native.dims):
            raise UsageError(f"{native.name} has the dimensions {', '.join(native.dims)}; got {', '.join(dims) or 'none'}")
        try:
            us = native.expected_us([dims[name] for name in native.dims])
        except (TypeError, OverflowError) as error:
            raise UsageError(f"{native.name}: sizes must be whole numbers, got {dict(dims)!r:.200}") from error
        if len(self._known) >= SIZES:
            self._known.clear()
        result = self._known[key] = ExpectedUs(*us)
        return result
