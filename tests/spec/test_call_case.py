"""A call to judge: its operands are drawn once, its references are those of the judge, and every fault is named."""

from __future__ import annotations

import numpy as np
import pytest

from haotuner.backends.timing_job import largest_error
from haotuner.isolate.answers import Refusal
from haotuner.spec import numerics
from haotuner.spec.call_case import CallCase
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape

OP, SHAPE = Op.parse("dense:n=7,k=11,epilogue=bias+relu"), Shape.of(m=5)


def right(case: CallCase) -> dict[str, numerics.Guarded]:
    """Outputs with the reference in them."""
    outputs = case.outputs()
    for name, output in outputs.items():
        output.inner[...] = case.expected[name][0]
    return outputs


def test_a_seed_draws_what_the_judge_draws_and_a_generator_goes_on() -> None:
    first, second = CallCase.drawn(OP, SHAPE, 3), CallCase.drawn(OP, SHAPE, np.random.default_rng(3))
    expected = numerics.draw(OP, SHAPE, np.random.default_rng(3))
    assert list(first.operands) == list(expected) == ["x", "weight", "bias"]
    assert all(np.array_equal(first.operands[name], expected[name]) for name in expected)
    assert all(np.array_equal(second.operands[name], expected[name]) for name in expected)
    rng = np.random.default_rng(3)
    earlier = CallCase.drawn(OP, SHAPE, rng)
    later = CallCase.drawn(OP, SHAPE, rng, bound={"weight": earlier.operands["weight"]})
    assert later.operands["weight"] is earlier.operands["weight"]
    assert not np.array_equal(later.operands["x"], earlier.operands["x"])


@pytest.mark.parametrize("whole", [False, True])
def test_references_and_tolerances_are_the_judges(whole: bool) -> None:
    op = Op.parse("dense:n=7,k=11")
    case = CallCase.drawn(op, SHAPE, 0, whole=whole)
    expected, allowed = numerics.bounds(op, case.operands, whole=whole)
    assert np.array_equal(case.reference, expected) and np.array_equal(case.tolerance, allowed)
    assert (np.max(case.tolerance) == 0) == whole


def test_a_right_call_has_no_problems_and_every_fault_is_named() -> None:
    case = CallCase.drawn(OP, SHAPE, 0)
    outputs = right(case)
    assert case.problems(outputs) == [] and 0 <= largest_error(case, outputs) <= 1
    outputs["y"].outer[0, 0] = 1
    assert case.problems(outputs, " threads=2") == [f"{OP.name} m=5 threads=2: wrote outside the output"]
    with pytest.raises(Refusal, match="m=5: wrote outside the output") as refused:
        largest_error(case, outputs)
    assert refused.value.reason == "out_of_bounds"
    outputs["y"].inner[2, 3] += 1
    (wrong, outside) = case.problems(outputs)
    assert wrong.startswith(f"{OP.name} m=5: 1 wrong results, the first at [2, 3]") and outside.endswith("the output")
    with pytest.raises(Refusal, match="here: 1 wrong results") as refused:
        largest_error(case, outputs, "here")
    assert refused.value.reason == "wrong"
