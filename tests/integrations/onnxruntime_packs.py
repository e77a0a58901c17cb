"""Provider library, models and packs of the tests of ONNX Runtime's provider."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from haotuner.frontends.onnx.read import graph_of
from tests.runtime.model_packs import model_pack
from tests.runtime.small_nets import nets

PROJECT = Path(__file__).parents[2] / "integrations" / "onnxruntime"
NAMES = ("encoder", "image", "moved", "counted", "bytes")  # of nets(), in their order


def module(path: Path, name: str) -> Any:
    """A Python file of the project, imported under a name of its own."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    result = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(result)
    return result


def provider_library(folder: Path) -> Path:
    """The provider's shared library, with warnings as errors."""
    build = module(PROJECT / "hatch_build.py", "haotuner_onnxruntime_build")
    return Path(build.compile_provider(PROJECT, "0.1.0", folder / build.LIBRARY, "-Werror"))


def mlp(seed: int = 0) -> Any:
    """Two layers, 32 to 64 to 16, of a batch of any size."""
    import onnx

    numbers = np.random.default_rng(seed)
    weights = {"w1": (32, 64), "b1": (64,), "w2": (64, 16), "b2": (16,)}
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> mlp (float[b,32] x) => (float[b,16] y) '
        "{ h = MatMul(x, w1) a = Add(h, b1) r = Relu(a) g = MatMul(r, w2) y = Add(g, b2) }"
    )
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array((numbers.standard_normal(shape) / 4).astype(np.float32), name)
        for name, shape in weights.items()
    )
    return model


def files_and_pack(folder: Path) -> tuple[dict[str, Path], Path]:
    """Files of the models by name, and a pack that holds them all."""
    models = dict(zip(NAMES, (model for model, _ in nets()), strict=True)) | {"mlp": mlp()}
    files = {name: folder / f"{name}.onnx" for name in models}
    for name, model in models.items():
        files[name].write_bytes(model.SerializeToString())
    graphs = {name: graph_of(model, None, {}) for name, model in models.items()}
    hashes = {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in files.items()}
    return files, model_pack(folder / "pack", graphs, exact=False, sources=hashes)


def feeds_of(name: str) -> list[dict[str, Any]]:
    """Requests of several sizes for a model."""
    numbers = np.random.default_rng(5)

    def real(*shape: int) -> Any:
        return numbers.standard_normal(shape).astype(np.float32)

    feeds = {
        "encoder": [{"ids": numbers.integers(0, 11, (b, t)), "mask": real(b, t)} for b, t in ((1, 1), (2, 5), (3, 17))],
        "image": [{"x": real(b, 3, h, w)} for b, h, w in ((1, 7, 9), (2, 12, 5), (1, 33, 20))],
        "mlp": [{"x": real(b, 32)} for b in (1, 2, 13, 300)],
        "counted": [{"x": real(n), "count": np.array([n], np.int64), "w": real(n)} for n in (1, 6, 40)],
        "bytes": [{"x": real(n, 4), "d": real(n, 4) * 9} for n in (1, 3, 20)],
    }
    return feeds.get(name, [dict(nets()[NAMES.index(name)][1])] if name in NAMES else [])
