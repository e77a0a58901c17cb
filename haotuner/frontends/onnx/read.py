"""``read``: an ONNX file becomes a graph of primitives, dimensions that the request decides kept as names."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from haotuner.errors import UsageError
from haotuner.frontends.onnx.branches import Rest, branched
from haotuner.frontends.onnx.constant_folding import ConstantFolding
from haotuner.frontends.onnx.dynamic_squeeze import by_sizes
from haotuner.frontends.onnx.file import array_of, dense_array, onnx_library, open_model, opset_of, with_defaults
from haotuner.frontends.onnx.functions import Key, body_of, can_be_taken_apart, defaults_of, filled_in, key_of, misfit
from haotuner.frontends.onnx.integers import tables_of_bytes
from haotuner.frontends.onnx.loops import loop_results
from haotuner.frontends.onnx.node_context import NodeContext
from haotuner.frontends.onnx.proofs import ANY, Interval, interval_of
from haotuner.frontends.onnx.scan import scan_results
from haotuner.frontends.onnx.shape_reads import with_read_shapes
from haotuner.frontends.onnx.table import MAIN, refuse, rule_of
from haotuner.frontends.onnx.tensor_sequences import mapped_results, refuse_sequences
from haotuner.frontends.onnx.types import NARROW, dtype_of_onnx
from haotuner.graph.extents import Extent, dimension, dimensions, shown
from haotuner.graph.fold_scales import dequantised_by_rows, scaled_weights
from haotuner.graph.graph import Graph, GraphBuilder, renamed
from haotuner.graph.types import TensorType, dimension_name, numpy_dtype
from haotuner.spec.shape import Span

DEEPEST = 16  # bodies inside bodies
MOST_NODES = 200_000
LARGEST_RANK = 12
LARGEST_EXTENT = 1 << 40  # as runtime/schedule.py
MOST_ELEMENTS = 1 << 36  # of a tensor whose extents are fixed: a minute of a core, and no machine's memory
_LOOPS: Mapping[str, Any] = {"Loop": loop_results, "Scan": scan_results, "SequenceMap": mapped_results}
_CONSTANTS = ("value", "sparse_value", "value_float", "value_floats", "value_int", "value_ints")


Ranges: TypeAlias = Callable[[Mapping[str, TensorType]], Mapping[str, Span]]


def read(
    path: str | Path,
    fixed: Mapping[str, Any] | None = None,
    ranges: Ranges | None = None,
    defaults: bool = True,
    sizes: Mapping[str, int] | None = None,
) -> Graph:
    """The graph of an ONNX file.

    Args:
        path: the file; external data lie beside it.
        fixed: inputs whose contents are known now and no input of the graph (a shape, for instance).
        ranges: sizes that requests may have, by dimension, once it knows the inputs; they settle branches.
        defaults: whether initializers that the file lists as inputs, too, may be given by a request.
        sizes: dimensions that are numbers, which all arithmetic on them then computes with.

    Raises:
        UsageError: not a model, damaged, or with operators or settings that have no rule; all unknown ones are listed.
        EnvironmentMissing: the package onnx is not installed.
    """
    path_ = Path(path)
    model = open_model(path_)
    with damage_as_usage_error(path_):
        return graph_of(model, path_.parent, fixed or {}, ranges, defaults, sizes or {})


@contextmanager
def damage_as_usage_error(path: Path) -> Iterator[None]:
    """UsageError in place of whatever a damaged file makes its reader raise."""
    try:
        yield
    except (
        TypeError,
        ValueError,
        AttributeError,
        IndexError,
        KeyError,
        OverflowError,
        MemoryError,
        RecursionError,
    ) as error:
        raise UsageError(f"{path} is damaged: {type(error).__name__}: {error}") from error


def graph_of(
    model: Any,
    folder: Path | None,
    fixed: Mapping[str, Any],
    ranges: Ranges | None = None,
    defaults: bool = True,
    sizes: Mapping[str, int] | None = None,
) -> Graph:
    """The graph of a ModelProto; arguments and errors as of ``read``."""

    def with_inputs(chosen: Mapping[str, Any]) -> Graph:
        return _graph_with(model, folder, fixed, ranges, chosen, sizes or {})

    return with_defaults(model, fixed, with_inputs) if defaults else with_inputs({})


def _graph_with(
    model: Any,
    folder: Path | None,
    fixed: Mapping[str, Any],
    ranges: Ranges | None,
    defaults: Mapping[str, Any],
    sizes: Mapping[str, int],
) -> Graph:
    """``defaults``: initializers that are inputs of the graph; with ``sizes`` a request gives these inputs, too."""
    own = {key_of(function): function for function in model.functions}
    opset = opset_of(model.opset_import, "model")
    _refuse_unknown(model.graph, opset, own)
    reader = Reader(ConstantFolding(), folder, own)
    names: dict[str, str] = {}
    weights = {item.name for item in model.graph.initializer} | {item.values.name for item in model.graph.sparse_initializer}
    for name, value in fixed.items():
        names[name] = reader.g.constant(np.asarray(value), name=name)
    for item in model.graph.input:
        if item.name not in fixed and (item.name not in weights or item.name in defaults):
            names[item.name] = graph_input(reader.g, item, sizes)
    for name, value in defaults.items() if not sizes else ():
        reader.g.defaults[name] = _default(reader.g, name, array_of(value, folder))
    if ranges is not None:
        reader.ranges = ranges({name: reader.g.types[name] for name in reader.g.inputs})
        reader.g.ranges = reader.ranges
    reader.run(model.graph, names, opset, 0)
    missing = [item.name for item in model.graph.output if item.name not in names]
    if missing:
        raise UsageError(f"outputs {', '.join(missing)} are made by no node")
    for entry in model.graph.output:
        if entry.type.tensor_type.elem_type in NARROW:
            raise UsageError(
                f"output {entry.name} is of type {NARROW[entry.type.tensor_type.elem_type].name}, which no array has; "
                "export the model with a Cast or DequantizeLinear behind it"
            )
    outputs = [item.name for item in model.graph.output]
    if len(set(outputs)) < len(outputs):
        raise UsageError(f"output {next(output for output in outputs if outputs.count(output) > 1)} is listed twice")
    return finished(reader.g, [(name, names[name]) for name in outputs])


def graph_input(g: ConstantFolding, value: Any, sizes: Mapping[str, int]) -> str:
    """Input of a graph for a ValueInfoProto. UsageError where it is no tensor of a fixed number of axes."""
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        raise UsageError(f"input {value.name}: a {kind or 'value without type'}; only tensors are read")
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        raise UsageError(f"input {value.name}: its number of axes is not fixed; export the model with a fixed rank")
    if len(tensor.shape.dim) > LARGEST_RANK:
        raise UsageError(f"input {value.name}: {len(tensor.shape.dim)} axes; at most {LARGEST_RANK} are read")
    shape = [_extent(value.name, index, dim) for index, dim in enumerate(tensor.shape.dim)]
    shape = [sizes.get(str(extent), extent) for extent in shape]
    return g.input(value.name, shape, dtype_of_onnx(tensor.elem_type, f"input {value.name}"))


def _default(g: ConstantFolding, name: str, value: Any) -> Any:
    """The value of an input that a request may leave out. UsageError where the input's type is another one."""
    kind = g.types[name]
    fits = value.ndim == kind.rank and all(
        extent == size or not isinstance(extent, int) for extent, size in zip(kind.shape, value.shape, strict=False)
    )
    if not fits or numpy_dtype(kind.dtype) != value.dtype:
        raise UsageError(f"input {name} is {kind}, and its initializer {value.dtype}{list(value.shape)}")
    return value


