"""Engine: where builds and timings of a run are carried out. In processes of this host, or on nodes of a fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from haotuner.backends.backend import Backend, Timer
from haotuner.backends.cpu.group_jobs import GroupJob, timed_here
from haotuner.backends.fingerprint import Policy
from haotuner.errors import WorkerLost
from haotuner.spec.device import Device


class EngineLost(WorkerLost):
    """No node answers any more: what was measured stands, and the run ends."""


class Builder(Protocol):
    """Compiles. One caller at a time, from any thread."""

    def start(self) -> None:
        """Have it ready. WorkerLost if it cannot be had."""
        ...

    def ask(self, request: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """Answer to a request of ``Backend``; a file that it names at ``out`` lies on this host then.

        ChildNotResponding if there is no answer within the limit, EngineLost if nobody is left who could give it.
        """
        ...

    def close(self) -> None:
        """End it."""
        ...


class Engine(Protocol):
    """Builders and timers of one device. Close each of them; the engine itself owns nothing.

    ``trials_ahead``: trials that its timer takes while another one is under way, so that the device never waits for the
    tuner; 0 where the tuner's own work would disturb the timing.
    """

    trials_ahead: int

    def builders(self, backend: Backend, environment: Mapping[str, str], count: int) -> Sequence[Builder]:
        """At most ``count`` builders and at least one, not yet started."""
        ...

    def timer(self, backend: Backend, device: Device, policy: Policy, environment: Mapping[str, str], *, seed: int) -> Timer:
        """The timer of the device, not yet started."""
        ...

    def time_groups(self, job: GroupJob) -> list[str]:
        """Lines of a process that times generated groups on the device (``timed_here``). EngineLost as of a builder."""
        ...


class DeviceEngine(Engine, Protocol):
    """Engine of one device that need not be this host's."""

    @property
    def device(self) -> Device:
        """Profile of the device."""
        ...


class LocalEngine:
    """Processes of this host."""

    trials_ahead = 0

    def builders(self, backend: Backend, environment: Mapping[str, str], count: int) -> Sequence[Builder]:
        """So many processes."""
        return [backend.builder(environment) for _ in range(count)]

    def timer(self, backend: Backend, device: Device, policy: Policy, environment: Mapping[str, str], *, seed: int) -> Timer:
        """The backend's own."""
        return backend.timer(device, policy, environment, seed=seed)

    def time_groups(self, job: GroupJob) -> list[str]:
        """A process of this host."""
        return timed_here(job)
