"""Micro-kernels are compiled once: their objects are kept by what they were compiled from."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from haotuner.backends.cpu import compile as cpu_compile
from haotuner.backends.cpu.compile import KERNELS, object_code
from haotuner.backends.object_cache import trim
from haotuner.microkernels.index import family_named

ARCH = "x86-64-v3"
DENSE: Any = family_named("cpu_dense_fp32")
ONE, OTHER = (DENSE.kernel(rows, 8, 8, 1, 8, 0) for rows in (1, 2))


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Symbols that TVM was given, in the order of compilation."""
    names: list[str] = []
    plain = cpu_compile._compile

    def noted(programs: Any, mcpu: str, out: Path) -> None:
        names.extend(programs)
        plain(programs, mcpu, out)

    monkeypatch.setattr(cpu_compile, "_compile", noted)
    return names


def symbols(path: Path) -> set[str]:
    listed = subprocess.run(["nm", str(path)], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1] for line in listed.splitlines() if " T " in line}


def test_a_kernel_is_compiled_once_whatever_it_is_asked_for_with(tmp_path: Path, compiled: list[str]) -> None:
    objects, out = tmp_path / "objects", tmp_path / "out.o"
    object_code([ONE], ARCH, out, objects=objects)
    alone = out.read_bytes()
    assert compiled == [ONE.name] and f"__tvm_ffi_{ONE.name}" in symbols(out)
    object_code([OTHER, ONE], ARCH, out, objects=objects)
    assert compiled == [ONE.name, OTHER.name]
    assert {f"__tvm_ffi_{ONE.name}", f"__tvm_ffi_{OTHER.name}"} <= symbols(out)
    object_code([ONE], ARCH, out, objects=objects)
    assert compiled == [ONE.name, OTHER.name] and out.read_bytes() == alone
    object_code([ONE], "x86-64-v4", out, objects=objects)  # another target is other code
    assert compiled == [ONE.name, OTHER.name, ONE.name]


def test_what_is_damaged_or_cannot_be_kept_is_compiled_again(tmp_path: Path, compiled: list[str]) -> None:
    objects, out = tmp_path / "objects", tmp_path / "out.o"
    object_code([ONE], ARCH, out, objects=objects)
    sound = out.read_bytes()
    (entry,) = (objects / KERNELS).rglob("*.o")
    entry.write_bytes(entry.read_bytes()[:-1])
    object_code([ONE], ARCH, out, objects=objects)
    (tmp_path / "file").write_text("")
    object_code([ONE], ARCH, out, objects=tmp_path / "file")
    assert compiled == [ONE.name] * 3 and out.read_bytes() == sound


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    for age, name in enumerate(("new", "old", "oldest")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.o").write_bytes(b"." * 10)
        os.utime(tmp_path / name / "x.o", (1000 - age, 1000 - age))
    trim(tmp_path, 25)
    assert {path.parent.name for path in tmp_path.rglob("*.o")} == {"new", "old"}
    trim(tmp_path, 9)
    assert not list(tmp_path.rglob("*.o"))
    trim(tmp_path / "nowhere", 0)
