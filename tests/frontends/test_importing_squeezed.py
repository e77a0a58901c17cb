"""Squeeze without axes: a request decides which of its axes have one element; against onnx's own reference."""

from __future__ import annotations

from typing import Any

import pytest

from haotuner.errors import UsageError
from haotuner.graph.interpret import interpret

pytest.importorskip("onnx")
from tests.frontends.onnx_branches import FLOAT, helper, n, whole  # noqa: E402, after the skip
from tests.frontends.test_importing_branches import agree, graph, x  # noqa: E402, after the skip


def model(after: list[Any], opset: int = 17) -> Any:
    """A tensor (batch, 1, long) without the axes of one element, and what follows."""
    onnx_model = whole([n("Squeeze", ["x"], ["s"]), *after], {"x": (FLOAT, ["batch", 1, "long"])}, ["y"])
    onnx_model.opset_import[0].version = opset
    onnx_model.ir_version = 7 if opset < 13 else 8
    return helper.make_model(onnx_model.graph, opset_imports=onnx_model.opset_import, ir_version=onnx_model.ir_version)


FLAT = [n("Neg", ["s"], ["t"]), n("Reshape", ["t", "last"], ["y"])]


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize("sizes", [(1, 1), (1, 5), (3, 1), (3, 5)])
def test_each_request_drops_its_own_axes(opset, sizes):
    onnx_model = model(FLAT, opset)
    agree(onnx_model, graph(onnx_model, "batch=1..4;long=1..8"), {"x": x(sizes[0], 1, sizes[1])})


@pytest.mark.parametrize(("shapes", "sizes"), [("batch=1;long=2..8", (1, 5)), ("batch=2..4;long=2..8", (3, 5))])
def test_ranges_settle_the_rank_and_other_requests_are_refused(shapes, sizes):
    onnx_model = model([n("Neg", ["s"], ["y"])])
    read = graph(onnx_model, shapes)
    agree(onnx_model, read, {"x": x(sizes[0], 1, sizes[1])})
    with pytest.raises(UsageError, match="tune with --shapes that hold others"):
        interpret(read, {"x": x(4 - sizes[0], 1, 1)})


def test_a_rank_that_requests_decide_is_refused_by_name():
    with pytest.raises(UsageError, match=r"node s \(Squeeze\) .*rank or type of y: .*batch == 1"):
        graph(model([n("Neg", ["s"], ["y"])]), "batch=1..4;long=2..8")
