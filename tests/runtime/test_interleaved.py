"""Operands and outputs that are columns or channels of one buffer: they share no element, though their spans overlap."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


def test_columns_of_one_buffer(chained: Any) -> None:
    rng = np.random.default_rng(0)
    buffer, weight = rng.standard_normal((50, 64), dtype=np.float32), rng.standard_normal((24, 16), dtype=np.float32)
    linear = chained.op("dense_n24_k16").bind(weight)
    for first, out in ((0, 16), (40, 3), (24, 0), (0, 40)):
        for rows in (slice(None), slice(None, None, -1)):
            before = buffer.copy()
            x, y = buffer[rows, first : first + 16], buffer[rows, out : out + 24]
            expected = before[rows, first : first + 16].astype(np.float64) @ weight.T.astype(np.float64)
            linear(x, out=y)
            assert np.allclose(y, expected, atol=1e-4)
            apart = [column for column in range(64) if not out <= column < out + 24]
            assert np.array_equal(buffer[:, apart], before[:, apart])
    for first, out in ((0, 15), (23, 0), (40, 39), (10, 10)):
        with pytest.raises(ValueError, match="out shares memory with x"):
            linear(buffer[:, first : first + 16], out=buffer[:, out : out + 24])
    shifted = buffer.reshape(-1)[: 49 * 64].reshape(49, 64)
    with pytest.raises(ValueError, match="out shares memory with x"):  # columns apart, of rows that begin elsewhere
        linear(shifted[:, :16], out=buffer.reshape(-1)[8 : 8 + 49 * 64].reshape(49, 64)[:, :24])


def test_channels_of_one_buffer(chained: Any) -> None:
    rng = np.random.default_rng(1)
    buffer, weight = (
        rng.standard_normal((3, 16, 6, 7), dtype=np.float32),
        rng.standard_normal((8, 8, 3, 3), dtype=np.float32),
    )
    convolution = chained.op("conv2d_c8_f8_r3_s3_pad1").bind(weight)
    for x, y in ((buffer[:, :8], buffer[:, 8:]), (buffer[:, 8:], buffer[:, :8])):
        expected = convolution(x.copy())
        assert np.array_equal(convolution(x, out=y), expected)
    with pytest.raises(ValueError, match="out shares memory with x"):
        convolution(buffer[:, :8], out=buffer[:, 7:15])
