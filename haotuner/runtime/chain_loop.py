"""A loop of a chain in Python: where single steps are timed. Calls go by runtime/native/model/loop_exec.c."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np


def turned(
    step: Mapping[str, Any],
    tensors: dict[str, Any],
    dims: dict[str, int],
    run: Callable[[Sequence[Mapping[str, Any]], dict[str, Any]], None],
) -> None:
    """All turns of a loop; ``run``: the steps of a turn. What the loop makes joins ``tensors`` and ``dims``."""
    limits = [int(np.asarray(tensors[step["limit"]]).reshape(-1)[0])] if step["limit"] else []
    limits += [len(tensors[whole]) for whole, _ in step["rows"]]
    goes_on, turn = _holds(tensors, step["asked"]), 0
    own = {**tensors, **{value: tensors[first] for first, value, _, _ in step["carried"]}}
    changes = [(step["carried"][number][1], axis, *terms) for number, axis, *terms in step.get("changes", [])]
    stacks: list[list[Any]] = [[] for _ in step["made"]]
    while goes_on and all(turn < most for most in limits):
        own[step["turn"]] = np.asarray(turn, np.int64)
        dims.update((dim, own[value].shape[axis]) for value, axis, dim, _ in changes)
        own |= {row: np.ascontiguousarray(tensors[whole][turn]) for whole, row in step["rows"]}
        run(step["steps"], own)
        for stack, (row, _) in zip(stacks, step["made"], strict=True):
            stack.append(own[row])
        own |= {value: own[after] for _, value, after, _ in step["carried"]}
        goes_on, turn = _holds(own, step["goes_on"]), turn + 1
    dims.update((outside, own[value].shape[axis]) for value, axis, _, outside in changes if outside is not None)
    tensors |= {last: own[value] for _, value, _, last in step["carried"] if last is not None}
    for stack, (_, whole), kind in zip(stacks, step["made"], step["kinds"], strict=True):
        shape = [0, *(extent if isinstance(extent, int) else dims.get(extent, 0) for extent in kind["shape"])]
        tensors[whole] = np.stack(stack) if stack else np.zeros(shape, kind["dtype"])
    if step["dim"] is not None:
        dims[step["dim"]], tensors[step["turns"]] = turn, np.arange(turn, dtype=np.int64)


def _holds(tensors: Mapping[str, Any], name: str | None) -> bool:
    return True if name is None else bool(np.asarray(tensors[name]).reshape(-1)[0])
