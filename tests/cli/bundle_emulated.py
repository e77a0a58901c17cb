"""A small bundle without wheels, and its run on a machine whose GPU is the stand-in driver."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests import kept
from tests.bench.gpu_bundle.build import assemble
from tests.bench.gpu_bundle.suites import TINY
from tests.run_folder import cache_folder
from tests.standin import environment as of_driver
from tests.standin.patience import WALL_S


def make(root: Path) -> Path:
    """A bundle of the tiny suite; of device code the driver suite's alone is compiled ahead.

    The host's peak is known to it, and the runtime's objects are those of the commands of tests.
    """
    root.mkdir(parents=True, exist_ok=True)
    assemble(root, ["sm_80", "sm_90a"], TINY, kernels=0, jobs=1, say=lambda line: None)
    known = root / "cache" / "haotuner"
    known.mkdir(parents=True, exist_ok=True)
    for peak in (cache_folder() / "haotuner").glob("cpu-peak-*.json"):  # 4 s of a core a run, where caches are large
        shutil.copy(peak, known / peak.name)
    (known / "objects").symlink_to(kept.shared("objects"))
    return root


def environment(root: Path, images: Path) -> dict[str, str]:
    """The caller's environment without what would let the run find this checkout, and an sm_80 device."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    driver = of_driver(images, device="sm_80", sources=root, execute="demand")
    return {**inherited, "OPENBLAS_NUM_THREADS": "1", **driver}


def command(root: Path, out: Path, *arguments: str) -> list[str]:
    """``gpu_run.py`` of the bundle, on the tiny suite."""
    return [sys.executable, str(root / "gpu_run.py"), "--out", str(out), "--suite", "tiny", "--driver", "late", *arguments]


def run(root: Path, out: Path, where: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """A run to its end, from another directory."""
    return subprocess.run(
        command(root, out, *arguments), capture_output=True, text=True, timeout=WALL_S, check=False, cwd=root.parent,
        env=where,
    )  # fmt: skip
