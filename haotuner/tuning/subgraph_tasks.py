"""Subgraphs of a model's file as models of a pack: which there are, and what of ``--shapes`` each of them is tuned for."""

from __future__ import annotations

from pathlib import Path

from haotuner.errors import UsageError
from haotuner.frontends.onnx.subgraphs import read_subgraphs
from haotuner.frontends.torch_export.exported_program import SUFFIX
from haotuner.partition.dim_ranges import ranges_of, shapes_named, shapes_within


def subgraph_shapes(file: Path, shapes: str) -> dict[int, str]:
    """Text of ``--shapes`` of each subgraph by number; empty where every operator of the file has a rule.

    UsageError where no subgraph computes anything, or none has what the text names; others as of ``read_subgraphs``.
    """
    if file.suffix == SUFFIX:
        raise UsageError(f"{file}: --subgraphs is of ONNX files; torch.compile takes programs of torch apart itself")
    levels = read_subgraphs(file, lambda inputs: ranges_of(inputs, shapes))
    graphs = {number: graph for number, graph in enumerate(levels) if graph is not None and graph.nodes}
    if levels and not graphs:
        raise UsageError(f"{file}: nothing lies before or behind its operators without a rule; there is nothing to tune")
    result = {number: shapes_within(graph, shapes) for number, graph in graphs.items()}
    named = set().union(*map(shapes_named, result.values()), set())
    unused = sorted(shapes_named(shapes) - named)
    if result and unused:
        ends = ", ".join(f"{name} {graph.types[name]}" for graph in graphs.values() for name in graph.inputs)
        raise UsageError(f"--shapes {shapes!r}: no subgraph has {unused[0]!r}; their inputs are {ends}")
    return result
