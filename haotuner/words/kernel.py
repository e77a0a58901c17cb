"""MicroKernel and Family: one tile program, and all tile programs of one kind for one backend."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from haotuner.words.device import Device
from haotuner.words.op import Op
from haotuner.words.shape import Shape

_NUMBER = r"(?:0|[1-9][0-9]*)"  # no leading zeros: one value has one name
_NAME = re.compile(rf"([a-z0-9]+(?:_[a-z0-9]+)*)__([a-z]+{_NUMBER}(?:_[a-z]+{_NUMBER})*)")
_PARAM = re.compile(r"([a-z]+)([0-9]+)")


@dataclass(frozen=True, slots=True)
class MicroKernel:
    """One fixed tile program. Its name is a C identifier and parses back to its value."""

    family: str
    params: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        match = _NAME.fullmatch(self.name)
        if not match or _params(match[2]) != self.params:
            raise ValueError(f"micro-kernel name {self.name!r} does not parse back; use lower-case letters and numbers >= 0")
        keys = [key for key, _ in self.params]
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


def _params(text: str) -> tuple[tuple[str, int], ...]:
    return tuple((key, int(value)) for key, value in _PARAM.findall(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What one micro-kernel asks of the device while it runs."""

    registers_per_thread: int
    shared_bytes: int  # L1 (CPU) or shared memory (GPU) that one tile keeps busy
    threads: int = 1
    l2_bytes: int = 0  # CPU: what should stay in the private L2 between tiles
    facts: Mapping[str, float] = field(default_factory=dict)  # reported by a compiler: spills, real registers


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A micro-kernel that survived selection."""

    kernel: MicroKernel
    footprint: Footprint
    score: float = 0.0  # expected share of the roofline, mean over uses; higher is better


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A micro-kernel that a law of selection refused, with both sides of the broken inequality."""

    kernel: MicroKernel
    law: str
    asked: float
    allowed: float


class Family(Protocol):
    """All micro-kernels of one kind for one backend.

    Every method is pure and cheap but ``schedule``, which imports the compiler.
    """

    name: str
    backend: str  # "cpu" or "cuda"

    def serves(self, op: Op) -> bool:
        """Whether micro-kernels of this family compute the op."""
        ...

    def suits(self, device: Device) -> bool:
        """Whether the device is of the backend's kind and has the instructions that the programs use."""
        ...

    def points(self, op: Op, device: Device) -> Iterator[MicroKernel]:
        """The whole search space, legal or not, in a fixed order."""
        ...

    def footprint(self, kernel: MicroKernel) -> Footprint:
        """What the micro-kernel asks of a device."""
        ...

    def schedule(self, kernel: MicroKernel, symbol: str) -> Any:
        """TVM ``IRModule`` with one function of that global symbol."""
        ...

    def tiles(self, kernel: MicroKernel, op: Op, shape: Shape) -> int:
        """How many tiles cover the output of a shape (rows and columns rounded up)."""
        ...

    def steps(self, kernel: MicroKernel, op: Op, shape: Shape) -> int:
        """How many reduction steps one tile takes."""
        ...

    def reference(self, op: Op, inputs: Mapping[str, Any]) -> Any:
        """The op computed in float64 by numpy from the unpacked inputs; what every kernel is checked against."""
        ...
