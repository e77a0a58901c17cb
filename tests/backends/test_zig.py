"""Tuning with the compiler of the package ziglang, where no other is on the PATH."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.backends.cpu.compile import NOT_COMPILED
from haotuner.backends.toolchain import Toolchain
from haotuner.errors import EnvironmentMissing


def without_compilers(monkeypatch: pytest.MonkeyPatch, zig: Path | None) -> None:
    """No compiler on the PATH; ``zig``: the folder of the package ziglang, None where it is not installed."""
    spec = None if zig is None else importlib.util.spec_from_file_location(
        "ziglang", zig / "__init__.py", submodule_search_locations=[str(zig)]
    )  # fmt: skip
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)


def test_no_compiler_at_all_is_an_error_that_names_both_ways(monkeypatch):
    without_compilers(monkeypatch, None)
    with pytest.raises(EnvironmentMissing, match="apt-get install gcc, or pip install ziglang"):
        Toolchain.find()


def test_the_packages_compiler_is_called_with_its_subcommand(monkeypatch, tmp_path):
    zig = tmp_path / "zig"
    zig.write_text('#!/bin/sh\necho "clang of $1"\n')
    zig.chmod(0o755)
    without_compilers(monkeypatch, tmp_path)
    toolchain = Toolchain.find()
    assert toolchain.command == [str(zig), "cc", "-mcpu=x86_64"]
    assert toolchain.version == "clang of cc"


@pytest.mark.slow
def test_a_pack_is_tuned_with_it_and_answers(tmp_path):
    pytest.importorskip("ziglang")
    folders = [str(Path(sys.executable).parent)]  # of the interpreter's own programs; no compiler lies there
    environment: dict[str, Any] = {**os.environ, "PATH": ":".join(folders), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    environment |= {name: str(tmp_path / "zig") for name in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR")}
    ops = [word for op in ("dense:n=64,k=48", "dense:n=64,k=48,dtype=bf16") for word in ("--op", op)]
    words = ["tune", *ops, "--shapes", "m=1..32", "--threads", "1", "--budget", "20s", "--peers", "none"]
    done = subprocess.run(
        [sys.executable, "-m", "haotuner", *words, "--out", str(tmp_path / "pack")],
        env=environment, capture_output=True, text=True, check=False, timeout=580,
    )  # fmt: skip
    assert done.returncode in (0, 3), done.stderr[-2000:]
    with haotuner.load(tmp_path / "pack", threads=1) as pack:
        built = pack.manifest.document["toolchain"]
        assert "clang" in built["compiler"] and NOT_COMPILED not in built
        assert pack.manifest.document["verification"]["numbers"]  # of both types, against the reference
        numbers = np.random.default_rng(0)
        weight = numbers.standard_normal((64, 48)).astype(np.float32)
        x = numbers.standard_normal((5, 48)).astype(np.float32)
        linear = pack.op("dense_n64_k48").bind(weight)
        assert np.abs(linear(x) - x @ weight.T).max() < 1e-4
