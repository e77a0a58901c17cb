"""How a runtime goes through a model's segments: a document without weights or code of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from haotuner.graph.data_sizes import MAKING
from haotuner.graph.graph import Graph
from haotuner.graph.types import NUMPY_NAMES
from haotuner.orchestrate.segments import Segment, data_dimensions
from haotuner.orchestrate.sizes import SizeTable

RANDOM = ("float32", "float64")  # that the library draws; others are drawn between calls of segments


def chain_document(name: str, graph: Graph, segments: Iterable[tuple[Segment, str]]) -> Mapping[str, Any]:
    """The segments with the names of their models, and what the host computes before each; read by runtime/chain.py."""
    steps: list[dict[str, Any]] = []
    for segment, model in segments:
        for node in segment.host:
            told: dict[str, Any] = {"do": node.primitive, "out": node.output}
            if node.primitive in MAKING:
                told |= {
                    "of": node.inputs[0],
                    "dim": str(node.attributes["extent"]),
                    "place": node.attributes.get("place", 0),
                }
            else:
                sizes = SizeTable()
                told |= {"shape": sizes.places(node.attributes["shape"]), "sizes": sizes.lines}
                told["attributes"] = {key: value for key, value in node.attributes.items() if key not in ("shape", "dtype")}
                told["dtype"] = NUMPY_NAMES[node.attributes["dtype"]]
            steps.append(told)
        if segment.graph is not None:
            ends = {"reads": list(segment.graph.inputs), "makes": list(segment.graph.outputs)}
            steps.append({"do": "segment", "model": model, **ends})
    every = {
        kind: [{"name": one, "dtype": NUMPY_NAMES[graph.types[one].dtype], "shape": _shape(graph, one)} for one in names]
        for kind, names in (("inputs", graph.inputs), ("outputs", graph.outputs))
    }
    found = {"chain": steps, "name": name, "dims": [*graph.dimensions, *data_dimensions(graph)], **every}
    return found | _tensors(graph, steps)


def _tensors(graph: Graph, steps: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Types and shapes of what lies between segments, for the library; none where it has no random numbers of that type."""
    if any(step["do"] == "random" and step["dtype"] not in RANDOM for step in steps):
        return {}
    made = [one for step in steps for one in (step["makes"] if step["do"] == "segment" else [step["out"]])]
    table = SizeTable()
    tensors = {
        one: {"dtype": graph.types[one].dtype, "shape": table.places(graph.types[one].shape)}
        for one in dict.fromkeys((*graph.inputs, *made))
    }
    return {"tensors": tensors, "sizes": table.lines} if all(one in tensors for one in graph.outputs) else {}


def _shape(graph: Graph, tensor: str) -> list[int | str | None]:
    """A number, the name of a dimension, or None for what follows from others."""
    return [
        one if isinstance(one, int) else str(one) if getattr(one, "is_Symbol", False) else None
        for one in graph.types[tensor].shape
    ]
