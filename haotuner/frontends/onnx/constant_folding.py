"""A builder that computes at once what is known: constants as numbers, shapes as expressions of the inputs' dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import sympy

from haotuner.errors import UsageError
from haotuner.frontends.onnx.lengths import lengths_of
from haotuner.frontends.onnx.proofs import Proof
from haotuner.frontends.onnx.symbolic_values import LARGEST, applied
from haotuner.frontends.onnx.typed_numbers import DataDependentError, is_number, is_whole, real_scalar
from haotuner.frontends.onnx.types import Narrow
from haotuner.graph.extents import Extent, canonical, largest, smallest
from haotuner.graph.graph import GraphBuilder, Guard, Node, Required, free_name, sizes_of
from haotuner.graph.primitives import PRIMITIVES
from haotuner.graph.typed_extents import never_negative
from haotuner.graph.types import FLOATS, TensorType, numpy_dtype
from haotuner.spec.shape import Span

_HELD = (  # of a builder, by name
    "types", "constants", "guards", "extents", "reals", "assumed", "lengths", "clamped", "written", "stored", "joined",
    "narrow", "sequences", "shape_reads",
)  # fmt: skip
# What files make weights by: numbers of fewer bits times a scale, most of all. A walk back ends after so many steps.
WEIGHTS_MADE_BY, MOST_STEPS = frozenset({"broadcast", "cast", "concat", "map", "reshape", "slice", "transpose"}), 64
MOST_REALS = 16  # elements that depend on sizes and are no extents, of one tensor: what sizes are computed by
FOLDED_BYTES = 1 << 20  # a larger result is computed now only where it is no larger than what it is made of


@dataclass(frozen=True, slots=True)
class Stored:
    """Origin of real numbers: bytes, their scale and zero point, and the axis along which these differ."""

    bytes: str
    scale: str
    zero: str | None
    axis: int


@dataclass(slots=True)
class ConstantFolding(GraphBuilder):
    """Tensors whose elements are extents have a type and no node before a node needs them."""

    extents: dict[str, Any] = field(default_factory=dict)
    reals: dict[str, Any] = field(default_factory=dict)  # elements that are no extents, of tensors that nodes make
    assumed: dict[Extent, tuple[Guard, ...]] = field(default_factory=dict)  # what is never negative, and where
    ranges: Mapping[str, Span] = field(default_factory=dict)  # sizes that requests may have, where somebody says so
    lengths: dict[tuple[str, int], Extent] = field(default_factory=dict)  # the dimension of an element of data
    clamped: dict[str, str] = field(default_factory=dict)  # of a number that may be negative: the node that counts to it
    written: dict[str, str] = field(default_factory=dict)  # the nodes' tensor of such a one
    stored: dict[str, Stored] = field(default_factory=dict)  # of tensors that DequantizeLinear made
    sequences: dict[str, tuple[str, ...] | None] = field(default_factory=dict)  # tensors of each; None: an empty optional
    narrow: dict[str, Narrow] = field(default_factory=dict)  # of tensors that the file holds in a type which graphs lack
    joined: dict[str, tuple[tuple[str, ...], int]] = field(default_factory=dict)  # of concatenations: parts, and the axis
    shape_reads: dict[str, None] = field(default_factory=dict)  # tensors whose shape the file reads, whatever reads them

    def known(self, tensor: str) -> Any:
        """Elements of a tensor where they are known: numbers, or extents in an array of objects; else None."""
        result = self.constants.get(tensor)
        return self.extents.get(tensor) if result is None else result

    def numbers(self, tensor: str) -> Any:
        """Elements of a tensor where they are known numbers, no extents; else None."""
        return self.constants.get(tensor)

    def whole_numbers(self, tensor: str, what: str) -> list[Extent]:
        """The elements of a flat tensor; sizes that data hold get dimensions. UsageError where they cannot be sizes."""
        result = self.known(tensor)
        if result is None:
            result = lengths_of(self, tensor)
        if result is None:
            raise UsageError(f"{what}, {self.types[tensor]}, depends on data: too many sizes, or no whole numbers")
        return [item if isinstance(item, sympy.Basic) else int(item) for item in np.asarray(result).reshape(-1)]

    def of_extents(self, values: Any, dtype: str) -> str:
        """A tensor of these numbers (an array of objects), extents most of all."""
        plain = np.asarray(values, object)
        if all(map(is_number, plain.reshape(-1))):
            return self.constant(np.array([float(v) if dtype in FLOATS else int(v) for v in plain.reshape(-1)]
                                          ).reshape(plain.shape), dtype)  # fmt: skip
        if not all(is_whole(item) or is_number(item) for item in plain.reshape(-1)):
            chosen = self._scalars(plain, dtype)
            self.reals[chosen] = plain
            return chosen
        chosen = self._free("shape")
        self.types[chosen], self.extents[chosen] = TensorType(plain.shape, dtype), plain
        return chosen

    def add(self, primitive: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """A primitive's result, computed now if all that it needs is known."""
        if primitive == "contract":
            inputs = tuple(self._as_weight(operand) for operand in inputs)
        if primitive == "map":
            inputs = self.with_single_axes(inputs)
        known = [self.reals.get(operand, self.known(operand)) for operand in inputs]
        if all(item is not None for item in known):
            folded = self._folded(primitive, inputs, known, attributes)
            if isinstance(folded, str):
                return folded
            if folded is not None:
                chosen = self.plain(primitive, *inputs, name=name, **attributes)
                self.reals[chosen] = folded
                return chosen
        return self.plain(primitive, *inputs, name=name, **attributes)

    def sequence(self, elements: Sequence[str] | None) -> str:
        """The name of a list of tensors; None: of an empty optional."""
        name = free_name("sequence", {**self.types, **self.sequences})
        self.sequences[name] = None if elements is None else tuple(elements)
        return name

    def cast(self, x: str, dtype: str) -> str:
        """A tensor in an element type; itself where it has that type."""
        return x if self.types[x].dtype == dtype else self.add("cast", x, dtype=dtype)

    def plain(self, primitive: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """A node, whatever is known."""
        return GraphBuilder.add(self, primitive, *map(self._nodes_of, inputs), name=name, **attributes)

    def _as_weight(self, tensor: str) -> str:
        """An operand of a product, computed now if nothing but constants makes it, however large it becomes.

        A kernel's weight is packed once; what is no constant would be computed at every call, the product by plain loops.
        """
        if tensor in self.constants or self.types[tensor].dtype not in FLOATS:
            return tensor
        required, behind = {tensor}, list[Node]()
        for node in reversed(self.nodes):
            if not required:
                break
            if node.output not in required:
                continue
            # Of a dimension: a constant as often as the request says.
            if node.primitive not in WEIGHTS_MADE_BY or len(behind) == MOST_STEPS or sizes_of(node, self.types):
                return tensor
            behind.append(node)
            required |= {tensor for tensor in node.inputs if tensor not in self.constants}
            required.remove(node.output)
        if required:
            return tensor
        values: dict[str, Any] = {}
        for node in reversed(behind):
            inputs = [values[tensor] if tensor in values else self.constants[tensor] for tensor in node.inputs]
            kind = self.types[node.output]
            result = PRIMITIVES[node.primitive].compute(inputs, node.attributes, number_of)
            values[node.output] = np.ascontiguousarray(result, numpy_dtype(kind.dtype)).reshape(kind.shape)
        return self.constant(values[tensor], self.types[tensor].dtype)

    def _folded(self, primitive: str, inputs: Sequence[str], known: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
        """A tensor of constants or extents; elements that are no extents; None where the result is not known."""
        kind = PRIMITIVES[primitive].infer([self.types[operand] for operand in inputs], attributes)
        if any(not isinstance(extent, int) for extent in kind.shape):
            return None
        count = int(np.prod(kind.shape, dtype=np.float64))
        try:
            if not any(item.dtype == object for item in known):
                # Eight bytes count as four: powers go through fp64, sizes through int64, and come back.
                item = min(numpy_dtype(kind.dtype).itemsize, 4)
                if count * item > max(FOLDED_BYTES, *(item.nbytes for item in known), 0):
                    return None
                if primitive != "size" or isinstance(attributes["extent"], int):
                    result = PRIMITIVES[primitive].compute(known, attributes, number_of)
                    return self.constant(np.ascontiguousarray(result).reshape(kind.shape), kind.dtype)
            if count > LARGEST:
                return None
            proof = Proof(self.ranges)
            source = self.types[inputs[0]].dtype if inputs else kind.dtype
            result = applied(primitive, known, attributes, kind.dtype, source, self._is_size, proof)
        except (DataDependentError, TypeError):  # sympy cannot say, or has no such arithmetic
            return None
        plain = all(is_whole(item) or is_number(item) for item in result.reshape(-1))
        if not plain and count > MOST_REALS:
            return None
        self.require(proof)
        return self.of_extents(result, kind.dtype) if plain else result

    def require(self, proof: Proof) -> None:
        """Have the graph refuse requests for which a proof does not hold."""
        for gap, words in proof.assumed.items():
            known = (name for name, guards in self.assumed.items() if any(self.guard[: len(at)] == at for at in guards))
            if any(never_negative(canonical(gap - item)) for item in known):
                continue
            holds = smallest([1, largest([0, canonical(gap + 1)])])
            text = f"this pack serves requests where {words}; tune with --shapes that hold others"
            self.required.append(Required(holds, text, self.guard))
            self.assumed[gap] = (*self.assumed.get(gap, ()), self.guard)

    def one_if_shown(self, extent: Extent) -> Extent:
        """1 where the asked ranges show that an extent is; requests that make it something else are refused then."""
        if isinstance(extent, int) or not (proof := Proof(self.ranges)).is_one(extent):
            return extent
        self.require(proof)
        return 1

    def with_single_axes(self, inputs: Sequence[str], last: int = 0) -> tuple[str, ...]:
        """Operands that are to be broadcast, in shapes that say which axes are shown to have one element.

        ``x[:1]`` has ``min(1, n)`` rows: one, as long as x has any. ``last``: axes at the end that are left as they are.
        """
        shapes = [list(self.types[operand].shape) for operand in inputs]
        for at in range(last + 1, max(map(len, shapes), default=0) + 1):
            wide = {shape[-at] for shape in shapes if len(shape) >= at and shape[-at] != 1}
            if len(wide) > 1:
                single = {extent for extent in wide if self.one_if_shown(extent) == 1}
                for shape in shapes:
                    if len(shape) >= at and shape[-at] in single:
                        shape[-at] = 1
        return tuple(
            operand if tuple(shape) == tuple(self.types[operand].shape) else self.add("reshape", operand, shape=tuple(shape))
            for operand, shape in zip(inputs, shapes, strict=True)
        )

    def _is_size(self, extent: Extent) -> bool:
        """True if some tensor has that extent."""
        return any(extent in kind.shape for kind in self.types.values())

    def _nodes_of(self, tensor: str) -> str:
        """The tensor, with nodes that make it."""
        if tensor not in self.extents:
            return tensor
        if tensor not in self.written:
            self.written[tensor] = self._scalars(self.extents[tensor], self.types[tensor].dtype)
        return self.written[tensor]

    def _scalars(self, values: Any, dtype: str) -> str:
        """A node's tensor of these numbers."""
        parts = [real_scalar(self, value, dtype) for value in values.reshape(-1)]
        flat = [GraphBuilder.add(self, "reshape", part, shape=(1,)) for part in parts]
        joined = flat[0] if len(flat) == 1 else GraphBuilder.add(self, "concat", *flat, axis=0)
        return GraphBuilder.add(self, "reshape", joined, shape=values.shape)


@dataclass(frozen=True, slots=True)
class Before:
    """A builder before something was read, to which it can be taken back."""

    nodes: int
    required: int
    known_values: Mapping[str, dict[Any, Any]]

    @staticmethod
    def of(g: ConstantFolding) -> Before:
        """As it is now."""
        return Before(len(g.nodes), len(g.required), {name: dict(getattr(g, name)) for name in _HELD})

    def restore(self, g: ConstantFolding) -> None:
        """Forget what was added since."""
        del g.nodes[self.nodes :], g.required[self.required :]
        for name, item in self.known_values.items():
            setattr(g, name, dict(item))


def number_of(extent: Extent) -> int:
    """An extent that is a number; Undecided where it is none."""
    if not isinstance(extent, int):
        raise DataDependentError
    return extent
