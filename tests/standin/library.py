"""``libcuda.so.1``, built once for each state of its sources and shared by all processes of this user."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.emulator.build import NATIVE as EMULATOR
from tests.emulator.build import compilers, cuda_include

NATIVE = Path(__file__).parent / "native"
MACHINE = ("machine.cc", "async_copy.cc", "tensor_core.cc")
LIBRARY = "libcuda.so.1"
KEPT_SECONDS = 7 * 24 * 3600  # unused entries of the cache go after a week
COMPILE_SECONDS = 900  # about 25 s of one core in all; a machine that others use may take minutes
# -O1: half the compile time of -O2. Nothing but the driver's functions, the machine's and the tests' is visible.
FLAGS = ("-O1", "-std=c++17", "-fPIC", "-Wall", "-Wno-unused-function", "-fno-strict-aliasing", "-pthread")
RENAMED = "-DcuTensorMapEncodeTiled=emulated_cuTensorMapEncodeTiled"  # the emulator's; ours checks and calls it


def cache_folder() -> Path:
    """Where libraries and images are kept between runs: in the temporary folder, for this user alone.

    Children of a tuning have a temporary folder of their own, and are told where this one is.
    """
    folder = Path(os.environ.get("STANDIN_CACHE") or tempfile.gettempdir()) / f"haotuner-standin-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to somebody else")
    return folder


def driver_library(*, bare: bool = False, sanitize: str = "") -> Path:
    """The folder of a ``libcuda.so.1``; built where it is not there yet.

    ``bare``: its cuLaunchKernel does nothing, for host overhead. ``sanitize``: as g++'s -fsanitize.
    """
    sources = [*sorted(NATIVE.glob("*.cc")), *(EMULATOR / name for name in MACHINE)]
    headers = [NATIVE / "standin.h", *sorted(EMULATOR.glob("*.h"))]
    extra = [f"-fsanitize={sanitize}", "-g"] if sanitize else []
    key = _hash([path.read_bytes() for path in (*sources, *headers)], [*FLAGS, *extra, str(bare)])
    folder = cache_folder() / f"driver-{key}"
    with locked(cache_folder() / f"driver-{key}.lock"):
        if not (folder / LIBRARY).exists():
            _forget_old()
            _build(sources, headers, extra, bare, folder)
    return folder


def _forget_old() -> None:
    oldest = time.time() - KEPT_SECONDS
    for path in cache_folder().iterdir():
        if path.stat().st_mtime < oldest:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _build(sources: list[Path], headers: list[Path], extra: list[str], bare: bool, folder: Path) -> None:
    common = [path.read_bytes() for path in headers]
    shared = [*FLAGS, *extra, "-isystem", str(cuda_include())]
    with locked(cache_folder() / "driver-header.lock"):
        header = _precompiled(shared, _hash(common, shared))

    def compiled(source: Path) -> str:
        """The object of one source, kept for other builds of the driver."""
        flags = shared.copy()
        flags += [RENAMED] if source.name == "async_copy.cc" else []
        flags += ["-DSTANDIN_BARE"] if bare and source.name == "launch.cc" else []
        flags += ["-w", "-fpermissive"] if source.parent == EMULATOR or source.name == "launch.cc" else []
        unit = cache_folder() / f"object-{_hash([source.read_bytes(), *common], [source.name, *flags])}.o"
        if not unit.exists():
            temporary = unit.with_suffix(f".{os.getpid()}")
            ahead = ["-I", str(header), "-include", "standin.h"] if flags == shared else []
            run(["g++", *flags, *ahead, "-c", str(source), "-o", str(temporary)])
            temporary.replace(unit)
        return str(unit)

    with ThreadPoolExecutor(max_workers=2) as two:
        units = list(two.map(compiled, sources))
    with tempfile.TemporaryDirectory(dir=cache_folder()) as scratch:
        whole = Path(scratch) / "whole"
        whole.mkdir()
        library = whole / LIBRARY
        run(["g++", "-shared", *extra, "-pthread", f"-Wl,-soname,{LIBRARY}", *units, "-o", str(library), "-ldl"])
        shutil.move(whole, folder)


def run(command: list[str]) -> None:
    """A compiler's run; raises RuntimeError with what it said."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)[:400]}\n{done.stderr[:4000]}")


def _precompiled(flags: list[str], key: str) -> Path:
    """A folder with the driver's header, compiled: it is half of what most of its sources take."""
    folder = cache_folder() / f"driver-header-{key}"
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=cache_folder()) as scratch:
            whole = Path(scratch) / "whole"
            whole.mkdir()
            run(["g++", *flags, "-x", "c++-header", str(NATIVE / "standin.h"), "-o", str(whole / "standin.h.gch")])
            whole.replace(folder)
    return folder


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time; others wait for what it makes."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _hash(contents: list[bytes], words: list[str]) -> str:
    digest = hashlib.sha256("\0".join([compilers(), *words]).encode())
    for content in contents:
        digest.update(content)
    return digest.hexdigest()[:16]
