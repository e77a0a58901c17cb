"""What the processes of one run of the tests share: a cache folder, and objects of the runtime that are compiled once."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

# What most processes of a run do not need is imported where it is: each image of the stand-in is made by one.
if TYPE_CHECKING:
    from haotuner.backends.toolchain import Toolchain

WORD = "HAOTUNER_TESTS"  # in the environment, set by ``conftest.py``, inherited by pytest-xdist's workers


def in_a_run() -> bool:
    """Whether there is one: not for programs that share code with the tests."""
    return WORD in os.environ


def run_folder() -> Path:
    """The folder of this run of the tests; it is gone afterwards."""
    return Path(os.environ[WORD])


def cache_folder() -> Path:
    """``XDG_CACHE_HOME`` of commands: the peak is measured and the runtime is compiled once a run, not once a test."""
    return once("cache", _measure)


def _measure(folder: Path) -> None:
    """This host's rates, as if they were settled: beside another process of tests three commands would measure them anew.

    What the commands compile is kept between runs.
    """
    from haotuner.errors import EnvironmentMissing
    from haotuner.hw_profiles import cpu_peak
    from haotuner.hw_profiles.cpu import cpu_isas, cpu_rates
    from haotuner.hw_profiles.topology import Host
    from tests import kept

    (folder / "haotuner").mkdir()
    for name in ("objects", "device-code"):
        (folder / "haotuner" / name).symlink_to(kept.shared(name))
    try:
        host = Host.here()
        rates = cpu_rates(cpu_isas(host)[0], host=host, measure=True, cache_dir=folder / "haotuner")
    except EnvironmentMissing:
        return
    if isinstance(rates, cpu_peak.CpuPeak):
        for entry in (folder / "haotuner").glob("cpu-peak-*.json"):
            peak = json.loads(entry.read_text())
            peak["rates"]["runs"] = cpu_peak.MAX_RUNS
            entry.write_text(json.dumps(peak))


def toolchain() -> Toolchain:
    """The C compiler, with the objects that the commands of this run keep, too; outside of a run with none."""
    from haotuner.backends.toolchain import Toolchain
    from tests import kept

    return Toolchain.find(kept.shared("objects") if in_a_run() else None)


def once(name: str, make: Callable[[Path], None]) -> Path:
    """A folder that the first process to ask for it makes, for all others of the run to read."""
    folder = run_folder() / name
    with (run_folder() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / ".made").exists():
            folder.mkdir(exist_ok=True)
            make(folder)
            (folder / ".made").touch()
    return folder
