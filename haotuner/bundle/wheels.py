"""The packages that a bundle needs on the GPU machine, as wheels that are unpacked and not installed."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from haotuner.errors import EnvironmentMissing

# tvm-ffi by the pin that the kernels are built against, what it needs, and numpy, which operators compute with.
PACKAGES = ("apache-tvm-ffi==0.1.14.post1", "typing-extensions>=4.13", "numpy>=1.26")
PYTHON = "3.12"  # of the GPU machine
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_24_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
DOWNLOAD_SECONDS = 300


def download(folder: Path) -> None:
    """Fetch the wheels with pip, unless the folder has them all.

    EnvironmentMissing where the index cannot be reached or has none that fit.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if len(list(folder.glob("*.whl"))) == len(PACKAGES):
        return
    platforms = [f"--platform={platform}" for platform in PLATFORMS]
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
        "--only-binary=:all:", f"--python-version={PYTHON}", "--implementation=cp", *platforms,
        f"--dest={folder}", *PACKAGES,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS, check=False)
    if done.returncode:
        raise EnvironmentMissing(
            f"asked the package index for {', '.join(PACKAGES)} (Python {PYTHON}, Linux x86-64): "
            f"{done.stderr.strip()[-400:]}; build on a machine that reaches an index, or with --no-wheels "
            "for a GPU machine that has them"
        )
    for wheel in folder.glob("*.whl"):
        if zipfile.ZipFile(wheel).testzip() is not None:
            raise EnvironmentMissing(f"{wheel.name} arrived damaged; run the build again")
