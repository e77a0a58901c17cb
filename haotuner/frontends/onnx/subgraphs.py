"""Subgraphs of an ONNX file between operators that have no rule: what a pack can serve where a server computes the rest.

A node's level is the most refused nodes on a path before it. Nodes of one level are convex: no path leads out of them and
back. Each level is read as a model of its own. Its inputs are the file's, and what levels before and refused nodes make.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from haotuner.errors import UsageError
from haotuner.frontends.onnx.constant_folding import ConstantFolding
from haotuner.frontends.onnx.file import onnx_library, open_model, opset_of
from haotuner.frontends.onnx.functions import Key, key_of
from haotuner.frontends.onnx.read import Ranges, Reader, damage_as_usage_error, finished, graph_input, unknown_operators
from haotuner.frontends.onnx.types import dtype_of_onnx
from haotuner.graph.extents import dimensions
from haotuner.graph.graph import Graph
from haotuner.graph.types import TensorType


def read_subgraphs(
    path: str | Path, ranges: Ranges | None = None, sizes: Mapping[str, int] | None = None
) -> tuple[Graph | None, ...]:
    """The graph of each level of an ONNX file, None of a level that computes nothing; empty where no node is refused.

    Inputs and outputs have the file's names. Initializers are constants. Arguments and errors as of ``read``; UsageError,
    too, where a size that data decide is read by another level.
    """
    path_ = Path(path)
    model = open_model(path_)
    with damage_as_usage_error(path_):
        levels = _Levels.of(model)
        if not levels.is_cut:
            return ()
        reading = _Reading(model, path_.parent, levels, ranges, sizes or {})
        return tuple(reading.graph(level) for level in range(levels.count))


@dataclass(slots=True)
class _Levels:
    """``nodes`` by level; ``level_of``: level of each tensor that they make; ``ends``: type and level of what is given.

    ``read``: tensors that refused nodes read, or that are outputs of the file.
    """

    nodes: dict[int, list[Any]] = field(default_factory=lambda: defaultdict(list))
    level_of: dict[str, int] = field(default_factory=dict)
    ends: dict[str, tuple[Any, int]] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)
    is_cut: bool = False  # some node is refused

    @property
    def count(self) -> int:
        return 1 + max(self.nodes, default=0)

    @staticmethod
    def of(model: Any) -> _Levels:
        result, graph = _Levels(), model.graph
        opset = opset_of(model.opset_import, "model")
        own = {key_of(function): function for function in model.functions}
        known, bad = _typed(model), _refused_functions(model, opset, own)
        levels: dict[str, int] = {}
        unreadable = {item.name for item in graph.input if item.name not in known}
        result.read |= {item.name for item in graph.output}
        weights = {item.name for item in graph.initializer}
        result.ends |= {item.name: (item, 0) for item in graph.input if item.name in known and item.name not in weights}
        for node in graph.node:
            reads = set(_reads(node))
            level = max((levels.get(name, 0) for name in reads), default=0)
            outputs = [name for name in node.output if name]
            refused = key_of(node) in bad or unknown_operators([node], opset, own)
            if refused or reads & unreadable:
                result.is_cut = True
                levels |= dict.fromkeys(outputs, level + 1)
                unreadable |= {name for name in outputs if name not in known}
                result.ends |= {name: (known[name], level + 1) for name in outputs if name in known}
                result.read |= reads
            else:
                levels |= dict.fromkeys(outputs, level)
                result.level_of |= dict.fromkeys(outputs, level)
                result.nodes[level].append(node)
        return result


@dataclass(slots=True)
class _Reading:
    """Reads the levels in their order. ``values``: known elements of tensors of earlier levels, and their element types."""

    model: Any
    folder: Path
    levels: _Levels
    ranges: Ranges | None
    sizes: Mapping[str, int]
    values: dict[str, tuple[Any, str]] = field(default_factory=dict)
    types: dict[str, TensorType] = field(default_factory=dict)

    def graph(self, level: int) -> Graph | None:
        """Graph of the next level."""
        used, graph = self._used(level), self.model.graph
        nodes = _needed(self.levels.nodes.get(level, []), used)
        reads = dict.fromkeys(name for node in nodes for name in _reads(node))
        own = {key_of(function): function for function in self.model.functions}
        reader = Reader(ConstantFolding(), self.folder, own)
        names = self._inputs(reader, reads, level)
        if self.ranges is not None:
            reader.ranges = reader.g.ranges = self.ranges({name: reader.g.types[name] for name in reader.g.inputs})
        proto = onnx_library().helper.make_graph(
            nodes, graph.name, [], [_untyped(name) for name in used],
            [item for item in graph.initializer if item.name in reads],
            sparse_initializer=[item for item in graph.sparse_initializer if item.values.name in reads],
        )  # fmt: skip
        reader.run(proto, names, opset_of(self.model.opset_import, "model"), 0)
        self.types |= {name: reader.g.types[names[name]] for name in used if names[name] in reader.g.types}
        known = {name: reader.g.known(names[name]) for name in used if name in self.types}
        self.values |= {name: (elements, self.types[name].dtype) for name, elements in known.items() if elements is not None}
        # Sizes are outputs, too: the server may compute them by nodes that several parts share. Numbers it knows itself.
        outputs = [name for name in used if name not in self.values or self.values[name][0].dtype == object]
        if all(name in self.values for name in outputs):
            return None
        return finished(reader.g, [(name, names[name]) for name in outputs])

    def _used(self, level: int) -> list[str]:
        """Tensors of a level that refused nodes or later levels read, and outputs of the file."""
        later = {name for at, nodes in self.levels.nodes.items() if at > level for node in nodes for name in _reads(node)}
        return [name for name, at in self.levels.level_of.items() if at == level and name in self.levels.read | later]

    def _inputs(self, reader: Reader, reads: Collection[str], level: int) -> dict[str, str]:
        """Names in the builder of what a level reads and does not make; what tells its dimensions becomes an input, too."""
        names: dict[str, str] = {}
        ends = {name: self._type(item) for name, (item, _) in self.levels.ends.items()}
        for name in reads:
            if name in self.values:
                values, dtype = self.values[name]
                known = reader.g.of_extents if values.dtype == object else reader.g.constant
                names[name] = known(values, dtype)
            elif name in ends:
                names[name] = graph_input(reader.g, self.levels.ends[name][0], self.sizes)
            elif self.levels.level_of.get(name, level) < level:
                names[name] = self._crossing(reader.g, name, _told(ends.values()))
        needed = {size for name in names if name in self.values for size in _sizes(self.values[name][0])}
        needed |= {size for kind in reader.g.types.values() for size in _sizes(kind.shape)}
        for name, (item, at) in self.levels.ends.items():
            lacking = needed - _told(reader.g.types[end] for end in reader.g.inputs)
            if at <= level and name not in names and _told([ends[name]]) & lacking:
                graph_input(reader.g, item, self.sizes)
        _refuse_sizes("a part of the model", needed - _told(reader.g.types[end] for end in reader.g.inputs))
        return names

    def _crossing(self, g: ConstantFolding, name: str, sizes: Collection[str]) -> str:
        """Input for a tensor of an earlier level; ``sizes``: dimensions that requests tell."""
        if name not in self.types:
            raise UsageError(f"{name} is a sequence, which one part of the model makes and another reads; only tensors are")
        kind = self.types[name]
        _refuse_sizes(name, _sizes(kind.shape).difference(sizes))
        return g.input(name, kind.shape, kind.dtype)

    def _type(self, value: Any) -> TensorType:
        g = ConstantFolding()
        return g.types[graph_input(g, value, self.sizes)]


def _refuse_sizes(what: str, sizes: Collection[str]) -> None:
    """UsageError where there are such sizes, which nothing tells."""
    if sizes:
        raise UsageError(
            f"{what} needs the sizes {', '.join(sorted(sizes))}, which data decide in another part of the model; "
            "an operator without a rule lies between them: take it out of the model"
        )


def _sizes(extents: Any) -> set[str]:
    """Names of dimensions in extents, of a shape or of an array; numbers have none."""
    flat = np.asarray(extents, None if isinstance(extents, np.ndarray) else object).reshape(-1)
    return set().union(*map(dimensions, flat)) if flat.dtype == object else set()


def _told(kinds: Any) -> set[str]:
    """Names of the dimensions that shapes of these types tell."""
    return {str(extent) for kind in kinds for extent in kind.shape if getattr(extent, "is_Symbol", False)}


def _refused_functions(model: Any, opset: int, own: Mapping[Key, Any]) -> set[Key]:
    """Functions of a model with an operator that has no rule, or with a call of such a function."""
    result: set[Key] = set()
    for _ in own:  # a function that calls one found last is found by the next turn
        result |= {
            key
            for key, body in own.items()
            if unknown_operators(body.node, opset, own) or any(key_of(node) in result for node in body.node)
        }
    return result


def _needed(nodes: Sequence[Any], outputs: Collection[str]) -> list[Any]:
    """Those of the nodes that these tensors are computed from: what others read is no input."""
    needed, result = set(outputs), list[Any]()
    for node in reversed(nodes):
        if not needed.isdisjoint(node.output):
            result.append(node)
            needed.update(_reads(node))
    return result[::-1]


def _reads(node: Any) -> Iterator[str]:
    """Tensors that a node reads, those that graphs inside of it read from outside among them."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            own = {item.name for item in (*graph.input, *graph.initializer)} | {
                item.values.name for item in graph.sparse_initializer
            }
            for inner in graph.node:
                yield from (name for name in _reads(inner) if name not in own)
                own.update(inner.output)
            yield from (item.name for item in graph.output if item.name not in own)


def _typed(model: Any) -> dict[str, Any]:
    """Tensors whose element type and number of axes the file says, or follow by ONNX's inference of shapes."""
    onnx = onnx_library()
    graph = model.graph
    every: list[Sequence[Any]] = [graph.input, graph.output, graph.value_info]
    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception:  # onnx raises whatever it meets; the file's own types are left
        inferred = None
    if inferred is not None:
        every += [inferred.graph.value_info, inferred.graph.output]
    return {item.name: item for items in every for item in items if _is_readable(item)}


def _is_readable(value: Any) -> bool:
    """True if a value is a tensor of a known number of axes and of numbers."""
    tensor = value.type.tensor_type
    if value.type.WhichOneof("value") != "tensor_type" or not tensor.HasField("shape"):
        return False
    try:
        dtype_of_onnx(tensor.elem_type, value.name)
    except UsageError:
        return False
    return True


def _untyped(name: str) -> Any:
    return onnx_library().ValueInfoProto(name=name)
