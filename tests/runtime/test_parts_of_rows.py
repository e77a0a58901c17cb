"""Kernels that read a part of each row of a tensor where it lies: heads of one wide layer, and rows that a cache takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.graph import decompositions
from haotuner.graph.extents import dimension, evaluate
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.graph.interpret import interpret
from haotuner.graph.rewrites import MERGED, rewritten, sites
from haotuner.partition.greedy_fusion import Greedy
from haotuner.partition.key_caches import Append
from haotuner.partition.products import Product
from tests.runtime.model_packs import model_pack
from tests.runtime.native_builds import ASAN, run
from tests.runtime.test_models import numbers
from tests.runtime.test_models_c import program

B, T, P = dimension("batch"), dimension("seq"), dimension("past")
HEADS, DEPTH = 2, 8
WIDTH = HEADS * DEPTH


def columns(g: GraphBuilder, tensor: str, first: int, width: int, shape: tuple[Any, ...]) -> str:
    part = g.add("slice", tensor, axes=(2,), starts=(first,), stops=(first + width,), steps=(1,))
    return g.add("reshape", part, shape=shape)


def by_head(g: GraphBuilder, tensor: str, first: int, width: int = WIDTH) -> str:
    return g.add("transpose", columns(g, tensor, first, width, (B, T, width // DEPTH, DEPTH)), order=(0, 2, 1, 3))


def attention(softmax: bool = True, caches: bool = False) -> Graph:
    """Queries, keys and values of one layer of 3 * 16 columns; without a softmax two products; with caches they grow."""
    g = GraphBuilder()
    x = g.input("x", (B, T, 16))
    wide = g.add("contract", x, g.constant(numbers(16, 3 * WIDTH)), labels="btk,kn->btn")
    query, key, value = (by_head(g, wide, index * WIDTH) for index in range(3))
    if caches:
        pasts = [g.input(name, (B, HEADS, P, DEPTH)) for name in ("past_k", "past_v")]
        key, value = (g.add("concat", past, new, axis=2) for past, new in zip(pasts, (key, value), strict=True))
    scores = g.add("contract", query, key, labels="bhtd,bhsd->bhts")
    scores = decompositions.softmax(g, g.map("mul", scores, DEPTH**-0.5), 3) if softmax else scores
    mixed = g.add("contract", scores, value, labels="bhts,bhsd->bhtd")
    return g.finish(mixed, *((key, value) if caches else ()))


def rows() -> Graph:
    """Rows of a cache that are the middle of those of a layer, in the layer's own order, beside the sum of the others."""
    g = GraphBuilder()
    x, past = g.input("x", (B, T, 8)), g.input("past", (B, P, 4))
    wide = g.add("contract", x, g.constant(numbers(8, 12)), labels="btk,kn->btn")
    cache = g.add("concat", past, columns(g, wide, 4, 4, (B, T, 4)), axis=1)
    return g.finish(cache, g.add("reduce", wide, how="sum", axes=(2,)))


GRAPHS = {
    "online": attention(), "products": attention(softmax=False), "cached": attention(caches=True), "rows": rows(),
}  # fmt: skip


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_pack(tmp_path_factory.mktemp("parts") / "pack", GRAPHS, exact=False)


def parts_of(path: Path, name: str) -> list[list[int]]:
    """Parts in the schedule's order, those of an operand's name before the next one's."""
    result, waiting = list[list[int]](), list[Any](json.loads((path / "models" / f"{name}.json").read_text())["steps"])
    while waiting:
        item = waiting.pop(0)
        if isinstance(item, dict):
            result += [item["part"]] if "part" in item else []
            waiting += item.values()
    return sorted(result)


def test_no_kernel_copies_the_columns_that_it_reads(path):
    own = [[0, WIDTH], [WIDTH, WIDTH], [2 * WIDTH, WIDTH]]
    assert parts_of(path, "online") == parts_of(path, "products") == parts_of(path, "cached") == own
    assert parts_of(path, "rows") == [[4, 4]]
    for name in ("online", "products", "cached"):
        steps = json.loads((path / "models" / f"{name}.json").read_text())["steps"]
        loops = [step for step in steps if step["do"] == "loops"]
        assert len(loops) == (1 if name == "cached" and len(steps) > 5 else 0), [step["do"] for step in steps]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", GRAPHS)
def test_parts_of_rows_are_read_at_any_size(path, name, threads):
    graph, draw = GRAPHS[name], np.random.default_rng(1)
    with haotuner.load(path, threads=threads) as pack:
        model = pack.model(name)
        for batch, seq, past in ((1, 1, 1), (2, 5, 3), (3, 1, 0), (1, 17, 40), (0, 3, 2), (2, 0, 3)):
            sizes = {"batch": batch, "seq": seq, "past": past}
            inputs = {
                tensor: draw.standard_normal([evaluate(e, sizes) for e in graph.types[tensor].shape]).astype(np.float32)
                for tensor in graph.inputs
            }
            if name in ("online", "products") and seq == 0:
                continue  # a softmax of nothing
            answer, expected = model.run(inputs), interpret(graph, inputs)
            for tensor in graph.outputs:
                np.testing.assert_allclose(answer[tensor], expected[tensor], rtol=2e-4, atol=2e-5, err_msg=f"{name} {sizes}")


