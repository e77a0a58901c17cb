"""Epilogue programs for CPUs: each step's accuracy, special values, and codes that parse back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm_ffi
from hypothesis import given
from hypothesis import strategies as st

from haotuner.microkernels.cpu.dense import CpuDense
from haotuner.microkernels.cpu.epilogue import program, steps_of, with_epilogue
from haotuner.ops.epilogue import STEPS, operands_of
from tests.codegen.tvm_programs import compiled

LANES = 4  # any x86-64 runs them
SPECIAL = np.array(
    [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 3e38, -3e38, 88.7, -86, 104, -104, 1e-20, 5, -5], np.float32
)
# Units of the last place of the result, or half the roundoff of the value that entered where that is more.
WORST_ULPS = 2.5


@pytest.fixture(scope="module")
def programs() -> Any:
    """A function for each step by itself."""
    return compiled([{f"step_{step}": program((step,), LANES, f"step_{step}") for step in STEPS}])


def values() -> Any:
    rng = np.random.default_rng(0)
    small = rng.uniform(-1, 1, 4000) * 10.0 ** rng.uniform(-8, 2, 4000)
    samples = np.concatenate([SPECIAL, np.linspace(-12, 12, 20001), small])[: 24000 // LANES * LANES]
    return samples.astype(np.float32).reshape(4, -1)


@pytest.mark.parametrize("step", STEPS)
def test_a_step_is_exact_to_units_of_the_last_place_and_keeps_nan_and_infinity(programs: Any, step: str) -> None:
    y, rng = values(), np.random.default_rng(1)
    entered, arrays = y.astype(np.float64), {}
    for name, extent in operands_of((step,)):
        arrays[name] = rng.standard_normal((1, y.shape[1]) if extent == "channel" else y.shape).astype(np.float32)
    if step == "clamp":
        arrays["low"], arrays["high"] = -np.abs(arrays["low"]), np.abs(arrays["high"])
    operands = [np.broadcast_to(array, y.shape).copy() for array in arrays.values()]
    programs[f"step_{step}"](*(tvm_ffi.from_dlpack(array) for array in (y, *operands)))
    with np.errstate(all="ignore"):
        expected = STEPS[step].apply(entered, {name: array.astype(np.float64) for name, array in arrays.items()})
        rounded = expected.astype(np.float32)
        assert np.array_equal(np.isnan(y), np.isnan(rounded)) and np.array_equal(np.isinf(y), np.isinf(rounded))
        finite = np.isfinite(rounded)
        unit = np.maximum(np.spacing(np.maximum(np.abs(rounded), np.finfo(np.float32).tiny)), 2.0**-24 * np.abs(entered))
        assert np.max(np.abs(y - expected)[finite] / unit[finite]) <= WORST_ULPS


@pytest.mark.parametrize("step, ulps", [("sigmoid", 2.5), ("tanh", 2.0)])
def test_functions_are_exact_where_their_results_are_small(programs: Any, step: str, ulps: float) -> None:
    """Against the result's own last place; for values under -17 a sigmoid is the exponential and nothing else."""
    y = np.linspace(-87, 17, 40000, dtype=np.float32).reshape(4, -1)
    expected = STEPS[step].apply(y.astype(np.float64), {})
    small = y < -17
    programs[f"step_{step}"](tvm_ffi.from_dlpack(y))
    error = np.abs(y - expected) / np.spacing(np.abs(expected.astype(np.float32)))
    assert error.max() <= ulps and error[small].max() <= 2.0


@given(st.lists(st.sampled_from(sorted(STEPS)), unique=True, max_size=4))
def test_a_kernel_names_its_epilogue(steps: list[str]) -> None:
    kernel = with_epilogue(CpuDense().kernel(4, 32, 32, 2, 16), steps)
    assert steps_of(type(kernel).parse(kernel.name)) == tuple(steps)
    assert with_epilogue(kernel, ()) == CpuDense().kernel(4, 32, 32, 2, 16)


def test_numbers_of_steps_are_their_own_and_fit_a_code() -> None:
    numbers = [step.number for step in STEPS.values()]
    assert len(set(numbers)) == len(numbers) and min(numbers) > 0 and max(numbers) < 64


def test_a_step_of_a_newer_version_is_refused() -> None:
    kernel = with_epilogue(CpuDense().kernel(4, 32, 32, 2, 16), ("relu",))
    newer = type(kernel)(kernel.family, (*kernel.params[:-1], ("ep", 63)))
    with pytest.raises(ValueError, match="step 63 is unknown"):
        steps_of(newer)
