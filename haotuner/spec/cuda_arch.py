"""Architectures of CUDA devices by their names: which code runs where, and the oldest driver that takes it."""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAME = re.compile(r"sm_([1-9][0-9]*)([0-9])([af]?)")

# CUDA whose driver knows an architecture first, as cuDriverGetVersion says it; what is not named is older than OLDEST.
# CUDA toolkit release notes, "New features" of each release.
_KNOWN_SINCE = {100: 12080, 101: 12080, 120: 12080, 103: 12090, 121: 12090, 88: 13000, 110: 13000}
_FAMILIES_SINCE = 12090  # code for a family, sm_100f
_BRANCHES = ((13000, 580), (12090, 575), (12080, 570), (12000, 525))  # first driver branch of a CUDA: its release notes
OLDEST = 12000  # tensor maps, which the runtime encodes, came with CUDA 12.0


@dataclass(frozen=True, slots=True)
class CudaArch:
    """``sm_90a``: compute capability 9.0, and instructions that no other capability has."""

    major: int
    minor: int
    variant: str  # a: for this capability alone; f: for it and later minors, with the family's instructions; or empty

    @staticmethod
    def of(name: str) -> CudaArch | None:
        """Architecture of a name like ``sm_80`` or ``sm_90a``; None of another text."""
        match = _NAME.fullmatch(name)
        return None if match is None else CudaArch(int(match[1]), int(match[2]), match[3])

    @property
    def number(self) -> int:
        """90 of ``sm_90a``."""
        return 10 * self.major + self.minor

    @property
    def exact(self) -> bool:
        """True if its code runs on this capability alone."""
        return self.variant == "a"

    def runs_on(self, major: int, minor: int) -> bool:
        """True if its code runs on a device: one of the same major and of this minor or, unless it is exact, a later one.

        CUDA programming guide, "Binary compatibility" and "Architecture-specific and family-specific features".
        """
        return major == self.major and (minor == self.minor if self.exact else minor >= self.minor)


def cuda_arch(name: str) -> CudaArch:
    """The architecture of that name; ValueError for another text."""
    result = CudaArch.of(name)
    if result is None:
        raise ValueError(f"{name!r} is no architecture of a CUDA device, such as sm_80 or sm_90a")
    return result


def runs(code: str, device: str) -> bool:
    """True if code of one architecture runs on a device of another, both by name."""
    made, has = CudaArch.of(code), CudaArch.of(device)
    return made is not None and has is not None and made.runs_on(has.major, has.minor)


def needed_driver(arch: str, toolkit_major: int) -> int:
    """The oldest CUDA whose driver takes code, as cuDriverGetVersion says it: 13000 for CUDA 13.0.

    Code runs on every driver of its compiler's major release (CUDA compatibility guide, "Minor version compatibility") that
    knows the architecture.
    """
    result = CudaArch.of(arch)
    known = _KNOWN_SINCE.get(result.number, 0) if result else 0
    family = _FAMILIES_SINCE if result and result.variant == "f" else 0
    return max(OLDEST, 1000 * toolkit_major, known, family)


def driver_words(version: int) -> str:
    """``13.0 (driver 580 or later)`` of 13000."""
    branch = next((number for since, number in _BRANCHES if version >= since), None)
    named = f"{version // 1000}.{version % 1000 // 10}"
    return named if branch is None else f"{named} (driver {branch} or later)"
