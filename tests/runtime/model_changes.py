"""Changes of ONNX models and of what they are fed with, drawn from a seed: what a hostile or careless file may say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from haotuner.graph.extents import evaluate
from haotuner.graph.graph import Graph
from haotuner.graph.types import numpy_dtype

WHOLE = (-(2**63), -(2**31), -100, -7, -3, -2, -1, 0, 1, 2, 3, 4, 7, 64, 1000, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1)
REAL = (float("nan"), float("inf"), float("-inf"), 0.0, -0.0, -1.0, 1e-40, 1e38, 0.5, 2.0)
TEXTS = (b"", b"SAME_UPPER", b"linear", b"cubic", b"reflect", b"edge", b"wrap", b"%s%n", b"max", b"nearest", b"x" * 5000)
OTHER_OPS = ("Add", "Mul", "Relu", "Softmax", "Transpose", "Reshape", "Gather", "Concat", "ReduceSum", "Pad", "Slice",
             "TopK", "Conv", "MatMul", "Cast", "Identity", "Expand", "Where", "CumSum", "ScatterND", "Tile")  # fmt: skip
SIZES = (0, 1, 2, 3, 5, 8)
Draw = np.random.Generator


def pick(draw: Draw, values: Any) -> Any:
    """One of a sequence."""
    return values[int(draw.integers(len(values)))]


def made_symbolic(model: Any, draw: Draw) -> None:
    """Some extents of inputs become dimensions, those of one size the same one; what is said of results is forgotten."""
    names: dict[int, str] = {}
    for info in model.graph.input:
        for dim in info.type.tensor_type.shape.dim:
            if dim.WhichOneof("value") == "dim_value" and draw.random() < 0.6:
                dim.dim_param = names.setdefault(dim.dim_value, f"n{len(names)}")
    for info in model.graph.output:
        info.type.tensor_type.ClearField("shape")


def changed(model: Any, draw: Draw, arrays: Mapping[str, Any]) -> Any:
    """A copy of a model with up to three changes. ``arrays``: arrays that an input may be replaced with."""
    mutant = type(model)()
    mutant.CopyFrom(model)
    if draw.random() < 0.7:
        made_symbolic(mutant, draw)
    for _ in range(int(draw.integers(0, 4))):
        pick(draw, _CHANGES)(mutant, draw, arrays)
    return mutant


def _node(model: Any, draw: Draw) -> Any:
    return pick(draw, model.graph.node) if model.graph.node else None


def _attribute(model: Any, draw: Draw, arrays: Any) -> None:
    node = _node(model, draw)
    if node is None or not node.attribute:
        return
    attribute = pick(draw, node.attribute)
    if attribute.type == attribute.INT:
        attribute.i = pick(draw, WHOLE)
    elif attribute.type == attribute.FLOAT:
        attribute.f = pick(draw, REAL)
    elif attribute.type == attribute.STRING:
        attribute.s = pick(draw, TEXTS)
    elif attribute.type == attribute.INTS and attribute.ints:
        what = draw.integers(4)
        if what == 0:
            del attribute.ints[int(draw.integers(len(attribute.ints)))]
        elif what == 1:
            attribute.ints.append(pick(draw, WHOLE))
        else:
            attribute.ints[int(draw.integers(len(attribute.ints)))] = (
                pick(draw, WHOLE) if what == 2 else int(draw.integers(-2, 5))
            )
    elif attribute.type == attribute.FLOATS and attribute.floats:
        attribute.floats[int(draw.integers(len(attribute.floats)))] = pick(draw, REAL)
    elif attribute.type == attribute.GRAPH and attribute.g.node:
        del attribute.g.node[int(draw.integers(len(attribute.g.node)))]


def _less_attributes(model: Any, draw: Draw, arrays: Any) -> None:
    node = _node(model, draw)
    if node is not None and node.attribute:
        del node.attribute[int(draw.integers(len(node.attribute)))]


def _extent(model: Any, draw: Draw, arrays: Any) -> None:
    dims = [dim for info in model.graph.input for dim in info.type.tensor_type.shape.dim]
    if dims:
        pick(draw, dims).dim_value = pick(draw, (*WHOLE, *SIZES, *SIZES))


def _rank(model: Any, draw: Draw, arrays: Any) -> None:
    if model.graph.input:
        shape = pick(draw, model.graph.input).type.tensor_type.shape
        if shape.dim and draw.random() < 0.5:
            del shape.dim[int(draw.integers(len(shape.dim)))]
        else:
            shape.dim.add().dim_value = pick(draw, SIZES)


def _wires(model: Any, draw: Draw, arrays: Any) -> None:
    """An input becomes any other tensor, of a later node, too: a cycle."""
    node = _node(model, draw)
    names = ["", *(info.name for info in model.graph.input), *(name for node in model.graph.node for name in node.output)]
    if node is not None and node.input:
        node.input[int(draw.integers(len(node.input)))] = pick(draw, names)


def _operator(model: Any, draw: Draw, arrays: Any) -> None:
    node = _node(model, draw)
    if node is not None:
        node.op_type = pick(draw, OTHER_OPS)
        if draw.random() < 0.5:
            del node.attribute[:]


def _held(model: Any, draw: Draw, arrays: Mapping[str, Any]) -> None:
    """An input becomes a constant, some of whose elements are odd."""
    from onnx import numpy_helper

    known = [info for info in model.graph.input if info.name in arrays]
    if not known:
        return
    info = pick(draw, known)
    value = np.array(arrays[info.name])
    if value.size and value.dtype.kind in "iuf" and draw.random() < 0.7:
        odd = pick(draw, REAL if value.dtype.kind == "f" else WHOLE)
        with np.errstate(all="ignore"):
            value.reshape(-1)[int(draw.integers(value.size))] = np.array(odd).astype(value.dtype)
    model.graph.initializer.append(numpy_helper.from_array(value, info.name))
    model.graph.input.remove(info)


def _weights(model: Any, draw: Draw, arrays: Any) -> None:
    """What a tensor says of itself: its extents, its type, bytes that it lacks, a file that it lies in."""
    if not model.graph.initializer:
        return
    tensor = pick(draw, model.graph.initializer)
    what = draw.integers(5)
    if what == 0 and tensor.dims:
        tensor.dims[int(draw.integers(len(tensor.dims)))] = pick(draw, WHOLE)
    elif what == 1:
        tensor.data_type = int(draw.integers(0, 30))
    elif what == 2:
        tensor.raw_data = tensor.raw_data[: int(draw.integers(0, len(tensor.raw_data) + 1))]
    elif what == 3:
        tensor.dims.append(pick(draw, (0, 1, 2)))
    else:
        tensor.data_location = 1
        for key, value in (("location", pick(draw, ("../x", "/etc/passwd", "w", ""))), ("offset", str(pick(draw, WHOLE)))):
            more = tensor.external_data.add()
            more.key, more.value = key, value


def _element_type(model: Any, draw: Draw, arrays: Any) -> None:
    if model.graph.input:
        pick(draw, model.graph.input).type.tensor_type.elem_type = int(pick(draw, (1, 1, 2, 3, 6, 7, 9, 10, 16, 8, 0, 99)))


def _opset(model: Any, draw: Draw, arrays: Any) -> None:
    for opset in model.opset_import:
        opset.version = int(pick(draw, (1, 7, 11, 13, 17, 18, 20, 21, 23, 99)))


def _less_nodes(model: Any, draw: Draw, arrays: Any) -> None:
    if model.graph.node:
        del model.graph.node[int(draw.integers(len(model.graph.node)))]


def _nested(model: Any, draw: Draw, arrays: Any) -> None:
    """Branches within branches, as deep as drawn."""
    graph = type(model.graph)()
    graph.CopyFrom(model.graph)
    del graph.input[:], graph.initializer[:]
    names = [output.name for output in graph.output]
    for _ in range(int(pick(draw, (1, 3, 12, 25)))):
        outer = type(graph)()
        node = outer.node.add(op_type="If", input=["chosen"], output=names)
        for branch in ("then_branch", "else_branch"):
            node.attribute.add(name=branch, type=5).g.CopyFrom(graph if branch == "then_branch" else model.graph)
        del node.attribute[1].g.input[:]
        for output in graph.output:
            outer.output.add().CopyFrom(output)
        outer.name = "deeper"
        if outer.ByteSize() > 1 << 20:
            break
        graph = outer
    try:
        model.graph.node.extend(graph.node)
    except Exception:  # protobuf's own class: deeper than it reads, which no file can be then
        return
    del model.graph.node[: len(model.graph.node) - len(graph.node)]
    kind = model.graph.input.add(name="chosen").type.tensor_type
    kind.elem_type = 9
    kind.shape.SetInParent()


_CHANGES = (_attribute, _attribute, _attribute, _less_attributes, _extent, _rank, _wires, _wires, _operator, _held, _held,
            _held, _weights, _element_type, _opset, _less_nodes, _nested)  # fmt: skip


def fed(graph: Graph, draw: Draw, arrays: Mapping[str, Any], *, tame: bool) -> dict[str, Any]:
    """Arrays for the inputs of a graph, at drawn sizes; those of ``arrays`` where their shapes fit. MemoryError: too large.

    ``tame``: small numbers; else there are indices out of range, NaN, infinities and what no sum holds among them.
    """
    dims = {name: int(pick(draw, SIZES)) for name in graph.dimensions}
    feed: dict[str, Any] = {}
    for name in graph.inputs:
        kind = graph.types[name]
        shape = tuple(int(evaluate(extent, dims)) for extent in kind.shape)
        dtype = numpy_dtype(kind.dtype)
        if int(np.prod([max(extent, 0) for extent in shape], dtype=object)) > 1 << 20:
            raise MemoryError
        known = arrays.get(name)
        if known is not None and np.shape(known) == shape and np.asarray(known).dtype == dtype:
            value = np.array(known)
        elif dtype.kind in "fV":
            value = (draw.standard_normal(shape) * 2).astype(dtype)
        elif dtype.kind == "b":
            value = draw.random(shape) < 0.5
        else:
            value = draw.integers(0, 4, shape).astype(dtype)
        if not tame and value.size and dtype.kind in "iuf":
            places = draw.integers(value.size, size=max(1, value.size // 4))
            odd = np.array([pick(draw, REAL if dtype.kind == "f" else WHOLE) for _ in places])
            with np.errstate(all="ignore"):
                value.reshape(-1)[places] = odd.astype(dtype)
        feed[name] = value
    return feed
