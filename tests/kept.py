"""What compilers made, kept in the checkout between runs of the tests by all that went into it; a fresh one has nothing."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from tests.run_folder import run_folder

ROOT = Path(__file__).parents[1]
PLACE = ROOT / ".cache" / "tests"
DAYS = 14  # entries that no run used for so long go
GENERATORS = ("haotuner", "microkernels", "hw_profiles")  # what generated code depends on, with TVM
PACKAGES = ("apache-tvm", "apache-tvm-ffi")


def place() -> Path:
    """The folder of what is kept; that of the run where the checkout cannot be written."""
    with suppress(OSError):
        PLACE.mkdir(parents=True, exist_ok=True)
    return PLACE if os.access(PLACE, os.W_OK) else run_folder()


def kept(name: str, content: Sequence[str | bytes], make: Callable[[Path], None]) -> Path:
    """The folder that ``make`` filled for this content, in this run or an earlier one. For all to read, it appears whole."""
    digest = hashlib.sha256()
    for part in content:
        digest.update(hashlib.sha256(part.encode() if isinstance(part, str) else part).digest())
    folder = place() / f"{name}-{digest.hexdigest()[:24]}"
    with (run_folder() / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(prefix=".new-", dir=place()) as aside:
                whole = Path(aside) / "whole"
                whole.mkdir()
                make(whole)
                with suppress(OSError):  # another run was faster
                    whole.rename(folder)
    os.utime(folder)
    return folder


def text(name: str, content: Sequence[str | bytes], make: Callable[[], str]) -> str:
    """As ``kept``, of one text."""
    return (kept(name, content, lambda folder: _written(folder / "text", make())) / "text").read_text()


def _written(path: Path, words: str) -> None:
    path.write_text(words)


def shared(name: str) -> Path:
    """A folder that looks after what it keeps by itself, for these sources alone."""
    folder = place() / f"{name}-{sources()}"
    folder.mkdir(exist_ok=True)
    os.utime(folder)
    return folder


@functools.cache
def sources() -> str:
    """Hash of all that writes code: the package, its micro-kernels, what it knows of devices, and TVM."""
    import importlib.metadata

    digest = hashlib.sha256(repr([(name, importlib.metadata.version(name)) for name in PACKAGES]).encode())
    for folder in GENERATORS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"\0{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:24]


@functools.cache
def version(compiler: str) -> str:
    """Which compiler a name stands for."""
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=600, check=False)
    return f"{shutil.which(compiler)} {done.stdout}"


def forget() -> None:
    """Remove what nobody used for long, and what killed runs left."""
    now = time.time()
    for path in PLACE.iterdir() if PLACE.exists() else ():
        with suppress(OSError):
            if now - path.stat().st_mtime > (3600 if path.name.startswith(".new-") else DAYS * 24 * 3600):
                shutil.rmtree(path, ignore_errors=True)
