"""Caches of decoders in buffers that grow: the numbers of the plain call, and what a state refuses."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.errors import UsageError
from haotuner.graph import decompositions
from haotuner.graph.extents import Extent, dimension, evaluate
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.graph.interpret import interpret
from haotuner.verify.pack_check import verify
from tests.runtime.model_packs import LAST, model_pack

B, T, P = dimension("batch"), dimension("tokens"), dimension("past")
WIDE, HEADS, GROUPS, DEPTH = 32, 4, 2, 8
DRAW = np.random.default_rng(0)


def numbers(*shape: int) -> Any:
    return DRAW.standard_normal(shape).astype(np.float32)


def dense(g: GraphBuilder, x: str, inner: int, outer: int) -> str:
    return g.add("contract", x, g.constant(numbers(inner, outer) / np.float32(inner**0.5)), labels="btk,kn->btn")


def split_heads(g: GraphBuilder, x: str, heads: int) -> str:
    return g.add("transpose", g.add("reshape", x, shape=(B, T, heads, DEPTH)), order=(0, 2, 1, 3))


def attended(g: GraphBuilder, q: str, k: str, v: str, form: str) -> str:
    """(batch, heads, tokens, depth): queries of a group side by side, or keys and values spread over heads."""
    keys: Extent = g.types[k].shape[2]
    if form == "grouped":
        q = g.add("reshape", q, shape=(B, GROUPS, T * (HEADS // GROUPS), DEPTH))
        result = decompositions.attention(g, q, k, v, DEPTH**-0.5)
        return g.add("reshape", result, shape=(B, HEADS, T, DEPTH))
    shape = (B, GROUPS, HEADS // GROUPS, keys, DEPTH)
    spread = [
        g.add(
            "reshape",
            g.add("broadcast", g.add("reshape", item, shape=(B, GROUPS, 1, keys, DEPTH)), shape=shape),
            shape=(B, HEADS, keys, DEPTH),
        )
        for item in (k, v)
    ]
    mask = g.add("reshape", g.input("mask", (B, keys)), shape=(B, 1, 1, keys)) if form == "masked" else None
    return decompositions.attention(g, q, spread[0], spread[1], DEPTH**-0.5, mask)


def decoder(form: str, layers: int = 1) -> Graph:
    """Layers of attention with past keys and values, which stand first in the inputs and last in the outputs."""
    g = GraphBuilder()
    x = g.input("x", (B, T, WIDE))
    pasts = [
        (g.input(f"past_k{i}", (B, GROUPS, P, DEPTH)), g.input(f"past_v{i}", (B, GROUPS, P, DEPTH))) for i in range(layers)
    ]
    presents: list[str] = []
    for past in pasts:
        q = split_heads(g, dense(g, x, WIDE, WIDE), HEADS)
        new_rows = [split_heads(g, dense(g, x, WIDE, GROUPS * DEPTH), GROUPS) for _ in range(2)]
        k, v = (g.add("concat", first, item, axis=2) for first, item in zip(past, new_rows, strict=True))
        mixed = g.add("transpose", attended(g, q, k, v, form), order=(0, 2, 1, 3))
        x = g.map("add", dense(g, g.add("reshape", mixed, shape=(B, T, WIDE)), WIDE, WIDE), x)
        presents += [k, v]
    return g.finish(x, *presents)


def turned() -> Graph:
    """Keys lie with their depth first, so that the last axis grows; scores are an output of their own."""
    g = GraphBuilder()
    q, new = g.input("q", (B, HEADS, T, DEPTH)), g.input("new", (B, HEADS, DEPTH, T))
    past = g.input("past", (B, HEADS, DEPTH, P))
    keys = g.add("concat", past, new, axis=3)
    scores = g.add("contract", q, keys, labels="bhtd,bhds->bhts")
    return g.finish(g.map("exp", scores), g.add("reduce", keys, how="sum", axes=(3,)), keys)


def rows() -> Graph:
    """A cache that plain loops alone read: its sum, its largest elements, all of it in another shape."""
    g = GraphBuilder()
    past, new = g.input("past", (B, P, 3, 5)), g.input("new", (B, T, 3, 5))
    cache = g.add("concat", past, new, axis=1)
    flat = g.add("reshape", cache, shape=(B, P + T, 15))
    return g.finish(g.add("reduce", flat, how="sum", axes=(1,)), g.map("exp", g.map("mul", flat, 0.25)), cache)


def unknown_batch() -> Graph:
    """Caches whose batch no other input has; a product that takes contiguous rows reads one of them."""
    g = GraphBuilder()
    past, other = g.input("past", (B, P, 16)), g.input("other", (1, P, 16))
    new = g.input("new", (1, T, 16))
    spread = g.add("broadcast", new, shape=(B, T, 16))
    cache, other_cache = g.add("concat", past, spread, axis=1), g.add("concat", other, new, axis=1)
    product = g.add("contract", other_cache, g.constant(numbers(16, 16)), labels="btk,kn->btn")
    return g.finish(g.add("reduce", cache, how="max", axes=(1, 2)), product, cache, other_cache)


GRAPHS = {
    "grouped": decoder("grouped"), "spread": decoder("spread"), "masked": decoder("masked"), "deep": decoder("grouped", 3),
    "turned": turned(), "rows": rows(), "unknown_batch": unknown_batch(),
}  # fmt: skip
CACHES = {"grouped": 2, "spread": 2, "masked": 2, "deep": 6, "turned": 1, "rows": 1, "unknown_batch": 1}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    result = model_pack(tmp_path_factory.mktemp("states") / "pack", GRAPHS)
    assert verify(result) == []
    return result


@pytest.fixture(scope="module", params=[1, 2])
def pack(path, request):
    with haotuner.load(path, threads=request.param) as result:
        yield result


def fed(name: str, batch: int, tokens: int, length: int) -> dict[str, Any]:
    """Inputs but for caches."""
    if name == "turned":
        return {"q": numbers(batch, HEADS, tokens, DEPTH), "new": numbers(batch, HEADS, DEPTH, tokens)}
    if name == "rows":
        return {"new": numbers(batch, tokens, 3, 5)}
    mask = {"mask": DRAW.choice(np.array([0, -4], np.float32), (batch, length + tokens))} if name == "masked" else {}
    return {"x": numbers(batch, tokens, WIDE), **mask}


class PlainCalls:
    """A model called with past and present as arrays."""

    def __init__(self, model: Any, batch: int) -> None:
        self.model, self.past = model, dict[str, Any]()
        for end in model.inputs:
            if end.name.startswith("past"):
                extents = [{"batch": batch, "past": 0}.get(str(extent), extent) for extent in end.shape]
                self.past[end.name] = np.zeros(extents, np.float32)

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        answers: dict[str, Any] = self.model.run(inputs | self.past)
        presents = list(answers)[len(answers) - len(self.past) :]
        self.past = {past: answers.pop(name) for past, name in zip(self.past, presents, strict=True)}
        return answers


def assert_same(answers: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(answers) == list(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(answers[name], value)


@pytest.mark.parametrize("name", [name for name in GRAPHS if name != "unknown_batch"])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_prefill_and_steps_have_the_bits_of_the_plain_call(pack: Any, name: str, batch: int) -> None:
    model = pack.model(name)
    state, plain = model.state(), PlainCalls(model, batch)
    for tokens in (7, 1, 1, 30, 2, 1, LAST - 43, 1, 5, 1):  # beyond the tuned range, too
        inputs = fed(name, batch, tokens, state.length)
        assert_same(state.run(inputs), plain.run(inputs))
        assert (
            state.capacity >= state.length == plain.past[next(iter(plain.past))].shape[{"turned": 3, "rows": 1}.get(name, 2)]
        )
        assert_same(state.caches(), plain.past)
    assert state.capacity == 2 * LAST


@pytest.mark.parametrize("name", GRAPHS)
def test_the_plain_call_is_right(pack: Any, name: str) -> None:
    graph, model = GRAPHS[name], pack.model(name)
    for batch, tokens, past in ((1, 1, 0), (2, 3, 9), (1, 5, 40)):
        known = {"batch": batch, "tokens": tokens, "past": past}
        inputs = {end: numbers(*(evaluate(extent, known) for extent in graph.types[end].shape)) for end in graph.inputs}
        answers = model.run(inputs)
        for end, value in interpret(graph, inputs).items():
            np.testing.assert_allclose(answers[end], value, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("name", GRAPHS)
def test_the_document_lists_the_caches_that_lie_in_buffers(pack: Any, name: str) -> None:
    caches = pack.model(name).document["caches"]["table"]
    assert len(caches) == CACHES[name]


def test_a_state_is_cut_copied_and_begun_anew(pack: Any) -> None:
    model = pack.model("deep")
    state, plain = model.state(max_length=64), PlainCalls(model, 2)
    first, draft, last = (fed("deep", 2, tokens, 0) for tokens in (9, 4, 3))
    plain.run(first)
    state.run(first)
    other = state.copy()
    state.run(draft)
    state.truncate(9)
    expected = plain.run(last)
    assert_same(state.run(last), expected)
    assert_same(other.run(last), expected)
    assert (state.length, other.length, other.capacity, state.nbytes) == (12, 12, 64, 6 * 2 * GROUPS * 64 * DEPTH * 4)
    state.reset()
    assert_same(state.run(first), PlainCalls(model, 2).run(first))
    state.reset()
    single = fed("deep", 1, 3, 0)
    assert_same(state.run(single), PlainCalls(model, 1).run(single))


def test_rows_of_a_batch_become_beams(pack: Any) -> None:
    model = pack.model("grouped")
    state, plain = model.state(), PlainCalls(model, 2)
    first, step = fed("grouped", 2, 6, 0), fed("grouped", 3, 1, 6)
    state.run(first)
    plain.run(first)
    plain.past = {name: np.ascontiguousarray(value[[1, 1, 0]]) for name, value in plain.past.items()}
    beams = state.select([1, 1, 0])
    assert_same(beams.run(step), plain.run(step))
    assert (beams.length, state.length) == (7, 6)
    with pytest.raises(UsageError, match=r"rows \[2\] of a batch of 2"):
        state.select([2])


def test_outputs_go_where_the_caller_says(pack: Any) -> None:
    model = pack.model("grouped")
    state, inputs = model.state(), fed("grouped", 1, 2, 0)
    output = model.outputs[0].name
    buffer = np.empty((1, 2, WIDE), np.float32)
    assert state.run(inputs, out={output: buffer})[output] is buffer
    assert_same({output: buffer}, PlainCalls(model, 1).run(inputs))
    with pytest.raises(UsageError, match="lies in the state"):
        state.run(fed("grouped", 1, 1, 2), out={model.outputs[1].name: buffer})
    assert state.length == 2


def test_states_run_at_once_and_one_state_does_not(pack: Any) -> None:
    model = pack.model("deep")
    wrong: list[str] = []

    def sequence(seed: int) -> None:
        draw = np.random.default_rng(seed)
        state, plain = model.state(), PlainCalls(model, 1)
        for tokens in (11, 1, 1, 1, 1, 2):
            inputs = {"x": draw.standard_normal((1, tokens, WIDE)).astype(np.float32)}
            answers, expected = state.run(inputs), plain.run(inputs)
            wrong.extend(name for name in expected if not np.array_equal(answers[name], expected[name]))

    threads = [threading.Thread(target=sequence, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    state = model.state()
    with state._running, pytest.raises(UsageError, match="runs in another thread"):
        state.run(fed("deep", 1, 1, 0))


def test_a_state_refuses_in_words(pack: Any) -> None:
    model = pack.model("grouped")
    state = model.state(max_length=8)
    state.run(fed("grouped", 2, 6, 0))
    for inputs, words in (
        (fed("grouped", 2, 3, 6), "6 tokens and 3 more are over max_length=8"),
        (fed("grouped", 1, 1, 6), "batch is 1, but 2 in the 6 tokens"),
        (fed("grouped", 2, 1, 6) | {"past_k0": numbers(2, GROUPS, 6, DEPTH)}, "past_k0 is in the state"),
        ({}, "takes the inputs x; x is missing"),
        ({"x": numbers(2, 1, WIDE + 1)}, "must be"),
    ):
        with pytest.raises(UsageError, match=words):
            state.run(inputs)
        assert state.length == 6
    for wrong, words in ((7, "has 6 tokens"), (-1, "whole number"), (1.5, "whole number")):
        with pytest.raises(UsageError, match=words):
            state.truncate(wrong)
    with pytest.raises(UsageError, match="there is no heads"):
        model.state(heads=3)


def test_a_dimension_that_no_other_input_says_is_passed(pack: Any) -> None:
    model = pack.model("unknown_batch")
    other, past = np.zeros((1, 0, 16), np.float32), np.zeros((2, 0, 16), np.float32)
    with pytest.raises(UsageError, match=r"pass model.state\(batch=…\)"):
        model.state().run({"new": numbers(1, 2, 16), "other": other})
    state = model.state(batch=2)
    new = numbers(1, 2, 16)
    answers = state.run({"new": new, "other": other})
    assert_same(
        answers,
        {name: value for name, value in model.run({"new": new, "other": other, "past": past}).items() if name in answers},
    )
    assert len(answers) == 3


def in_buffers(bound: Any, new: Any, past: Any, rows: int, present: Any) -> list[Any]:
    """A call of ``rows`` with past and present as rows of buffers; its other outputs."""
    past_tensors, written = bound.native.growing()
    past_tensors.put(0, past, 1)
    written.put(2, present, 1)
    packed = past_tensors.packed([None, new], rows)
    shapes = bound.native.shapes_of(packed)
    outputs = [*(np.empty(shape, np.float32) for shape in shapes[:2]), None]
    bound.native.run_packed(packed, written.packed(outputs, rows + new.shape[1]))
    return outputs[:2]


def test_a_buffer_is_shared_by_strides_alone(pack: Any) -> None:
    """Rows of one buffer as past and as present: a C caller says no more than that."""
    bound, graph = pack.model("rows").bound, GRAPHS["rows"]
    buffer, new = numbers(2, 10, 3, 5), numbers(2, 3, 3, 5)
    before = buffer.copy()
    expected = list(interpret(graph, {"past": before[:, :4], "new": new}).values())[:2]
    for answers, value in zip(in_buffers(bound, new, buffer, 4, buffer), expected, strict=True):
        np.testing.assert_allclose(answers, value, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(buffer, np.concatenate([before[:, :4], new, before[:, 7:]], axis=1))
    apart = numbers(2, 20, 3, 5)
    for answers, value in zip(in_buffers(bound, new, buffer, 4, apart), expected, strict=True):
        np.testing.assert_allclose(answers, value, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(apart[:, :7], buffer[:, :7])
    for wrong, words in (
        (buffer[:, 1:], "shares memory"),
        (buffer.reshape(3, 2, 10, 5).transpose(1, 2, 0, 3), "must be contiguous"),
        (np.lib.stride_tricks.as_strided(buffer, (2, 6, 3, 5), (4 * 15 * 6, 60, 20, 4)), "must be contiguous"),
    ):
        with pytest.raises(UsageError, match=words):
            in_buffers(bound, new, buffer, 4, wrong)


def test_a_state_goes_on_in_the_pack_that_its_model_was_handed_to(path: Any) -> None:
    with haotuner.load(path, threads=1) as old, haotuner.load(path, threads=1) as new:
        model = old.model("grouped")
        state, plain = model.state(), PlainCalls(new.model("grouped"), 1)
        first, second = fed("grouped", 1, 4, 0), fed("grouped", 1, 1, 4)
        assert_same(state.run(first), plain.run(first))
        old.hand_over(new)
        assert_same(state.run(second), plain.run(second))


def test_a_model_without_caches_has_no_state(tmp_path: Any) -> None:
    g = GraphBuilder()
    x = g.input("x", (B, P, 8))
    flat = g.finish(g.map("exp", x), g.add("concat", x, x, axis=1))
    served = haotuner.load(model_pack(tmp_path / "pack", {"flat": flat}), threads=1)
    with served, pytest.raises(UsageError, match="flat has no state"):
        served.model("flat").state()
