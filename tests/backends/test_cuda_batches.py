"""What a check of matrices side by side on a device says of wrong numbers."""

from __future__ import annotations

import numpy as np
import pytest

from haotuner.backends.cuda.batches import _verdict_error
from haotuner.isolate.answers import Refusal
from haotuner.spec import numerics
from haotuner.spec.record import REASONS
from haotuner.spec.shape import Shape


def test_wrong_numbers_and_a_write_outside_are_failures_that_a_record_keeps() -> None:
    output, shape = numerics.Guarded((1, 2, 2)), Shape.of(b=1, m=2, n=2, k=2)
    output.inner[...] = 1
    assert _verdict_error(numerics.compare(output.inner, np.ones((1, 2, 2)), 0.0), output, shape) == 0
    with pytest.raises(Refusal, match="4 wrong results") as refused:
        _verdict_error(numerics.compare(output.inner, np.zeros((1, 2, 2)), 0.0), output, shape)
    assert refused.value.reason in REASONS
    output.outer[...] = 1
    with pytest.raises(Refusal, match="wrote outside its output") as refused:
        _verdict_error(numerics.compare(output.inner, np.ones((1, 2, 2)), 0.0), output, shape)
    assert refused.value.reason in REASONS