def _extent(tensor: str, index: int, dim: Any) -> Extent:
    """A dimension's own name where it is one, else one made of the input's name and the axis."""
    if dim.WhichOneof("value") == "dim_value" and dim.dim_value >= 0:
        return int(dim.dim_value)
    named = dimension_name(dim.dim_param)
    if named:
        return dimension(named)
    stem = re.sub(r"\W", "_", tensor, flags=re.ASCII)[:60] or "input"
    return dimension(f"{'' if stem[0].isalpha() or stem[0] == '_' else '_'}{stem}_{index}")


def _refuse_unknown(graph: Any, opset: int, own: Mapping[Key, Any]) -> None:
    """UsageError with every operator that has no rule: how often, and where."""
    where = unknown_operators(graph.node, opset, own)
    for body in own.values():
        for name, nodes in _unknown_in_body(body, opset, own).items():
            where.setdefault(name, []).extend(nodes)
    refuse(
        where, "Export the model without them, or take these nodes out of it; `haotuner tune --subgraphs` serves the rest"
    )


def unknown_operators(nodes: Iterable[Any], opset: int, own: Mapping[Key, Any], depth: int = 0) -> dict[str, list[str]]:
    """Operators without a rule that nodes call, graphs inside of them included, each with the names of its nodes.

    ``own``: the model's functions. UsageError for graphs nested too deep.
    """
    if depth > DEEPEST:
        raise UsageError(f"graphs nested more than {DEEPEST} deep")
    where: dict[str, list[str]] = defaultdict(list)
    for number, node in enumerate(nodes):
        known = node.domain in MAIN and node.op_type in ("Constant", "If", *_LOOPS)
        if not known and rule_of(node.domain, node.op_type) is None and not can_be_taken_apart(node, opset, own):
            name = f"{node.domain}.{node.op_type}" if node.domain not in MAIN else node.op_type
            where[name].append(node.name or f"node {number}")
        for item in node.attribute:
            if item.HasField("g") and known:
                for name, inner in unknown_operators(item.g.node, opset, own, depth + 1).items():
                    where[name] += inner
    return where


