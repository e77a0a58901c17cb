"""MicroKernel: one tile program; Tile: what it computes at a time; Footprint: what it asks of a device."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

_NUMBER = r"(?:0|[1-9][0-9]*)"  # no leading zeros: one value has one name
_NAME = re.compile(rf"([a-z0-9]+(?:_[a-z0-9]+)*)__([a-z]+{_NUMBER}(?:_[a-z]+{_NUMBER})*)")
_PARAM = re.compile(r"([a-z]+)([0-9]+)")


@dataclass(frozen=True, slots=True)
class MicroKernel:
    """One fixed tile program. Its name is a C identifier and parses back to its value."""

    family: str
    params: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        keys, values = zip(*self.params, strict=True) if self.params else ((), ())
        if set(map(type, values)) <= {int} and min(values, default=0) >= 0 and _names_parse_back(self.family, keys):
            return  # a selection makes tens of thousands; most differ in values alone
        match = _NAME.fullmatch(self.name)
        if not match or _params(match[2]) != self.params:
            raise ValueError(f"micro-kernel name {self.name!r} does not parse back; use lower-case letters and numbers >= 0")
        if len(set(keys)) != len(keys):
            raise ValueError(f"micro-kernel {self.name!r} has a parameter twice")

    @property
    def name(self) -> str:
        """For example ``cpu_dense_fp32__mr6_nr64_pw64_ku4_vl16``."""
        return f"{self.family}__{'_'.join(f'{key}{value}' for key, value in self.params)}"

    @staticmethod
    def parse(name: str) -> MicroKernel:
        """The micro-kernel of that name."""
        match = _NAME.fullmatch(name)
        if not match:
            raise ValueError(f"{name!r} is not the name of a micro-kernel (FAMILY__KEYnumber_KEYnumber...)")
        return MicroKernel(match[1], _params(match[2]))

    def __getitem__(self, key: str) -> int:
        """Value of one parameter."""
        for name, value in self.params:
            if name == key:
                return value
        raise KeyError(f"{self.name} has no parameter {key!r}")


def shares_terms(kernel: MicroKernel) -> bool:
    """True if blocks of a launch share the terms of a fold, in parts whose number follows from the shape."""
    return dict(kernel.params).get("pt", 1) > 1


@functools.lru_cache(maxsize=256)
def _names_parse_back(family: str, keys: tuple[str, ...]) -> bool:
    match = _NAME.fullmatch(f"{family}__{'_'.join(f'{key}0' for key in keys)}")
    return match is not None and tuple(key for key, _ in _params(match[2])) == keys and len(set(keys)) == len(keys)


def _params(text: str) -> tuple[tuple[str, int], ...]:
    return tuple((key, int(value)) for key, value in _PARAM.findall(text))


# How a tile ends an axis. exact: it covers whole tiles only, and other micro-kernels cover the rest. masked: it computes
# less where the axis ends. tail: it has a narrower program for what is left.
Edge = Literal["exact", "masked", "tail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Geometry of a micro-kernel: extents by parallel axis, how each axis ends, and steps by reduction axis."""

    extent: Mapping[str, int]
    edge: Mapping[str, Edge]
    step: Mapping[str, int]

    def count(self, extents: Mapping[str, int]) -> int:
        """Tiles that cover these extents, every axis rounded up."""
        total = 1
        for axis, size in self.extent.items():
            total *= -(-extents[axis] // size)
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Resources that one micro-kernel takes of the device while it runs."""

    registers_per_thread: int
    shared_bytes: int  # L1 (CPU) or shared memory (GPU) that one tile keeps busy
    threads: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A micro-kernel that survived selection."""

    kernel: MicroKernel
    footprint: Footprint
    score: float = 0.0  # expected share of the roofline, mean over uses; higher is better


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A micro-kernel that a constraint of selection refused, with both sides of the broken inequality."""

    kernel: MicroKernel
    law: str
    requested: float
    allowed: float
