"""Slices and ranges whose bounds come with the request: negative, too large and empty ones, as numpy counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from haotuner.errors import UsageError
from haotuner.frontends.onnx.read import graph_of
from haotuner.graph.interpret import interpret

onnx = pytest.importorskip("onnx")
n, FLOAT, INT64, INT32 = onnx.helper.make_node, onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.INT32
BOUNDS = (0, 2, 7, -3, -100, 1000, 2**62, -(2**62))
X = np.arange(10, dtype=np.float32)


def graph(nodes: list[Any], inputs: dict[str, tuple[int, list[Any]]], **weights: Any) -> Any:
    ins = [onnx.helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()]
    initializers = [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()]
    outs = [onnx.helper.make_tensor_value_info("y", FLOAT, None)]
    imported = onnx.helper.make_graph(nodes, "g", ins, outs, initializers)
    return graph_of(
        onnx.helper.make_model(imported, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9), None, {}
    )


def answer(imported: Any, **inputs: Any) -> Any:
    return interpret(imported, inputs)["y"]


@pytest.mark.parametrize("step", [1, 2, -1, -3])
def test_a_slice_between_bounds_of_the_request(step: int) -> None:
    imported = graph([n("Slice", ["x", "a", "b", "axis", "step"], ["y"])], {"x": (FLOAT, ["n"]), "a": (INT64, [1]),
                 "b": (INT64, [1])}, axis=np.array([0]), step=np.array([step]))  # fmt: skip
    for a in BOUNDS:
        for b in BOUNDS:
            begin = max(a, -10) if step < 0 else a  # ONNX brings a begin before the first element to it, also backwards
            expected = X[begin:b:step]
            np.testing.assert_array_equal(answer(imported, x=X, a=np.array([a]), b=np.array([b])), expected)


def test_the_step_of_a_slice_may_come_with_the_request() -> None:
    imported = graph([n("Slice", ["x", "a", "b", "axis", "step"], ["y"])], {"x": (FLOAT, ["n"]), "a": (INT64, [1]),
                 "b": (INT64, [1]), "step": (INT64, [1])}, axis=np.array([0]))  # fmt: skip
    for a, b, step in ((1, 9, 3), (-1, 0, -2), (7, 2, 1), (-9, 1000, 4), (8, -100, -1)):
        bounds = {name: np.array([value]) for name, value in (("a", a), ("b", b), ("step", step))}
        np.testing.assert_array_equal(answer(imported, x=X, **bounds), X[a:b:step])


def test_one_bound_may_be_known() -> None:
    only: dict[str, tuple[int, list[Any]]] = {"x": (FLOAT, ["n"]), "a": (INT32, [1])}
    tail = graph([n("Slice", ["x", "a", "far"], ["y"])], only, far=np.array([2**31 - 1], np.int32))
    head = graph([n("Slice", ["x", "two", "a"], ["y"])], only, two=np.array([2], np.int32))
    window = graph([n("Add", ["a", "four"], ["b"]), n("Slice", ["x", "a", "b"], ["y"])], only, four=np.array([4], np.int32))
    for a in (0, 3, -3, -8, 100, -100):
        feeds = {"x": X, "a": np.array([a], np.int32)}
        np.testing.assert_array_equal(answer(tail, **feeds), X[a:])
        np.testing.assert_array_equal(answer(head, **feeds), X[2:a])
        np.testing.assert_array_equal(answer(window, **feeds), X[max(a, -10) : a + 4 if a + 4 else 0])


@pytest.mark.parametrize("kind, dtype", [(INT64, np.int64), (INT32, np.int32), (FLOAT, np.float32)])
def test_a_range_to_a_limit_on_the_other_side_is_empty(kind: int, dtype: Any) -> None:
    scalars = {name: (kind, list[Any]()) for name in ("start", "limit", "delta")}
    every = graph([n("Range", list(scalars), ["r"]), n("Cast", ["r"], ["y"], to=FLOAT)], scalars)
    for start in (0, -3, 4):
        for limit in (10, 0, -5):
            for delta in (1, -1, 2, -3):
                feeds = {name: np.array(v, dtype) for name, v in zip(scalars, (start, limit, delta), strict=True)}
                np.testing.assert_array_equal(answer(every, **feeds), np.arange(start, limit, delta))


@pytest.mark.parametrize("cast", [False, True])
def test_a_negative_limit_is_refused_only_where_it_is_a_size(cast: bool) -> None:
    limit, kind = ("real", np.float32) if cast else ("limit", np.int64)
    counted = [n("Cast", ["limit"], ["real"], to=FLOAT), n("Range", ["zero", limit, "one"], ["r"]),
               n("Cast", ["r"], ["f"], to=FLOAT)]  # fmt: skip
    weights = {"zero": kind(0), "one": kind(1), "axis": np.array([0]), "half": np.float32(0.5)}
    alone = graph([*counted, n("Add", ["f", "half"], ["y"])], {"limit": (INT64, [])}, **weights)
    spread = [n("Unsqueeze", ["limit", "axis"], ["shape"]), n("Expand", ["half", "shape"], ["wide"])]
    sized = graph([*counted, *spread, n("Add", ["f", "wide"], ["y"])], {"limit": (INT64, [])}, **weights)
    for imported in (alone, sized):
        np.testing.assert_array_equal(answer(imported, limit=np.array(3)), [0.5, 1.5, 2.5])
    assert answer(alone, limit=np.array(-5)).shape == (0,)
    with pytest.raises(UsageError, match="size of -5"):
        answer(sized, limit=np.array(-5))


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_a_condition_longer_than_the_axis_ends_with_it(axis: int | None) -> None:
    """As ONNX Runtime answers; numpy raises for a truth behind the axis. Shorter ones leave the rest out."""
    node = n("Compress", ["x", "mask"], ["y"], **({} if axis is None else {"axis": axis}))
    imported = graph([node], {"x": (FLOAT, ["a", "b"]), "mask": (onnx.TensorProto.BOOL, ["m"])})
    x = np.arange(15, dtype=np.float32).reshape(5, 3)
    extent = x.size if axis is None else x.shape[axis]
    for length in (0, 1, extent - 1, extent, extent + 1, 40):
        mask = np.arange(length) % 3 != 1
        np.testing.assert_array_equal(answer(imported, x=x, mask=mask), np.compress(mask[:extent], x, axis))
