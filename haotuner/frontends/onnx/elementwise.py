"""Rules of element-wise operators."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import numpy as np

from haotuner.frontends.onnx.node_context import NodeContext, Rule
from haotuner.frontends.onnx.types import NARROW, dtype_of_onnx, nearest, wrapped
from haotuner.graph import decompositions
from haotuner.graph.types import FLOATS, numpy_dtype


def _direct(function: str) -> Rule:
    def rule(c: NodeContext) -> str:
        if c.attribute("broadcast", 0):
            raise c.bad("broadcast=1, as opset 6 and older have it; export the model again")
        return c.g.map(function, *(c.tensor(index) for index in range(len(c.inputs))))

    return rule


def _folded(function: str) -> Rule:
    return lambda c: reduce(
        lambda item, other: c.g.map(function, item, other), [c.tensor(index) for index in range(len(c.inputs))]
    )


def _mean(c: NodeContext) -> str:
    return c.g.map("div", str(_folded("add")(c)), float(len(c.inputs)))


def _pow(c: NodeContext) -> str:
    base, exponent = c.tensor(0), c.tensor(1)
    kind = c.type(0).dtype
    known = c.g.known(exponent) if kind == "fp32" and c.type(1).dtype != kind else None
    if known is not None and np.all(np.float32(known) == known):
        return c.g.map("pow", base, c.g.cast(exponent, kind))
    if c.type(1).dtype == kind:
        return c.g.map("pow", base, exponent)
    wide = [c.g.add("cast", item, dtype="fp64") for item in (base, exponent)]
    return c.g.add("cast", c.g.map("pow", *wide), dtype=kind)


def _mod(c: NodeContext) -> str:
    return c.g.map("fmod" if c.attribute("fmod", 0) else "mod", c.tensor(0), c.tensor(1))


def _relu(c: NodeContext) -> str:
    return c.g.map("max", c.tensor(0), 0)


def _leaky_relu(c: NodeContext) -> str:
    x = c.tensor(0)
    return c.g.map("select", c.g.map("less", x, 0), c.g.map("mul", x, c.attribute("alpha", 0.01)), x)


def _prelu(c: NodeContext) -> str:
    x = c.tensor(0)
    return c.g.map("select", c.g.map("less", x, 0), c.g.map("mul", x, c.tensor(1)), x)


def _less_one(c: NodeContext, x: str) -> str:
    """exp(x) - 1 of what is not positive."""
    return c.g.map("sub", c.g.map("exp", c.g.map("min", x, 0)), 1)


def _elu(c: NodeContext) -> str:
    x = c.tensor(0)
    low = c.g.map("mul", _less_one(c, x), c.attribute("alpha", 1.0))
    return c.g.map("select", c.g.map("less", x, 0), low, x)


def _celu(c: NodeContext) -> str:
    """Both parts of ONNX's text as they stand: where alpha is 0 or below, neither is known by the sign of x."""
    x, alpha = c.tensor(0), c.attribute("alpha", 1.0)
    low = c.g.map("mul", c.g.map("sub", c.g.map("exp", c.g.map("div", x, alpha)), 1), alpha)
    return c.g.map("add", c.g.map("max", x, 0), c.g.map("min", low, 0))


def _selu(c: NodeContext) -> str:
    x, alpha = c.tensor(0), c.attribute("alpha", 1.67326319217681884765625)
    low = c.g.map("mul", _less_one(c, x), alpha)
    return c.g.map("mul", c.g.map("select", c.g.map("less_equal", x, 0), low, x),
                   c.attribute("gamma", 1.05070102214813232421875))  # fmt: skip


def _hard_sigmoid(c: NodeContext) -> str:
    line = c.g.map("add", c.g.map("mul", c.tensor(0), c.attribute("alpha", 0.2)), c.attribute("beta", 0.5))
    return c.g.map("max", c.g.map("min", line, 1), 0)


def _hard_swish(c: NodeContext) -> str:
    line = c.g.map("add", c.g.map("mul", c.tensor(0), 1 / 6), 0.5)
    return c.g.map("mul", c.tensor(0), c.g.map("max", c.g.map("min", line, 1), 0))


