"""ONNX's If: sides by ranges of sizes, both sides with guards, what is refused; against onnx's own reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from haotuner.errors import UsageError
from haotuner.frontends.onnx.branches import compared
from haotuner.frontends.onnx.read import graph_of
from haotuner.graph.extents import SHOWN, Extent, dimension, evaluate, floor_division
from haotuner.graph.graph import Graph
from haotuner.graph.interpret import interpret
from haotuner.partition.dim_ranges import ranges_of
from haotuner.partition.segments import branches, cut, data_dimensions

pytest.importorskip("onnx")
from onnx.reference import ReferenceEvaluator  # noqa: E402, after the skip

from tests.frontends import onnx_branches as models  # noqa: E402, after the skip

DRAW = np.random.default_rng(0)


def graph(model: Any, shapes: str = "") -> Graph:
    return graph_of(model, None, {}, lambda inputs: ranges_of(inputs, shapes) if shapes else {})


def agree(model: Any, read: Graph, feeds: dict[str, Any]) -> None:
    outputs, expected = interpret(read, feeds), ReferenceEvaluator(model).run(None, feeds)
    for name, value in zip(read.outputs, expected, strict=True):
        np.testing.assert_allclose(outputs[name], value, rtol=1e-5, atol=1e-5)
        assert outputs[name].shape == value.shape


def x(*shape: int) -> Any:
    return DRAW.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("sign", [1, -1])
def test_both_sides_of_data(flag, sign):
    model = models.of_data()
    read = graph(model)
    agree(model, read, {"x": np.abs(x(3, 4)) * np.float32(sign), "flag": np.bool_(flag)})
    assert branches(read) == ("branch_0", "branch_1")


@pytest.mark.parametrize("long", [8, 15])
def test_a_range_settles_a_condition_of_sizes_and_other_requests_are_refused(long):
    model = models.squeezed()
    read = graph(model, "batch=1..8;long=8..15")
    assert not branches(read) and len(cut(read)) == 1
    agree(model, read, {"x": x(2, 3, long)})
    with pytest.raises(UsageError, match=r"requests where \(long // 8\) == 1; tune with --shapes that hold others"):
        interpret(read, {"x": x(2, 3, 16)})


def test_long_conditions_are_told_by_the_sizes_that_they_come_to():
    long, wide = dimension("long"), dimension("wide")

    def behind(size: Extent) -> Extent:  # what convolutions leave, of filters and strides that come in turns
        for filters, stride in ((3, 2), (2, 1), (5, 3), (3, 2), (2, 2), (4, 1), (3, 2)):
            size = floor_division(size - filters, stride) + 1
        return size

    exact, more = (compared(sign, behind(long), 3) for sign in ("==", ">="))
    two = compared("==", behind(long), behind(wide))
    assert exact and more and two and len(exact.words) > SHOWN
    matching = [size for size in range(1, 4000) if evaluate(behind(long), {"long": size}) == 3]
    first, last = matching[0], matching[-1]
    assert (exact.summary, more.summary) == (f"long is {first}..{last}", f"long is {first} or more")
    assert (~exact).summary == f"long is 1..{first - 1} or {last + 1} or more"
    assert "…" in two.summary and two.summary.endswith("(of long, wide)") and len(two.summary) < 100
    assert compared("<", long, 3).summary == "long < 3"  # type: ignore[union-attr]  # they are whole


@pytest.mark.parametrize("shapes", ["", "batch=1..8;long=8..64"])
def test_a_side_behind_which_nothing_fits_is_none(shapes):
    """Of both ranks only one is a matrix: no other request can be served, whatever was asked."""
    read = graph(models.squeezed(), shapes)
    agree(models.squeezed(), read, {"x": x(1, 3, 9)})
    with pytest.raises(UsageError, match="requests where"):
        interpret(read, {"x": x(1, 3, 24)})


@pytest.mark.parametrize(("rate", "long"), [(8, 8), (8, 12), (1, 4), (1, 7)])
def test_a_condition_of_sizes_on_one_side_of_another(rate, long):
    model = models.squeezed(rate=True)
    read = graph(model, "batch=1..8;long=4..12")
    agree(model, read, {"x": x(2, 3, long), "rate": np.int64(rate)})
    with pytest.raises(UsageError, match=r"requests where \(long // 4\) == 1"):
        interpret(read, {"x": x(2, 3, 8), "rate": np.int64(1)})


def test_a_side_of_data_that_no_asked_size_fits_is_refused_once_data_take_it():
    model = models.squeezed(rate=True)
    read = graph(model, "batch=1..8;long=12..15")
    agree(model, read, {"x": x(2, 3, 13), "rate": np.int64(8)})
    with pytest.raises(UsageError, match="its data take the side of an If that cannot be had"):
        interpret(read, {"x": x(2, 3, 13), "rate": np.int64(1)})


@pytest.mark.parametrize("count", [1, 3, 4, 9])
def test_sizes_decide_when_a_request_runs(count):
    model = models.rows()
    read = graph(model, "batch=1..16")
    assert branches(read) == ("branch_0",) and data_dimensions(read) == ("either_0",)
    agree(model, read, {"x": x(count, 4)})


def test_ranges_that_settle_it_leave_no_branch():
    for shapes in ("batch=4..16", "batch=1..3", "batch=5,9,12", "batch=4..2000000"):
        read = graph(models.rows(), shapes)
        assert not branches(read) and len(read.required) == 1
    assert branches(graph(models.rows(), "batch=1..2000000"))


@pytest.mark.parametrize("flag", [True, False])
def test_sizes_that_one_side_makes_of_data(flag):
    model = models.counted_rows()
    read = graph(model)
    agree(model, read, {"x": x(7, 4), "flag": np.bool_(flag)})
    assert set(data_dimensions(read)) == {"count_0", "either_0"}


def test_branches_in_the_body_of_a_loop():
    model = models.looped()
    agree(model, graph(model), {"first": x(4), "x": x(9, 4)})


@pytest.mark.parametrize("shapes", ["", "batch=1..8;long=1", "batch=1..8;long=2"])
def test_sides_in_a_loop_that_no_asked_size_fits(shapes):
    model, first = models.looped_squeezed(), x(1, 4)
    read = graph(model, shapes)
    agree(model, read, {"first": first, "x": np.abs(x(3, 1, 3, 2))})  # no turn takes the other side
    with pytest.raises(UsageError, match="of an If that cannot be had|requests where long == 1"):
        interpret(read, {"first": first, "x": -np.abs(x(3, 1, 3, 2))})
    if shapes != "batch=1..8;long=2":
        agree(model, read, {"first": first, "x": x(3, 1, 3, 1)})


def test_a_side_of_data_that_fits_no_size_at_all_is_an_error():
    model = models.of_data()
    branch = next(node for node in model.graph.node if node.op_type == "If")
    same = next(attribute.g for attribute in branch.attribute if attribute.name == "else_branch")
    same.node.insert(0, models.n("BatchNormalization", ["x", "zero", "zero", "zero", "zero"], ["odd"], training_mode=1))
    for shapes in ("", "batch=1..8"):
        with pytest.raises(UsageError, match="training mode"):
            graph(model, shapes)


def test_what_is_refused():
    with pytest.raises(UsageError, match=r"rank or type of out: .*data decide it; export the model for one side"):
        graph(models.either_rank())
    model = models.rows()
    limit = next(node for node in model.graph.node if node.op_type == "If")
    del limit.attribute[1]
    with pytest.raises(UsageError, match="a branch is missing"):
        graph(model)
    ranks = models.squeezed()
    del ranks.graph.node[-1]
    ranks.graph.output[0].name = "flat8"
    with pytest.raises(UsageError, match=r"say with --shapes sizes of long of which all make it so or none: .*long // 8"):
        graph(ranks, "batch=1;long=8..64")
    assert graph(ranks, "batch=1;long=8..15").types["flat8"].rank == 2
    assert graph(ranks, "batch=1;long=16..64").types["flat8"].rank == 3
