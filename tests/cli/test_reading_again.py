"""The check of a new pack reads the file again, for one request after the other: wrong arithmetic on sizes is no pack."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from haotuner.errors import PackInvalid
from haotuner.frontends.onnx import typed_numbers
from haotuner.frontends.onnx.read import graph_of
from haotuner.graph.extents import dimension, largest
from haotuner.graph.graph import Graph, GraphBuilder, Required
from haotuner.spec.shape import Span
from haotuner.verify.model_check import check_reading

onnx = pytest.importorskip("onnx")
from tests.frontends.test_importing import model  # noqa: E402, after the skip

n = onnx.helper.make_node
NODES = [n("Shape", ["x"], ["s"]), n("Cast", ["s"], ["real"], to=onnx.TensorProto.FLOAT), n("Mul", ["real", "by"], ["a"]),
         n("Floor", ["a"], ["b"]), n("Cast", ["b"], ["k"], to=onnx.TensorProto.INT64),
         n("Slice", ["x", "zero", "k"], ["y"])]  # fmt: skip
WHOLE = model(NODES, {"x": ["n"]}, ["y"], {"by": np.array([0.7], np.float32), "zero": np.array([0])})
REQUESTS = [{"n": size} for size in (2, 7, 10, 64)]


def every_size() -> Graph:
    return graph_of(WHOLE, None, {}, lambda inputs: {"n": Span(first=1, last=64)})


def one_size(sizes: Any) -> Graph:
    return graph_of(WHOLE, None, {}, sizes=sizes)


def test_a_graph_is_held_against_the_file_at_single_sizes():
    check_reading("m", every_size(), one_size, REQUESTS[:1], REQUESTS)
    assert one_size({"n": 10}).dimensions == () and one_size({"n": 10}).types["y"].shape == (7,)


def test_a_graph_that_folds_sizes_wrongly_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typed_numbers, "_representable", lambda numerator, denominator, dtype, proof: True)
    with pytest.raises(PackInvalid, match=r"\[6\] and inf away from \[7\], which the file says"):
        check_reading("m", every_size(), one_size, REQUESTS[:1], REQUESTS)


def test_a_request_that_the_file_has_no_answer_to_says_nothing():
    def none(sizes: Any) -> Graph:
        raise IndexError("no row 3")

    check_reading("m", every_size(), none, REQUESTS, REQUESTS)


def row(index: int, required: Required | None = None) -> Graph:
    """One row of x, which small requests may not have."""
    g = GraphBuilder()
    g.required += [] if required is None else [required]
    return g.finish(g.add("gather", g.input("x", (dimension("n"),)), g.constant(np.array([index])), axis=0))


def test_a_graph_without_an_answer_that_the_file_has_is_refused():
    with pytest.raises(PackInvalid, match=r"'n': 2.*has no answer \(.*\), and the file has one"):
        check_reading("m", row(3), lambda sizes: row(1), [{"n": 2}], [])


def test_a_graph_that_says_which_requests_it_takes_is_not():
    n_is_large = Required(largest([dimension("n") - 3, 0]), "send a larger request")
    check_reading("m", row(3, n_is_large), lambda sizes: row(1), [{"n": 2}], [])
