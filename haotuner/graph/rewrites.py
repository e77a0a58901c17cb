"""Rewrites of primitives: other primitives of the same result, but for rounding (Korch, ASPLOS 2024, section 4).

Each rule is a condition on primitives and their attributes. Error bounds are against exact arithmetic, u = 2^-24:

- *division behind the product*: sum_k (e_k / z) v_k = (sum_k e_k v_k) / z. The conditions say that e = exp(x - max x) and
  z = sum e over the axes that the product sums: 0 <= e <= 1 <= z, so no overflow is new. Both forms are within
  (K + 4) u sum_k |e_k v_k| / z of the exact value.
- *division and sum in the product*: the same, with z as one more column of the product, of ones.
- *sum as a product*: sum_k x_k = sum_k x_k 1. Products by 1 are exact; both are within K u sum_k |x_k|.
- *products of one input as one*: their weights side by side, and of the result each its columns. No sum has other terms.
- *reduction in two*: the sum of P sums of Q terms, K = P Q: within (P + Q) u sum_k |x_k|. Extremes are exact.
- *derived form*: a graph that stands for one tensor, as somebody else found it (``haotuner/derive``) and showed its bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isqrt
from string import ascii_lowercase
from typing import Any

import numpy as np

from haotuner.graph.extents import Extent, canonical, same
from haotuner.graph.graph import Graph, Node, free_name
from haotuner.graph.primitives import PRIMITIVES
from haotuner.graph.types import TensorType

DIVISION, COLUMN = "division behind the product", "division behind the product, the sum as its last column"
PRODUCT, SPLIT = "sum as a product with ones", "reduction in two"
MERGED = "products of one input as one"
DERIVED = "derived: "  # rules of derived forms begin so, the chain of rules behind it
BEHIND = (DIVISION, COLUMN)
LEAST_SPLIT = 64  # terms of a reduction that is cut


@dataclass(frozen=True, slots=True)
class Site:
    """Tensor that a rule computes by other primitives; ``nodes``: outputs of the primitives that the rule replaces.

    Of ``MERGED`` the tensor is the first product, and the nodes are all products with the biases that come along.

    ``form``: of a derived form the graph that computes the tensor; its inputs, and constants that are the same arrays, are
    the tensors of these names. ``beside``: further tensors that the form computes, its outputs behind the first.
    """

    rule: str
    tensor: str
    nodes: frozenset[str]
    form: Graph | None = field(default=None, compare=False)
    beside: tuple[str, ...] = ()

    @property
    def tensors(self) -> tuple[str, ...]:
        """All tensors that it computes."""
        return (self.tensor, *self.beside)


class _Writer:
    """Writer of the primitives that replace one node of a graph."""

    def __init__(self, graph: Graph, replaced_tensor: str) -> None:
        self.types, self.constants, self.guards = dict(graph.types), dict(graph.constants), dict(graph.guards)
        self.nodes: list[Node] = []
        self._replaced_tensor = replaced_tensor

    def add(self, primitive: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """A primitive's result; with ``name`` that tensor."""
        chosen = name or free_name(f"{self._replaced_tensor} {primitive}", self.types)
        self.types[chosen] = PRIMITIVES[primitive].infer([self.types[tensor] for tensor in inputs], attributes)
        if self._replaced_tensor in self.guards:
            self.guards[chosen] = self.guards[self._replaced_tensor]
        self.nodes.append(Node(primitive, inputs, chosen, attributes))
        return chosen

    def ones(self, shape: Sequence[int]) -> str:
        """A constant of ones."""
        return self.constant(np.ones(tuple(shape), np.float32))

    def constant(self, value: Any) -> str:
        """A constant of floats."""
        chosen = free_name(f"{self._replaced_tensor} constant", self.types)
        self.types[chosen], self.constants[chosen] = TensorType(np.shape(value), "fp32"), value
        return chosen


def sites(graph: Graph) -> Iterator[Site]:
    """Every site of a rule, in the graph's order."""
    producers = {node.output: node for node in graph.nodes}
    readers: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for tensor in dict.fromkeys(node.inputs):
            readers.setdefault(tensor, []).append(node)
    for node in graph.nodes:
        if node.primitive == "contract":
            weights = _weights(graph, producers, node)
            if weights is not None and readers[weights.output] == [node] and weights.output not in graph.outputs:
                yield Site(DIVISION, node.output, frozenset({node.output, weights.output}))
                total = weights.inputs[1]
                if readers[total] == [weights] and total not in graph.outputs and columns_of(graph, node) is not None:
                    yield Site(COLUMN, node.output, frozenset({node.output, weights.output, total}))
        elif node.primitive == "reduce":
            extents = _terms(graph, node)
            if extents and node.attributes["how"] == "sum" and graph.types[node.output].dtype == "fp32":
                yield Site(PRODUCT, node.output, frozenset({node.output}))
            if len(extents) == 1 and node.attributes["how"] in ("sum", "max", "min") and _parts(extents[0]) > 1:
                yield Site(SPLIT, node.output, frozenset({node.output}))
    yield from _products_of_one_input(graph, readers)