def softplus(c: NodeContext, x: str) -> str:
    """log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|)), which does not overflow."""
    small = c.g.map("exp", c.g.map("neg", c.g.map("abs", x)))
    return c.g.map("add", c.g.map("max", x, 0), c.g.map("log1p", small))


def _mish(c: NodeContext) -> str:
    return c.g.map("mul", c.tensor(0), c.g.map("tanh", softplus(c, c.tensor(0))))


def _softsign(c: NodeContext) -> str:
    return c.g.map("div", c.tensor(0), c.g.map("add", c.g.map("abs", c.tensor(0)), 1))


def _gelu(c: NodeContext) -> str:
    if c.attribute("approximate", "none") == "tanh":
        return decompositions.gelu_tanh(c.g, c.tensor(0))
    return decompositions.gelu(c.g, c.tensor(0))


def _swish(c: NodeContext) -> str:
    scaled = c.g.map("mul", c.tensor(0), c.attribute("alpha", 1.0))
    return c.g.map("mul", c.tensor(0), c.g.map("sigmoid", scaled))


def _thresholded_relu(c: NodeContext) -> str:
    x = c.tensor(0)
    return c.g.map("select", c.g.map("greater", x, c.attribute("alpha", 1.0)), x, 0)


_SINGLE = float(np.finfo(np.float32).max)
# The farthest number of each type, by the opset from which Clip brings infinities there, as ONNX Runtime does.
_FARTHEST: Mapping[int, Mapping[str, float]] = {
    12: {"fp16": 65504.0, "bf16": 0xFF * 2.0**120, "fp32": _SINGLE, "fp64": float(np.finfo(np.float64).max)},
    11: {"fp32": _SINGLE, "fp64": float(np.finfo(np.float64).max)},
    6: {"fp32": _SINGLE, "fp64": _SINGLE},
    1: {},
}


def _clip(c: NodeContext) -> str:
    """Both bounds; one that is left out is the farthest number, so that infinities become that."""
    x = c.tensor(0)
    most = next(ends for opset, ends in _FARTHEST.items() if c.opset >= opset).get(c.g.types[x].dtype)
    low = c.maybe(1) if c.has_input(1) else c.attribute("min", most and -most)
    high = c.maybe(2) if c.has_input(2) else c.attribute("max", most)
    x = x if low is None else c.g.map("max", x, low)
    return x if high is None else c.g.map("min", x, high)


def _where(c: NodeContext) -> str:
    return c.g.map("select", c.tensor(0), c.tensor(1), c.tensor(2))


def _cast(c: NodeContext) -> str:
    like = c.op == "CastLike"
    narrow = c.g.narrow.get(c.tensor(1)) if like else NARROW.get(int(c.required("to")))
    if narrow is not None and narrow.whole:
        return wrapped(c.g, c.tensor(0), narrow)
    if narrow is not None:
        return nearest(c.g, c.g.cast(c.tensor(0), "fp32"), narrow, saturate=bool(c.attribute("saturate", 1)))
    return c.g.cast(c.tensor(0), c.type(1).dtype if like else dtype_of_onnx(c.required("to"), c.op))


def _bitcast(c: NodeContext) -> str:
    """The bits of each element as another type of that width; of whole numbers a cast, which wraps around."""
    source, target = c.type().dtype, dtype_of_onnx(c.required("to"), c.op)
    widths = [numpy_dtype(dtype).itemsize for dtype in (source, target)]
    if c.tensor(0) in c.g.narrow or widths[0] != widths[1]:
        raise c.bad(f"{source} as {target}; both must be of the same width, at least a byte")
    if not {source, target}.intersection(FLOATS) or source == target:
        return c.g.cast(c.tensor(0), target)
    return c.g.add("bitcast", c.tensor(0), source=source, target=target, dtype=target)


def _is_inf(c: NodeContext) -> str:
    x, result = c.tensor(0), c.g.map("isinf", c.tensor(0))
    if not c.attribute("detect_positive", 1):
        result = c.g.map("and", result, c.g.map("less", x, 0))
    if not c.attribute("detect_negative", 1):
        result = c.g.map("and", result, c.g.map("greater", x, 0))
    return result


