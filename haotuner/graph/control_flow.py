"""Primitives at which a model is cut: loops, branches, random numbers, and results whose sizes depend on data.

Those of ``MAKING`` make a new dimension, ``attributes["extent"]``, which is the last extent of their result. A branch is a
dimension, too, ``attributes["branch"]``: 1 where its condition holds and 0 where not. Tensors that one of its sides makes
have a guard, which says so (``Graph.guards``); what stands behind both is chosen.

Loops: a body that runs turn by turn, each on what the one before it made. A model is cut there; the host counts turns.

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
from haotuner.ops.host_steps import counted, holds, nonzero, random_numbers

MAKING = ("nonzero", "counted", "turns")  # a dimension each
BRANCHING = ("decided", "chosen")
TELLING = ("chosen", "loop_result")  # by ``attributes["told"]``, pairs of an axis and the dimension that it tells
HOST = (*MAKING, *BRANCHING, "random", "loop", "loop_result")
LAWS = ("normal", "uniform")


def _infer_nonzero(types: Sequence[TensorType], attributes: Mapping[str, Any]) -> TensorType:
    return TensorType((max(1, types[0].rank), attributes["extent"]), "int64")


def _compute_nonzero(arrays: Sequence[Any], attributes: Mapping[str, Any], sizes: Callable[[Extent], int]) -> Any:
    return nonzero(arrays[0])


def _infer_counted(types: Sequence[TensorType], attributes: Mapping[str, Any]) -> TensorType:
    if "int" not in types[0].dtype:
        raise UsageError(f"a size of the type {types[0].dtype}; expected whole numbers")
    return TensorType((attributes["extent"],), "int64")


def _compute_counted(arrays: Sequence[Any], attributes: Mapping[str, Any], sizes: Callable[[Extent], int]) -> Any:
    return counted(arrays[0], attributes["place"])


def _infer_random(types: Sequence[TensorType], attributes: Mapping[str, Any]) -> TensorType:
    if attributes["law"] not in LAWS:
        raise UsageError(f"unknown law {attributes['law']!r}; known: {', '.join(LAWS)}")
    return TensorType(tuple(attributes["shape"]), attributes["dtype"])


def _compute_random(arrays: Sequence[Any], attributes: Mapping[str, Any], sizes: Callable[[Extent], int]) -> Any:
    shape = [sizes(extent) for extent in attributes["shape"]]
    return random_numbers(attributes, shape, attributes.get("seed"), numpy_dtype(attributes["dtype"]))


def made_dimensions(primitive: str, attributes: Mapping[str, Any]) -> tuple[str, ...]:
    """Dimensions that a primitive's result tells: a size of the data, or an extent that two branches differ in."""
    if primitive in MAKING:
        return (str(attributes["extent"]),)
    if primitive == "loop":  # sizes that its turns make anew
        return tuple(dict.fromkeys(str(extent) for _, _, extent in attributes["body"].changing))
    return tuple(str(extent) for _, extent in attributes.get("told", ())) if primitive in TELLING else ()


def _infer_decided(types: Sequence[TensorType], attributes: Mapping[str, Any]) -> TensorType:
    return TensorType((), "bool")


def _compute_decided(arrays: Sequence[Any], attributes: Mapping[str, Any], sizes: Callable[[Extent], int]) -> Any:
    """Of a tensor's first element, or of an extent where there is no tensor."""
    return np.bool_(holds(arrays[0]) if arrays else sizes(attributes["extent"]))


def _infer_chosen(types: Sequence[TensorType], attributes: Mapping[str, Any]) -> TensorType:
    return TensorType(tuple(attributes["shape"]), types[1].dtype)


def _compute_chosen(arrays: Sequence[Any], attributes: Mapping[str, Any], sizes: Callable[[Extent], int]) -> Any:
    return arrays[1 if arrays[0] else 2]


DATA_SIZED = (
    ("nonzero", _infer_nonzero, _compute_nonzero),
    ("counted", _infer_counted, _compute_counted),
    ("decided", _infer_decided, _compute_decided),
    ("chosen", _infer_chosen, _compute_chosen),
    ("random", _infer_random, _compute_random),
)


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
