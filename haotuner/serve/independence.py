"""Rows of a batch: the dimension along which requests may be joined, and the proof that answers keep their bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from haotuner.errors import HaotunerError

SEED = 0
PROBES = ((1, 2), (3, 1), (2, 2, 1))  # rows of requests that are joined
OTHER_SIZES = (1, 3, 17)  # of every other dimension


EXACT, CLOSE, OFF = "exact", "close", "off"  # of joined answers: their bits, their values, or none are joined
TOLERANCE = 1e-3  # of close values: other orders of a sum's terms; a mean over the batch is off by far more


def batch_dimension(model: Any, how: str = EXACT) -> str:
    """The dimension that is the first axis of every input and output, and stands nowhere else; empty where none is.

    Symbolic sizes alone do not tell a mean over the batch from a row's own. So some requests are answered joined and apart:
    a model whose answers differ has no such dimension. ``how``: whether their bits may differ.
    """
    if how == OFF:
        return ""
    ends = [*(end for end in model.inputs if end.default is None), *model.outputs]
    firsts = {end.shape[0] if end.shape else None for end in ends}
    if len(firsts) != 1 or hasattr(model, "segments") or not model.inputs:
        return ""
    (name,) = firsts
    if not isinstance(name, str) or any(extent == name for end in ends for extent in end.shape[1:]):
        return ""
    if any(end.default is not None for end in model.inputs):
        return ""
    probes = [_agrees(model, name, rows, size, how) for size in OTHER_SIZES for rows in PROBES]
    answered = [probe for probe in probes if probe is not None]
    return name if answered and all(answered) else ""


def _agrees(model: Any, batch: str, rows: tuple[int, ...], size: int, how: str) -> bool | None:
    """True if requests of so many rows have the same answers joined and apart; None where the model refuses such sizes."""
    draw = np.random.default_rng(SEED)
    inputs = [{end.name: _drawn(draw, end, batch, count, size) for end in model.inputs} for count in rows]
    try:
        apart = [model.run(each) for each in inputs]
        joined = model.run({name: np.concatenate([each[name] for each in inputs]) for name in inputs[0]})
    except HaotunerError:
        return None
    return all(_equal(array, np.concatenate([answer[name] for answer in apart]), how) for name, array in joined.items())


def _equal(joined: np.ndarray[Any, Any], apart: np.ndarray[Any, Any], how: str) -> bool:
    if joined.shape != apart.shape:
        return False
    if how == EXACT or joined.dtype.kind in "iub":
        return joined.tobytes() == apart.tobytes()
    values, other = joined.astype(np.float64), apart.astype(np.float64)
    scale = float(np.abs(other).max(initial=0)) or 1.0
    return bool(np.allclose(values, other, rtol=0, atol=TOLERANCE * scale, equal_nan=True))


def _drawn(draw: np.random.Generator, end: Any, batch: str, rows: int, size: int) -> np.ndarray[Any, Any]:
    shape = [rows if extent == batch else size if not isinstance(extent, int) else extent for extent in end.shape]
    values = draw.standard_normal(shape) if end.dtype.kind not in "iub" else draw.integers(0, 2, shape)
    return values.astype(end.dtype)
