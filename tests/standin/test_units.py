"""Generated kernels as real cubins, loaded and launched through the driver: right on ragged shapes, k split or not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict

import pytest

from haotuner.backends.cuda.unit import device_unit
from tests.content.cuda_examples import FAMILIES, VARIANTS
from tests.standin import ROOT, environment, toolchain_missing
from tests.standin.cubins import cubin_of

pytestmark = pytest.mark.skipif(bool(toolchain_missing()), reason=toolchain_missing() or "nothing is missing")
ARCHS = {"simt": "sm_80", "mma": "sm_80", "wgmma": "sm_90a"}
EACH = 1  # variants of a way: nvcc takes 2 s a kernel; the emulator's tests look at all of them


@pytest.mark.parametrize("way", ARCHS)
def test_generated_kernels_compute_through_the_driver(way, tmp_path):
    variants = VARIANTS[way][:EACH]
    programs = {variant.kernel.name: (FAMILIES[variant.kernel.family], variant.kernel) for variant in variants}
    source = tmp_path / f"{way}.cu"
    source.write_text(device_unit(programs, reduces=sorted({family.dtype for family, _ in programs.values()})))
    cubin = cubin_of(source, tmp_path, ARCHS[way])
    kernels = [
        {
            "symbol": variant.kernel.name,
            "dtype": FAMILIES[variant.kernel.family].dtype,
            "launch": asdict(FAMILIES[variant.kernel.family].launch(variant.kernel)),
            "kn": bool(variant.kernel["kn"]),
            "shapes": sorted({(call.m, call.n, call.k) for call in variant.case().calls}),
        }
        for variant in variants
    ]
    (tmp_path / "job.json").write_text(json.dumps({"cubin": str(cubin), "kernels": kernels}))
    ran = subprocess.run(
        [sys.executable, "-m", "tests.standin.units", str(tmp_path / "job.json")],
        cwd=ROOT, env={**os.environ, **environment(tmp_path / "images", device=ARCHS[way], sources=tmp_path)},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(ran.stdout)
    assert found.keys() == programs.keys()
    assert max(found.values()) <= 1.0, found
