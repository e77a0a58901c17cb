"""Inputs with a default, initializers that a request may override: in Python, by ONNX Runtime's names and in C."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.errors import UsageError
from haotuner.frontends.onnx.read import graph_of
from haotuner.runtime.model import Session
from haotuner.verify.model_check import drawn_inputs
from haotuner.verify.pack_check import verify
from tests.runtime.model_packs import model_pack
from tests.runtime.native_builds import HERE, LIBRARY, c_pack, cc, run

onnx = pytest.importorskip("onnx")
helper, FLOAT, INT = onnx.helper, onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
W, B = np.array([[1, 2], [3, 4]], np.float32), np.array([5, 6], np.float32)
X = np.array([[1, -1], [0, 2], [3, 1]], np.float32)


def info(name: str, shape: Any, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def model(*, version: int = 8, chained: bool = False, initializers: Any = None, size: str | None = None) -> Any:
    """y = x w + b; of a chain the rows of it that hold something above 0."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Add", ["p", "b"], ["y"])]
    initializers = {"w": W, "b": B, **(initializers or {})}
    inputs = [
        info("x", ["n", 2]),
        *(info(name, [size or 2] if name == "b" else array.shape) for name, array in initializers.items()),
    ]
    outputs = [info("y", None)]
    if chained:
        nodes += [helper.make_node("NonZero", ["y"], ["places"])]
        outputs += [info("places", None, INT)]
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in initializers.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=version)


GRAPHS = {"plain": graph_of(model(), None, {}), "chained": graph_of(model(chained=True), None, {})}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return model_pack(tmp_path_factory.mktemp("defaults") / "pack", GRAPHS)


@pytest.mark.parametrize("name", GRAPHS)
def test_a_request_may_give_them_or_leave_them_out(path, name):
    assert verify(path) == []
    other = np.array([[0, 1], [1, 0]], np.float32)
    with haotuner.load(path, threads=1) as pack:
        served = pack.model(name)
        session = Session(served)
        for more in ({}, {"b": B + 1}, {"w": other}, {"w": other, "b": -B}):
            expected = X @ more.get("w", W) + more.get("b", B)
            outputs = served.run({"x": X, **more})
            np.testing.assert_allclose(outputs["y"], expected, atol=1e-5)
            if name == "chained":
                assert outputs["places"].tolist() == [indices.tolist() for indices in np.nonzero(expected)]
            np.testing.assert_array_equal(session.run(["y"], {"x": X, **more})[0], outputs["y"])
        assert [end.name for end in session.get_inputs()] == ["x"]
        assert [end.name for end in session.get_overridable_initializers()] == ["w", "b"]
        with pytest.raises(UsageError, match="x is missing"):
            served.run({"w": W})
        with pytest.raises(UsageError, match="there is no z"):
            served.run({"x": X, "z": W})


def test_c_has_the_default_of_an_input(tmp_path):
    from tests.runtime.model_packs import planned

    segments, chains, ops = planned(GRAPHS, 4)
    pack = c_pack(tmp_path / "pack", ops, models=[*segments, *chains])
    built = cc([HERE / "drive_default.c", *LIBRARY], tmp_path / "drive", "-O1")
    for name in GRAPHS:
        printed = run([built, pack, name], 60).stdout
        assert printed == "x has none\nw 2 2: 1 2 3 4\nb 2: 5 6\nbeyond has none\ny: 9 12\n"


def test_a_check_draws_the_default():
    drawn = drawn_inputs(GRAPHS["plain"], {"n": 3})
    np.testing.assert_array_equal(drawn["w"], W)
    assert drawn["x"].shape == (3, 2)


def test_what_must_be_known_or_is_large_stays_a_constant():
    assert graph_of(model(version=3), None, {}).inputs == ("x",)  # every initializer was listed then
    assert graph_of(model(initializers={"large": np.zeros((2, 1 << 14), np.float32)}), None, {}).inputs == ("x",)
    assert graph_of(model(initializers={f"more{index}": B for index in range(15)}), None, {}).inputs == ("x",)
    assert graph_of(model(), None, {"w": W}).inputs == ("x", "b")
    assert graph_of(model(), None, {}, defaults=False).inputs == ("x",)
    shape = [helper.make_node("Reshape", ["x", "shape"], ["r"]), helper.make_node("Mul", ["r", "scale"], ["y"])]
    tensors = {"shape": np.array([2, -1]), "scale": np.array([3], np.float32)}
    inputs = [info("x", ["n", 2]), info("shape", [2], INT), info("scale", [1])]
    initializers = [onnx.numpy_helper.from_array(array, name) for name, array in tensors.items()]
    graph = helper.make_graph(shape, "g", inputs, [info("y", None)], initializers)
    read = graph_of(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), None, {})
    assert read.inputs == ("x", "scale")


def test_an_initializer_that_is_an_output_is_served(tmp_path):
    nodes = [helper.make_node("Add", ["x", "b"], ["y"])]
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in (("b", B), ("table", W))]
    graph = helper.make_graph(
        nodes, "g", [info("x", ["n", 2])], [info("y", None), info("table", None), info("b", None)], tensors
    )
    read = graph_of(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), None, {})
    with haotuner.load(model_pack(tmp_path / "pack", {"m": read}), threads=1) as pack:
        outputs = pack.model("m").run({"x": X})
    np.testing.assert_array_equal(outputs["y"], X + B)
    np.testing.assert_array_equal(outputs["table"], W)
    np.testing.assert_array_equal(outputs["b"], B)
