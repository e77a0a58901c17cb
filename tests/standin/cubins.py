"""Cubins of hand-written device code, each as ``unit.cubin`` beside its ``unit.cu``, as the code cache leaves them."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.kept import kept, version
from tests.run_folder import in_a_run
from tests.standin.library import run


@functools.cache
def quick() -> tuple[str, ...]:
    """nvcc's flags for what the stand-in loads: it runs the unit's text, never this machine code.

    A unit of eight kernels takes 1.7 s of a core, without the newer flag 2.8, optimised 5.0.
    """
    help_text = subprocess.run(["nvcc", "--help"], capture_output=True, text=True, timeout=600, check=False).stdout
    return (*(["--Ofast-compile=max"] if "--Ofast-compile" in help_text else []), "-Xcicc", "-O1", "-Xptxas", "-O0")


def cubin_of(source: Path, folder: Path, arch: str, flags: Sequence[str] | None = None) -> Path:
    """``folder/ARCH/unit.cubin``, compiled by nvcc where it is not there yet; RuntimeError with what nvcc said.

    What a real device runs is compiled with flags of its own, not with ``quick``.
    """
    unit_folder = folder / f"{source.stem}-{arch}"
    cubin = unit_folder / "unit.cubin"
    if not cubin.exists():
        unit_folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, unit_folder / "unit.cu")
        words = ["nvcc", "-cubin", *(quick() if flags is None else flags), f"-arch={arch}"]
        if not in_a_run():
            run([*words, str(unit_folder / "unit.cu"), "-o", str(cubin)])
            return cubin
        content: list[str | bytes] = [version("nvcc"), repr(words), source.read_bytes()]
        known = kept(
            "cubin", content, lambda out: run([*words, str(unit_folder / "unit.cu"), "-o", str(out / "unit.cubin")])
        )
        shutil.copy(known / "unit.cubin", cubin)
    return cubin
