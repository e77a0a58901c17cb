"""Indices among a model's inputs: one that no row has is an error of that request, in words; nothing is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.errors import PackInvalid, UsageError
from haotuner.graph.extents import dimension, evaluate
from haotuner.graph.graph import Graph
from haotuner.graph.interpret import interpret
from haotuner.partition.index_bounds import index_bounds, index_sources
from haotuner.spec.shape import Span
from haotuner.verify.model_check import check_model, drawn_inputs
from haotuner.verify.pack_race import call_of
from tests.runtime.model_packs import model_pack
from tests.runtime.written_nodes import Nodes

B, T, K = dimension("b"), dimension("t"), dimension("k")
DRAW = np.random.default_rng(0)
TABLE = DRAW.standard_normal((11, 4)).astype(np.float32)


def graph(op: str, *inputs: Any, ends: dict[str, tuple[Any, ...]], **attributes: Any) -> Graph:
    nodes = Nodes(**ends)
    outputs = nodes(op, *inputs, outputs=2 if op == "TopK" else 1, **attributes)
    return nodes.g.finish(*([outputs] if isinstance(outputs, str) else outputs))


def cast() -> Graph:
    nodes = Nodes(at=("int32", B, T))
    return nodes.g.finish(nodes("Gather", TABLE, nodes("Cast", "at", to=7)))


X = ("fp32", B, T)
NETS = {  # of each: the graph, and the extents that its indices choose from
    "rows": (graph("Gather", TABLE, "at", ends={"at": ("int64", B, T)}), (11,)),
    "one": (graph("Gather", TABLE[:1], "at", ends={"at": ("int64", B, T)}), (1,)),
    "cast": (cast(), (11,)),
    "axis": (graph("Gather", "x", "at", axis=1, ends={"x": X, "at": ("int64", 2)}), (9,)),
    "elements": (graph("GatherElements", "x", "at", axis=1, ends={"x": X, "at": ("int64", B, K)}), (9,)),
    "places": (graph("GatherND", "x", "at", ends={"x": (*X, 2), "at": ("int64", K, 2)}), (5, 9)),
    "fixed": (graph("GatherND", "x", "at", ends={"x": ("fp32", 5, 9), "at": ("int64", K, 2)}), (5, 9)),
    "written": (
        graph("ScatterElements", "x", "at", "new", axis=1,
              ends={"x": X, "at": ("int64", B, 2), "new": ("fp32", B, 2)}),
        (9,),
    ),
    "slices": (graph("ScatterND", "x", "at", "new", ends={"x": X, "at": ("int64", K, 1), "new": ("fp32", K, T)}), (5,)),
}  # fmt: skip
SIZES = {"b": 5, "t": 9, "k": 3}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    graphs = {name: net for name, (net, _) in NETS.items()}
    return model_pack(tmp_path_factory.mktemp("indices") / "pack", graphs, tuned=False, exact=False)


def given(own: Graph, extents: tuple[int, ...]) -> dict[str, Any]:
    """Inputs whose indices are distinct in each row, half of them counted from the end."""
    inputs: dict[str, Any] = {}
    for name in own.inputs:
        kind = own.types[name]
        shape = [evaluate(extent, SIZES) for extent in kind.shape]
        inputs[name] = DRAW.standard_normal(shape).astype(np.float32)
        if name == "at":
            chosen = np.stack(
                [np.resize(np.arange(extent), shape[:-1] if len(extents) > 1 else shape) for extent in extents]
            )
            chosen = np.moveaxis(chosen, 0, -1) if len(extents) > 1 else chosen[0]
            below = np.where(DRAW.random(shape) < 0.5, chosen, chosen - np.array(extents))
            inputs[name] = np.ascontiguousarray(below.reshape(shape).astype(kind.dtype))
    return inputs


@pytest.mark.parametrize("name", NETS)
def test_an_index_that_no_row_has_is_refused_and_the_next_request_is_right(path, name):
    own, extents = NETS[name]
    inputs = given(own, extents)
    (output, expected), *_ = interpret(own, inputs).items()
    with haotuner.load(path, threads=1) as pack:
        model = pack.model(name)
        for column, extent in enumerate(extents):
            for bad in (extent, -extent - 1, 2**31 - 1, -(2**31)):
                wrong = inputs["at"].copy()
                position = wrong.size - len(extents) + column
                wrong.reshape(-1)[position] = bad
                out = np.full_like(expected, 7)
                words = f"element {position} of the input at is the index {bad}, but there are {extent} rows"
                with pytest.raises(UsageError, match=words):
                    model.run({**inputs, "at": wrong}, out={output: out})
                assert (out == 7).all()
        np.testing.assert_array_equal(model.run(inputs)[output], expected)


def test_requests_that_are_drawn_hold_no_index_that_one_row_has_not(path):
    assert index_bounds(NETS["rows"][0])[0].reader == "gather of c", "a weight is named"
    drawn = {name: drawn_inputs(NETS[name][0], {"b": 5, "t": 9})["at"] for name in ("one", "rows")}
    assert not drawn["one"].any() and drawn["rows"].any()
    with haotuner.load(path, threads=1) as pack:
        call = call_of(pack.model("one"), {"b": 5, "t": 9})
        np.testing.assert_array_equal(next(iter(call().values())), np.broadcast_to(TABLE[0], (5, 9, 4)))


def messages(moved: str) -> Graph:
    """Rows of x that edges choose, whose indices are moved on the way."""
    shape = {"batches": (B, 2, K), "pairs": (K, 2), "turned": (K, 2), "far": (2, 3, K)}.get(moved, (2, K))
    nodes = Nodes(x=("fp32", B, 4), edges=("int64", *shape))
    if moved == "split":
        _, source = nodes("Split", "edges", outputs=2, axis=0, num_outputs=2)
    elif moved in ("stacked", "looped"):
        loops = np.zeros((1 if moved == "stacked" else 2, 1), np.int64)
        if moved == "stacked":
            source = nodes("Concat", nodes("Gather", "edges", np.array([1]), axis=0), loops, axis=1)
        else:
            source = nodes("Gather", nodes("Concat", "edges", loops, axis=1), np.array(1), axis=0)
    elif moved == "next":
        source = nodes("Add", nodes("Gather", "edges", np.array(0), axis=0), np.int64(1))
    elif moved == "batches":
        source = nodes("Gather", "edges", np.array(1), axis=1)
    elif moved == "pairs":
        source = nodes("Gather", "edges", np.array(-1), axis=1)
    elif moved == "turned":
        source = nodes("Gather", nodes("Transpose", "edges", perm=[1, 0]), np.array(1), axis=0)
    elif moved == "far":
        source = nodes("Gather", nodes("Slice", "edges", np.array([1]), np.array([3]), np.array([1])), np.array(1), axis=0)
    else:
        source = nodes("Gather", "edges", np.array([1]), axis=0)
    return nodes.g.finish(nodes("Gather", "x", nodes("Reshape", source, np.array([-1])), axis=0))


MOVED = ("chosen", "split", "stacked", "looped", "batches", "pairs", "turned", "far")


def own_part(moved: str, edges: np.ndarray) -> np.ndarray:
    """The elements that choose rows."""
    if moved == "batches":
        return edges[:, 1]
    if moved == "far":
        return edges[1, 1:]
    return edges[:, 1] if moved in ("pairs", "turned") else edges[1]


@pytest.mark.parametrize("moved", ["chosen", "split", "stacked"])
def test_indices_are_followed_to_the_input_that_they_are_moved_from(moved: str) -> None:
    own = messages(moved)
    assert index_sources(own) == {"edges": [B]}
    assert not drawn_inputs(own, {"b": 1, "k": 3})["edges"].any()
    assert drawn_inputs(own, {"b": 2, "k": 30})["edges"].any()


@pytest.fixture(scope="module")
def moved_path(tmp_path_factory):
    graphs = {moved: messages(moved) for moved in MOVED}
    return model_pack(tmp_path_factory.mktemp("moved") / "pack", graphs, tuned=False, exact=False)


@pytest.mark.parametrize("moved", MOVED)
def test_an_index_that_was_moved_is_refused_where_no_row_has_it_and_others_are_not_asked(moved_path, moved):
    own, x = messages(moved), DRAW.standard_normal((4, 4)).astype(np.float32)
    shape = [evaluate(extent, {"b": 4, "k": 3}) for extent in own.types["edges"].shape]
    with haotuner.load(moved_path, threads=1) as pack:
        model = pack.model(moved)
        sound = DRAW.integers(-4, 4, shape)
        sites = np.zeros(shape, bool)
        own_part(moved, sites)[...] = True
        for position in range(sound.size):
            edges = sound.copy()
            edges.reshape(-1)[position] = 4
            if sites.reshape(-1)[position]:
                words = f"element {position} of the input edges is the index 4, but there are 4 rows: -4 to 3"
                with pytest.raises(UsageError, match=words):
                    model.run({"x": x, "edges": edges})
            else:
                model.run({"x": x, "edges": edges})
        (output, expected), *_ = interpret(own, {"x": x, "edges": sound}).items()
        np.testing.assert_array_equal(model.run({"x": x, "edges": sound})[output], expected)
        nothing = [evaluate(extent, {"b": 4, "k": 0}) for extent in own.types["edges"].shape]
        assert model.run({"x": x, "edges": np.zeros(nothing, np.int64)})[output].size % 4 == 0


def test_a_pack_is_checked_by_requests_that_have_answers(tmp_path: Path) -> None:
    """Neither an index that the reference cannot answer nor one that no request can have ends in a traceback."""
    own = messages("next")
    pack = model_pack(tmp_path / "pack", {"own": own}, tuned=False, exact=False)
    # Of one row there is no next one.
    check_model(pack, "own", own, {"b": Span(first=1, last=3), "k": Span(first=2, last=3)})
    with pytest.raises(PackInvalid, match="no request that was drawn has an answer, rows are chosen that no tensor has"):
        check_model(pack, "own", own, {"b": Span(first=1, last=1), "k": Span(first=2, last=3)})


def test_what_is_no_index_is_not_asked():
    """Classes of OneHot may be none of them; places that the graph makes itself are right; others' arithmetic is theirs."""
    at = {"at": ("int64", B)}
    assert not index_bounds(graph("OneHot", "at", 4, np.array([0, 1], np.float32), ends=at))
    assert not index_bounds(graph("TopK", "x", np.array([2]), axis=1, ends={"x": ("fp32", B, 9)}))
    nodes = Nodes(**at)
    own = nodes("Where", nodes("Less", "at", 0), nodes("Add", "at", 3), "at")
    assert not index_bounds(nodes.g.finish(nodes("Gather", TABLE, own)))


@pytest.mark.parametrize(
    ("op", "indices", "attributes"),
    [
        ("Gather", np.array([0, 5]), {}),
        ("Gather", np.array([-10]), {"axis": 1}),
        ("GatherElements", np.full((5, 1), 9), {"axis": 1}),
        ("GatherND", np.array([[4, 9]]), {}),
        ("ScatterND", np.array([[0], [1], [2], [3], [5]]), {}),
        ("ScatterElements", np.full((5, 9), -6), {}),
    ],
)
def test_a_constant_index_that_no_row_has_is_refused_at_import(op, indices, attributes):
    more = ["x"] if op.startswith("Scatter") else []
    with pytest.raises(UsageError, match=rf"{op}: the index -?\d+, but there are (5|9) rows"):
        graph(op, "x", indices, *more, ends={"x": ("fp32", 5, 9)}, **attributes)