@pytest.mark.parametrize("name", ["rows", "cached"])
def test_caches_in_buffers_take_parts_of_rows(path, name):
    """Three calls of a state, whose buffers have more rows than there are, are the calls that pass all rows."""
    graph = GRAPHS[name]
    pasts = [tensor for tensor in graph.inputs if tensor != "x"]
    wide = graph.types["x"].shape[2]
    with haotuner.load(path) as pack:
        model, state = pack.model(name), pack.model(name).state()
        passed = {
            tensor: np.zeros([evaluate(extent, {"batch": 2, "past": 0}) for extent in graph.types[tensor].shape], "f4")
            for tensor in pasts
        }
        ends = list(graph.outputs)
        presents = ends[:1] if name == "rows" else ends[1:]
        for tokens in (3, 1, 2):
            x = numbers(2, tokens, wide)
            expected, answer = model.run({"x": x, **passed}), state.run({"x": x})
            for tensor in set(ends) - set(presents):
                np.testing.assert_allclose(answer[tensor], expected[tensor], rtol=1e-5, atol=1e-6)
            passed = dict(zip(pasts, (expected[tensor] for tensor in presents), strict=True))
        assert state.length == 6


@pytest.mark.parametrize("why", ["merged rows", "another axis", "one column", "steps", "an input", "a device"])
def test_what_is_no_part_of_rows_is_computed(why):
    g = GraphBuilder()
    x = g.input("x", (B, 4, 16))
    wide = x if why == "an input" else g.add("contract", x, g.constant(numbers(16, 32)), labels="btk,kn->btn")
    axis, stop, step = {"another axis": (1, 2, 1), "one column": (2, 1, 1), "steps": (2, 16, 2)}.get(why, (2, 8, 1))
    part = g.add("slice", wide, axes=(axis,), starts=(0,), stops=(stop,), steps=(step,))
    whole = [e for e in g.types[part].shape if isinstance(e, int)]
    shape = (B, 1, whole[0] * whole[1]) if why == "merged rows" else (B, *whole)
    seen = g.add("reshape", part, shape=shape)
    graph = g.finish(g.add("contract", seen, g.input("y", (B, 3, shape[2])), labels="bmk,bnk->bmn"))
    plan = Greedy(graph, serves=(lambda op: True) if why == "a device" else None)
    products = [product for product in plan.products.values() if product.kind == "product"]
    assert products and all(not product.x.width for product in products)


def separate(widths: tuple[int, ...] = (WIDTH, WIDTH, WIDTH), caches: bool = True) -> Graph:
    """A layer each for queries, keys and values."""
    g = GraphBuilder()
    x = g.input("x", (B, T, 16))
    wide = [g.add("contract", x, g.constant(numbers(16, width)), labels="btk,kn->btn") for width in widths]
    query, key, value = (
        g.add("transpose", g.add("reshape", item, shape=(B, T, HEADS, DEPTH)), order=(0, 2, 1, 3)) for item in wide
    )
    if caches:
        pasts = [g.input(name, (B, HEADS, P, DEPTH)) for name in ("past_k", "past_v")]
        key, value = (g.add("concat", past, new, axis=2) for past, new in zip(pasts, (key, value), strict=True))
    scores = g.map("mul", g.add("contract", query, key, labels="bhtd,bhsd->bhts"), DEPTH**-0.5)
    mixed = g.add("contract", decompositions.softmax(g, scores, 3), value, labels="bhts,bhsd->bhtd")
    return g.finish(mixed, *((key, value) if caches else ()))


def test_merged_layers_are_read_where_they_lie():
    graph = separate()
    merged = rewritten(graph, [site for site in sites(graph) if site.rule == MERGED])
    steps = Greedy(merged).steps
    dense = [step for step in steps if isinstance(step, Product) and step.kind == "dense"]
    assert [dict(step.op.static)["n"] for step in dense] == [3 * WIDTH]
    (online,) = (step for step in steps if isinstance(step, Product) and step.kind == "online")
    appends = [step for step in steps if isinstance(step, Append)]
    assert (online.views["q"].first, online.views["q"].width) == (0, WIDTH)
    assert [(step.new.first, step.new.width) for step in appends] == [(WIDTH, WIDTH), (2 * WIDTH, WIDTH)]
    assert {step.new.tensor for step in appends} == {online.views["q"].tensor} == {dense[0].output}


@pytest.mark.long
def test_a_damaged_schedule_reads_no_part_beyond_a_row(tmp_path):
    """Nothing is read or written past its end, whatever a part is said to be (ASan)."""
    built, names = program(tmp_path, ASAN, {"rows": rows()}, small=0)
    for mode, count, words in (("schedules", "4000", "ran="), ("flips", "1", "refused=")):
        assert words in run([built, mode, count, "7", *names], 120).stdout
