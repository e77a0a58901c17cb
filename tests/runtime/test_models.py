"""Whole models of a pack: what they compute at any size, callers at once, and what they refuse."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.bench.models import race, requests_of
from haotuner.cli.explain import explain
from haotuner.cli.explain_model import predicted_document, print_predicted, print_steps, steps_document
from haotuner.errors import PackInvalid, UsageError
from haotuner.graph import decompositions
from haotuner.graph.extents import dimension, smallest
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.graph.interpret import interpret
from haotuner.graph.typed_extents import typed
from haotuner.pack.manifest import read_manifest
from haotuner.spec.size_arithmetic import REAL, TYPED, WHOLE
from haotuner.verify.pack_check import verify
from tests.runtime.model_packs import model_pack

B, T = dimension("batch"), dimension("seq")
DRAW = np.random.default_rng(0)


def numbers(*shape: int) -> Any:
    return DRAW.standard_normal(shape).astype(np.float32)


def encoder() -> Graph:
    """A norm, two dense layers with gelu and residual, softmax over tokens, a mask: every way a step is reached."""
    g = GraphBuilder()
    x, mask = g.input("x", (B, T, 32)), g.input("mask", (B, T), "int64")
    h = decompositions.affine(
        g, decompositions.normalise(g, x, (2,), 1e-5), g.constant(numbers(32)), g.constant(numbers(32))
    )
    up = g.map("add", g.add("contract", h, g.constant(numbers(32, 64)), labels="btk,kn->btn"), g.constant(numbers(64)))
    down = g.add("contract", decompositions.gelu(g, up), g.constant(numbers(64, 32)), labels="btk,kn->btn")
    y = g.map("add", g.map("add", down, g.constant(numbers(32))), x)
    shown = g.add("reshape", g.add("cast", mask, dtype="fp32"), shape=(B, T, 1))
    weights = decompositions.softmax(g, g.map("mul", y, shown), 1)
    pooled = g.add("reduce", g.map("mul", y, weights), how="sum", axes=(1,))
    turned = g.add("transpose", y, order=(2, 0, 1))
    return g.finish(pooled, turned)


def image() -> Graph:
    """Padding, windows, pooling, concatenation and gathering, all as plain loops."""
    g = GraphBuilder()
    x = g.input("x", (B, 3, T))
    wide = g.add("pad", x, before=(0, 0, 1), after=(0, 0, 1), mode="constant", value=0.0)
    slid = g.add("window", wide, axes=(2,), sizes=(3,), strides=(1,), dilations=(1,))
    conv = g.add("contract", slid, g.constant(numbers(5, 3, 3)), labels="bcpu,fcu->bfp")
    both = g.add("concat", g.map("max", conv, 0.0), x, axis=1)
    pooled = g.add("reduce", both, how="max", axes=(2,), keepdims=True)
    near = g.add("gather", both, g.constant(np.array([0, 7, -1])), axis=1)
    indices = g.add("arg_reduce", near, how="max", axis=2)
    return g.finish(g.map("sub", both, pooled), near, indices)


def sums() -> Graph:
    """Sums along rows of tensors as they lie, alone and of products, in blocks of the last axis and what is left of it."""
    g = GraphBuilder()
    x, y = g.input("x", (B, 3, T)), g.constant(numbers(3, 75))
    down = g.add("reduce", x, how="sum", axes=(1,))
    rows = g.add("contract", g.add("transpose", x, order=(0, 2, 1)), y, labels="btc,cn->btn")
    both = g.map("mul", g.add("reduce", g.map("exp", x), how="sum", axes=(0,)), g.add("reduce", x, how="max", axes=(0,)))
    nested = g.add("reduce", g.map("mul", g.add("reduce", x, how="sum", axes=(1,), keepdims=True), x), how="sum", axes=(1,))
    return g.finish(down, g.map("max", rows, 0.0), both, nested)


def sizes() -> Graph:
    """Each function of sizes in the types of files, real results in 4096ths, and a slice whose length one of them tells."""
    g = GraphBuilder()
    x = g.input("x", (B, T, 2))
    real = typed("real_div", typed("real", 7 * T - 300), typed("real", B + 2))
    operands = {WHOLE: (100 * T - 5000, B + 2), REAL: (real, typed("real", 3 * B + 1))}
    counts = []
    for name, operation in TYPED.items():
        value = typed(name, *(operands[kind][index] for index, kind in enumerate(operation.of)))
        if name == "real_sqrt":
            value = typed(name, typed("real_max", real, 2))
        if operation.gives == REAL:
            value = typed("whole", typed("real_round", typed("real_mul", value, 4096)))
        counts.append(g.add("reshape", g.add("size", extent=value, dtype="int64"), shape=(1,)))
    part = typed("whole", typed("real_floor", typed("to_fp32", typed("real_mul", typed("real", T), float(np.float32(0.7))))))
    first = g.add("slice", x, axes=(1,), starts=(0,), stops=(smallest([T, part]),), steps=(1,))
    return g.finish(g.add("concat", *counts, axis=0), g.map("mul", first, 2.0))


def beside() -> Graph:
    """A sum, its norm and its mean: three outputs of one group in the cheapest plan."""
    g = GraphBuilder()
    x = g.input("x", (B, T, 32))
    total = g.map("add", x, g.map("mul", x, g.constant(numbers(32))))
    mean = decompositions.mean(g, total, (2,), keepdims=False)
    return g.finish(mean, g.map("mul", decompositions.normalise(g, total, (2,), 1e-5), 0.5), total)


def given(graph: Graph, **sizes: int) -> dict[str, Any]:
    inputs = {"x": numbers(*[sizes[str(e)] if str(e) in sizes else int(e) for e in graph.types["x"].shape])}
    if "mask" in graph.inputs:
        inputs["mask"] = DRAW.integers(0, 2, (sizes["batch"], sizes["seq"]))
    return inputs


GRAPHS = {"encoder": encoder(), "image": image(), "sums": sums(), "sizes": sizes()}
BESIDE = beside()
SIZES = ({"batch": 1, "seq": 1}, {"batch": 2, "seq": 7}, {"batch": 3, "seq": 50}, {"batch": 1, "seq": 300})


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "pack"
    served = model_pack(folder, {"encoder": GRAPHS["encoder"], "beside": BESIDE})
    assert verify(served) == []
    return served


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return model_pack(tmp_path_factory.mktemp("plain") / "pack", GRAPHS, tuned=False, exact=False)


def right(model: Any, graph: Graph, inputs: Any, out: Any = None) -> None:
    expected, outputs = interpret(graph, inputs), model.run(inputs, out)
    assert list(outputs) == list(expected)
    for name, reference in expected.items():
        assert outputs[name].dtype == reference.dtype and outputs[name].shape == reference.shape
        most = 2e-4 if reference.dtype.kind == "f" else 0
        np.testing.assert_allclose(outputs[name], reference, rtol=most, atol=most)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_model_computes_what_its_graph_says_at_any_size(path, threads):
    with haotuner.load(path, threads=threads) as pack:
        assert sorted(pack.models) == ["beside", "encoder"]
        model = pack.model("encoder")
        assert {"dense", "loops"} <= {step["do"] for step in model.schedule.steps}
        for sizes in (*SIZES, *SIZES):  # the second time from the plans that were kept
            right(model, GRAPHS["encoder"], given(GRAPHS["encoder"], **sizes))


@pytest.mark.parametrize("threads", [1, 2])
def test_groups_write_several_outputs(path, threads):
    with haotuner.load(path, threads=threads) as pack:
        model = pack.model("beside")
        assert [step["outputs"] for step in model.schedule.steps] == [3]
        for sizes in (*SIZES, {"batch": 0, "seq": 4}):
            right(model, BESIDE, given(BESIDE, **sizes))
    document = steps_document(path, "beside", "batch=2;seq=7", "", 1)
    names = [name for step in document["steps"] for name in step["makes"].split(", ")]
    assert sorted(names) == sorted(end.tensor for end in model.schedule.outputs), "all that a step makes is named"


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("threads", [1, 2])
def test_plain_loops_compute_everything(plain, name, threads):
    with haotuner.load(plain, threads=threads) as pack:
        for sizes in SIZES:
            right(pack.model(name), GRAPHS[name], given(GRAPHS[name], **sizes))


def test_an_empty_batch_is_an_empty_answer(path):
    with haotuner.load(path, threads=1) as pack:
        outputs = pack.model("encoder").run(given(GRAPHS["encoder"], batch=0, seq=4))
        assert [output.shape for output in outputs.values()] == [(0, 32), (32, 0, 4)]


def test_outputs_go_where_the_caller_says(path):
    with haotuner.load(path, threads=1) as pack:
        model, inputs = pack.model("encoder"), given(GRAPHS["encoder"], batch=2, seq=3)
        first, second = (end.name for end in model.schedule.outputs)
        out = {first: np.empty((2, 32), np.float32)}
        assert model.run(inputs, out)[first] is out[first]
        right(model, GRAPHS["encoder"], inputs, out)
        with pytest.raises(UsageError, match=second):
            model.run(inputs, {second: np.empty((1, 1), np.float32)})


def test_callers_at_once_do_not_meet(path):
    graph, wrong = GRAPHS["encoder"], []
    with haotuner.load(path, threads=2) as pack:
        model = pack.model("encoder")
        work = [given(graph, batch=b, seq=t) for b, t in ((1, 5), (2, 9), (3, 20), (1, 33))]
        expected = [next(iter(interpret(graph, inputs).values())) for inputs in work]

        def call(index: int) -> None:
            for _ in range(10):
                output = next(iter(model.run(work[index]).values()))
                if not np.allclose(output, expected[index], rtol=2e-4, atol=2e-4):
                    wrong.append(index)

        callers = [threading.Thread(target=call, args=(index,)) for index in range(4)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    assert wrong == []


def test_memory_is_told_before_and_stops_growing(path):
    with haotuner.load(path, threads=1) as pack:
        model, graph = pack.model("encoder"), GRAPHS["encoder"]
        most = model.memory_bytes(batch=3, seq=60)
        assert most < 3 * 60 * (32 + 64 + 32 + 32 + 32) * 4 + 10_000, "tensors whose lives do not overlap share memory"
        for seq in (60, *range(1, 60, 3)):
            model.run(given(graph, batch=3, seq=seq))
        stats = model.stats()
        assert stats["contexts"] == 1 and stats["arena_bytes"] == most and stats["calls"] == 21
        model.trim()
        assert model.stats()["arena_bytes"] == 0


def test_a_session_has_the_calls_of_onnx_runtime(path):
    with haotuner.load(path, threads=1) as pack:
        session = pack.session("encoder")
        assert session.get_providers() == ["CPUExecutionProvider"]
        assert [(node_arg.name, node_arg.shape, node_arg.type) for node_arg in session.get_inputs()] == [
            ("x", ["batch", "seq", 32], "tensor(float)"),
            ("mask", ["batch", "seq"], "tensor(int64)"),
        ]
        inputs = given(GRAPHS["encoder"], batch=1, seq=4)
        names = [node_arg.name for node_arg in session.get_outputs()]
        every, last = session.run(None, inputs), session.run(names[1:], inputs)
        np.testing.assert_array_equal(every[1], last[0])
        with pytest.raises(UsageError, match="no output 'nowhere'"):
            session.run(["nowhere"], inputs)


BAD = {
    "missing": (lambda x, m: {"x": x}, "mask is missing"),
    "unknown": (lambda x, m: {"x": x, "mask": m, "more": x}, "there is no more"),
    "type": (lambda x, m: {"x": x.astype(np.float64), "mask": m}, "input x must be an array of float32"),
    "rank": (lambda x, m: {"x": x[0], "mask": m}, "input x has 3 axes"),
    "fixed": (lambda x, m: {"x": x[..., :5], "mask": m}, r"input x must be \(batch, seq, 32\)"),
    "contradiction": (lambda x, m: {"x": x, "mask": m[:, :2]}, "but seq is 4 before"),
    "a list": (lambda x, m: {"x": x.tolist(), "mask": m}, "input x must be an array"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_request_that_does_not_fit_is_refused_in_words(path, name):
    change: Any
    change, words = BAD[name]
    good = given(GRAPHS["encoder"], batch=2, seq=4)
    with haotuner.load(path, threads=1) as pack:
        with pytest.raises(UsageError, match=words):
            pack.model("encoder").run(change(good["x"], good["mask"]))
        with pytest.raises(UsageError, match="it holds beside, encoder"):
            pack.model("other")


def test_damaged_files_of_a_model_are_found(path, tmp_path):
    import shutil

    for name, words in (("encoder.json", "sha256"), ("encoder.weights", "weights were changed")):
        copied = tmp_path / name
        shutil.copytree(path, copied)
        file = copied / "models" / name
        raw = bytearray(file.read_bytes())
        raw[len(raw) // 2] ^= 1
        file.write_bytes(raw)
        assert any(words in problem for problem in verify(copied)), name
    (copied / "models" / "encoder.weights").write_bytes(b"")
    with haotuner.load(copied, threads=1) as pack, pytest.raises(PackInvalid, match="not the file"):
        pack.model("encoder")


def test_every_step_of_a_request_is_timed_and_shown(path, capsys):
    graph = GRAPHS["encoder"]
    document = steps_document(path, "encoder", "seq=7;batch=2", "", 1)
    assert document["shape"] == {"batch": 2, "seq": 7}, "whatever the order of the words"
    with haotuner.load(path, threads=1) as pack:
        model = pack.model("encoder")
        run = [step for step in model.schedule.steps if step["do"] != "alias"]
        inputs = given(graph, batch=2, seq=7)
        outputs, us = model.timed(inputs)
        assert len(us) == len(model.schedule.steps) and min(us) >= 0 < sum(us)
        for name, output in model.run(inputs).items():
            np.testing.assert_array_equal(outputs[name], output)
    assert len(document["steps"]) == len(run) and document["us"] == pytest.approx(
        sum(row["us"] for row in document["steps"])
    )
    print_steps(document)
    shown = capsys.readouterr().out
    assert "generated groups" in shown and "a call took" in shown and document["call_us"] > 0


def test_what_was_predicted_is_held_against_what_is_measured(path, capsys):
    manifest = read_manifest(path)
    with pytest.raises(UsageError, match="keeps no predicted times"):
        predicted_document(manifest, path, "encoder", "", 1)
    expected = {"batch=2;seq=3": {"products": 1.0, "groups": 2.0, "all": 3.0, "timed": 0.25}}
    manifest_document = {"tuning": {"models": {"encoder": {"predicted_us": {"1": expected}}}}}
    document = predicted_document(replace(manifest, document=manifest_document), path, "encoder", "", 1)
    (row,) = document["rows"]
    assert row["shape"] == {"batch": 2, "seq": 3} and row["measured_us"]["groups"] > 0
    assert document["median"] == pytest.approx(3.0 / row["measured_us"]["all"])
    print_predicted(document)
    shown = capsys.readouterr().out
    assert "batch=2;seq=3" in shown and "25%" in shown


def test_a_schedule_is_plain_data(path):
    schedule = json.loads((path / "models" / "encoder.json").read_text())
    assert schedule["dims"] == ["batch", "seq"]
    assert all(line[0] in ("dim", "number", "+", "-", "*", "//", "%", "max", "min") for line in schedule["sizes"])


def test_a_model_is_raced_alone_in_a_process(path):
    requests = requests_of("batch=1,2;seq=3,40", ("batch", "seq"))
    assert len(requests) == 4 and {"batch": 2, "seq": 40} in requests
    assert requests_of("Dynamic_0=5", ("Dynamic_0",)) == [{"Dynamic_0": 5}]
    with haotuner.load(path, threads=1) as pack:
        report = race(
            pack.model("encoder"), (), requests, ("onnxruntime",), threads=1, seconds=0.01, environment=dict(os.environ)
        )
    assert report["missing"] == ["onnxruntime"]
    assert [row["shape"] for row in report["rows"]] == requests
    assert all(row["first_us"] > 0 and row["steady_us"] > 0 and row["peers"] == {} for row in report["rows"])
    assert report["summary"]["geomean_vs_best"] is None and report["summary"]["peak_bytes"]["ours"] > 1e6


TRACES = {
    "column": ("batch,tokens\n1,2\n", "line 2: a whole number is needed for each of batch, seq"),
    "number": ("batch,seq\n1,two\n", "line 2"),
    "nothing": ("batch,seq\n0,5\n", "sizes begin at 1"),
    "empty": ("batch,seq\n", "has no rows"),
}


@pytest.mark.parametrize("name", TRACES)
def test_a_trace_of_a_model_that_makes_no_sense_is_refused(name, tmp_path):
    text, words = TRACES[name]
    (tmp_path / "trace.csv").write_text(text)
    with pytest.raises(UsageError, match=words):
        requests_of(str(tmp_path / "trace.csv"), ("batch", "seq"))
    with pytest.raises(UsageError, match="the model has the dimensions batch, seq"):
        requests_of("batch=1..4", ("batch", "seq"))


@pytest.mark.long
def test_sizes_of_a_region_go_their_own_way(tmp_path, capsys):
    """Two plans in one model: each computes the same, from one arena, and times are those of the steps that ran."""
    graph = GRAPHS["encoder"]
    served = model_pack(tmp_path / "pack", {"encoder": graph}, exact=False, small=20)
    assert verify(served) == []
    with haotuner.load(served, threads=2) as pack:
        model = pack.model("encoder")
        small, rest = model.schedule.ways
        for sizes in (*SIZES, *SIZES[::-1]):
            inputs = given(graph, **sizes)
            right(model, graph, inputs)
            us = model.timed(inputs)[1]
            way = small if sizes["batch"] * sizes["seq"] <= 20 else rest
            assert sum(us[way.first : way.end]) == pytest.approx(sum(us)) and sum(us) > 0
            assert model.ran(inputs, us).where == way.where
        assert model.memory_bytes(batch=2, seq=7) < model.memory_bytes(batch=3, seq=7)
    document = steps_document(served, "encoder", "seq=7;batch=2", "", 1)
    print_steps(document)
    assert "by the plan for batch*seq <= 20" in capsys.readouterr().out
    assert len(document["steps"]) == sum(step["do"] != "alias" for step in model.schedule.steps[small.first : small.end])


def test_a_model_without_dimensions_is_explained_by_an_empty_shape(path, tmp_path, capsys):
    g = GraphBuilder()
    x = g.input("x", (3, 8))
    fixed = model_pack(tmp_path / "pack", {"fixed": g.finish(g.map("tanh", g.map("add", x, g.constant(numbers(8)))))})
    explain(fixed, only="fixed", shape="", threads=1)
    assert "fixed, whose sizes are fixed: " in capsys.readouterr().out
    with pytest.raises(UsageError, match="gives m; the model has no dimensions"):
        explain(fixed, only="fixed", shape="m=3")
    with pytest.raises(UsageError, match="gives nothing; the model has the dimensions batch, seq"):
        explain(path, only="encoder", shape="")