def _products_of_one_input(graph: Graph, readers: Mapping[str, Sequence[Node]]) -> Iterator[Site]:
    """Two or more products (…, k) by constants (k, n) or (n, k) that read one tensor, under the same conditions."""
    sets: dict[Any, list[Node]] = {}
    for node in graph.nodes:
        if node.primitive == "contract" and layer_weight(graph, node) is not None:
            sets.setdefault((node.inputs[0], graph.guards.get(node.output)), []).append(node)
    for products in sets.values():
        if len(products) > 1:
            biases = [_bias(graph, node, readers) for node in products]
            ends = [bias.output for bias in biases if bias is not None]
            names = {node.output for node in products} | (set(ends) if len(ends) == len(products) else set())
            yield Site(MERGED, products[0].output, frozenset(names))


def layer_weight(graph: Graph, node: Node) -> Any:
    """Weight (k, n) of a product (…, k) -> (…, n) of floats by a constant, a view of it; None of another node."""
    if len(node.inputs) != 2 or node.inputs[1] not in graph.constants or node.inputs[0] in graph.constants:
        return None
    labels, _, out = node.attributes["labels"].partition("->")
    x, w = labels.split(",")
    k, n, weight = x[-1], out[-1:], np.asarray(graph.constants[node.inputs[1]])
    if (
        sorted(w) != sorted(k + n)
        or out != x[:-1] + n
        or n in x
        or {graph.types[node.output].dtype, weight.dtype.name} != {"fp32", "float32"}
    ):
        return None
    return weight if w == k + n else weight.T


def _bias(graph: Graph, product: Node, readers: Mapping[str, Sequence[Node]]) -> Node | None:
    """The only reader of a product, which adds a constant of one number a column; None: there is none."""
    (reader, *more) = readers.get(product.output, ()) or (None,)
    if reader is None or more or product.output in graph.outputs or not _is_map(reader, "add"):
        return None
    value = graph.constants.get(next((name for name in reader.inputs if name != product.output), ""))
    width, rank = graph.types[product.output].shape[-1], graph.types[product.output].rank
    fits = value is not None and 1 <= value.ndim <= rank and value.size == value.shape[-1] == width
    return reader if fits and graph.types[reader.output].dtype == "fp32" else None


def _terms(graph: Graph, node: Node) -> tuple[int, ...]:
    """Extents of the axes that a reduction folds; none where one of them is not known."""
    shape = graph.types[node.inputs[0]].shape
    extents = tuple(shape[axis] for axis in _axes(graph, node))
    known = tuple(extent for extent in extents if isinstance(extent, int) and extent > 1)
    return known if len(known) == len(extents) else ()


def _axes(graph: Graph, node: Node) -> tuple[int, ...]:
    rank = graph.types[node.inputs[0]].rank
    return tuple(sorted({axis % rank for axis in node.attributes["axes"]}))


def _parts(extent: int) -> int:
    """The largest divisor up to the square root; 1 where there is none, or there are few terms."""
    return 1 if extent < LEAST_SPLIT else next(count for count in range(isqrt(extent), 0, -1) if extent % count == 0)


def _weights(graph: Graph, producers: Mapping[str, Node], node: Node) -> Node | None:
    """The division of a softmax along the axes that a product sums, which its first operand is; None: there is none."""
    labels, _, output = node.attributes["labels"].partition("->")
    first_labels = labels.split(",")[0]
    weights = producers.get(node.inputs[0])
    if len(node.inputs) != 2 or weights is None or not _is_map(weights, "div") or weights.output in node.inputs[1:]:
        return None
    powers, total = (producers.get(tensor) for tensor in weights.inputs)
    summed = tuple(axis for axis, label in enumerate(first_labels) if label not in output)
    if powers is None or total is None or not summed or graph.types[weights.output].dtype != "fp32":
        return None
    moved = producers.get(powers.inputs[0])
    if not _is_map(powers, "exp") or moved is None or not _is_map(moved, "sub"):
        return None
    most = producers.get(moved.inputs[1])
    if most is None or not _folds(graph, most, "max", summed, moved.inputs[0]):
        return None
    return weights if _folds(graph, total, "sum", summed, powers.output) else None


