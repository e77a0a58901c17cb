"""A network namespace behind a virtual cable that tests cut and heal, as a switch that fails would."""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
Answer = TypeVar("Answer")


class Namespace:
    """A host of its own behind a cable. ``outside`` and ``inside``: addresses of the cable's ends."""

    def __init__(self, number: int) -> None:
        self.name = f"htr-{os.getpid()}-{number}"
        self.outside, self.inside = f"10.213.{number}.1", f"10.213.{number}.2"
        self._cable = f"htr{os.getpid() % 100_000}v{number}"
        self._far = far = f"{self._cable}p"
        _ip("netns", "add", self.name)
        _ip("link", "add", self._cable, "type", "veth", "peer", "name", far)
        _ip("link", "set", far, "netns", self.name)
        _ip("addr", "add", f"{self.outside}/30", "dev", self._cable)
        _ip("-n", self.name, "addr", "add", f"{self.inside}/30", "dev", far)
        _ip("-n", self.name, "link", "set", "lo", "up")
        _ip("link", "set", self._cable, "up")
        self.heal()

    def cut(self) -> None:
        """Drop what is sent, in both directions; nobody is told.

        The far end goes down: without the near one this host would send to its usual gateway.
        """
        _ip("-n", self.name, "link", "set", self._far, "down")

    def heal(self) -> None:
        """Deliver again."""
        _ip("-n", self.name, "link", "set", self._far, "up")

    def run(self, call: Callable[[], Answer]) -> Answer:
        """Answer of a call whose child processes live inside."""
        answers: list[Answer] = []
        errors: list[BaseException] = []

        def inside() -> None:
            try:
                with open(f"/run/netns/{self.name}", "rb") as file:  # noqa: PTH123  # a path of the kernel's
                    if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _NEW_NETWORK) != 0:
                        raise OSError(ctypes.get_errno(), "setns")
                answers.append(call())
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=inside)  # the namespace is of a thread, and of what it starts
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return answers[0]

    def remove(self) -> None:
        """Take the namespace and its cable away."""
        _ip("netns", "del", self.name)


@contextmanager
def namespace(number: int = 1) -> Iterator[Namespace]:
    """A namespace, removed at the end; the test is skipped where the machine allows none."""
    try:
        created = Namespace(number)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"network: no namespaces here ({error})")
    try:
        yield created
    finally:
        created.remove()


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
