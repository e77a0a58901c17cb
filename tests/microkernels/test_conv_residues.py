"""Transposed convolutions: residues of the stride are features of one product, for tiles, laws and prices."""

from __future__ import annotations

import pytest

from haotuner.cost.families import demand
from haotuner.microkernels.cpu.conv import CpuConv, residue_classes, woven_residues
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.cost.cost_examples import BIG_CORE


@pytest.mark.parametrize(
    ("spec", "residues", "classes"),
    [
        ("conv_transpose2d:c=24,f=1,r=2,s=2,stride=2", 4, [(4, 1)]),
        ("conv_transpose2d:c=8,f=8,r=4,s=3,stride=2,pad=1", 4, [(2, 4), (2, 2)]),
        ("conv_transpose1d:c=8,f=8,s=11,stride=4", 4, [(3, 3), (1, 2)]),
        ("conv_transpose1d:c=8,f=8,s=11,stride=4,dilation=2", 0, None),  # residues see windows with gaps
        ("conv_transpose1d:c=8,f=8,s=3,stride=4", 0, None),  # a residue that no tap reaches
        ("conv_transpose1d:c=8,f=8,s=3,stride=1", 0, None),
        ("conv_transpose1d:c=8,f=8,s=16,stride=8,dtype=bf16", 0, None),
        ("conv1d:c=8,f=8,s=16,stride=8", 0, None),
    ],
)
def test_which_residues_see_the_same_windows(spec, residues, classes):
    op = Op.parse(spec)
    assert woven_residues(op) == residues
    assert classes is None or residue_classes(op) == classes


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_one_feature_fills_a_tile_with_its_residues(layout):
    family, op = CpuConv(), Op.parse(f"conv_transpose2d:c=24,f=1,r=2,s=2,stride=2,layout={layout}")
    small, large = (family.kernel(op, rows, 16, 1, 16) for rows in (4, 5))
    assert family.computed(small, "f", 1) == (1 if layout == "nchw" else 2)  # columns come by eight
    shape = Shape.of({"b": 2, "h": 10, "w": 12})
    demands = demand(BIG_CORE, family, op, [(small, shape)])
    assert demands.work.flops["simd"][0] == op.flops(shape)
    assert dict(large.params).get("mt") == (4 if layout == "nchw" else None)
