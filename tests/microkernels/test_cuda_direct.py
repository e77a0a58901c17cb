"""Kernels of depthwise convolutions: what they serve, their points, and that ptxas keeps them in registers."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

import pytest

from haotuner.backends.cuda.translation_unit import device_unit
from haotuner.microkernels.cuda.conv import CudaConv, conv_families
from haotuner.microkernels.cuda.direct import CudaDirect
from haotuner.microkernels.index import family_named
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from tests.microkernels.cuda_examples import device

ANY: Any = device("sm_80")
DEPTHWISE = "conv2d:c=64,f=64,r={0},s={0},pad=1,groups=64,dtype=fp16"


@pytest.mark.parametrize("more", ["", ",layout=nhwc,stride=2", ",out=fp32,epilogue=clamp+residual+gelu", ",dilation=2"])
def test_one_channel_a_feature_is_served_by_kernels_without_columns(more):
    (family,) = conv_families(Op.parse(DEPTHWISE.format(3) + more))
    assert family.name == "cuda_direct_fp16" and family_named(family.name) is family


@pytest.mark.parametrize(
    "op", ["conv2d:c=64,f=64,r=3,s=3,groups=32", "conv2d:c=4,f=4,r=9,s=9,groups=4", "conv2d:c=2,f=2,r=1,s=1"]
)
def test_more_channels_and_large_windows_are_products(op):
    assert all(isinstance(family, CudaConv) for family in conv_families(Op.parse(op)))


def test_points_are_distinct_and_their_names_parse_back():
    family, op = CudaDirect("fp16"), Op.parse(DEPTHWISE.format(3))
    points = list(family.points(op, ANY))
    assert len({point.name for point in points}) == len(points) >= 8
    assert all(MicroKernel.parse(point.name) == point for point in points)
    assert {family.tile(point).extent["q"] for point in points} == {1, 2, 4, 8}


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc: no CUDA toolkit")
@pytest.mark.parametrize("side", [3, 5])
def test_the_largest_kernels_spill_nothing(side, tmp_path):
    family = CudaDirect("fp16")
    points = sorted(family.points(Op.parse(DEPTHWISE.format(side)), ANY), key=lambda point: point["tp"] * point["tq"])
    unit = tmp_path / "unit.cu"
    unit.write_text(device_unit({point.name: (family, point) for point in points[-2:]}))
    command = [
        "nvcc",
        "-cubin",
        "-arch=sm_80",
        "-std=c++17",
        "-w",
        "-Xptxas",
        "-v",
        "-o",
        str(tmp_path / "unit.cubin"),
        str(unit),
    ]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert re.findall(r"(\d+) bytes spill stores", output) == ["0", "0"], output
