"""Groups whose outputs one launch writes, served over the stand-in driver from Python and from C."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from haotuner.backends.cuda.unit import device_unit
from haotuner.generate.group import kinds_of
from haotuner.hw_profiles.find import find_device
from haotuner.microkernels.cuda.generated import CudaGenerated
from haotuner.microkernels.index import families_for, family_named
from haotuner.pack.manifest import read_manifest
from haotuner.words.op import Op
from tests.serving.cuda_beside import GRAPHS
from tests.serving.cuda_generated_packs import packed_generated
from tests.serving.cuda_packs import make_pack
from tests.serving.native_builds import ASAN, HERE, LIBRARY, cc
from tests.standin import ROOT, environment, toolchain_missing
from tests.standin.cubins import cubin_of

pytestmark = pytest.mark.skipif(bool(toolchain_missing()), reason=toolchain_missing() or "nothing is missing")
ARCH = "sm_90a"


def packed(op: Op) -> Any:
    """An op with a kernel for short rows and one for long ones, whose blocks share rows where they can."""
    (family,) = families_for(op, "cuda")
    assert isinstance(family, CudaGenerated)
    points = list(family.points(op, find_device("h100", measure=False)))
    cut = [one for one in points if family.cut(one).stages and one["vl"] < 512]
    return packed_generated(op.name, family, (points[0], cut[0] if cut else points[-1]), 400)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack of every group, with its device code beside."""
    folder = tmp_path_factory.mktemp("beside")
    kinds = [kind for name, graph in GRAPHS.items() for kind in kinds_of(graph, name, lambda kind: True)]
    ops = [packed(Op.parse(kind.name)) for kind in kinds]
    made = [one.kernel for op in ops for one in op.kernels]
    kernels: dict[str, Any] = {one.name: (family_named(one.family), one) for one in made}
    code = folder / "code"
    code.mkdir()
    (code / "beside.cu").write_text(device_unit(kernels, reduces=()))
    make_pack(folder / "pack", ops, ARCH, cubin_of(code / "beside.cu", code, ARCH))
    return folder


def ran(folder: Path, *command: str | Path) -> str:
    where = environment(folder / "images", device=ARCH, sources=folder / "code")
    done = subprocess.run(
        [str(word) for word in command], cwd=ROOT, env={**os.environ, **where},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def test_outputs_of_the_same_rows_come_of_one_launch(folder):
    ran(
        folder,
        sys.executable,
        "-m",
        "tests.serving.cuda_beside",
        folder / "pack",
        cubin_of(folder / "code" / "beside.cu", folder / "code", ARCH),
    )


def test_several_outputs_from_c(folder):
    (name,) = (op.name for op in read_manifest(folder / "pack").ops if op.name.startswith("group_maps"))
    program = cc([HERE / "drive_beside.c", *LIBRARY], folder / "drive_beside", *ASAN)
    assert ran(folder, program, folder / "pack", name) == "right\n"
