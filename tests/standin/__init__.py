"""A stand-in ``libcuda.so.1`` for child processes: real cubins and real host code, no GPU. Never shipped; see README.md."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from tests.emulator.build import toolchain_missing
from tests.standin.devices import device as device_named
from tests.standin.library import cache_folder, driver_library

ROOT = Path(__file__).parents[2]
SUPPRESSIONS = Path(__file__).with_name("lsan.supp")  # the stand-in keeps what it made; a host hears of its own leaks only

NOT_BUILT_FOR_TSAN = SUPPRESSIONS.with_name("tsan.supp")  # nor is the stand-in: its own first calls would be races

__all__ = ["environment", "toolchain_missing"]


def environment(
    folder: Path,
    *,
    device: str = "sm_80",
    more_devices: Sequence[str] = (),
    sources: Path | Sequence[Path] = (),
    execute: bool | Literal["always", "demand", "never"] = "always",
    mode: Literal["late", "early"] = "late",
    seed: int = 0,
    noise: float = 0.01,
    units: int | None = None,
    memory_bytes: int | None = None,
    driver: int = 13000,
    fail: str = "",
    limit: float | None = None,
    races: Literal["error", "say", "off"] = "error",
    bare: bool = False,
    sanitize: str = "",
) -> dict[str, str]:
    """What a child process needs in its environment to find the stand-in (add it to ``os.environ``'s).

    Args:
        folder: for the images of this test's cubins; made where missing.
        device: of ``tests/standin/devices.py``; ``more_devices`` follow it as cuda:1 and so on.
        sources: folders below which every loaded cubin lies as ``unit.cubin`` beside its ``unit.cu``.
        execute: which launches are carried out: always (True), never (False), or on demand, when a result is read.
        mode: late runs queued work when somebody waits for it, streams interleaved by ``seed``; early at once.
        noise: relative spread of times on the virtual clock.
        units, memory_bytes: multiprocessors and memory of each device, where the table's are not wanted.
        driver: as cuDriverGetVersion says it; 0: cuInit finds no device.
        fail: planned failures, as "cuMemAlloc:3=2,cuLaunchKernel:1=async:700" (``native/calls.cc``).
        limit: launches of more multiply-adds than this are never carried out.
        races: what two unordered accesses of the same bytes are: a sticky 719, a line on stderr, or not looked for.
        bare: cuLaunchKernel does nothing, to measure the host's own time.
        sanitize: build the driver with g++'s -fsanitize of this name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    library = driver_library(bare=bare, sanitize=sanitize)
    words = execute if isinstance(execute, str) else "always" if execute else "never"
    places = [sources] if isinstance(sources, Path) else list(sources)
    described = [device_named(name, units=units, memory_bytes=memory_bytes).text() for name in (device, *more_devices)]
    outer = os.environ.get("LD_LIBRARY_PATH", "")
    return {
        "LD_LIBRARY_PATH": f"{library}{os.pathsep}{outer}" if outer else str(library),
        "LSAN_OPTIONS": f"suppressions={SUPPRESSIONS}:print_suppressions=0",
        "TSAN_OPTIONS": f"suppressions={NOT_BUILT_FOR_TSAN}:print_suppressions=0",
        "STANDIN_CACHE": str(cache_folder().parent),
        "STANDIN_DEVICES": ";".join(described),
        "STANDIN_DRIVER": str(driver),
        "STANDIN_DRIVER_FOLDER": str(library),
        "STANDIN_EXECUTE": words,
        "STANDIN_FAIL": fail,
        "STANDIN_IMAGES": str(folder),
        "STANDIN_LIMIT": "" if limit is None else str(limit),
        "STANDIN_MODE": mode,
        "STANDIN_NOISE": str(noise),
        "STANDIN_RACES": races,
        "STANDIN_PYTHON": sys.executable,
        "STANDIN_ROOT": str(ROOT),
        "STANDIN_SEED": str(seed),
        "STANDIN_SOURCES": os.pathsep.join(str(source_folder.resolve()) for source_folder in places),
    }
