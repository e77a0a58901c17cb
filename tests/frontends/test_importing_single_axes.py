"""Broadcasts of extents that only a request makes equal: one element is shown, or other requests are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.errors import UsageError
from haotuner.frontends.onnx.read import graph_of
from haotuner.graph.graph import Graph
from haotuner.graph.interpret import interpret
from haotuner.spec.shape import Span

onnx = pytest.importorskip("onnx")
from tests.frontends.test_importing import model  # noqa: E402, after the skip
from tests.runtime.model_packs import model_pack  # noqa: E402

n = onnx.helper.make_node
LAST = 9
BOUNDS = {"zero": np.array([0]), "first": np.array([1]), "second": np.array([2]), "before": np.array([-1]),
          "end": np.array([1 << 62])}  # fmt: skip
# Of a slice of rows: start and end, the least number of rows at which it is one row, and that row.
SLICES = {"x[:1]": ("zero", "first", 1, 0), "x[-1:]": ("before", "end", 1, -1), "x[1:2]": ("first", "second", 2, 1)}


def rows_of(joins: list[Any], start: str, end: str, least: int, *, ranges: bool = True) -> Graph:
    """``row``, a slice of x by rows, and what ``joins`` make of it and of z, whose rows have another name."""
    file = model([n("Slice", ["x", start, end, "zero"], ["row"]), *joins], {"x": ["n", 3], "z": ["m", 3]}, ["y"], BOUNDS)
    spans = {"n": Span(first=least, last=LAST), "m": Span(first=1, last=LAST)}
    return graph_of(file, None, {}, (lambda inputs: spans) if ranges else None)


def drawn(rows: int, more: int) -> dict[str, Any]:
    draw = np.random.default_rng(rows * LAST + more)
    return {name: draw.standard_normal((count, 3)).astype(np.float32) for name, count in (("x", rows), ("z", more))}


@pytest.mark.parametrize(("name", "ranges"), [*((name, True) for name in SLICES), ("x[:1]", False), ("x[-1:]", False)])
def test_one_row_goes_with_any_number_of_rows(name: str, ranges: bool) -> None:
    start, end, least, row = SLICES[name]
    graph = rows_of([n("Add", ["row", "z"], ["y"])], start, end, least, ranges=ranges)
    for rows, more in ((least, 1), (least, 4), (LAST, 1), (5, 5), (4, 7)):
        values = drawn(rows, more)
        np.testing.assert_array_equal(interpret(graph, values)["y"], values["x"][row] + values["z"])


def test_one_row_is_multiplied_chosen_and_reshaped_to_the_others() -> None:
    joins = [n("Mul", ["z", "row"], ["a"]), n("Greater", ["row", "z"], ["c"]), n("Where", ["c", "a", "row"], ["b"]),
             n("Shape", ["b"], ["s"]), n("Expand", ["row", "s"], ["e"]), n("Sub", ["b", "e"], ["y"])]  # fmt: skip
    graph = rows_of(joins, "zero", "first", 1)
    for rows, more in ((1, 1), (2, 5), (6, 1)):
        values = drawn(rows, more)
        row, z = values["x"][:1], values["z"]
        np.testing.assert_array_equal(interpret(graph, values)["y"], np.where(row > z, row * z, row) - row)


def test_one_matrix_is_multiplied_by_all_of_a_batch() -> None:
    nodes = [n("Slice", ["x", "zero", "first", "zero"], ["own"]), n("MatMul", ["own", "z"], ["y"])]
    file = model(nodes, {"x": ["n", 2, 3], "z": ["m", 3, 4]}, ["y"], BOUNDS)
    graph = graph_of(file, None, {}, lambda inputs: dict.fromkeys("nm", Span(first=1, last=LAST)))
    draw = np.random.default_rng(1)
    for rows, more in ((1, 1), (2, 5), (4, 1)):
        x, z = draw.standard_normal((rows, 2, 3)).astype(np.float32), draw.standard_normal((more, 3, 4)).astype(np.float32)
        np.testing.assert_allclose(interpret(graph, {"x": x, "z": z})["y"], x[:1] @ z, rtol=1e-5, atol=1e-6)


def test_a_request_without_the_row_is_refused() -> None:
    graph = rows_of([n("Add", ["row", "z"], ["y"])], "zero", "first", 1)
    with pytest.raises(UsageError, match=r"min\(1, n\) >= 1"):
        interpret(graph, drawn(0, 1))


def of_shape() -> Graph:
    """The shape of x + z, rows of two names, and nothing of the sum itself."""
    file = model([n("Add", ["x", "z"], ["sum"]), n("Shape", ["sum"], ["y"])], {"x": ["n", 3], "z": ["m", 3]}, ["y"])
    return graph_of(file, None, {}, lambda inputs: dict.fromkeys("nm", Span(first=1, last=LAST)))


def test_a_shape_that_is_read_alone_is_that_of_its_tensor_or_refused() -> None:
    graph = of_shape()
    assert interpret(graph, drawn(4, 4))["y"].tolist() == [4, 3]
    with pytest.raises(UsageError, match="reads the shape of a tensor for which m and n must be equal"):
        interpret(graph, drawn(1, 4))


def expanded() -> Graph:
    """x of (n, 1), expanded to a shape that comes with the request."""
    file = model([n("Cast", ["s"], ["t"], to=onnx.TensorProto.INT64), n("Expand", ["x", "t"], ["y"])],
                 {"x": ["n", 1], "s": [3]}, ["y"])  # fmt: skip
    return graph_of(file, None, {}, lambda inputs: {"n": Span(first=1, last=LAST)})


def test_packs_expand_to_a_shape_of_the_request(tmp_path: Path) -> None:
    path = model_pack(tmp_path / "pack", {"expanded": expanded()}, tuned=False, exact=False)
    with haotuner.load(path, threads=1) as pack:
        for rows, shape in ((1, (2, 1, 3)), (4, (2, 4, 3)), (4, (2, 1, 3))):
            x = np.arange(rows, dtype=np.float32).reshape(rows, 1)
            answer = pack.model("expanded").run({"x": x, "s": np.array(shape, np.float32)})["y"]
            np.testing.assert_array_equal(answer, np.broadcast_to(x, (2, rows, 3)))
        with pytest.raises(UsageError, match="the model expands an axis"):
            pack.model("expanded").run({"x": np.zeros((1, 1), np.float32), "s": np.array([2, 4, 3], np.float32)})


def test_the_interpreter_refuses_other_extents_than_the_graph_was_built_for() -> None:
    file = model([n("Add", ["x", "z"], ["y"])], {"x": ["n", 3], "z": ["m", 3]}, ["y"])
    graph = graph_of(file, None, {})
    with pytest.raises(UsageError, match="n = 1 and another extent 4"):
        interpret(graph, drawn(1, 4))


def test_packs_serve_one_row_and_refuse_other_shapes(tmp_path: Path) -> None:
    graphs = {
        f"slice{number}": rows_of([n("Add", ["row", "z"], ["y"])], start, end, least)
        for number, (start, end, least, _) in enumerate(SLICES.values())
    }
    path = model_pack(tmp_path / "pack", {**graphs, "shape": of_shape()}, tuned=False, exact=False)
    with haotuner.load(path, threads=1) as pack:
        for number, (_, _, least, row) in enumerate(SLICES.values()):
            for rows, more in ((least, 1), (least, 4), (5, 5), (4, 7)):
                values = drawn(rows, more)
                answer = pack.model(f"slice{number}").run(values)["y"]
                np.testing.assert_array_equal(answer, values["x"][row] + values["z"])
        assert pack.model("shape").run(drawn(4, 4))["y"].tolist() == [4, 3]
        with pytest.raises(UsageError, match="reads the shape of a tensor"):
            pack.model("shape").run(drawn(1, 4))