def _dropout(c: NodeContext) -> list[str]:
    training = c.has_input(2) and any(c.whole(2))
    if training and (not c.has_input(1) or c.floats(1)[0] != 0):
        raise c.bad("training mode drops elements at random; export the model for inference")
    everywhere = c.g.map("equal", c.tensor(0), c.tensor(0)) if c.outputs > 1 else c.tensor(0)
    return [c.tensor(0), everywhere]


def every_bit_turned(c: NodeContext) -> str:
    """Each bit of a whole number the other way: -1 has all of them."""
    kind = numpy_dtype(c.type().dtype)
    return c.g.map("bitxor", c.tensor(0), c.g.constant(np.array(-1).astype(kind), c.type().dtype))


def _shift(c: NodeContext) -> str:
    """Times or over a power of 2; of unsigned numbers nothing is left of what is shifted out."""
    kind = c.type().dtype
    if not kind.startswith("uint"):
        known = c.g.known(c.tensor(1))
        if known is None or np.min(known, initial=0) < 0 or np.max(known, initial=0) > np.iinfo(kind).bits - 2:
            raise c.bad(f"{kind} by numbers that are not known now, or not from 0 to {np.iinfo(kind).bits - 2}")
    power = c.g.map("pow", c.g.constant(2, kind), c.tensor(1))
    if c.required("direction") == "LEFT":
        return c.g.map("mul", c.tensor(0), power)
    gone = c.g.map("equal", power, 0)  # 2 to a power that the type does not hold
    return c.g.map("select", gone, 0, c.g.map("floordiv", c.tensor(0), c.g.map("select", gone, 1, power)))


def _floats_only(rule: Rule) -> Rule:
    """A function of real numbers of whole ones, as their own type: what changes nothing of them."""
    return lambda c: rule(c) if c.type().dtype in FLOATS else c.tensor(0)


_DIRECT = {
    "Abs": "abs", "Neg": "neg", "Exp": "exp", "Log": "log", "Sqrt": "sqrt", "Reciprocal": "reciprocal", "Erf": "erf",
    "Tanh": "tanh", "Sigmoid": "sigmoid", "Sin": "sin", "Cos": "cos", "Tan": "tan",
    "Asin": "asin", "Acos": "acos", "Atan": "atan", "Sinh": "sinh", "Cosh": "cosh", "Asinh": "asinh", "Acosh": "acosh",
    "Atanh": "atanh", "Sign": "sign", "Not": "not", "IsNaN": "isnan",
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Equal": "equal", "Less": "less", "LessOrEqual": "less_equal",
    "Greater": "greater", "GreaterOrEqual": "greater_equal", "And": "and", "Or": "or", "Xor": "xor",
    "BitwiseAnd": "bitand", "BitwiseOr": "bitor", "BitwiseXor": "bitxor",
}  # fmt: skip
ELEMENTWISE: Mapping[str, Rule] = {
    **{op: _direct(function) for op, function in _DIRECT.items()},
    **{op: _folded(function) for op, function in {"Max": "max", "Min": "min", "Sum": "add"}.items()},
    **{op: _floats_only(_direct(function)) for op, function in {"Floor": "floor", "Ceil": "ceil", "Round": "round"}.items()},
    "Mean": _mean,
    "Pow": _pow,
    "Mod": _mod,
    "Relu": _relu,
    "LeakyRelu": _leaky_relu,
    "PRelu": _prelu,
    "Elu": _elu,
    "Celu": _celu,
    "Selu": _selu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "Softplus": lambda c: softplus(c, c.tensor(0)),
    "Softsign": _softsign,
    "Mish": _mish,
    "Gelu": _gelu,
    "Swish": _swish,
    "ThresholdedRelu": _thresholded_relu,
    "Clip": _clip,
    "Where": _where,
    "Cast": _cast,
    "CastLike": _cast,
    "BitCast": _bitcast,
    "IsInf": _is_inf,
    "Identity": lambda c: c.tensor(0),
    "Dropout": _dropout,
    "BitwiseNot": every_bit_turned,
    "BitShift": _shift,
}
