"""Backend: all that tuning, packing and races must know of one kind of device, behind one protocol.

Everything above asks a backend and never which kind it is. A new kind of device is one implementation and one line in
``index.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from haotuner.backends.fingerprint import Policy
from haotuner.isolate.child import Child
from haotuner.plan.compose import Curve
from haotuner.plan.table import PlanTable
from haotuner.spec.composition import Composition
from haotuner.spec.device import Device
from haotuner.spec.family import Family
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.record import Failed, Timed, Trial
from haotuner.spec.shape import Shape

Facts = Mapping[str, float | str]
# What a request tells child processes through their environment: the device as it was asked for, a folder that stays.
DEVICE_WORD, CACHE_WORD, OBJECTS_WORD = "HAOTUNER_DEVICE", "HAOTUNER_CODE_CACHE", "HAOTUNER_OBJECTS"
DEVICE_CODE = "device-code"  # folder of compiled units, in a cache
CompileObject = Callable[[Sequence[MicroKernel], str, Path], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LibrarySlot:
    """Location of a built micro-kernel: a library that times, and the kernel's index in it."""

    library: str
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Follow:
    """The trial that tells what one more tile behind another region takes.

    It computes a part of the output; its time, times ``scale``, is that of one tile over all of it.
    """

    trial: Trial
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Result of tuning for one op, to be packed."""

    op: Op
    family: Family
    kernels: Sequence[MicroKernel]
    tables: Sequence[PlanTable]
    ranges: Mapping[str, tuple[int, int]]  # (first, last) of every dynamic axis in the traffic


class GroupLaunch(Protocol):
    """Launch parameters of the kernel of a model's group, see runtime/native/cuda/loaded.h."""

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def points(self) -> int: ...  # noqa: D102

    @property
    def lanes(self) -> int: ...  # noqa: D102

    @property
    def sizes(self) -> Sequence[int]: ...  # noqa: D102


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSources:
    """Groups of whole models (``executable.py``): C of loops and schedules; of a device its code, by a launch each.

    ``programs``: micro-kernels that the C calls. ``cache``: a folder in which compiled code is kept.
    """

    c: str
    programs: Sequence[MicroKernel] = ()
    device: str = ""
    launches: Sequence[GroupLaunch] = ()
    cache: Path | None = None


