"""Groups whose outputs one launch writes, served over the stand-in driver from Python and from C."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from haotuner.pack.manifest import read_manifest
from tests.runtime.cuda_beside_packs import ARCH, beside_pack
from tests.runtime.native_builds import ASAN, HERE, LIBRARY, cc
from tests.standin import ROOT, environment, patience, toolchain_missing
from tests.standin.cubins import cubin_of

pytestmark = pytest.mark.skipif(bool(toolchain_missing()), reason=toolchain_missing() or "nothing is missing")

SECONDS = 200  # of processors


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack of every group, with its device code beside."""
    folder = tmp_path_factory.mktemp("beside")
    beside_pack(folder / "pack", folder / "code")
    return folder


def ran(folder: Path, *command: str | Path) -> str:
    where = environment(folder / "images", device=ARCH, sources=folder / "code")
    done = patience.ran(command, SECONDS, cwd=ROOT, env={**os.environ, **where})
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def test_outputs_of_the_same_rows_come_of_one_launch(folder):
    ran(
        folder,
        sys.executable,
        "-m",
        "tests.runtime.cuda_beside",
        folder / "pack",
        cubin_of(folder / "code" / "beside.cu", folder / "code", ARCH),
    )


def test_several_outputs_from_c(folder):
    (name,) = (op.name for op in read_manifest(folder / "pack").ops if op.name.startswith("group_maps"))
    program = cc([HERE / "drive_beside.c", *LIBRARY], folder / "drive_beside", *ASAN)
    assert ran(folder, program, folder / "pack", name) == "right\n"
