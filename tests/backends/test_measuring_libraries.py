"""Libraries that time kernels find all that their loops call, for each kind and type of op."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest
import tvm_ffi  # noqa: F401  # its names are what the libraries call

from haotuner.backends.cpu.timing_library import measuring_library
from haotuner.hw_profiles.find import find_device
from haotuner.microkernels.index import families_for
from haotuner.spec.op import Op
from tests.run_folder import toolchain
from tests.runtime.packs import best_level

OPS = (
    "dense:n=40,k=24,dtype=bf16",
    "batch_matmul:k=16,layout=nt,dtype=int8",
    "conv2d:c=16,f=20,r=3,s=3,pad=1",
    "conv2d:c=16,f=20,r=3,s=3,pad=1,dtype=bf16",
    "conv2d:c=16,f=20,r=3,s=3,pad=1,dtype=int8,layout=nhwc",
)


@pytest.mark.long
@pytest.mark.parametrize("spec", OPS)
def test_nothing_is_missing_in_a_library_that_times_kernels(spec: str, tmp_path: Path) -> None:
    op, device, out = Op.parse(spec), find_device("cpu", measure=False), tmp_path / "timed.so"
    for family in families_for(op, "cpu"):
        kernel = next(iter(family.points(op, device)))
        measuring_library([kernel], best_level(), toolchain(), out.with_stem(family.name))
        ctypes.CDLL(str(out.with_stem(family.name)), os.RTLD_NOW)  # all names are looked up at once
