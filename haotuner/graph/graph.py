"""Graph: primitives in an order in which each can be computed, with the types of all tensors; and the builder of graphs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from haotuner.errors import UsageError
from haotuner.graph.control_flow import made_dimensions
from haotuner.graph.extents import Extent, dimensions, is_symbolic
from haotuner.graph.primitives import PRIMITIVES
from haotuner.graph.types import FLOATS, HALVES, TensorType, dtype_named, numpy_dtype

Guard: TypeAlias = tuple[tuple[str, int], ...]  # branches and what they must be, the outermost first
NEVER = 0  # the extent of what no request fulfils: its guard says which are refused


@dataclass(frozen=True, slots=True)
class Required:
    """An extent that must not be 0 at a request, what the caller is told otherwise, and where this holds."""

    extent: Extent
    words: str
    guard: Guard = ()


@dataclass(frozen=True, slots=True)
class Node:
    """One primitive: names of the tensors that it reads and of the one that it makes."""

    primitive: str
    inputs: tuple[str, ...]
    output: str
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True, repr=False)
class Graph:
    """``types`` of every tensor by name; ``constants`` are known now; ``inputs`` and ``outputs`` in the order of a call.

    ``guards`` of the tensors that one side of a branch makes; ``required`` of requests; ``defaults``: arrays of inputs
    that a call may leave out.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    types: Mapping[str, TensorType]
    constants: Mapping[str, Any]
    guards: Mapping[str, Guard] = field(default_factory=dict)
    required: tuple[Required, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        ends = [", ".join(f"{name} {self.types[name]}" for name in names) for names in (self.inputs, self.outputs)]
        return f"<Graph {' -> '.join(ends)}: {len(self.nodes)} primitives, {len(self.constants)} constants>"

    @property
    def dimensions(self) -> tuple[str, ...]:
        """Names of the dimensions of the inputs, in their order."""
        return tuple(dict.fromkeys(
            name for tensor in self.inputs for extent in self.types[tensor].shape for name in sorted(dimensions(extent))
        ))  # fmt: skip

    def producer(self, tensor: str) -> Node | None:
        """The node that makes a tensor; None for inputs and constants."""
        return next((node for node in self.nodes if node.output == tensor), None)

    def readers(self, tensor: str) -> tuple[Node, ...]:
        """The nodes that read a tensor."""
        return tuple(node for node in self.nodes if tensor in node.inputs)

    def sizes(self, arrays: Mapping[str, Any]) -> dict[str, int]:
        """Sizes of the dimensions, from input arrays. UsageError where they contradict the types or each other."""
        result: dict[str, int] = {}
        later: list[tuple[str, Extent, int]] = []
        for name in self.inputs:
            shape, inputs = self.types[name].shape, np.shape(arrays[name])
            if len(shape) != len(inputs):
                raise UsageError(f"input {name}: expected {self.types[name]}, got the shape {tuple(inputs)}")
            for extent, size in zip(shape, inputs, strict=True):
                if getattr(extent, "is_Symbol", False):
                    known = result.setdefault(str(extent), int(size))
                    if known != size:
                        raise UsageError(f"input {name}: {extent} is {size} there and {known} in another place")
                else:
                    later.append((name, extent, int(size)))
        for name, extent, size in later:
            expected = (
                extent if isinstance(extent, int) else int(extent.subs({s: result[str(s)] for s in extent.free_symbols}))
            )
            if expected != size:
                raise UsageError(f"input {name}: expected {self.types[name]}, got {size} where {expected} belongs")
        return result


@dataclass(frozen=True, slots=True)
class Body:
    """Body of a loop, run each turn: ``graph``, whose tensors have names that no other tensor of the model has.

    ``turn``: which turn it is, int64; ``carried``: values before and after a turn; ``rows``: what it gets of its own;
    ``shared``: what all turns read; ``made``: what becomes a row of a result; ``goes_on``: whether another turn follows,
    None where this is always so; ``changing``: of carried values, by number, axes whose size may differ from turn to turn,
    and the dimensions that a turn knows these sizes by. The graph's inputs are those of them that it reads.
    """

    graph: Graph
    turn: str
    carried: tuple[tuple[str, str], ...]
    rows: tuple[str, ...]
    shared: tuple[str, ...]
    made: tuple[str, ...]
    goes_on: str | None
    changing: tuple[tuple[int, int, Extent], ...] = ()

    @property
    def sizes(self) -> set[str]:
        """Names of the dimensions that it needs and does not make."""
        result: set[str] = set()
        for node in self.graph.nodes:
            result |= sizes_of(node, self.graph.types)
        for name in (*self.graph.inputs, *self.rows, *(item for pair in self.carried for item in pair)):
            result |= set().union(*map(dimensions, self.graph.types[name].shape))
        made = (made_dimensions(node.primitive, node.attributes) for node in self.graph.nodes)
        return result.difference(*made, {str(extent) for _, _, extent in self.changing})

    def renamed(self, of: Callable[[str], str]) -> Body:
        """Copy with other names of tensors."""
        return Body(
            graph=renamed(self.graph, of),
            turn=of(self.turn),
            carried=tuple((of(before), of(after)) for before, after in self.carried),
            rows=tuple(map(of, self.rows)),
            shared=tuple(map(of, self.shared)),
            made=tuple(map(of, self.made)),
            goes_on=None if self.goes_on is None else of(self.goes_on),
            changing=self.changing,
        )


def renamed(graph: Graph, of: Callable[[str], str]) -> Graph:
    """The graph with other names of tensors, those of bodies of loops among them."""

    def told(node: Node) -> Mapping[str, Any]:
        body = node.attributes.get("body")
        return {**node.attributes, "body": body.renamed(of)} if isinstance(body, Body) else node.attributes

    return Graph(
        inputs=tuple(map(of, graph.inputs)),
        outputs=tuple(map(of, graph.outputs)),
        nodes=tuple(Node(node.primitive, tuple(map(of, node.inputs)), of(node.output), told(node)) for node in graph.nodes),
        types={of(name): kind for name, kind in graph.types.items()},
        constants={of(name): value for name, value in graph.constants.items()},
        guards={of(name): guard for name, guard in graph.guards.items()},
        required=graph.required,
        defaults={of(name): value for name, value in graph.defaults.items()},
    )


def bodies(graph: Graph) -> Iterator[Body]:
    """The bodies of a graph's loops, those inside of them behind each."""
    for node in graph.nodes:
        if node.primitive == "loop":
            yield node.attributes["body"]
            yield from bodies(node.attributes["body"].graph)


def is_taken(guard: Guard, known: Mapping[str, int]) -> bool:
    """True if a request takes all these branches so."""
    return all(known.get(branch) == value for branch, value in guard)


def sizes_of(node: Node, types: Mapping[str, TensorType]) -> set[str]:
    """Names of the dimensions that a primitive needs: those of its result, of its attributes, and of a loop's body."""
    result: set[str] = set()
    waiting: list[Any] = [types[node.output].shape, *node.attributes.values()]
    while waiting:
        part = waiting.pop()
        if isinstance(part, (tuple, list)):
            waiting.extend(part)
        elif is_symbolic(part):
            result |= dimensions(part)
        elif isinstance(part, Body):
            result |= part.sizes
    return result


def free_name(stem: str, taken: Collection[str]) -> str:
    """The stem, or where a tensor has it already the stem with a number."""
    if stem not in taken:
        return stem
    number = len(taken)
    while f"{stem}_{number}" in taken:
        number += 1
    return f"{stem}_{number}"


@dataclass(slots=True)
class GraphBuilder:
    """Adds primitives one by one; a tensor is its name. ``finish`` gives the graph, without what no output needs."""

    inputs: list[str] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    types: dict[str, TensorType] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    guards: dict[str, Guard] = field(default_factory=dict)
    required: list[Required] = field(default_factory=list)
    guard: Guard = ()  # of what is added now
    defaults: dict[str, Any] = field(default_factory=dict)  # of inputs

    def input(self, name: str, shape: Sequence[Extent], dtype: str = "fp32") -> str:
        """A tensor that comes with the call."""
        if name in self.types:
            raise UsageError(f"tensor {name!r} is given twice")
        self.types[name] = TensorType(tuple(shape), dtype)
        self.inputs.append(name)
        return name

    def need(self, extent: Extent, words: str) -> None:
        """Have requests refused, with these words, for which an extent of 0 or 1 is 0, where what follows is computed."""
        if all((item.extent, item.guard) != (extent, self.guard) for item in self.required):
            self.required.append(Required(extent, words, self.guard))

    def constant(self, value: Any, dtype: str | None = None, name: str = "") -> str:
        """A tensor whose elements are known; scalars need ``dtype``, or are of their numpy type."""
        array = np.asarray(value, numpy_dtype(dtype) if dtype else None)
        chosen = self._free(name or "c")
        self.types[chosen], self.constants[chosen] = TensorType(array.shape, dtype or dtype_named(array.dtype)), array
        return chosen

    def add(self, primitive: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """A primitive's result. UsageError where it cannot be computed of these inputs."""
        inferred = PRIMITIVES[primitive].infer([self.types[operand] for operand in inputs], attributes)
        chosen = self._free(name or primitive)
        self.types[chosen] = inferred
        self.nodes.append(Node(primitive, tuple(inputs), chosen, attributes))
        if self.guard:
            self.guards[chosen] = self.guard
        return chosen

    def seen(self, tensor: str) -> bool:
        """True if a tensor is there wherever what is added now runs."""
        guard = self.guards.get(tensor, ())
        return guard == self.guard[: len(guard)]

    def map(self, function: str, *inputs: str | float) -> str:
        """An element-wise function; numbers take the element type of the first tensor after a select's condition.

        Powers of floats by 2, 3 and -1 are products and a reciprocal, which take a fraction of a power's time.
        """
        named = [operand for operand in inputs if isinstance(operand, str)]
        valued = named[1:] if function == "select" and isinstance(inputs[0], str) and len(named) > 1 else named
        dtype = self.types[valued[0]].dtype
        if function == "pow" and isinstance(inputs[0], str) and dtype in FLOATS:
            exponent = self._single_number(inputs[1], self.types[inputs[0]].rank)
            if exponent == 2.0 or (exponent == 3.0 and dtype not in HALVES):  # halves would be rounded twice
                square = self.map("mul", inputs[0], inputs[0])
                return square if exponent == 2.0 else self.map("mul", square, inputs[0])
            if exponent == -1.0:
                return self.map("reciprocal", inputs[0])
        return self.add(
            "map",
            *(operand if isinstance(operand, str) else self.constant(operand, dtype) for operand in inputs),
            function=function,
        )

    def finish(self, *outputs: str) -> Graph:
        """The graph of these outputs."""
        needed, nodes = set(outputs), []
        sizes: set[str] = set().union(*(dimensions(extent) for name in outputs for extent in self.types[name].shape))
        sizes |= set().union(*(dimensions(requirement.extent) for requirement in self.required))  # or nobody could check it
        refused = {branch for requirement in self.required if requirement.extent == NEVER for branch, _ in requirement.guard}
        for node in reversed(self.nodes):
            decided = node.primitive == "decided" and node.attributes["branch"] in refused
            if decided or node.output in needed or not sizes.isdisjoint(made_dimensions(node.primitive, node.attributes)):
                nodes.append(node)
                needed.update(node.inputs)
                sizes |= sizes_of(node, self.types)
        used = needed | set(self.inputs) | {node.output for node in nodes}
        return Graph(
            inputs=tuple(self.inputs),
            outputs=tuple(outputs),
            nodes=tuple(reversed(nodes)),
            types={name: tensor_type for name, tensor_type in self.types.items() if name in used},
            constants={name: constant for name, constant in self.constants.items() if name in needed},
            guards={name: guard for name, guard in self.guards.items() if name in used},
            required=tuple(self.required),
            defaults=dict(self.defaults),
        )

    def _single_number(self, operand: str | float, rank: int) -> float | None:
        """A number, or a constant of one element and at most ``rank`` axes; None: anything else."""
        value = self.constants.get(operand) if isinstance(operand, str) else np.asarray(operand)
        return float(value.item()) if value is not None and value.size == 1 and value.ndim <= rank else None

    def _free(self, stem: str) -> str:
        return free_name(stem, self.types)
