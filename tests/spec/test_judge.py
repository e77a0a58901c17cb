"""The judge: references, tolerances and guard bands that catch what they are for."""

from __future__ import annotations

import numpy as np
import pytest

from haotuner.spec import numerics
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape

SHAPE = Shape.of(m=5)


@pytest.mark.parametrize("spec", ["dense:n=7,k=11", "dense:n=7,k=11,weight=kn", "dense:n=7,k=11,epilogue=bias+relu"])
def test_a_right_result_passes_and_one_missing_term_does_not(spec):
    op, rng = Op.parse(spec), np.random.default_rng(0)
    inputs = numerics.draw(op, SHAPE, rng)
    weight = inputs["weight"] if op.option("weight") == "nk" else inputs["weight"].T
    output = inputs["x"] @ weight.T
    if op.epilogue:
        output = np.maximum(output + inputs["bias"], 0)
    assert numerics.check(op, inputs, output).wrong == 0
    assert 0 < numerics.check(op, inputs, output).worst < 1
    broken = output.copy()
    broken[2, 3] = np.abs(broken[2, 3]) + np.abs(inputs["x"][2, 0] * weight[3, 0]) + 1e-3
    verdict = numerics.check(op, inputs, broken)
    assert verdict.wrong == 1 and verdict.at == (2, 3)


def test_whole_numbers_allow_no_error_at_all():
    op, rng = Op.parse("dense:n=7,k=11"), np.random.default_rng(0)
    inputs = numerics.draw(op, SHAPE, rng, whole=True)
    output = inputs["x"] @ inputs["weight"].T
    assert numerics.check(op, inputs, output, whole=True).worst == 0.0
    output[0, 0] += 2.0**-20
    assert numerics.check(op, inputs, output, whole=True).wrong == 1


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_wrong(value):
    output = np.ones((2, 2), np.float32)
    output[1, 0] = value
    verdict = numerics.compare(output, np.ones((2, 2)), 0.5)
    assert verdict.wrong == 1 and verdict.at == (1, 0) and "want 1.0" in str(verdict)


def test_operands_have_the_shapes_and_types_of_their_layout():
    inputs = numerics.draw(Op.parse("dense:n=7,k=11,weight=kn,dtype=fp16"), SHAPE, np.random.default_rng(0))
    assert {name: (a.shape, str(a.dtype)) for name, a in inputs.items()} == {
        "x": ((5, 11), "float16"),
        "weight": ((11, 7), "float16"),
    }


def test_whole_sums_beyond_half_precision_are_infinite():
    op = Op.parse("dense:n=1,k=3,dtype=int8,out=fp16")
    inputs = {"x": np.array([[255] * 3, [1] * 3], np.uint8), "weight": np.full((1, 3), -127, np.int8)}
    for first, wrong in ((-np.inf, 0), (-65504.0, 1), (np.inf, 1)):
        assert numerics.check(op, inputs, np.array([[first], [-381.0]], np.float16)).wrong == wrong


def test_half_precision_allows_the_rounding_of_its_output():
    op, rng = Op.parse("dense:n=7,k=11,dtype=fp16"), np.random.default_rng(0)
    inputs = numerics.draw(op, SHAPE, rng)
    expected = numerics.reference(op, inputs)
    assert numerics.check(op, inputs, expected.astype(np.float16)).wrong == 0


@pytest.mark.parametrize("at", [(0, 30), (6, 30), (3, 0), (3, 23), (3, 24 + 7)])
def test_a_write_outside_the_output_shows(at):
    guarded = numerics.Guarded((5, 7))
    guarded.inner[:] = 1.0
    assert not guarded.touched() and guarded.inner.shape == (5, 7)
    guarded.outer[at] = 0.0
    assert guarded.touched()


def test_rows_further_apart_hold_nan_between_them():
    values = numerics.spaced(np.ones((2, 3), np.float32), 2)
    whole = values.base
    assert whole is not None and values.strides == (20, 4) and np.isnan(whole[:, 3:]).all()


def test_a_nan_that_is_wanted_is_right_whatever_its_bound_and_another_number_is_not():
    op, x = Op.parse("softmax:"), np.full((2, 5), np.nan, np.float32)
    x[1] = 0.0
    assert numerics.check(op, {"x": x}, np.where(np.isnan(x), x, np.float32(0.2))).wrong == 0
    verdict = numerics.check(op, {"x": x}, np.full((2, 5), 0.2, np.float32))
    assert (verdict.wrong, verdict.at) == (5, (0, 0))
