"""Rules of norms and softmax, decomposed into primitives."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from haotuner.frontends.onnx.layout import reshaped
from haotuner.frontends.onnx.node_context import NodeContext, Rule
from haotuner.graph import decompositions
from haotuner.graph.extents import canonical, floor_division, product


def _rows(make: Callable[[NodeContext, str, int], str]) -> Rule:
    """Along one axis; before opset 13 over all axes from it on."""

    def rule(c: NodeContext) -> str:
        if c.opset >= 13:
            return make(c, c.tensor(0), c.axis(c.attribute("axis", -1)))
        axis, shape = c.axis(c.attribute("axis", 1)), c.shape()
        flat = reshaped(c, c.tensor(0), (product(shape[:axis]), product(shape[axis:])))
        return reshaped(c, make(c, flat, 1), shape)

    return rule


def _hardmax(c: NodeContext, x: str, axis: int) -> str:
    """1 at the first of the largest."""
    shape = c.g.types[x].shape
    position = c.g.add("arg_reduce", x, how="max", axis=axis, keepdims=True)
    own = reshaped(c, c.g.add("iota", extent=shape[axis], dtype="int64"), (shape[axis], *[1] * (len(shape) - 1 - axis)))
    return c.g.add("cast", c.g.map("equal", own, position), dtype=c.g.types[x].dtype)


def _along(c: NodeContext, x: str, rank: int) -> str:
    """One number a channel, for images of this rank."""
    return reshaped(c, x, (c.g.types[x].shape[0], *[1] * (rank - 2)))


def _batch_norm(c: NodeContext) -> str:
    """By the means and variances of training."""
    if c.attribute("training_mode", 0):
        raise c.bad("training mode; export the model for inference")
    rank, dtype = c.type().rank, c.type().dtype
    scale, bias, mean, variance = (c.tensor(index) for index in (1, 2, 3, 4))
    factor = c.g.map("mul", scale, c.g.map("rsqrt", c.g.map("add", variance, c.attribute("epsilon", 1e-5))))
    shift = c.g.map("sub", bias, c.g.map("mul", mean, factor))
    factor, shift = (c.g.cast(_along(c, item, rank), dtype) for item in (factor, shift))
    return c.g.map("add", c.g.map("mul", c.tensor(0), factor), shift)


def _instance_norm(c: NodeContext) -> str:
    rank = c.type().rank
    normal = decompositions.normalise(c.g, c.tensor(0), tuple(range(2, rank)), c.attribute("epsilon", 1e-5))
    return decompositions.affine(c.g, normal, _along(c, c.tensor(1), rank), _along(c, c.tensor(2), rank))


def _group_norm(c: NodeContext) -> str:
    shape, groups = c.shape(), c.required("num_groups")
    own = (shape[0], groups, canonical(floor_division(product(shape[1:]), groups)))
    normal = decompositions.normalise(c.g, reshaped(c, c.tensor(0), own), (2,), c.attribute("epsilon", 1e-5))
    scale, bias = c.tensor(1), c.tensor(2)
    if c.opset < 21:  # one a group
        each = floor_division(shape[1], groups)
        wide = [c.g.add("broadcast", reshaped(c, item, (groups, 1)), shape=(groups, each)) for item in (scale, bias)]
        scale, bias = (reshaped(c, item, (shape[1],)) for item in wide)
    return decompositions.affine(c.g, reshaped(c, normal, shape), *(_along(c, item, len(shape)) for item in (scale, bias)))


def _layer_norm(c: NodeContext) -> list[str]:
    axes = tuple(range(c.axis(c.attribute("axis", -1)), c.type().rank))
    x, eps = c.tensor(0), c.attribute("epsilon", 1e-5)
    if c.outputs < 2:
        return [decompositions.affine(c.g, decompositions.normalise(c.g, x, axes, eps), c.tensor(1), c.maybe(2))]
    middle = decompositions.mean(c.g, x, axes)
    moved = c.g.map("sub", x, middle)
    variance = decompositions.mean(c.g, c.g.map("mul", moved, moved), axes)
    inverse = c.g.map("rsqrt", c.g.map("add", variance, eps))
    result = decompositions.affine(c.g, c.g.map("mul", moved, inverse), c.tensor(1), c.maybe(2))
    return [result, middle, inverse]


def _rms_norm(c: NodeContext) -> str:
    axes = tuple(range(c.axis(c.attribute("axis", -1)), c.type().rank))
    return c.g.map("mul", decompositions.rms_normalise(c.g, c.tensor(0), axes, c.attribute("epsilon", 1e-5)), c.tensor(1))


def _local_response(c: NodeContext) -> str:
    """Lrn: squares of neighbouring channels."""
    size, rank = c.required("size"), c.type().rank
    low, high = (size - 1) // 2, size - 1 - (size - 1) // 2
    squares = c.g.map("mul", c.tensor(0), c.tensor(0))
    widths = [(low, high) if index == 1 else (0, 0) for index in range(rank)]
    squares = c.g.add(
        "pad",
        squares,
        before=tuple(low for low, _ in widths),
        after=tuple(high for _, high in widths),
        mode="constant",
        value=0.0,
    )
    slid = c.g.add("window", squares, axes=(1,), sizes=(size,), strides=(1,), dilations=(1,))
    total = c.g.add("reduce", slid, how="sum", axes=(rank,), keepdims=False)
    scaled = c.g.map("add", c.g.map("mul", total, c.attribute("alpha", 1e-4) / size), c.attribute("bias", 1.0))
    return c.g.map("div", c.tensor(0), c.g.map("pow", scaled, c.attribute("beta", 0.75)))


def _mean_variance(c: NodeContext) -> str:
    axes = tuple(c.axis(axis) for axis in c.attribute("axes", [0, 2, 3]))
    moved = c.g.map("sub", c.tensor(0), decompositions.mean(c.g, c.tensor(0), axes))
    deviation = c.g.map("sqrt", decompositions.mean(c.g, c.g.map("mul", moved, moved), axes))
    return c.g.map("div", moved, c.g.map("add", deviation, 1e-9))


def _lp_norm(c: NodeContext) -> str:
    """Divided by its own length; nothing stays nothing."""
    axis, p, x = c.axis(c.attribute("axis", -1)), c.attribute("p", 2), c.tensor(0)
    if p not in (1, 2):
        raise c.bad(f"p={p}; it must be 1 or 2")
    size = c.g.map("abs", x) if p == 1 else c.g.map("mul", x, x)
    total = c.g.add("reduce", size, how="sum", axes=(axis,), keepdims=True)
    length = total if p == 1 else c.g.map("sqrt", total)
    return c.g.map("select", c.g.map("equal", length, 0), 0, c.g.map("div", x, length))


NORMS: Mapping[str, Rule] = {
    "Softmax": _rows(lambda c, x, axis: decompositions.softmax(c.g, x, axis)),
    "LogSoftmax": _rows(lambda c, x, axis: decompositions.log_softmax(c.g, x, axis)),
    "Hardmax": _rows(_hardmax),
    "BatchNormalization": _batch_norm,
    "InstanceNormalization": _instance_norm,
    "GroupNormalization": _group_norm,
    "LayerNormalization": _layer_norm,
    "RMSNormalization": _rms_norm,
    "SimplifiedLayerNormalization": _rms_norm,  # ONNX Runtime's name
    "LRN": _local_response,
    "MeanVarianceNormalization": _mean_variance,
    "LpNormalization": _lp_norm,
}
