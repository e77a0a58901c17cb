"""Transposed convolutions by residues of their stride: what they are priced for is what their taps reach."""

from __future__ import annotations

from math import prod

import pytest

from haotuner.microkernels.cuda.conv import product_extents, product_of
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape

SIDES = [(2, 2, 1), (3, 2, 1), (4, 4, 1), (2, 4, 1), (3, 2, 2), (4, 4, 2), (5, 6, 4), (5, 6, 9), (7, 3, 3), (1, 2, 2)]


def reached(taps: int, stride: int, dilation: int) -> list[int]:
    """Taps of each residue that has any."""
    residues = [tap * dilation % stride for tap in range(taps)]
    return [residues.count(residue) for residue in set(residues)]


@pytest.mark.parametrize(("taps", "stride", "dilation"), SIDES)
def test_a_residue_has_the_taps_that_reach_it(taps: int, stride: int, dilation: int) -> None:
    op = Op.parse(f"conv_transpose2d:c=32,f=16,r={taps},s=3,stride={stride}.2,dilation={dilation}.1,layout=nhwc,dtype=fp16")
    sides = reached(taps, stride, dilation), reached(3, 2, 1)
    extents = product_extents(op, op.extents(Shape.of(b=1, h=9, w=9)), phased=True)
    assert extents["b"] == prod(len(side) for side in sides)
    assert extents["k"] == 32 * prod(max(side) for side in sides)
    assert dict(product_of(op, phased=True).static)["k"] == extents["k"]
