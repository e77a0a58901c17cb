"""Reference interpreter: a graph computed step by step with numpy."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from haotuner.errors import UsageError
from haotuner.graph.control_flow import HOST, MAKING, TELLING, run_loop
from haotuner.graph.extents import Extent, dimensions, evaluate, shown
from haotuner.graph.graph import Graph, Node, is_taken
from haotuner.graph.primitives import PRIMITIVES


class MissingRows(UsageError, IndexError):
    """A request whose indices choose rows that a tensor has not."""


def interpret(
    graph: Graph,
    inputs: Mapping[str, Any],
    seed: int | None = None,
    keep: Collection[str] = (),
    branches: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Outputs by name, as numpy arrays; each step is computed in its own element type. UsageError for a missing input.

    ``seed``: of random numbers, which without one differ each time. ``keep``: tensors inside to give, too, those left out
    that lie on a side of a branch that was not taken. ``branches``: those that are taken so whatever their condition is.
    UsageError for a request that the graph does not serve.
    """
    missing = [name for name in graph.inputs if name not in inputs]
    if missing:
        raise UsageError(f"inputs {', '.join(missing)} are missing; the graph takes {', '.join(graph.inputs)}")
    known = graph.sizes(inputs)

    def sizes(extent: Extent) -> int:
        return evaluate(extent, known)

    values: dict[str, Any] = {**graph.constants, **{name: np.asarray(inputs[name]) for name in graph.inputs}}
    tensors = dict.fromkeys((*graph.outputs, *keep))
    _refuse_unserved(graph, known)
    last_use = {name: index for index, node in enumerate(graph.nodes) for name in node.inputs}
    for index, node in enumerate(graph.nodes):
        if not is_taken(graph.guards.get(node.output, ()), known):
            continue
        arguments = [values.get(name) for name in node.inputs]
        if node.primitive == "loop":
            values[node.output] = run_loop(node.attributes, arguments, lambda body, facts: interpret(body, facts, seed))
        else:
            attributes = node.attributes if seed is None else {"seed": seed, **node.attributes}
            try:
                values[node.output] = PRIMITIVES[node.primitive].compute(arguments, attributes, sizes)
            except (ValueError, IndexError) as error:
                raise _refused(node, arguments, error) from error
        if node.primitive == "map":
            _refuse_other_extents(graph.types[node.output].shape, np.shape(values[node.output]), known)
        if node.primitive == "decided":
            branch = node.attributes["branch"]
            known[branch] = (branches or {}).get(branch, int(values[node.output]))
            values[node.output] = np.bool_(known[branch])
        dims = node.attributes.get("told", ()) if node.primitive in TELLING else ()
        known |= {str(extent): values[node.output].shape[axis] for axis, extent in dims}
        if node.primitive in MAKING:
            known[str(node.attributes["extent"])] = values[node.output].shape[-1]
        if node.primitive in HOST:
            _refuse_unserved(graph, known)
        for name in node.inputs:
            if last_use[name] == index and name not in tensors:
                values.pop(name, None)
    return {name: np.ascontiguousarray(values[name]).reshape(np.shape(values[name])) for name in tensors if name in values}


def _refused(node: Node, arguments: Sequence[Any], error: Exception) -> UsageError:
    shapes = " and ".join(str(np.shape(argument)) for argument in arguments) or "nothing"
    kind = MissingRows if isinstance(error, IndexError) else UsageError
    return kind(
        f"{node.output} ({node.primitive} of {shapes}): {error}; the model has no answer to this request, send another"
    )


def _refuse_other_extents(shape: Sequence[Extent], sizes: Sequence[int], known: Mapping[str, int]) -> None:
    """UsageError where operands are broadcast to other extents than all that follows was built for."""
    for extent, size in zip(shape, sizes, strict=True):
        if dimensions(extent) <= known.keys() and (expected := evaluate(extent, known)) != size:
            raise UsageError(
                f"this request makes {shown(extent)} = {expected} and another extent {size}, which must be equal; "
                "send a request in which they are"
            )


def _refuse_unserved(graph: Graph, known: Mapping[str, int]) -> None:
    for requirement in graph.required:
        if (
            is_taken(requirement.guard, known)
            and dimensions(requirement.extent) <= known.keys()
            and not evaluate(requirement.extent, known)
        ):
            raise UsageError(requirement.words)