class Packed(Protocol):
    """An op as a pack of the backend holds it."""

    def entry(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """The op's entry in the manifest."""
        ...


class Timer(Protocol):
    """Verifies and times built micro-kernels in a process of its own."""

    def start(self) -> None:
        """Have the process ready. WorkerLost if it cannot be had."""
        ...

    def close(self) -> None:
        """End the process."""
        ...

    def renew(self) -> None:
        """Use a new process from here on: where code and data lie changes times."""
        ...

    def resume(self, facts: Facts) -> None:
        """Go on at the pace of an earlier session, which the facts of its records tell."""
        ...

    def verify(self, op: Op, kernel: MicroKernel, slot: LibrarySlot) -> float | Failed:
        """The largest error of a kernel on boundary shapes, as a share of the tolerance; checked once a kernel and depth."""
        ...

    def time(
        self, trial: Trial, op: Op, composition: Composition, places: Mapping[str, LibrarySlot], max_error: float
    ) -> Failed | tuple[Timed, Facts]:
        """Samples of a composition, as a server would run it, and what is known of the machine meanwhile."""
        ...


class Backend(Protocol):
    """One kind of device: how its micro-kernels are built, timed, shared among threads, and packed."""

    name: str
    libraries_mix: bool  # whether one composition may use kernels that were built apart

    def owns(self, device: Device) -> bool:
        """True if this backend tunes and packs for the device; the first in the index that does is asked."""
        ...

    def families(self, op: Op) -> tuple[Family, ...]:
        """The families that compute an op here, best first. NothingLegal if there is none."""
        ...

    def searched(self, op: Op, device: Device) -> tuple[Family, ...]:
        """Those that one search for the device looks at together, best first. NothingLegal if there is none."""
        ...

    def own_device(self, text: str, *, measure: bool, cache_dir: Path | None) -> Device | None:
        """A device that only this backend knows by that name; None: ``haotuner/hw_profiles`` is asked."""
        ...

    def check(self, device: Device, requested: str, *, measures: bool) -> None:
        """UsageError unless packs can be made for the device, and, if it ``measures``, this host has it."""
        ...

    def missing_requirement(self, device: Device) -> str:
        """Lacking requirement of this host, beside instructions of its CPU, to run the device's code; empty if none."""
        ...

    def threads(self, requested: Sequence[int], device: Device) -> tuple[int, ...]:
        """Counts of threads that get a plan each; 0 in ``requested`` means all; none asked: one, and all. UsageError."""
        ...

    def fingerprint(self, device: Device, policy: Policy) -> str:
        """Hash of what makes times comparable whatever is timed: device, toolchain, policy."""
        ...

    def toolchain(self) -> dict[str, str]:
        """Names and versions of what generates code. EnvironmentMissing if something is not there."""
        ...

    def builder(self, environment: Mapping[str, str]) -> Child:
        """A process, not yet started, that answers ``code_request``, ``build_request`` and ``object_request``."""
        ...

    def code_request(self, kernels: Sequence[str], device: Device, *, in_groups: bool = False) -> dict[str, Any]:
        """Request to a builder for ``code``: by kernel the hash of all code that is timed with it.

        ``in_groups``: as a program of models' groups, which other loops call than those that time ops.
        """
        ...

    def build_request(self, kernels: Sequence[str], device: Device, out: str) -> dict[str, Any]:
        """Request to a builder to put kernels into a library that times them, at ``out``."""
        ...

    def object_request(self, kernels: Sequence[MicroKernel], arch: str, out: str) -> dict[str, Any]:
        """Request to a builder to compile kernels of a pack, at ``out``."""
        ...

    def timer(self, device: Device, policy: Policy, environment: Mapping[str, str], *, seed: int) -> Timer:
        """Timer that verifies and times on the device."""
        ...

    def follow(self, op: Op, kernel: MicroKernel, device: Device, tiles: int) -> Follow:
        """The trial of so many tiles behind another region; for families whose tiles are exact along an axis."""
        ...

    def ways(self, op: Op, threads: int, *, one_order: bool) -> tuple[str, ...]:
        """Ways in which threads may share a call that are worth timing. ``one_order``: sums keep one order of terms."""
        ...

    def untimed_us(
        self, us: float, kernel: MicroKernel, composition: Composition, shape: Shape, op: Op, threads: int
    ) -> float:
        """Estimated time of a call that threads share so, in us, from one thread's time; infinity where nobody can say."""
        ...

    def rows_of(self, way: str, op: Op, threads: int, limit: int) -> int:
        """Extent of the covered axis up to which a call is shared in this way, at most ``limit``; 0 if it never is."""
        ...

    def shared(self, curve: Curve, way: str, op: Op, threads: int) -> Curve:
        """Cost curve of a region when so many threads share a call, from one thread's curve."""
        ...

    def packed(self, choice: Choice, device: Device) -> Packed:
        """Contents of a pack for an op."""
        ...

    def packed_ratio(self, choice: Choice, device: Device) -> float:
        """Bytes of the packed constants over those that are bound; 1 where they are used as they are."""
        ...

    def write_library(
        self,
        choices: Sequence[Choice],
        device: Device,
        out: Path,
        compile_object: CompileObject,
        groups: GroupSources | None = None,
        objects: Path | None = None,
    ) -> dict[str, Any]:
        """Build a pack's library; RuntimeError with the compiler's words. Returns what the manifest adds of the code.

        ``groups``: of whole models. ``objects``: a folder in which the
        compiled runtime and kernels are kept for the next library (``object_cache.py``).
        """
        ...
