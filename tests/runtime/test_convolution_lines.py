"""Convolutions that read windows from padded lines of the image: right at every shape, window and share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import haotuner
from haotuner.backends.cpu.pack_source import pack_library
from haotuner.pack.write import write_pack
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from haotuner.verify.pack_check import verify
from tests.run_folder import toolchain
from tests.runtime.conv_packs import assert_right, lines_conv
from tests.runtime.native_builds import c_pack
from tests.runtime.packs import LANES, LANES_HERE, best_level, document

FIRST = (
    "conv2d:c=3,f=20,r=7,s=7,pad=3,stride=2",
    "conv2d:c=2,f=7,r=3,s=3,pad=1",
    "conv2d:c=4,f=9,r=4,s=4,stride=4",  # patches: no line has pixels of two
    "conv2d:c=6,f=10,r=3,s=4,pad=0.3.2.1,stride=3,dilation=2,groups=2",
    "conv2d:c=2,f=5,r=2,s=2,pad=3,stride=5",  # residues that no tap meets, rows of pads alone
    "conv1d:c=5,f=20,s=5,pad=4,dilation=2",
    "conv2d:c=6,f=7,r=3,s=1,pad=48.0.48.0,dilation=48.1",  # most lines of a block are those that windows reach beyond it
)
SPECS = (
    *FIRST,
    "conv2d:c=1,f=7,r=3,s=3,pad=1,layout=nhwc",
    *(f"{spec},layout={'nwc' if '1d' in spec else 'nhwc'}" for spec in FIRST),
)
FUSED = (
    "conv2d:c=3,f=20,r=3,s=3,pad=1,stride=2,epilogue=bias+hardswish",
    "conv2d:c=3,f=10,r=3,s=3,pad=1,layout=nhwc,epilogue=bias+residual+relu",
)


@pytest.fixture(scope="module", params=LANES_HERE)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    ops = [lines_conv(spec, request.param) for spec in SPECS]
    return c_pack(tmp_path_factory.mktemp("conv") / "pack", ops)


@pytest.fixture(params=[1, 3])
def pack(path: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    with haotuner.load(path, threads=request.param) as opened:
        yield opened


def sizes(op: Op) -> list[Shape]:
    """Of each cell along w, even and odd, and images whose lines are several blocks, or a line is."""
    extents = [(1, 9, 5), (2, 8, 7), (3, 11, 8), (1, 12, 12), (2, 7, 13), (1, 24, 17), (1, 300, 80)]
    if op["c"] == 5:
        extents.append((1, 1, 30000))
    return [Shape.of({"b": b, **({"h": h} if "h" in op.dynamic else {}), "w": w}) for b, h, w in extents]


@pytest.mark.long
@pytest.mark.parametrize("spec", SPECS)
def test_every_shape_is_right(pack, spec):
    op = Op.parse(spec)
    assert_right(pack, op, sizes(op))


def test_programs_are_right_and_epilogues_follow(tmp_path):
    level = best_level()
    ops = [lines_conv(spec, LANES[level]) for spec in FUSED]
    pack_library(ops, level, toolchain(), tmp_path / "library.so")
    write_pack(tmp_path / "pack", tmp_path / "library.so", document(ops, level), lambda _: None)
    assert verify(tmp_path / "pack") == []


def test_the_weight_has_no_other_form(path):
    with haotuner.load(path) as pack:
        assert "plain" not in pack.op(Op.parse(SPECS[0]).name).entry.operands[1].packed
