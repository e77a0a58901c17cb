"""Access: one element of a tensor of a graph as an expression, through all the primitives that make it.

Layout primitives vanish into indices here. A tensor that is *stored* is loaded instead of being computed again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from haotuner.codegen.expressions import (
    INDEX,
    Apply,
    Expression,
    Fold,
    Load,
    Number,
    Variable,
    arithmetic,
    dtype_of,
    index,
    sized,
)
from haotuner.codegen.mixed_radix import MixedRadix, apart, divisor_of
from haotuner.errors import UsageError
from haotuner.graph.extents import Extent, canonical, same
from haotuner.graph.graph import Graph, Node
from haotuner.ops.formula import COMPARISONS

Indices: TypeAlias = tuple[Expression, ...]
LEAST_INSIDE = 16  # elements of an innermost loop: shorter ones cost more than a division of the index


@dataclass(slots=True)
class Accesses:
    """Expressions of one graph's elements; equal elements are one object, so that they are computed once."""

    graph: Graph
    stored: Mapping[str, str] = field(default_factory=dict)  # tensors that lie in another one's memory, at the same indices
    inverts: bool = False  # whether a softmax multiplies by the inverse of its sum, see ``softmax_sum``
    _known: dict[tuple[str, Indices, tuple[Extent, ...]], Expression] = field(default_factory=dict)
    _digits: MixedRadix = field(default_factory=MixedRadix)
    _variables: int = 0
    _nonempty: tuple[Extent, ...] = ()  # where one of these is 0, nothing may be read

    def variable(self, stem: str) -> Variable:
        """A new loop variable."""
        self._variables += 1
        return Variable(f"{stem}{self._variables}")

    def element(self, tensor: str, indices: Indices) -> Expression:
        """The element of a tensor at these indices. UsageError for a primitive that programs cannot be made of."""
        if tensor in self.stored:
            return Load(self.stored[tensor], indices, self.graph.types[tensor].dtype, self._nonempty)
        return self.computed(tensor, indices)

    def computed(self, tensor: str, indices: Indices) -> Expression:
        """Expression of an element, computed even where the tensor is stored."""
        key = (tensor, indices, self._nonempty)
        if key not in self._known:
            self._known[key] = self._written(tensor, indices)
        return self._known[key]

    def _written(self, tensor: str, indices: Indices) -> Expression:
        graph, dtype = self.graph, self.graph.types[tensor].dtype
        if tensor in graph.constants:
            value = graph.constants[tensor]
            if value.size == 1:
                return Number(value.reshape(()).item(), dtype)
            raise UsageError(
                f"tensor {tensor}: a group's constants are single numbers, got {graph.types[tensor]}; make it an input"
            )
        if tensor in graph.inputs:
            return Load(tensor, indices, dtype, self._nonempty)
        node = graph.producer(tensor)
        assert node is not None
        rule = getattr(self, f"_{node.primitive}", None)
        if rule is None:
            raise UsageError(f"programs cannot be generated from the primitive {node.primitive!r} ({tensor})")
        made: Expression = rule(node, indices)
        return made

    def _clamped(self, tensor: str, indices: Indices, *extents: Extent) -> Expression:
        """An element at indices that were moved into these extents of the tensor, which hold none where one is 0."""
        before = self._nonempty
        empty = [extent for extent in extents if not isinstance(extent, int) and not extent.is_positive]
        self._nonempty = tuple(dict.fromkeys((*before, *empty)))
        result = self.element(tensor, indices)
        self._nonempty = before
        return result

    # What computes

    def _map(self, node: Node, indices: Indices) -> Expression:
        arguments = tuple(self._aligned(tensor, indices) for tensor in node.inputs)
        function = node.attributes["function"]
        dtype = "bool" if function in COMPARISONS else dtype_of(arguments[-1])
        if self.inverts and function == "div" and dtype == "fp32" and softmax_sum(self.graph, node):
            return Apply("mul", (arguments[0], Apply("reciprocal", arguments[1:], dtype)), dtype)
        return Apply(function, arguments, dtype)

    def _aligned(self, tensor: str, indices: Indices) -> Expression:
        """An operand's element by numpy's broadcasting."""
        shape = self.graph.types[tensor].shape
        own = indices[len(indices) - len(shape) :]
        return self.element(tensor, tuple(index(0) if e == 1 else i for e, i in zip(shape, own, strict=True)))

    def _cast(self, node: Node, indices: Indices) -> Expression:
        value = self.element(node.inputs[0], indices)
        dtype = node.attributes["dtype"]
        return value if dtype_of(value) == dtype else Apply("cast", (value,), dtype)

    def _bitcast(self, node: Node, indices: Indices) -> Expression:
        function = f"bitcast {node.attributes['source']} {node.attributes['target']}"
        return Apply(function, (self.element(node.inputs[0], indices),), node.attributes["dtype"])

    def _size(self, node: Node, indices: Indices) -> Expression:
        return Apply("cast", (sized(node.attributes["extent"]),), node.attributes.get("dtype", INDEX))

    def _iota(self, node: Node, indices: Indices) -> Expression:
        dtype = node.attributes.get("dtype", INDEX)
        return indices[0] if dtype == INDEX else Apply("cast", (indices[0],), dtype)

    def _folded(self, node: Node, indices: Indices, axes: Sequence[int]) -> tuple[list[tuple[Variable, Extent]], Indices]:
        """Variables of the reduced axes, and the operand's indices."""
        shape = self.graph.types[node.inputs[0]].shape
        inner = list(indices)
        if node.attributes.get("keepdims", False):
            inner = [position for number, position in enumerate(indices) if number not in axes]
        variables: list[tuple[Variable, Extent]] = []
        full: list[Expression] = []
        for position, extent in enumerate(shape):
            if position in axes:
                own = [(self.variable("k"), tensor) for tensor in self._apart(node.inputs[0], position, extent)]
                variables += own
                full.append(self._digits.number(own))
            else:
                full.append(inner.pop(0))
        return variables, tuple(full)

    def _apart(self, tensor: str, axis: int, extent: Extent) -> list[Extent]:
        """Extents of the loops over an axis: where it is made by a reshape, of the parts that this puts together."""
        node = None if tensor in self.stored else self.graph.producer(tensor)
        while node is not None and node.primitive in ("map", "cast"):
            shape = self.graph.types[node.output].shape
            wide = [
                tensor for tensor in node.inputs if self.graph.types[tensor].shape == shape and tensor not in self.stored
            ]
            node = self.graph.producer(wide[0]) if wide else None
        if node is None or node.primitive != "reshape":
            return [extent]
        result = apart(self.graph.types[node.inputs[0]].shape, self.graph.types[node.output].shape, axis)
        return result if not isinstance(result[-1], int) or result[-1] >= LEAST_INSIDE else [extent]

    def _reduce(self, node: Node, indices: Indices) -> Expression:
        rank = self.graph.types[node.inputs[0]].rank
        axes = sorted({axis % rank for axis in node.attributes["axes"]})
        variables, full = self._folded(node, indices, axes)
        value = self.element(node.inputs[0], full)
        return Fold(node.attributes["how"], tuple(variables), value, dtype_of(value), node.output)

    def _arg_reduce(self, node: Node, indices: Indices) -> Expression:
        """Two folds: the extreme, then the first (or last) index that has it; NaN is extreme."""
        rank = self.graph.types[node.inputs[0]].rank
        axis, how = node.attributes["axis"] % rank, node.attributes["how"]
        variables, full = self._folded(node, indices, [axis])
        value = self.element(node.inputs[0], full)
        extreme = Fold(how, tuple(variables), value, dtype_of(value), f"{node.output} extreme")
        variables, full = self._folded(node, indices, [axis])
        value, (position, extent) = self.element(node.inputs[0], full), variables[0]
        result: Expression = Apply("equal", (value, extreme), "bool")
        if dtype_of(value).startswith("fp"):
            result = Apply("or", (result, Apply("isnan", (value,), "bool")), "bool")
        last = node.attributes.get("last", False)
        nowhere = index(-1) if last else sized(extent)
        chosen = Apply("select", (result, position, nowhere), INDEX)
        return Fold("max" if last else "min", tuple(variables), chosen, INDEX, node.output)

    def _contract(self, node: Node, indices: Indices) -> Expression:
        inputs, _, output = node.attributes["labels"].partition("->")
        labels = inputs.split(",")
        where: dict[str, Expression] = dict(zip(output, indices, strict=True))
        variables: list[tuple[Variable, Extent]] = []
        for own, tensor in zip(labels, node.inputs, strict=True):
            for label, extent in zip(own, self.graph.types[tensor].shape, strict=True):
                if label not in where:
                    variable = self.variable("k")
                    where[label] = variable
                    variables.append((variable, extent))
        factors = [self.element(t, tuple(where[label] for label in own)) for own, t in zip(labels, node.inputs, strict=True)]
        value, dtype = factors[0], dtype_of(factors[0])
        for factor in factors[1:]:
            value = Apply("mul", (value, factor), dtype)
        return Fold("sum", tuple(variables), value, dtype, node.output) if variables else value

    # What moves

    def _transpose(self, node: Node, indices: Indices) -> Expression:
        result: list[Any] = [None] * len(indices)
        for position, axis in enumerate(node.attributes["order"]):
            result[axis] = indices[position]
        return self.element(node.inputs[0], tuple(result))

    def _broadcast(self, node: Node, indices: Indices) -> Expression:
        return self._aligned(node.inputs[0], indices)

    def _reshape(self, node: Node, indices: Indices) -> Expression:
        before, after = self.graph.types[node.inputs[0]].shape, self.graph.types[node.output].shape
        result = self._digits.reshaped(before, after, indices, empty=bool(self._nonempty))
        return self.element(node.inputs[0], tuple(result))

    def _slice(self, node: Node, indices: Indices) -> Expression:
        result = list(indices)
        for axis, start, step in zip(*(node.attributes[key] for key in ("axes", "starts", "steps")), strict=True):
            result[axis] = arithmetic("add", arithmetic("mul", indices[axis], index(step)), sized(start))
        return self.element(node.inputs[0], tuple(result))

    def _pad(self, node: Node, indices: Indices) -> Expression:
        mode, shape = node.attributes["mode"], self.graph.types[node.inputs[0]].shape
        result: list[Expression] = []
        inside: list[Expression] = []
        for size, extent, before, after in zip(
            indices, shape, node.attributes["before"], node.attributes["after"], strict=True
        ):
            moved, last = arithmetic("sub", size, sized(before)), arithmetic("sub", sized(extent), index(1))
            if same(before, 0) and same(after, 0):
                result.append(size)
            elif mode == "reflect":  # |i| and then from the far end: last - |last - |i||
                up = Apply("abs", (moved,), INDEX)
                turned = arithmetic("sub", last, Apply("abs", (arithmetic("sub", last, up),), INDEX))
                result.append(arithmetic("max", turned, index(0)))  # pads wider than the axis must not leave it
            elif mode == "wrap":
                result.append(Apply("mod", (moved, divisor_of(extent)), INDEX))
            else:
                result.append(arithmetic("max", arithmetic("min", moved, last), index(0)))
                if mode == "constant":
                    inside.append(Apply("less_equal", (index(0), moved), "bool"))
                    inside.append(Apply("less_equal", (moved, last), "bool"))
        padded = [extent for extent, own, size in zip(shape, result, indices, strict=True) if own is not size]
        value = self._clamped(node.inputs[0], tuple(result), *padded)
        if not inside:
            return value
        condition = inside[0]
        for item in inside[1:]:
            condition = Apply("and", (condition, item), "bool")
        return Apply("select", (condition, value, Number(node.attributes.get("value", 0), dtype_of(value))), dtype_of(value))

    def _concat(self, node: Node, indices: Indices) -> Expression:
        axis = node.attributes["axis"] % len(indices)
        start: Extent = 0
        pieces: list[tuple[Expression, Expression]] = []  # the element, and the index before which it is meant
        # Nothing may be read of what has no elements, not even where it is not meant: it would lie beyond a tensor's end.
        nonempty = [tensor for tensor in node.inputs if self.graph.types[tensor].shape[axis] != 0]
        for tensor in nonempty or node.inputs[-1:]:
            extent = self.graph.types[tensor].shape[axis]
            moved = arithmetic("sub", indices[axis], sized(start))
            last = arithmetic("sub", sized(extent), index(1))
            safe = arithmetic("max", arithmetic("min", moved, last), index(0))
            start = canonical(start + extent)
            pieces.append((self._clamped(tensor, (*indices[:axis], safe, *indices[axis + 1 :]), extent), sized(start)))

        def among(some: Sequence[tuple[Expression, Expression]]) -> Expression:
            """By halves: a thousand tensors are ten questions, and no expression a thousand deep."""
            if len(some) == 1:
                return some[0][0]
            half = len(some) // 2
            before, behind = among(some[:half]), among(some[half:])
            sooner = Apply("less", (indices[axis], some[half - 1][1]), "bool")
            return Apply("select", (sooner, before, behind), dtype_of(before))

        return among(pieces)

    def _gather(self, node: Node, indices: Indices) -> Expression:
        axis, width = node.attributes["axis"], self.graph.types[node.inputs[1]].rank
        extent = self.graph.types[node.inputs[0]].shape[axis]
        result = self.element(node.inputs[1], indices[axis : axis + width])
        chosen: Expression = result if dtype_of(result) == INDEX else Apply("cast", (result,), INDEX)
        if dtype_of(result) == "uint8" and isinstance(extent, int) and extent > 255:  # a table of bytes: every one has a row
            return self.element(node.inputs[0], (*indices[:axis], chosen, *indices[axis + width :]))
        if node.attributes.get("bounded", False):
            return self._clamped(node.inputs[0], (*indices[:axis], chosen, *indices[axis + width :]), extent)
        behind = Apply("add", (chosen, sized(extent)), INDEX)
        chosen = Apply("select", (Apply("less", (chosen, index(0)), "bool"), behind, chosen), INDEX)
        last = arithmetic("sub", sized(extent), index(1))  # an index that no row has must not reach other memory
        chosen = arithmetic("max", arithmetic("min", chosen, last), index(0))
        return self._clamped(node.inputs[0], (*indices[:axis], chosen, *indices[axis + width :]), extent)

    def _window(self, node: Node, indices: Indices) -> Expression:
        rank = self.graph.types[node.inputs[0]].rank
        result = list(indices[:rank])
        attributes = (node.attributes[key] for key in ("axes", "strides", "dilations"))
        for position, (axis, stride, dilation) in enumerate(zip(*attributes, strict=True)):
            moved = arithmetic("mul", indices[axis % rank], index(stride))
            result[axis % rank] = arithmetic("add", moved, arithmetic("mul", indices[rank + position], index(dilation)))
        return self.element(node.inputs[0], tuple(result))


def softmax_sum(graph: Graph, quotient: Node) -> bool:
    """True if a quotient is of exponentials of x - max x by their sum over the axes of that maximum.

    The sum is NaN, or from 1 to the number of terms. So its inverse is a normal number, and a product with it is off by one
    unit of the last place more than the quotient: two roundings instead of one.
    """
    total = graph.producer(quotient.inputs[1])
    if total is None or total.primitive != "reduce" or total.attributes["how"] != "sum":
        return False
    exponential = graph.producer(total.inputs[0])
    if exponential is None or exponential.attributes.get("function") != "exp" or exponential.output != quotient.inputs[0]:
        return False
    less = graph.producer(exponential.inputs[0])
    if less is None or less.attributes.get("function") != "sub":
        return False
    largest = graph.producer(less.inputs[1])
    if largest is None or largest.primitive != "reduce" or largest.attributes["how"] != "max":
        return False
    if not (largest.attributes.get("keepdims") and total.attributes.get("keepdims")):
        return False
    return bool(largest.attributes["axes"] == total.attributes["axes"] and largest.inputs[0] == less.inputs[0])
