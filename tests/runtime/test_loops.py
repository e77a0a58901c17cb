"""ONNX's Loop and Scan in packs, against the reference: counted, while, no turn and one turn, loops in loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.errors import UsageError
from haotuner.graph.fp16_to_fp32 import fp16_to_fp32
from haotuner.graph.interpret import interpret
from haotuner.verify.pack_check import verify
from tests.runtime.model_packs import model_pack

pytest.importorskip("onnx")
from tests.frontends.onnx_loops import GRAPHS, below, in_halves  # noqa: E402, after the skip


def given(name: str, size: int, batch: int = 2) -> dict[str, Any]:
    draw = np.random.default_rng(size)
    if name == "scanned":
        return {"h": real(draw, batch, 8), "x": real(draw, batch, size, 8), "shift": real(draw, 8)}
    if name == "tensorflow":
        return {"x": real(draw, size, batch, 8), "h": real(draw, batch, 8)}
    if name == "halved":
        return {"most": np.array(40), "go": np.array(True), "x": np.full((batch, 8), 2.0**size, np.float32)}
    return {"b": real(draw, size, 3)}


def real(draw: Any, *shape: int) -> Any:
    return draw.standard_normal(shape).astype(np.float32)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    graphs = {name: build() for name, build in GRAPHS.items()} | {"in_halves": fp16_to_fp32(in_halves()), "below": below()}
    return model_pack(tmp_path_factory.mktemp("loops") / "pack", graphs)


@pytest.fixture(scope="module")
def pack(path):
    with haotuner.load(path, threads=1) as opened:
        yield opened


def judge(pack: Any, name: str, inputs: dict[str, Any]) -> dict[str, Any]:
    graph = GRAPHS[name]()
    outputs: dict[str, Any] = pack.model(name).run(inputs)
    expected = interpret(graph, inputs)
    for output in graph.outputs:
        assert outputs[output].shape == expected[output].shape
        np.testing.assert_allclose(outputs[output], expected[output], rtol=1e-4, atol=1e-4)
    return outputs


@pytest.mark.parametrize("name", ["scanned", "tensorflow"])
@pytest.mark.parametrize("size", [0, 1, 2, 7, 40])
def test_a_counted_loop_of_any_length(pack, name, size):
    judge(pack, name, given(name, size))


def test_a_loop_in_halves_is_computed_in_fp32(pack):
    draw = np.random.default_rng(0)
    inputs = {name: real(draw, *shape).astype(np.float16) for name, shape in (("h", (8,)), ("x", (7, 8)), ("shift", (8,)))}
    outputs, expected = pack.model("in_halves").run(inputs), interpret(in_halves(), inputs)
    exact = interpret(fp16_to_fp32(in_halves()), inputs)
    for name in ("last", "every"):
        assert outputs[name].dtype == expected[name].dtype == np.float16
        np.testing.assert_allclose(outputs[name], exact[name], atol=1e-3)
        np.testing.assert_allclose(outputs[name], expected[name], atol=2e-2)


@pytest.mark.parametrize("rows", [1, 4, 5, 6, 9])
def test_a_count_of_turns_below_0_is_none(pack, rows):
    answers, turns = pack.model("below").run({"x": np.zeros((rows, 2), np.float32)}), max(rows - 5, 0)
    assert answers["each"].shape == (turns, rows, 2) and answers["long"].shape == ((turns + 1) * rows, 2)
    assert (answers["y"] == turns).all()


@pytest.mark.parametrize("size", [0, 1, 5])
def test_a_loop_that_data_end(pack, size):
    outputs = judge(pack, "halved", given("halved", size))
    assert len(outputs["counted"]) == max(1, size + 4)


@pytest.mark.parametrize(("most", "go", "turns"), [(0, True, 0), (-3, True, 0), (2, True, 2), (5, False, 0)])
def test_limits_and_first_conditions(pack, most, go, turns):
    outputs = judge(pack, "halved", given("halved", 5) | {"most": np.array(most), "go": np.array(go)})
    assert outputs["counted"].tolist() == list(range(turns))
    assert outputs["rows"].shape == (turns, 2, 16)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_loop_in_a_loop(pack, size):
    judge(pack, "nested", given("nested", size))


@pytest.mark.parametrize("go", [True, False])
def test_a_size_that_each_turn_tells(pack, go):
    x = np.arange(16, dtype=np.float32).reshape(2, 8) / 4
    outputs = judge(pack, "counting", {"x": x, "go": np.array(go)})
    assert outputs["counts"].reshape(-1).tolist() == ([15, 11, 7, 3] if go else [])


def test_steps_are_timed_and_turns_of_one_are_summed(pack):
    model, inputs = pack.model("tensorflow"), given("tensorflow", 3)
    ran = model.step_times(inputs)
    assert [run.model.name for run in ran].count("tensorflow.1") == 1
    assert all(len(run.us) == len(run.steps) for run in ran)
    walked = model.bound._walked(inputs, None, 0, lambda part, feeds, placed: part.run(feeds, placed))
    expected = model.run(inputs)
    assert all(np.array_equal(walked[name], expected[name]) for name in expected)
    of_data = pack.model("halved").bound._walked(
        given("halved", 0), None, 0, lambda part, feeds, placed: part.run(feeds, placed)
    )
    assert of_data["rows"].shape == (4, 2, 16)


def test_a_pack_with_loops_is_sound_and_says_its_memory(path, pack):
    assert verify(path) == []
    sizes = [pack.model("scanned").memory_bytes(batch=2, seq=seq) for seq in (1, 100)]
    assert 0 < sizes[0] < sizes[1]


def test_sequences_of_two_lengths_are_refused(pack):
    with pytest.raises(UsageError, match="batch"):
        pack.model("scanned").run(given("scanned", 3) | {"h": np.zeros((3, 8), np.float32)})