def _unknown_in_body(body: Any, opset: int, own: Mapping[Key, Any]) -> dict[str, list[str]]:
    version = opset_of(body.opset_import, f"function {body.name}") if body.opset_import else opset
    return unknown_operators(body.node, version, own, 1)


@dataclass(slots=True)
class Reader:
    """Walks graphs and bodies of functions; all build one graph."""

    g: ConstantFolding
    folder: Path | None
    own: Mapping[Key, Any]
    nodes: int = 0
    turns: int = 1  # of loops that are being written out
    ranges: Mapping[str, Span] = field(default_factory=dict)
    branches: dict[str, Any] = field(default_factory=dict)  # of those that a request decides, what is the same of equal ones
    splits: int = 0

    def run(self, graph: Any, names: MutableMapping[str, str], opset: int, depth: int) -> None:
        """All nodes of a graph; ``names``: tensors of the file -> of the builder."""
        for item in graph.initializer:
            if item.name not in names:
                names[item.name] = self._stored_tensor(item, item.name)
        for sparse in graph.sparse_initializer:
            if sparse.values.name not in names:
                names[sparse.values.name] = self._sparse_tensor(sparse, sparse.values.name)
        self.walk(graph.node, names, [item.name for item in graph.output], opset, depth)

    def walk(
        self, nodes: Sequence[Any], names: MutableMapping[str, str], required: Sequence[str], opset: int, depth: int
    ) -> None:
        """Nodes one after the other, up to the ``required`` results."""
        left, position = list(nodes), 0
        while position < len(left):
            left[position : position + 1] = by_sizes(self.g, left[position], names, opset) or [left[position]]
            if self._node(left[position], names, Rest(left[position + 1 :], required), opset, depth):
                return
            position += 1

    def _node(self, node: Any, names: MutableMapping[str, str], rest: Rest, opset: int, depth: int) -> bool:
        """One node; whether the rest was read, too. UsageError names it."""
        self.nodes += 1
        if depth > DEEPEST or self.nodes > MOST_NODES:
            raise UsageError(f"more than {DEEPEST} bodies inside each other, or than {MOST_NODES} nodes in all")
        unknown = [item for item in node.input if item and item not in names]
        what = f"node {node.name or node.output[0] if node.output else '?'} ({node.op_type})"
        if unknown:
            raise UsageError(f"{what} reads {unknown[0]!r}, which no node before it makes: a cycle, or out of order")
        twice = [item for item in node.output if item and item in names]
        if twice:
            raise UsageError(f"{what} makes {twice[0]!r}, which is made already")
        inputs = tuple(names[item] if item else None for item in node.input)
        try:
            refuse_sequences(self.g, node.op_type, inputs)
            if node.domain in MAIN and node.op_type == "If":
                branches = branched(self, node, inputs, names, rest, opset, depth)
                if branches is None:
                    return True
                result: Sequence[str] = branches
            elif node.domain in MAIN and node.op_type in _LOOPS:
                result = list(_LOOPS[node.op_type](self, node, inputs, names, opset, depth))
            else:
                result = self._results(node, inputs, opset, depth)
        except UsageError as error:
            raise (error if str(error).startswith("node ") else UsageError(f"{what}: {error}")) from error
        except (IndexError, KeyError, ValueError, TypeError, ZeroDivisionError, OverflowError, StopIteration) as error:
            raise UsageError(f"{what}: its inputs or attributes do not fit it ({type(error).__name__}: {error})") from error
        for index, item in enumerate(node.output):
            if item:
                if index >= len(result) or not result[index]:
                    raise UsageError(f"{what}: output {item!r} has no rule")
                names[item] = result[index]
        return False

    def _results(self, node: Any, inputs: tuple[str | None, ...], opset: int, depth: int) -> Sequence[str]:
        if node.domain in MAIN and node.op_type == "Constant":
            return [self._constant(node)]
        requested = max((index + 1 for index, item in enumerate(node.output) if item), default=0)
        odd = misfit(node, opset) if node.domain in MAIN and key_of(node) not in self.own else ""
        if odd:
            raise UsageError(odd)
        rule = rule_of(node.domain, node.op_type)
        if rule is not None and key_of(node) not in self.own:
            attributes = {item.name: self._attribute(item) for item in node.attribute}
            result = rule(NodeContext(self.g, node.op_type, inputs, attributes, opset, requested))
            return [result] if isinstance(result, str) else result
        body = body_of(node, opset, [None if operand is None else self.g.types[operand] for operand in inputs], self.own)
        if body is None:
            raise UsageError("no rule, and with these inputs no definition by other operators")
        arguments = defaults_of(node, opset) | {item.name: item for item in (*body.attribute_proto, *node.attribute)}
        inner = {name: operand for name, operand in zip(body.input, inputs, strict=False) if operand is not None}
        version = opset_of(body.opset_import, f"function {body.name}") if body.opset_import else opset
        left_out = set(body.input) - set(inner)
        nodes = []
        for item in body.node:
            whole = filled_in(item, arguments)
            if left_out & set(whole.input):
                whole = onnx_library().NodeProto.FromString(whole.SerializeToString())
                selected = ["" if name in left_out else name for name in whole.input]
                del whole.input[:]
                whole.input.extend(selected)
            nodes.append(whole)
        self.walk(nodes, inner, list(body.output), version, depth + 1)
        return [inner.get(name, "") for name in body.output[:requested]]

    def _constant(self, node: Any) -> str:
        result = next((item for item in node.attribute if item.name in _CONSTANTS), None)
        if result is None:
            raise UsageError(f"a constant given by {', '.join(item.name for item in node.attribute)}; expected numbers")
        if result.HasField("sparse_tensor"):
            return self._sparse_tensor(result.sparse_tensor, node.output[0])
        if result.HasField("t"):
            return self._stored_tensor(result.t, node.output[0])
        value = self._attribute(result)
        kind = None if result.name == "value" else np.float32 if "float" in result.name else np.int64
        return self.g.constant(np.asarray(value, kind), name=node.output[0])

    def _stored_tensor(self, tensor: Any, name: str) -> str:
        """A tensor of the file."""
        return self._constant_of(array_of(tensor, self.folder), tensor.data_type, name)

    def _sparse_tensor(self, tensor: Any, name: str) -> str:
        return self._constant_of(dense_array(tensor, self.folder), tensor.values.data_type, name)

    def _constant_of(self, array: Any, data_type: int, name: str) -> str:
        made = self.g.constant(array, name=name)
        if data_type in NARROW:
            self.g.narrow[made] = NARROW[data_type]
        return made

    def _attribute(self, number: Any) -> Any:
        value = onnx_library().helper.get_attribute_value(number)
        if isinstance(value, bytes):
            return value.decode("utf-8", "replace")
        if number.HasField("t"):
            return array_of(value, self.folder)
        if isinstance(value, list) or hasattr(value, "__len__"):
            return [part.decode("utf-8", "replace") if isinstance(part, bytes) else part for part in value]
        return value


