"""Sums over k in parts, as selection prices them."""

from __future__ import annotations

import numpy as np
import pytest

from haotuner.cost.expected import DOUBT_US, adding_us, in_parts_of, over_traffic
from haotuner.hw_profiles.find import find_device
from haotuner.microkernels.cuda.dense_gemv import CudaGemv
from haotuner.microkernels.cuda.dense_wgmma import CudaWgmma
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape, ShapeRange
from haotuner.spec.traffic import Traffic

H200 = find_device("h200", measure=False)
WGMMA = CudaWgmma("cuda_wgmma_fp16", "fp16")
LARGE, NARROW = WGMMA.kernel(bm=64, bn=128, st=4), WGMMA.kernel(bm=64, bn=32, st=8)
PARTS = (1, 2, 4, 8, 16)


def traffic(text: str) -> Traffic:
    return Traffic.of_range(ShapeRange.parse(text))


def shares(op: str, m: str, parts: tuple[int, ...]) -> np.ndarray:
    score = over_traffic(Op.parse(op), WGMMA, H200, traffic(m), parts=parts)
    return score([LARGE, NARROW])


def test_more_columns_of_less_depth_are_the_same_work() -> None:
    op, shape = Op.parse("dense:n=512,k=8192,dtype=fp16"), Shape.of(m=16)
    split = in_parts_of(op, 8)
    assert (split["n"], split["k"]) == (4096, 1024) and split.flops(shape) == op.flops(shape)
    assert in_parts_of(op, 1) is op and adding_us(op, H200, shape, 1) == 0
    assert adding_us(op, H200, shape, 16) > adding_us(op, H200, shape, 2) > 1.5


def test_a_long_sum_over_few_tiles_is_expected_in_parts() -> None:
    whole, split = (shares("dense:n=512,k=16384,dtype=fp16", "m=16", parts) for parts in ((1,), PARTS))
    assert (split > 1.5 * whole).all(), "four tiles on 132 SMs"
    assert split[0] / split[1] > whole[0] / whole[1], "parts are worth most to large tiles"


@pytest.mark.parametrize("op, m", [("dense:n=4096,k=4096,dtype=fp16", "m=8192"), ("dense:n=4096,k=128,dtype=fp16", "m=16")])
def test_where_the_device_is_full_or_the_sum_is_short_nothing_changes(op: str, m: str) -> None:
    assert (shares(op, m, PARTS) == shares(op, m, (1,))).all()


def test_a_doubtful_gain_is_not_counted() -> None:
    """BERT's products of few rows: what parts would save is less than what it is doubted by."""
    op, few = "dense:n=768,k=768,dtype=fp16", "m=64"
    assert (shares(op, few, PARTS) == shares(op, few, (1,))).all() and DOUBT_US > 1


def test_sums_of_lanes_are_paid_for() -> None:
    """A tile of 64 sums a lane gives 62 away; with fewer lanes along k fewer; one sum once a halving."""
    family = CudaGemv("cuda_gemv_fp32", "fp32")
    wide, narrow = family.kernel(bm=16, c=4, wn=4, wk=1, v=4), family.kernel(bm=1, c=1, wn=4, wk=1, v=4)
    assert family.tail(wide) == 7 * (32 + 16 + 8 + 4 + 2) and family.tail(narrow) == 7 * 5
    assert WGMMA.tail(LARGE) == 0
