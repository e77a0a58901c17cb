"""Rules of reductions, norms and softmax, decomposed into primitives."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from haotuner.frontends.onnx.layout import cut, reshaped
from haotuner.frontends.onnx.node_context import NodeContext, Rule
from haotuner.graph import decompositions
from haotuner.graph.extents import canonical, floor_division, product


def _reduced(c: NodeContext, how: str, x: str) -> str:
    axes = _axes(c)
    if axes is None:
        return x
    return c.g.add("reduce", x, how=how, axes=axes, keepdims=bool(c.attribute("keepdims", 1)))


def _axes(c: NodeContext) -> tuple[int, ...] | None:
    """The axes; None: reduce nothing."""
    result = c.settings("axes", 1)
    if result:
        return tuple(c.axis(axis) for axis in result)
    return None if c.attribute("noop_with_empty_axes", 0) else tuple(range(c.type().rank))


def _how(how: str) -> Rule:
    return lambda c: _reduced(c, how, c.tensor(0))


def _mean(c: NodeContext) -> str:
    axes = _axes(c)
    if axes is None:
        return c.tensor(0)
    return decompositions.mean(c.g, c.tensor(0), axes, keepdims=bool(c.attribute("keepdims", 1)))


def _square(c: NodeContext) -> str:
    return c.g.map("mul", c.tensor(0), c.tensor(0))


def _log_sum_exp(c: NodeContext) -> str:
    """The largest is taken out first; where it is infinite there is nothing to take out."""
    axes, x, keep = _axes(c), c.tensor(0), bool(c.attribute("keepdims", 1))
    if axes is None:
        return x
    top = c.g.add("reduce", x, how="max", axes=axes, keepdims=True)
    top = c.g.map("select", c.g.map("isinf", top), 0, top)
    total = c.g.add("reduce", c.g.map("exp", c.g.map("sub", x, top)), how="sum", axes=axes, keepdims=keep)
    keepdims = top if keep else c.g.add("reduce", top, how="max", axes=axes, keepdims=False)
    return c.g.map("add", c.g.map("log", total), keepdims)


def _arg(how: str) -> Rule:
    return lambda c: c.g.add(
        "arg_reduce",
        c.tensor(0),
        how=how,
        axis=c.axis(c.attribute("axis", 0)),
        keepdims=bool(c.attribute("keepdims", 1)),
        last=bool(c.attribute("select_last_index", 0)),
    )


def _cumulative(how: str, first: int) -> Rule:
    """A scan; with ``exclusive`` the own element is left out: moved by one, after ``first``."""

    def rule(c: NodeContext) -> str:
        axis, rank = c.axis(c.whole(1)[0]), c.type().rank
        x = _transposed(c, c.tensor(0), axis) if c.attribute("reverse", 0) else c.tensor(0)
        if c.attribute("exclusive", 0):
            widths = [1 if index == axis else 0 for index in range(rank)]
            x = c.g.add("pad", x, before=tuple(widths), after=(0,) * rank, mode="constant", value=first)
            x = cut(c, x, axis, 0, c.shape()[axis])
        result = c.g.add("scan", x, how=how, axis=axis)
        return _transposed(c, result, axis) if c.attribute("reverse", 0) else result

    return rule


def _transposed(c: NodeContext, x: str, axis: int) -> str:
    return c.g.add("slice", x, axes=(axis,), starts=(c.g.types[x].shape[axis] - 1,), stops=(-1,), steps=(-1,))


REDUCTIONS: Mapping[str, Rule] = {
    **{f"Reduce{name}": _how(how) for name, how in {"Sum": "sum", "Max": "max", "Min": "min", "Prod": "prod"}.items()},
    "ReduceMean": _mean,
    "ReduceL1": lambda c: _reduced(c, "sum", c.g.map("abs", c.tensor(0))),
    "ReduceL2": lambda c: c.g.map("sqrt", _reduced(c, "sum", _square(c))),
    "ReduceSumSquare": lambda c: _reduced(c, "sum", _square(c)),
    "ReduceLogSum": lambda c: c.g.map("log", _reduced(c, "sum", c.tensor(0))),
    "ReduceLogSumExp": _log_sum_exp,
    "ArgMax": _arg("max"),
    "ArgMin": _arg("min"),
    "CumSum": _cumulative("sum", 0),
    "CumProd": _cumulative("prod", 1),
}


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
