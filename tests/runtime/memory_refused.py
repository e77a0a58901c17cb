"""Memory that a library cannot have: ``native/refused_memory.c`` is preloaded, counts what it holds and refuses some."""

from __future__ import annotations

import ctypes
import gc
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.runtime.native_builds import HERE

MOST = 200  # allocations of one act


def preloaded(folder: Path) -> dict[str, str]:
    """What a process needs in its environment."""
    library = folder / "refused_memory.so"
    command: list[str | Path] = ["cc", "-std=c11", "-O1", "-fPIC", "-shared", HERE / "refused_memory.c", "-o", library]
    subprocess.run(command, check=True)
    return {"LD_PRELOAD": str(library)}


class Memory:
    """What the library of a pack asks for."""

    def __init__(self, pack: str) -> None:
        (library,) = Path(pack, "lib").iterdir()
        self.name, self._shim = f"/{library.name}".encode(), ctypes.CDLL(None)
        self._shim.memory_asked.restype = self._shim.memory_held.restype = ctypes.c_long

    def refuse(self, nth: int) -> None:
        """The nth that it asks for from now on; 0: none."""
        self._shim.memory_watch(self.name, ctypes.c_long(nth))

    @property
    def held(self) -> int:
        """Pieces that it was given and has not given back, since it was watched first."""
        return int(self._shim.memory_held())

    @property
    def asked(self) -> int:
        """How often it asked since ``refuse``."""
        return int(self._shim.memory_asked())

    def each_refused(self, act: Callable[[], None], errors: type[Exception], words: str) -> int:
        """Refuse an act one piece after the other, until it has all; each is said and leaves nothing. Returns how many."""
        gc.collect()
        before = self.held
        for nth in range(1, MOST):
            self.refuse(nth)
            try:
                act()
            except errors as error:
                message = str(error)
            else:
                break
            self.refuse(0)
            assert re.search(words, message), f"piece {nth}: {message}"
            if self.held != before:
                gc.collect()  # what the error's frames held
            assert self.held == before, f"piece {nth}: {self.held - before} pieces are left"
        assert self.asked < nth, f"piece {nth} of {self.asked} was refused, and nobody said so"
        self.refuse(0)
        return nth - 1