def _refuse_absurd(graph: Graph) -> None:
    """UsageError where some extent is negative, or too large, whatever the request's sizes are."""
    bounds: dict[Extent, Interval | None] = {}
    for node in graph.nodes:
        if graph.guards.get(node.output):
            continue  # of a side of a branch, which no request may take
        for extent in graph.types[node.output].shape:
            if extent not in bounds:
                bounds[extent] = interval_of(extent, dict.fromkeys(dimensions(extent), ANY))
            bound = bounds[extent]
            if bound is not None and (bound.high < 0 or bound.low > LARGEST_EXTENT):
                size = "negative" if bound.high < 0 else f"more than {LARGEST_EXTENT}"
                raise UsageError(
                    f"tensor {node.output}: an extent of {shown(extent)} is {size} at any request; correct the model's sizes"
                )


def finished(g: ConstantFolding, outputs: Sequence[tuple[str, str]]) -> Graph:
    """The graph with the file's names for its outputs."""
    if not outputs:
        raise UsageError("the model has no outputs: nothing would be computed; export it with what it should answer")
    tables_of_bytes(g)
    chosen: list[tuple[str, str]] = []
    for name, tensor in outputs:
        if tensor in g.sequences:
            raise UsageError(
                f"output {name} is a sequence or an empty optional, which no array is; export the model with its tensors "
                "as outputs, or with ConcatFromSequence behind it"
            )
        plain = g._nodes_of(tensor)
        taken = plain in g.inputs or plain in [item for _, item in chosen]
        if plain in g.constants or (taken and plain != name):
            plain = g.plain("reshape", plain, shape=g.types[plain].shape)
        chosen.append((name, plain))
    new: dict[str, str] = {tensor: name for name, tensor in chosen}
    for name, tensor in chosen:
        if name in g.types and name != tensor and name not in new:
            new[name] = g._free(f"{name}_inner")
    whole = with_read_shapes(g, GraphBuilder.finish(g, *(tensor for _, tensor in chosen)))
    graph = dequantised_by_rows(scaled_weights(whole))
    _refuse_absurd(graph)
    for node in graph.nodes:
        extents = [extent for extent in graph.types[node.output].shape if isinstance(extent, int)]
        if node.primitive != "window" and math.prod(extents) > MOST_ELEMENTS:  # windows are views
            raise UsageError(f"tensor {node.output}: {extents} are more than {MOST_ELEMENTS} elements at any request")
    return renamed(graph, lambda name: new.get(name, name))
