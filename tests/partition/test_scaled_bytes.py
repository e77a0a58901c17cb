"""Weights that files make of bytes and scales: found again in fp32, and nothing else is taken for one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from haotuner.partition.scaled_bytes import scaled_bytes

DRAW = np.random.default_rng(0)


def drawn(*shape: int, low: int = -127) -> Any:
    return DRAW.integers(low, 128, shape, np.int8)


@pytest.mark.long
@pytest.mark.parametrize("shape", [(64, 96), (32, 16, 3, 3), (5000, 1)])
@pytest.mark.parametrize("each", [True, False])
@pytest.mark.parametrize("low", [-127, -128, -7])
def test_bytes_and_numbers_are_the_weight_again(shape: tuple[int, ...], each: bool, low: int) -> None:
    scales = DRAW.uniform(1e-4, 3, len(shape[:1]) and shape[0] if each else 1).astype(np.float32)
    weight = drawn(*shape, low=low).clip(low, -low if low > -128 else 127).astype(np.float32)
    weight *= scales.reshape(-1, *[1] * (len(shape) - 1))
    weight[3] = 0
    scaled = scaled_bytes(weight)
    assert scaled is not None and scaled[0].dtype == np.int8 and scaled[0].shape == shape and scaled[1].shape == shape[:1]
    again = scaled[0].astype(np.float32) * scaled[1].reshape(-1, *[1] * (len(shape) - 1))
    np.testing.assert_array_equal(again, weight)


def test_other_weights_are_none() -> None:
    real = DRAW.standard_normal((64, 96)).astype(np.float32)
    stepped = drawn(64, 96).astype(np.float32) * np.float32(0.01)
    off = stepped.copy()
    off[63, 95] = np.nextafter(off[63, 95], np.float32(9))
    terms = stepped * DRAW.uniform(1, 2, (1, 96)).astype(np.float32)  # a scale for each term of a sum
    wide = DRAW.integers(-250, 250, (64, 96)).astype(np.float32) * np.float32(0.01)
    with_nan = stepped.copy()
    with_nan[0, 0] = np.nan
    for weight in (real, off, terms, wide, with_nan, stepped[:9], stepped.astype(np.float64), stepped.reshape(-1)):
        assert scaled_bytes(weight) is None
    assert scaled_bytes(stepped) is not None