def columns_of(graph: Graph, node: Node) -> tuple[int, int] | None:
    """Axis of a product's second operand that its first one has not, and that axis of the output; None: there is none."""
    labels, _, output = node.attributes["labels"].partition("->")
    first_labels, second_labels = labels.split(",")
    free = [label for label in second_labels if label in output and label not in first_labels]
    return (second_labels.index(free[-1]), output.index(free[-1])) if free else None


def _is_map(node: Node, function: str) -> bool:
    return node.primitive == "map" and node.attributes["function"] == function


def _folds(graph: Graph, node: Node, how: str, axes: tuple[int, ...], tensor: str) -> bool:
    """True if a node folds a tensor by ``how`` over these axes, and keeps them with extent 1."""
    alike = node.primitive == "reduce" and node.attributes["how"] == how and node.inputs == (tensor,)
    return alike and bool(node.attributes.get("keepdims", False)) and _axes(graph, node) == axes


def rewritten(graph: Graph, chosen: Sequence[Site]) -> Graph:
    """The graph with the chosen sites rewritten; at most one site of a tensor.

    A form of several tensors stands where the first of them was made; all that it reads must be made before.
    """
    for site in chosen:
        graph = _replaced(graph, site)
    return graph


def _replaced(graph: Graph, site: Site) -> Graph:
    node = next((item for item in graph.nodes if item.output in site.tensors), None)
    assert node is not None, "a site is a node of the graph"
    writer = _Writer(graph, site.tensor)
    replaced = set(site.tensors)
    if site.rule == MERGED:
        if not _is_unchanged(graph, site):
            return graph  # another rule has taken one of them
        replaced |= site.nodes
        _side_by_side(graph, site, writer)
    elif site.form is not None:
        read = [name for name in site.form.inputs if name not in graph.types]  # of a part of a graph new inputs
        graph = replace(graph, inputs=(*graph.inputs, *read))
        _spliced(graph, site.form, site.tensors, writer)
    else:
        {DIVISION: _divide_behind, COLUMN: _add_column, PRODUCT: _as_product, SPLIT: _in_two}[site.rule](graph, node, writer)
    nodes = [
        item
        for other in graph.nodes
        for item in (writer.nodes if other is node else [] if other.output in replaced else [other])
    ]
    needed, live = set(graph.outputs), list[Node]()
    for item in reversed(nodes):
        if item.output in needed or item.output not in site.nodes:  # what the rule took away goes, nothing else
            live.append(item)
            needed.update(item.inputs)
    return replace(graph, nodes=tuple(reversed(live)), types=writer.types, constants=writer.constants, guards=writer.guards)


def _spliced(graph: Graph, form: Graph, tensors: Sequence[str], writer: _Writer) -> None:
    """The form's primitives, under free names; the tensors keep their names and their types."""
    ends = dict(zip(form.outputs, tensors, strict=True))
    names = {name: name for name in form.inputs}
    for name in form.inputs:
        writer.types.setdefault(name, form.types[name])
    for name, value in form.constants.items():
        names[name] = name if graph.constants.get(name) is value else free_name(f"{tensors[0]} {name}", writer.types)
        writer.types.setdefault(names[name], form.types[name])
        writer.constants[names[name]] = value
    for item in form.nodes:
        made = writer.add(
            item.primitive,
            *(names[tensor] for tensor in item.inputs),
            name=ends.get(item.output, ""),
            **item.attributes,
        )
        names[item.output] = made
    writer.types.update({tensor: graph.types[tensor] for tensor in tensors})


def _divide_behind(graph: Graph, node: Node, writer: _Writer) -> None:
    weights = graph.producer(node.inputs[0])
    assert weights is not None, "a site's product reads a division"
    labels, _, output = node.attributes["labels"].partition("->")
    first_labels = labels.split(",")[0]
    product = writer.add("contract", weights.inputs[0], *node.inputs[1:], **node.attributes)
    total, shape = weights.inputs[1], graph.types[weights.inputs[1]].shape
    extents = dict(zip(first_labels, shape, strict=True))
    order = tuple(first_labels.index(label) for label in output if label in first_labels)
    if list(order) != sorted(order):
        rest = tuple(axis for axis in range(len(first_labels)) if axis not in order)
        total = writer.add("transpose", total, order=(*order, *rest))
    target: tuple[Extent, ...] = tuple(extents.get(label, 1) for label in output)
    before = writer.types[total].shape
    if len(before) != len(target) or not all(same(extent, other) for extent, other in zip(before, target, strict=True)):
        total = writer.add("reshape", total, shape=target)
    writer.add("map", product, total, name=node.output, function="div")


