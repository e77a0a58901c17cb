"""Models with If as they are read, served by one pack: each side, branches in loops, sizes that data and sides tell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.errors import UsageError
from haotuner.frontends.onnx.read import graph_of
from haotuner.graph.interpret import interpret
from haotuner.partition.dim_ranges import ranges_of
from haotuner.verify.pack_check import verify
from tests.runtime.model_packs import model_pack

pytest.importorskip("onnx")
from tests.frontends import onnx_branches as models  # noqa: E402, after the skip

MODELS = {
    "of_data": models.of_data(),
    "rates": models.squeezed(rate=True),
    "rows": models.rows(),
    "counted": models.counted_rows(),
    "looped": models.looped(),
}
DRAW = np.random.default_rng(0)


@pytest.fixture(scope="module")
def graphs():
    narrow = graph_of(MODELS["rates"], None, {}, lambda inputs: ranges_of(inputs, "batch=1..8;long=12..15"))
    turns = graph_of(models.looped_squeezed(), None, {}, lambda inputs: ranges_of(inputs, "batch=1..8;long=2"))
    return {name: graph_of(model, None, {}) for name, model in MODELS.items()} | {"narrow": narrow, "turns": turns}


@pytest.fixture(scope="module")
def path(graphs, tmp_path_factory):
    return model_pack(tmp_path_factory.mktemp("read") / "pack", graphs)


@pytest.fixture(scope="module")
def pack(path):
    with haotuner.load(path, threads=2) as opened:
        yield opened


def x(*shape: int) -> Any:
    return DRAW.standard_normal(shape).astype(np.float32)


REQUESTS: list[tuple[str, dict[str, Any]]] = [
    *(("of_data", {"x": np.abs(x(3, 4)) * np.float32(sign), "flag": np.bool_(flag)}) for sign in (1, -1) for flag in (0, 1)),
    *(("rates", {"x": x(2, 3, long), "rate": np.int64(rate)}) for rate, long in ((8, 9), (1, 5), (8, 15), (3, 7))),
    ("narrow", {"x": x(2, 3, 13), "rate": np.int64(8)}),
    ("turns", {"first": x(1, 4), "x": np.abs(x(3, 1, 3, 2))}),
    *(("rows", {"x": x(count, 4)}) for count in (1, 3, 4, 9)),
    *(("counted", {"x": x(7, 4), "flag": np.bool_(flag)}) for flag in (0, 1)),
    *(("looped", {"first": x(4), "x": x(turns, 4)}) for turns in (1, 9, 0)),
]


@pytest.mark.long
@pytest.mark.parametrize(("name", "inputs"), REQUESTS)
def test_a_call_answers_as_the_reference(pack, graphs, name, inputs):
    model = pack.model(name)
    expected = interpret(graphs[name], inputs)
    for outputs in (
        model.run(inputs),
        model.bound._walked(inputs, None, None, lambda segment, own, placed: segment.run(own, placed)),
    ):
        for output, reference in expected.items():
            np.testing.assert_allclose(outputs[output], reference, rtol=3e-4, atol=3e-4)
            assert outputs[output].shape == reference.shape


def test_requests_of_no_side_are_refused_by_the_condition(pack):
    for rate, long, words in ((1, 8, r"\(long // 4\) == 1"), (8, 16, r"\(long // 8\) == 1")):
        with pytest.raises(UsageError, match=f"rates: this pack serves requests where {words}"):
            pack.model("rates").run({"x": x(2, 3, long), "rate": np.int64(rate)})


def test_data_that_take_a_side_which_no_asked_size_fits_are_refused(pack):
    wrong = {"narrow": {"x": x(2, 3, 13), "rate": np.int64(1)}, "turns": {"first": x(1, 4), "x": -np.abs(x(3, 1, 3, 2))}}
    for name, inputs in wrong.items():
        model = pack.model(name)
        with pytest.raises(UsageError, match=f"{name}: its data take the side of an If"):
            model.run(inputs)
        with pytest.raises(UsageError, match=f"{name}: its data take the side of an If"):
            model.bound._walked(inputs, None, None, lambda segment, own, placed: segment.run(own, placed))


def test_the_pack_is_sound(path):
    assert verify(path) == []
