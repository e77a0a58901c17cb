"""The kind grouped: numpy's reference, its cuts, and what is drawn to check it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from haotuner.spec import numerics
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape

OP = Op.parse("grouped:g=4,n=3,k=5")


def drawn(m: int, ends: list[int]) -> dict[str, np.ndarray]:
    operands = numerics.draw(OP, Shape.of(m=m), np.random.default_rng(0))
    return {**operands, "offsets": np.array(ends, np.int32)}


def test_each_group_is_a_product_of_its_own_rows():
    inputs = drawn(7, [2, 2, 6, 7])
    x, weight = inputs["x"].astype(np.float64), inputs["weight"].astype(np.float64)
    expected = np.concatenate([x[:2] @ weight[0].T, x[2:6] @ weight[2].T, x[6:] @ weight[3].T])
    np.testing.assert_allclose(numerics.reference(OP, inputs), expected)
    assert (numerics.tolerance(OP, inputs, expected) > 0).all()


def test_one_group_of_many_is_dense():
    inputs = drawn(7, [0, 7, 7, 7])
    dense = {"x": inputs["x"], "weight": inputs["weight"][1]}
    np.testing.assert_allclose(numerics.reference(OP, inputs), numerics.reference(Op.parse("dense:n=3,k=5"), dense))


def test_ends_that_are_no_cut_are_taken_as_the_nearest_that_are():
    odd, even = drawn(7, [3, 1, -5, 900]), drawn(7, [3, 3, 3, 7])
    np.testing.assert_array_equal(numerics.reference(OP, odd), numerics.reference(OP, even))
    assert np.isnan(numerics.reference(OP, drawn(7, [0, 1, 2, 5]))[5:]).all()  # of no group


def test_weights_kn_hold_the_same_matrices():
    inputs = drawn(7, [2, 2, 6, 7])
    turned = {**inputs, "weight": inputs["weight"].transpose(0, 2, 1)}
    kn = Op.parse("grouped:g=4,n=3,k=5,weight=kn")
    np.testing.assert_array_equal(numerics.reference(kn, turned), numerics.reference(OP, inputs))


def test_its_name_parses_back():
    for text in ("grouped_n3_k5_g4", "grouped_n3_k5_g4_bf16_kn"):
        assert Op.parse(text).name == Op.parse(Op.parse(text).name).name
    assert OP.dynamic == ("m",) and OP.flops(Shape.of(m=7)) == 2 * 7 * 3 * 5


@given(m=st.integers(1, 300), groups=st.integers(1, 40), seed=st.integers(0, 9))
def test_what_is_drawn_is_a_cut_of_all_rows(m: int, groups: int, seed: int) -> None:
    ends = numerics.ends(np.random.default_rng(seed), m, groups)
    assert len(ends) == groups and ends[-1] == m and (np.diff(ends, prepend=0) >= 0).all()
