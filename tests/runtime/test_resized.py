"""Resize in a pack: loops that read pixels unasked give what the reference gives, whatever sizes a request has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.frontends.onnx.read import graph_of
from haotuner.graph.graph import Graph
from haotuner.graph.interpret import interpret
from tests.runtime.model_packs import model_pack

onnx = pytest.importorskip("onnx")
from tests.frontends.test_importing_resize import image, model  # noqa: E402, after the skip

TO = {"sizes": np.array([1, 2, 6, 11])}
MODELS = {
    "nearest": model(TO, mode="nearest"),
    "linear": model(TO, mode="linear"),
    "antialias": model(TO, mode="linear", antialias=1),
    "cubic_antialias": model(TO, mode="cubic", antialias=1, exclude_outside=1),
}


@pytest.fixture(scope="module")
def resized(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, dict[str, Graph]]]:
    graphs = {name: graph_of(proto, None, {}) for name, proto in MODELS.items()}
    path = model_pack(tmp_path_factory.mktemp("resized") / "pack", graphs, tuned=False, exact=False)
    with haotuner.load(path, threads=1) as pack:
        yield pack, graphs


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("size", [(1, 1), (6, 11), (5, 40), (40, 7)])
def test_images_of_any_size(name: str, size: tuple[int, int], resized: Any) -> None:
    pack, graphs = resized
    output = pack.model(name).run({"x": image(*size)})["y"]
    np.testing.assert_allclose(output, interpret(graphs[name], {"x": image(*size)})["y"], rtol=1e-4, atol=1e-5)
