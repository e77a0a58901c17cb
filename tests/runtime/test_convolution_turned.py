"""Channels-first convolutions by tiles whose rows are pixels: right at every shape, window, phase and share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.backends.cpu.pack_source import pack_library
from haotuner.microkernels.cpu.conv_pixel_major import CpuConvPixelMajor
from haotuner.pack.write import write_pack
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from haotuner.verify.pack_check import verify
from tests.run_folder import toolchain
from tests.runtime.conv_packs import assert_right, turned_conv
from tests.runtime.native_builds import c_pack
from tests.runtime.packs import LANES, LANES_HERE, best_level, document

pytestmark = pytest.mark.long

SPECS = (
    "conv2d:c=17,f=40,r=3,s=3,pad=1",
    "conv2d:c=18,f=33,r=3,s=3,pad=1,stride=2",
    "conv2d:c=40,f=20,r=1,s=1",
    "conv2d:c=20,f=18,r=1,s=1,stride=3",  # lines that no window sees
    "conv2d:c=32,f=24,r=3,s=2,pad=0.3.2.1,stride=3,dilation=2,groups=2",
    "conv2d:c=8,f=9,r=3,s=3,pad=17,dilation=17",  # bands of a few pixels
    "conv2d:c=130,f=9,r=3,s=3,pad=1",  # a sum in parts
    "conv1d:c=16,f=20,s=5,pad=4,dilation=2",
    "conv_transpose2d:c=20,f=18,r=2,s=2,stride=2",
    "conv_transpose2d:c=9,f=12,r=3,s=4,stride=3,pad=1",
)
FUSED = (
    "conv2d:c=16,f=20,r=3,s=3,pad=1,stride=2,epilogue=bias+residual+silu",
    "conv2d:c=24,f=16,r=1,s=1,epilogue=bias+relu",
)


@pytest.fixture(scope="module", params=LANES_HERE)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    ops = [turned_conv(spec, request.param) for spec in SPECS]
    return c_pack(tmp_path_factory.mktemp("conv") / "pack", ops)


@pytest.fixture(params=[1, 3])
def pack(path: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    with haotuner.load(path, threads=request.param) as opened:
        yield opened


def sizes(op: Op, draw: np.random.Generator) -> list[Shape]:
    """Of each cell along w, and beyond one block of pixels."""
    drawn = [(int(draw.integers(1, 4)), int(draw.integers(5, 12)), w) for w in (5, 6, 7, 12, 13)]
    extents = [*drawn, (1, 5, 6), (2, 24, 6), (2, 5, 12)]
    return [Shape.of({"b": b, **({"h": h} if "h" in op.dynamic else {}), "w": w}) for b, h, w in extents]


@pytest.mark.parametrize("spec", SPECS)
def test_every_shape_is_right(pack, spec):
    op, draw = Op.parse(spec), np.random.default_rng(0)
    assert_right(pack, op, sizes(op, draw))


def test_a_pack_keeps_the_plain_weight_first(path):
    with haotuner.load(path) as pack:
        packed = pack.op(Op.parse(SPECS[0]).name).entry.operands[1].packed
        assert 0 < packed["plain"] < packed["floats"]


def test_epilogues_follow(tmp_path):
    level = best_level()
    ops = [turned_conv(spec, LANES[level]) for spec in FUSED]
    pack_library(ops, level, toolchain(), tmp_path / "library.so")
    write_pack(tmp_path / "pack", tmp_path / "library.so", document(ops, level), lambda _: None)
    assert verify(tmp_path / "pack") == []


def test_products_of_channels_first_alone():
    family = CpuConvPixelMajor()
    wide = "conv2d:c=16,f=16,r=3,s=3,dilation=40"  # finds no room in a band
    for spec in (
        wide,
        "conv2d:c=16,f=16,r=3,s=3,layout=nhwc",
        "conv2d:c=32,f=32,r=3,s=3,groups=32",
        "conv2d:c=3,f=64,r=7,s=7",
    ):
        assert not family.serves(Op.parse(spec))
    assert family.serves(Op.parse("conv2d:c=16,f=16,r=3,s=3")) and family.serves(Op.parse(SPECS[-1]))