def _add_column(graph: Graph, node: Node, writer: _Writer) -> None:
    weights, columns = graph.producer(node.inputs[0]), columns_of(graph, node)
    assert weights is not None and columns is not None, "a site's product reads a division, and has columns"
    axis, across = columns
    second_type, value = graph.types[node.inputs[1]], graph.constants.get(node.inputs[1])
    one_more = tuple(int(index == axis) for index in range(second_type.rank))
    if value is None:
        wider = writer.add("pad", node.inputs[1], mode="constant", value=1.0, before=(0,) * second_type.rank, after=one_more)
    else:
        wider = writer.constant(np.pad(value, [(0, width) for width in one_more], constant_values=1.0))
    with_sum, out = writer.add("contract", weights.inputs[0], wider, **node.attributes), graph.types[node.output]

    def part(start: Extent, stop: Extent) -> str:
        return writer.add("slice", with_sum, axes=(across,), starts=(start,), stops=(stop,), steps=(1,))

    width = out.shape[across]
    writer.add("map", part(0, width), part(width, canonical(width + 1)), name=node.output, function="div")


def _is_unchanged(graph: Graph, site: Site) -> bool:
    """True if the nodes of merged products are what they were."""
    nodes = [node for node in graph.nodes if node.output in site.nodes]
    products = [node for node in nodes if node.primitive == "contract"]
    return len(nodes) in (len(products), 2 * len(products)) and all(
        layer_weight(graph, node) is not None and node.inputs[0] == products[0].inputs[0] for node in products
    )


def _side_by_side(graph: Graph, site: Site, writer: _Writer) -> None:
    products = [node for node in graph.nodes if node.output in site.nodes and node.primitive == "contract"]
    sums = {
        tensor: node for node in graph.nodes if node.output in site.nodes and node not in products for tensor in node.inputs
    }
    weights = [layer_weight(graph, node) for node in products]
    x, letters = products[0].inputs[0], products[0].attributes["labels"].split(",")[0]
    weight = writer.constant(np.ascontiguousarray(np.concatenate(weights, axis=1)))
    k, n = letters[-1], next(letter for letter in ascii_lowercase if letter not in letters)
    wide = writer.add("contract", x, weight, labels=f"{letters},{k}{n}->{letters[:-1]}{n}")
    if sums:
        rows = [
            next(np.ravel(graph.constants[name]) for name in sums[node.output].inputs if name in graph.constants)
            for node in products
        ]
        wide = writer.add("map", wide, writer.constant(np.concatenate(rows)), function="add")
    first, axis = 0, writer.types[wide].rank - 1
    for node, own in zip(products, weights, strict=True):
        end = sums.get(node.output, node).output
        bounds = {"axes": (axis,), "starts": (first,), "stops": (first + own.shape[1],), "steps": (1,)}
        writer.add("slice", wide, name=end, **bounds)
        writer.types[end] = graph.types[end]
        first += own.shape[1]


def _as_product(graph: Graph, node: Node, writer: _Writer) -> None:
    input_type, axes = graph.types[node.inputs[0]], _axes(graph, node)
    letters = ascii_lowercase[: input_type.rank]
    extents = [extent for extent in (input_type.shape[axis] for axis in axes) if isinstance(extent, int)]
    summed = "".join(letters[axis] for axis in axes)
    rest = "".join(letter for letter in letters if letter not in summed)
    target = graph.types[node.output].shape
    shaped = len(rest) + 1 == len(target) and all(
        same(extent, other)
        for extent, other in zip((*(input_type.shape[letters.index(x)] for x in rest), 1), target, strict=True)
    )
    ones, labels = writer.ones((*extents, 1)), f"{letters},{summed}z->{rest}z"
    summed_tensor = writer.add("contract", node.inputs[0], ones, name=node.output if shaped else "", labels=labels)
    if not shaped:
        writer.add("reshape", summed_tensor, name=node.output, shape=target)


def _in_two(graph: Graph, node: Node, writer: _Writer) -> None:
    input_type, (axis,) = graph.types[node.inputs[0]], _axes(graph, node)
    extent = input_type.shape[axis]
    assert isinstance(extent, int), "a site's terms are known"
    parts = _parts(extent)
    cut = writer.add(
        "reshape", node.inputs[0], shape=(*input_type.shape[:axis], parts, extent // parts, *input_type.shape[axis + 1 :])
    )
    inner = writer.add("reduce", cut, **{**node.attributes, "axes": (axis + 1,), "keepdims": False})
    writer.add("reduce", inner, name=node.output, **{**node.attributes, "axes": (axis,)})
