"""Convolutions whose tiles read windows from padded lines: which windows find room, and the program."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from haotuner.microkernels.cpu.conv_lines import CpuConvLines
from haotuner.spec.op import Op


def test_windows_whose_lines_find_room() -> None:
    family = CpuConvLines()
    for spec in (
        "conv2d:c=3,f=64,r=1,s=1",  # pixels are side by side as they lie
        "conv2d:c=32,f=64,r=3,s=3,pad=1,stride=2",  # many channels
        "conv2d:c=80,f=64,r=3,s=3,pad=1",
        "conv2d:c=24,f=64,r=3,s=3,layout=nhwc",
        "conv2d:c=16,f=64,r=3,s=3,dilation=40",
        "conv2d:c=8,f=8,r=3,s=3,groups=8",  # depthwise, without a product
        "conv2d:c=1,f=7,r=3,s=3",  # as are these
        "conv_transpose2d:c=3,f=8,r=4,s=4,stride=2",
    ):
        assert not family.serves(Op.parse(spec))
    for spec in (
        "conv2d:c=3,f=64,r=7,s=7,stride=2,pad=3",
        "conv2d:c=1,f=8,r=3,s=3,layout=nhwc",
        "conv1d:c=64,f=8,s=11,dilation=5",
    ):
        assert family.serves(Op.parse(spec))


@pytest.mark.parametrize("last", [False, True])
def test_golden_program(golden: Callable[..., None], last: bool) -> None:
    family = CpuConvLines()
    op = Op.parse(f"conv2d:c=3,f=5,r=2,s=2,layout={'nhwc' if last else 'nchw'}")
    golden(family.schedule(family.from_lines(op, 2, 16, 8), "tile").script() + "\n")
