"""Loops: a body that runs turn by turn, each on what the one before it made. A model is cut there; the host counts turns.

``loop`` gives how many turns there were; ``loop_result`` what a carried value became or what the turns made, row upon row,
with ``told``, the axes whose sizes only the turns tell, and these dimensions; ``turns`` 0, 1, … up to the number of turns,
where that is a dimension which data tell. Inputs of a loop: the most turns (attribute ``limited``), whether the first turn
runs (``asked``), first carried values, what turns get a row each, and what all turns read. ``growth``, where known: by how
much each turn enlarges a size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from haotuner.errors import UsageError
from haotuner.graph.extents import Extent
from haotuner.graph.types import TensorType, numpy_dtype

Attributes = Mapping[str, Any]
Sizes = Callable[[Extent], int]


@dataclass(frozen=True, slots=True)
class Ran:
    """Result of a loop: the turns, then carried values and stacks of rows, in the order of the body."""

    turns: int
    results: tuple[Any, ...]


def _infer_loop(types: Sequence[TensorType], attributes: Attributes) -> TensorType:
    return TensorType((), "int64")


def _compute_loop(arrays: Sequence[Any], attributes: Attributes, sizes: Sizes) -> Any:
    raise UsageError("a loop is no step of a group")


def _infer_result(types: Sequence[TensorType], attributes: Attributes) -> TensorType:
    return TensorType(tuple(attributes["shape"]), attributes["dtype"])


def _compute_result(arrays: Sequence[Any], attributes: Attributes, sizes: Sizes) -> Any:
    result = arrays[0].results[attributes["place"]]
    if result is None:  # no turn said what a row is like
        shape = [sizes(extent) for extent in attributes["shape"]]
        return np.zeros([0, *shape[1:]], numpy_dtype(attributes["dtype"]))
    return result


def _infer_turns(types: Sequence[TensorType], attributes: Attributes) -> TensorType:
    return TensorType((attributes["extent"],), "int64")


def _compute_turns(arrays: Sequence[Any], attributes: Attributes, sizes: Sizes) -> Any:
    return np.arange(arrays[0].turns, dtype=np.int64)


def run_loop(
    attributes: Attributes, arrays: Sequence[Any], run: Callable[[Any, Mapping[str, Any]], Mapping[str, Any]]
) -> Ran:
    """All turns of a loop; ``run``: interprets a graph. UsageError where a carried value changes what its body keeps."""
    body, left = attributes["body"], list(arrays)
    limit = int(np.asarray(left.pop(0)).reshape(-1)[0]) if attributes["limited"] else None
    goes_on = bool(np.asarray(left.pop(0)).reshape(-1)[0]) if attributes["asked"] else True
    states, left = left[: len(body.carried)], left[len(body.carried) :]
    rows, shared = left[: len(body.rows)], dict(zip(body.shared, left[len(body.rows) :], strict=True))
    if rows:
        limit = min([len(row) for row in rows] + ([] if limit is None else [limit]))
    made: list[list[Any]] = [[] for _ in body.made]
    turn = 0
    while goes_on and (limit is None or turn < limit):
        arrays_ = {**shared, body.turn: np.int64(turn)}
        arrays_ |= {name: state for (name, _), state in zip(body.carried, states, strict=True)}
        arrays_ |= {name: row[turn] for name, row in zip(body.rows, rows, strict=True)}
        result = run(body.graph, {name: arrays_[name] for name in body.graph.inputs})
        after = [result[name] for _, name in body.carried]
        if any(
            _kept(body, *first) != _kept(body, *other)
            for first, other in zip(enumerate(after), enumerate(states), strict=True)
        ):
            raise UsageError(f"a value that a loop carries changes its shape in turn {turn}")
        states = after
        for stack, name in zip(made, body.made, strict=True):
            stack.append(result[name])
        goes_on = bool(np.asarray(result[body.goes_on]).reshape(-1)[0]) if body.goes_on else True
        turn += 1
    return Ran(turn, (*states, *(np.stack(stack) if stack else None for stack in made)))


def _kept(body: Any, number: int, value: Any) -> list[int | None]:
    """The shape of a carried value, without the sizes that may differ from turn to turn."""
    free = {axis for own, axis, _ in body.changing if own == number}
    return [None if axis in free else size for axis, size in enumerate(np.shape(value))]


LOOPS = (
    ("loop", _infer_loop, _compute_loop),
    ("loop_result", _infer_result, _compute_result),
    ("turns", _infer_turns, _compute_turns),
)
