"""Models whose sizes depend on data, cut into segments, against the reference: counts, lengths, random numbers, none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.errors import PackInvalid, UsageError
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.graph.interpret import interpret
from haotuner.partition.dim_ranges import spans_of
from haotuner.partition.segments import counts, cut
from haotuner.spec.shape import Span
from haotuner.verify.pack_check import verify
from tests.runtime.chain_graphs import B, chosen, grown, noisy, product
from tests.runtime.model_packs import LAST, model_pack

DRAW = np.random.default_rng(0)


def moved() -> Graph:
    """Pads of ``batch - 4``: below four rows they cut."""
    g = GraphBuilder()
    x = g.input("x", (B, 8))
    return g.finish(
        g.add("pad", product(g, x), before=(0, B - 4), after=(0, B - 5), mode="constant", value=1.0),
    )


GRAPHS = {"noisy": noisy(), "chosen": chosen(), "grown": grown(), "moved": moved()}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return model_pack(tmp_path_factory.mktemp("segments") / "pack", GRAPHS)


def given(name: str, rows: int, sign: float = 0.0) -> dict[str, Any]:
    x = DRAW.standard_normal((rows, 8)).astype(np.float32)
    x = np.copysign(x, np.float32(sign)) if sign else x
    return {"x": x} if name != "grown" else {"x": x, "long": np.array([rows, 3], np.int64)}


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("threads", [1, 2])
def test_segments_compute_what_the_whole_does(path, name, threads):
    with haotuner.load(path, threads=threads) as pack:
        for rows, sign in ((1, 0.0), (7, 0.0), (40, 0.0), (5, -1.0), (5, 1.0)):  # of -1: not one row is chosen
            inputs = given(name, rows, sign)
            model = pack.model(name)
            outputs = model.run(inputs, seed=4) if name != "moved" else model.run(inputs)
            expected = interpret(GRAPHS[name], inputs, seed=4)
            assert list(outputs) == list(GRAPHS[name].outputs)
            for output, reference in expected.items():
                np.testing.assert_allclose(outputs[output], reference, rtol=3e-4, atol=3e-4)
                assert outputs[output].dtype == reference.dtype


def test_a_model_without_such_sizes_is_one_segment(path):
    g = GraphBuilder()
    graph = g.finish(product(g, g.input("x", (B, 8))))
    assert [segment.graph for segment in cut(graph)] == [graph]
    assert len(cut(GRAPHS["chosen"])) == 3 and len(cut(GRAPHS["grown"])) == 2
    assert dict(counts(GRAPHS["chosen"], {"batch": 9})) == {"count_0": 9, "count_1": 9}


def test_noise_is_new_each_time_and_that_of_a_seed_is_not(path):
    with haotuner.load(path) as pack:
        model, inputs = pack.model("grown"), given("grown", 5)
        name = GRAPHS["grown"].outputs[0]
        first, other = model.run(inputs)[name], model.run(inputs)[name]
        assert not np.array_equal(first, other)
        np.testing.assert_array_equal(model.run(inputs, seed=1)[name], model.run(inputs, seed=1)[name])
        out = {name: np.empty_like(first)}
        assert model.run(inputs, out=out)[name] is out[name]


def test_bad_requests_say_what_is_wrong(path):
    with haotuner.load(path) as pack:
        model = pack.model("grown")
        with pytest.raises(UsageError, match="a size of -6"):
            model.run({"x": np.zeros((1, 8), np.float32), "long": np.array([-7, -9])})
        with pytest.raises(UsageError, match="long is missing"):
            model.run({"x": np.zeros((1, 8), np.float32)})
        with pytest.raises(UsageError, match="2 axes"):
            model.run(given("grown", 2) | {"x": np.zeros(8, np.float32)})
        with pytest.raises(UsageError, match="float32"):
            model.run(given("grown", 2) | {"x": np.zeros((1, 8), np.float64)})
        name = GRAPHS["grown"].outputs[0]
        with pytest.raises(UsageError, match="writeable"):
            model.run(given("grown", 2), out={name: np.zeros((1, 8), np.float32)})


def test_memory_is_told_and_counted(path):
    with haotuner.load(path) as pack:
        model = pack.model("chosen")
        assert model.dims == ("batch", "count_0", "count_1")
        assert model.memory_bytes(batch=40, count_0=20, count_1=10) >= model.memory_bytes(batch=4, count_0=2, count_1=1)
        with pytest.raises(UsageError, match="count_0"):
            model.memory_bytes(batch=3)
        model.run(given("chosen", 9))
        assert model.stats()["calls"] == 3
        model.trim()
        session = pack.session("chosen")
        assert [node_arg.name for node_arg in session.get_inputs()] == ["x"]
        assert len(session.run(None, given("chosen", 3))) == 4


def test_calls_out_of_the_tuned_range_are_answered_and_counted(path):
    with haotuner.load(path) as pack:
        model = pack.model("chosen")
        model.run(given("chosen", LAST))
        assert model.stats()["out_of_range"] == 0
        for _ in range(2):
            inputs = given("chosen", LAST + 1, -1.0)  # the first segment's rows, and the others' of none
            outputs = model.run(inputs)
            np.testing.assert_array_equal(outputs[GRAPHS["chosen"].outputs[3]], 2 * inputs["x"])
        assert [segment.stats()["out_of_range"] for segment in model.segments.values()] == [2, 2, 0]
        assert model.stats()["out_of_range"] == 4


def test_the_pack_verifies_and_a_damaged_chain_is_refused(path, tmp_path):
    assert verify(path) == []
    with haotuner.load(path) as pack:
        assert {"chosen", "chosen.0", "chosen.2", "grown.1"} <= set(pack.models)
        from haotuner.runtime.chain_bound import ChainBound

        for damaged in (b'{"chain": 3', b'{"chain": [{}], "name": "a", "dims": [], "inputs": [], "outputs": []}'):
            with pytest.raises(PackInvalid, match="here"):
                ChainBound(pack, damaged, "here", pack.model)


def test_ranges_of_lengths_are_asked_for_and_those_of_counts_follow():
    spans = spans_of(GRAPHS["chosen"], "batch=1..9")
    assert spans["count_0"] == Span(first=1, last=9)
    assert spans_of(GRAPHS["chosen"], "batch=1..9;count_0=2..4")["count_0"] == Span(first=2, last=4)
    with pytest.raises(UsageError, match=r"length_0 depends on data.*element 0 of.*length_0=1\.\.1000"):
        spans_of(GRAPHS["grown"], "batch=1..9")
