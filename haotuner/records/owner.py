"""Owner of a claim, and whether that process still lives."""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """One store object in one process. The text form is what the store keeps."""

    place: str  # boot and process-id namespace: only inside one place can a process id be looked up
    pid: int
    born: str  # start time in clock ticks since boot, so that a reused process id is not taken for the owner
    token: str  # tells store objects of one process apart

    @staticmethod
    def mine() -> Owner:
        """A new owner in this process."""
        return Owner(place=_host_id(), pid=os.getpid(), born=_born(os.getpid()) or "?", token=uuid.uuid4().hex[:12])

    @staticmethod
    def parse(text: str) -> Owner:
        """The owner of that text."""
        host, pid, born, token = text.split("/")
        return Owner(place=host, pid=int(pid), born=born, token=token)

    def __str__(self) -> str:
        """Text that parses back."""
        return f"{self.place}/{self.pid}/{self.born}/{self.token}"

    def lives(self) -> bool:
        """False only when its process is known to be gone; another host or container is presumed alive."""
        return self.place != _host_id() or _born(self.pid) == self.born


def _host_id() -> str:
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{(_PROC / 'self/ns/pid').stat().st_ino}"
    except OSError:  # hardened containers hide these files; leases alone must do there
        return f"unknown:{uuid.uuid4().hex}"


def _born(pid: int) -> str | None:
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    state, *rest = stat.rpartition(")")[2].split()  # the name before it may hold blanks and brackets
    return None if state in "ZX" else rest[18]  # field 22 of proc(5); a zombie measures nothing
