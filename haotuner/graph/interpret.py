"""The reference: a graph computed step by step with numpy."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from haotuner.errors import UsageError
from haotuner.graph.data_sizes import MAKING
from haotuner.graph.extents import Extent, evaluate
from haotuner.graph.graph import Graph
from haotuner.graph.loops import run_loop
from haotuner.graph.primitives import PRIMITIVES


def interpret(
    graph: Graph, inputs: Mapping[str, Any], seed: int | None = None, keep: Collection[str] = ()
) -> dict[str, Any]:
    """Outputs by name, as numpy arrays; each step is computed in its own element type. UsageError for a missing input.

    ``seed``: of random numbers, which without one differ each time. ``keep``: tensors inside to give, too.
    """
    missing = [name for name in graph.inputs if name not in inputs]
    if missing:
        raise UsageError(f"inputs {', '.join(missing)} are missing; the graph takes {', '.join(graph.inputs)}")
    known = graph.sizes(inputs)

    def sizes(extent: Extent) -> int:
        return evaluate(extent, known)

    values: dict[str, Any] = {**graph.constants, **{name: np.asarray(inputs[name]) for name in graph.inputs}}
    wanted = dict.fromkeys((*graph.outputs, *keep))
    last_use = {name: place for place, node in enumerate(graph.nodes) for name in node.inputs}
    for place, node in enumerate(graph.nodes):
        given = [values[name] for name in node.inputs]
        if node.primitive == "loop":
            values[node.output] = run_loop(node.attributes, given, lambda body, told: interpret(body, told, seed))
        else:
            values[node.output] = PRIMITIVES[node.primitive].compute(
                given, node.attributes if seed is None else {"seed": seed, **node.attributes}, sizes
            )
        if node.primitive in MAKING:
            known[str(node.attributes["extent"])] = values[node.output].shape[-1]
        for name in node.inputs:
            if last_use[name] == place and name not in wanted:
                values.pop(name, None)
    return {name: np.ascontiguousarray(values[name]).reshape(np.shape(values[name])) for name in wanted}
