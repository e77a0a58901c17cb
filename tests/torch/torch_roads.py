"""The two roads from a torch module to a graph, ONNX and ``.pt2``, and the ops that a model needs by either."""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from haotuner.graph.graph import Graph
from haotuner.partition.products import Finder
from haotuner.partition.segments import cut, flattened
from haotuner.verify.model_check import graph_of

torch = pytest.importorskip("torch")


def by_both(module: Any, args: tuple[Any, ...], dynamic: tuple[Any, ...], shapes: str, folder: Path) -> tuple[Graph, Graph]:
    """The graphs of the module's ONNX file and of its ``.pt2`` file, for one range of sizes."""
    from haotuner.torch import export

    module = module.eval()
    export(module, args, dynamic, out=folder / "m.pt2")
    with contextlib.redirect_stdout(io.StringIO()):
        torch.onnx.export(module, args, str(folder / "m.onnx"), dynamo=True, dynamic_shapes=dynamic, verbose=False)
    return graph_of(folder / "m.onnx", shapes), graph_of(folder / "m.pt2", shapes)


def ops_of(graph: Graph) -> Counter[str]:
    """How often a graph has each op that a tuned kernel computes, by name."""
    parts = [segment.graph for segment in flattened(cut(graph)) if segment.graph is not None]
    return Counter(product.op.name for part in parts for product in Finder(part).products())
