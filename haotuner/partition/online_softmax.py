"""Groups with products on both sides of a softmax, that one kernel of online softmax computes: nothing between is stored.

The group is convex: all ways from one product to a later one. Whether it is online sums is the generator's rule; whether an
op kind says the same is looked at here, and at which strides the operands lie.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from haotuner.codegen.expressions import Apply, Expression, Load, Number, Variable
from haotuner.codegen.online_softmax import OnlineSoftmax, match_online_softmax
from haotuner.graph.extents import Extent
from haotuner.graph.graph import Graph, Node
from haotuner.partition.products import Finder, Product, View
from haotuner.spec.op import Op

OUTER = 2  # batch and heads
ALIKE = 1e-6  # relative, of scales


def online_products(finder: Finder) -> Iterator[Product]:
    """Every such group that an op kind says, by its last node in the graph's order."""
    for node in finder.graph.nodes:
        if node.primitive == "contract":
            for first in _contractions_before(finder, node):
                result = _group(finder, first, node)
                if result is not None:
                    yield result
                    break


def _contractions_before(finder: Finder, last: Node) -> list[Node]:
    """Contractions that lead to a node by element-wise steps and reductions."""
    result, waiting, seen = [], list(last.inputs), set()
    while waiting:
        name = waiting.pop()
        node = finder.producers.get(name)
        if node is None or name in seen:
            continue
        seen.add(name)
        if node.primitive == "contract":
            result.append(node)
        elif node.primitive in ("map", "reduce"):
            waiting += node.inputs
    return result


def _group(finder: Finder, first: Node, last: Node) -> Product | None:
    graph = finder.graph
    inside = {first.output}
    for node in graph.nodes:
        if node.primitive in ("map", "reduce") and inside.intersection(node.inputs):
            inside.add(node.output)
    needed, nodes = {last.output}, []
    for node in reversed(graph.nodes):
        if node.output in needed and (node is last or node.output in inside):
            nodes.append(node.output)
            needed.update(node.inputs)
    whole = set(nodes)
    leaks = [node for node in nodes if node != last.output
             and (node in graph.outputs or any(r.output not in whole for r in finder.readers.get(node, [])))]  # fmt: skip
    if leaks or first.output not in whole:
        return None
    sums = match_online_softmax(_alone(graph, last.output, whole))
    if sums is None or sums.product.tensor != first.output or len(sums.outer) != OUTER:
        return None
    return _attention_product(finder, sums, [node.output for node in graph.nodes if node.output in whole])


def _alone(graph: Graph, output: str, names: set[str]) -> Graph:
    """The graph of some nodes; constants of one element stay."""
    selected = tuple(node for node in graph.nodes if node.output in names)
    read = {name for node in selected for name in node.inputs} - names
    constants = {name: graph.constants[name] for name in read if name in graph.constants and graph.constants[name].size == 1}
    return replace(
        graph, inputs=tuple(sorted(read - set(constants))), outputs=(output,), nodes=selected, constants=constants
    )


def _attention_product(finder: Finder, sums: OnlineSoftmax, nodes: list[str]) -> Product | None:
    """The group as the kind ``attention`` says it; None where it means something else."""
    value, depth = sums.value, sums.depth[1]
    if not (isinstance(value, Apply) and value.function == "div" and value.arguments == (sums.weighted, sums.total)):
        return None
    outer = tuple(variable for variable, _ in sums.outer)
    row, key = sums.row[0], sums.key[0]
    views = {
        "q": _view(finder, sums.left, (*outer, row, sums.depth[0])),
        "k": _view(finder, sums.right, (*outer, key, sums.depth[0])),
        "v": _view(finder, sums.weight, (*outer, key, sums.column[0])),
    }
    score, mask = sums.score, ""
    if isinstance(score, Apply) and score.function == "add":
        added = [argument for argument in score.arguments if isinstance(argument, Load)]
        if len(added) != 1:
            return None
        mask, result = _mask(finder, sums, added[0])
        if not mask or result is None:
            return None
        views["mask"] = result
        score = next(argument for argument in score.arguments if argument is not added[0])
    scale = _scale(score, sums)
    if scale is None or not isinstance(depth, int) or depth != sums.column[1] or None in views.values():
        return None
    if abs(scale - depth**-0.5) > ALIKE * depth**-0.5 and scale != 1.0:
        return None
    options = [("heads", "apart"), *([("mask", mask)] if mask else [])]
    options += [("scale", "one")] if scale == 1.0 and depth != 1 else []
    op = Op(kind="attention", static=(("d", depth),), options=tuple(options))
    last, order = nodes[-1], ()
    after = finder.follow.only_reader(last)
    if after is not None and after.primitive == "transpose" and after.attributes["order"][-1] == OUTER + 1:
        last, order = after.output, tuple(after.attributes["order"])
        nodes = [*nodes, last]
    extents: dict[str, Extent] = {"b": sums.outer[0][1], "h": sums.outer[1][1], "t": sums.row[1], "s": sums.key[1]}
    known = {name: view for name, view in views.items() if view is not None}
    return Product(
        kind="online", op=op, nodes=tuple(nodes), output=last, x=known["q"],
        views=known, out_order=order, extents=extents,
    )  # fmt: skip


def _scale(score: Expression, sums: OnlineSoftmax) -> float | None:
    """Factor of the product in the score; None where that is something else."""
    if score is sums.product:
        return 1.0
    if not (isinstance(score, Apply) and score.function in ("mul", "div") and sums.product in score.arguments):
        return None
    number = next((argument for argument in score.arguments if isinstance(argument, Number)), None)
    if number is None or score.function == "div" and score.arguments[0] is not sums.product:
        return None
    return float(number.value) if score.function == "mul" else 1.0 / float(number.value)


def _view(finder: Finder, e: Expression, axes: tuple[Variable, ...]) -> View | None:
    """View of an operand in memory, with its axes in this order; None where it is computed, or lies otherwise."""
    if not isinstance(e, Load) or sorted(map(str, e.indices)) != sorted(map(str, axes)) or e.dtype != "fp32":
        return None
    if e.tensor in finder.graph.constants:
        return None
    view = finder.seen(e.tensor)
    order = tuple(view.order[e.indices.index(axis)] for axis in axes)
    return replace(view, order=order) if order[-1] == len(order) - 1 else None


def _mask(finder: Finder, sums: OnlineSoftmax, e: Load) -> tuple[str, View | None]:
    """Part of the scores that a mask is added to, and its view."""
    shape = finder.graph.types[e.tensor].shape
    plain = View(e.tensor) if e.tensor not in finder.graph.constants and e.dtype == "fp32" else None
    (batch, b), (heads, _) = sums.outer
    row, (key, s) = sums.row[0], sums.key
    if e.indices == (batch, heads, row, key):
        return "full", plain
    varying = tuple(index for index in e.indices if isinstance(index, Variable))
    if varying == (batch, key) and len(shape) >= 2 and plain is not None:
        return "keys", View(e.tensor, (b, s), (0, 1))
    return "", None
