"""Channels last: a call is priced by the taps of its window that meet the image; the runtime reads no other weights."""

from __future__ import annotations

import numpy as np
import pytest

from haotuner.cost.families import demand
from haotuner.microkernels.cpu.conv import CpuConv
from haotuner.ops.convolution import windows
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.cost.cost_examples import BIG_CORE


def met(op: Op, shape: Shape) -> int:
    """Taps between the first and last line, or column where one line is met, that some output has in the image."""
    spans = []
    extents = op.extents(shape)
    for side, image, output in zip(windows(op.kind, dict(op.static), op.all_options()).values(), "hw", "pq", strict=True):
        places = [
            tap
            for tap in range(side.taps)
            for position in range(extents[output])
            if 0 <= position * side.stride - side.before + tap * side.dilation < extents[image]
        ]
        spans.append(max(places) - min(places) + 1)
    lines, columns = spans
    return lines * (columns if lines == 1 else op["s"])


@pytest.mark.parametrize(
    "spec", ["r=3,s=3,pad=1", "r=3,s=3,pad=1,stride=2", "r=7,s=7,pad=3,stride=2", "r=5,s=3,pad=2.1.2.1"]
)
def test_a_call_is_priced_by_the_taps_that_meet_the_image(spec):
    op, family = Op.parse(f"conv2d:c=16,f=16,layout=nhwc,{spec}"), CpuConv()
    kernel = family.kernel(op, 4, 16, 1, 16)
    shapes = [Shape.of({"b": 2, "h": h, "w": w}) for h in (1, 2, 4, 9) for w in (1, 2, 12)]
    work = demand(BIG_CORE, family, op, [(kernel, shape) for shape in shapes], weights="cold").work
    pixels = np.array([op.extents(shape)["p"] * op.extents(shape)["q"] * 2 for shape in shapes])
    taps = work.flops["simd"] / (2 * pixels * 16 * 16)
    assert taps.tolist() == [met(op, shape) for shape in shapes]
