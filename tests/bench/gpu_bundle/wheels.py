"""The packages that a bundle needs on the GPU machine, as wheels that are unpacked and not installed."""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

from haotuner.errors import EnvironmentMissing
from haotuner.isolate import group

# What the extra [cuda] of pyproject.toml asks for, and ml_dtypes: numpy's bf16.
PACKAGES = (
    "numpy>=1.26", "apache-tvm==0.27.0.post1", "apache-tvm-ffi==0.1.14.post1", "lightgbm>=4.5", "pandas>=2.1",
    "scikit-learn>=1.5", "scipy>=1.11", "nvidia-ml-py>=12.560", "typer>=0.16", "rich>=13.9",
    "nvidia-cuda-nvrtc>=13.0,<14", "ml_dtypes>=0.5", "sympy>=1.13", "threadpoolctl>=3.1",
)  # fmt: skip
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_24_x86_64", "manylinux_2_17_x86_64",
             "manylinux2014_x86_64", "manylinux1_x86_64", "any")  # fmt: skip
DOWNLOAD_SECONDS = 900


def download(folder: Path, python: str) -> None:
    """Fetch the wheels for a Python, such as 3.12, with pip, unless the folder was filled for it before.

    EnvironmentMissing where the index cannot be reached or has none that fit.
    """
    folder.mkdir(parents=True, exist_ok=True)
    filled = folder / f".filled-{python}-{zlib.crc32(' '.join(PACKAGES).encode()):08x}"  # with these packages
    if filled.exists():
        return
    for old in folder.glob("*.whl"):
        old.unlink()
    platforms = [f"--platform={platform}" for platform in PLATFORMS]
    words = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--only-binary=:all:",
        f"--python-version={python}", "--implementation=cp", *platforms, f"--dest={folder}", *PACKAGES,
    ]  # fmt: skip
    done = group.run(words, DOWNLOAD_SECONDS)
    if done.code:
        raise EnvironmentMissing(
            f"asked the package index for {', '.join(PACKAGES)} (Python {python}, Linux x86-64): "
            f"{done.errors.strip()[-400:]}; build on a machine that reaches an index, or with --no-wheels "
            "for a GPU machine that has them"
        )
    filled.touch()
