"""Weights in fp32 that are bytes times one number a row, as files of fewer bits make them: packs hold the bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

LEAST = 4096  # elements; of smaller ones nothing is gained
LARGEST = 128  # of the bytes' magnitudes
SEEN = 64  # elements by which a row's number is guessed
APART = 1e-3  # from a whole number, of what may be one
NEAR = 2  # units in the last place that the guess may be off


def scaled_bytes(weight: Any) -> tuple[Any, Any] | None:
    """Bytes (int8) of a weight's shape and numbers (rows,) whose products, rounded to fp32, are that weight; else None.

    Rows count the first axis. It is asked of every weight of a model, so that the first row which is none ends it.
    """
    value = np.asarray(weight)
    if value.dtype != np.float32 or value.ndim < 2 or value.size < LEAST or not np.isfinite(value).all():
        return None
    rows = value.reshape(len(value), -1)
    stored, scales = np.zeros(rows.shape, np.int8), np.ones(len(rows), np.float32)
    for index, row in enumerate(rows):
        result = _of_row(row)
        if result is None:
            return None
        stored[index], scales[index] = result
    return stored.reshape(value.shape), scales


def _of_row(row: Any) -> tuple[Any, Any] | None:
    most = np.abs(row).max(initial=0)
    if most == 0:
        return np.zeros(row.shape, np.int8), np.float32(1)
    counts = np.arange(1, LARGEST + 1)
    steps = row[:SEEN].astype(np.float64)[:, None] / most * counts
    for count in counts[(np.abs(steps - np.round(steps)) < APART).all(axis=0)]:
        stored = np.round(row.astype(np.float64) / most * count)
        guess = np.float32(most / np.float32(count))
        if stored.max() >= LARGEST:
            continue
        for scale in (guess, *_beside(guess)):
            if np.array_equal(stored.astype(np.float32) * scale, row):
                return stored.astype(np.int8), scale
    return None


def _beside(guess: Any) -> list[Any]:
    """The numbers next to one, on both sides."""
    result, low, high = [], guess, guess
    for _ in range(NEAR):
        low, high = np.nextafter(low, np.float32(0)), np.nextafter(high, np.float32(np.inf))
        result += [low, high]
    return result
