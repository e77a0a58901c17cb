"""Tensor types of graphs: a symbolic shape and an element type; names of dimensions that a file gives as text.

Names of dimensions that a file gives as text, where exporters write arithmetic of other names: ``8*h8``, ``past + 1``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from haotuner.errors import UsageError
from haotuner.graph.extents import Extent, canonical, same, text
from haotuner.ops.dtypes import DTYPES

# Element types of operators, and those that graphs have beside them.
NUMPY_NAMES: dict[str, str] = {dtype.name: dtype.numpy for dtype in DTYPES.values()} | {
    "fp64": "float64", "int64": "int64", "int32": "int32", "int16": "int16", "int8": "int8",
    "uint64": "uint64", "uint32": "uint32", "uint16": "uint16", "uint8": "uint8", "bool": "bool",
}  # fmt: skip
_NAMES = {numpy: name for name, numpy in NUMPY_NAMES.items()}
HALVES = ("fp16", "bf16")
FLOATS = ("fp32", "fp64", *HALVES)


@dataclass(frozen=True, slots=True)
class TensorType:
    """``shape``: extents, outermost first; ``dtype``: a key of ``NUMPY_NAMES``."""

    shape: tuple[Extent, ...]
    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in NUMPY_NAMES:
            raise UsageError(f"unknown element type {self.dtype!r}; known: {', '.join(NUMPY_NAMES)}")
        object.__setattr__(self, "shape", tuple(map(canonical, self.shape)))

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(text, self.shape))}]"


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The element type in numpy; UsageError for bf16 where no ml_dtypes was imported."""
    try:
        return np.dtype(NUMPY_NAMES[name])
    except TypeError as error:
        raise UsageError(f"numpy has no {name} here; import ml_dtypes first") from error


def dtype_named(dtype: np.dtype[Any]) -> str:
    """The name of numpy's element type; UsageError where graphs have none."""
    if dtype.name not in _NAMES:
        raise UsageError(f"element type {dtype} has no place in a graph; known: {', '.join(_NAMES)}")
    return _NAMES[dtype.name]


def axis_of(axis: int, rank: int, what: str) -> int:
    """The axis counted from the front. UsageError outside ``-rank..rank-1``."""
    if not -rank <= axis < rank:
        raise UsageError(f"{what}: axis {axis} of a tensor with {rank} axes")
    return axis % rank


def broadcast(shapes: Sequence[Sequence[Extent]], what: str) -> tuple[Extent, ...]:
    """The common shape by numpy's rules; dimensions of unknown equality are taken for equal where neither is 1."""
    rank = max(map(len, shapes), default=0)
    result: list[Extent] = []
    for index in range(rank):
        extents = [shape[index - rank + len(shape)] for shape in shapes if index - rank + len(shape) >= 0]
        wide = [extent for extent in extents if extent != 1]
        first = next((extent for extent in wide if isinstance(extent, int)), wide[0] if wide else 1)
        for other in wide:
            if not same(first, other) and isinstance(first, int) and isinstance(other, int):
                shapes_text = " and ".join(f"({', '.join(map(text, shape))})" for shape in shapes)
                raise UsageError(f"{what}: shapes {shapes_text} do not go together")
        result.append(first)
    return tuple(result)


_WORDS = {"//": "over", "*": "times", "+": "plus", " - ": "minus", "%": "mod"}
_SPLIT = re.compile("|".join(re.escape(sign) for sign in _WORDS))
_ONE_STEP = re.compile(r"_?(.+?)_(times|plus|minus)_(.+)")
LONGEST = 64


def dimension_name(text: str) -> str:
    """The identifier that stands for a dimension's text, ``_8_times_h8`` for ``8*h8``; empty where there is no name in it.

    Arithmetic is said in words, so that ``past + 1`` and ``past - 1`` stay two dimensions.
    """
    spelled = _SPLIT.sub(lambda match: f"_{_WORDS[match.group()]}_", text)
    plain = re.sub(r"\W", "_", spelled, flags=re.ASCII)
    if spelled != text:
        plain = re.sub("_+", "_", plain).strip("_")
        plain = f"_{plain}" if plain[:1].isdigit() else plain
    plain = plain[:LONGEST]
    return plain if re.search(r"[A-Za-z]", plain) and not plain[0].isdigit() else ""


def multiple_of(dimension: str, name: str) -> tuple[int, int] | None:
    """Factor and summand by which a dimension follows from the name inside its text: (8, 0) of ``8*h8`` and ``h8``.

    None where it is other arithmetic, or of other names.
    """
    parts = _ONE_STEP.fullmatch(dimension)
    if parts is None:
        return None
    left, word, right = parts.groups()
    if right == name and left.isdigit() and word != "minus":
        return (int(left), 0) if word == "times" else (1, int(left))
    if left == name and right.isdigit():
        return (int(right), 0) if word == "times" else (1, int(right) if word == "plus" else -int(right))
    return None
