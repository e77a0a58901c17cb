"""Rules of ATen operators that draw: every distribution is made of normal and uniform numbers, by a run's seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from haotuner.errors import UsageError
from haotuner.frontends.onnx.data_dependent import drawn
from haotuner.frontends.torch_export.aten_call import AtenContext, Rule
from haotuner.graph.extents import Extent
from haotuner.graph.types import broadcast

_LEAST = 2.0**-53  # the step of uniform numbers, which may be 0: a logarithm takes more


def _law(law: str) -> Rule:
    """Of a shape, or of a tensor's."""

    def rule(a: AtenContext) -> str:
        return drawn(a.g, law, a.shape() if isinstance(a.at(0), str) else list(a.at(0)), a.dtype)

    return rule


def _uniform(a: AtenContext, shape: Sequence[Extent]) -> str:
    return drawn(a.g, "uniform", shape, "fp64" if a.dtype == "fp64" else "fp32")


def _whole(a: AtenContext) -> str:
    """From low up to, not with, high; both are given after a tensor, before a shape."""
    like = a.op.startswith("randint_like")
    inputs = list(a.inputs)
    bounds, shape = (inputs[1:], a.shape()) if like else (inputs[:-1], list(inputs[-1]))
    low, high = bounds if len(bounds) > 1 else (0, bounds[0])
    wide = drawn(a.g, "uniform", shape, "fp64")  # of fp32 large numbers would have gaps
    span, least = a.cast(high - low, "fp64"), a.cast(low, "fp64")
    return a.cast(a.g.map("add", a.g.map("floor", a.g.map("mul", wide, span)), least), a.dtype)


def _normal(a: AtenContext) -> str:
    """Each with a mean and a deviation of its own, or all of a tensor's shape with the same ones (normal_functional)."""
    like = a.op.startswith("normal_")
    mean, spread = a.setting("mean", int(like), 0.0), a.setting("std", 1 + like, 1.0)
    tensors = [a.at(0)] if like else [item for item in (mean, spread) if isinstance(item, str)]
    own = drawn(a.g, "normal", broadcast([a.g.types[tensor].shape for tensor in tensors], a.op), a.dtype)
    return a.g.map("add", a.g.map("mul", own, a.cast(spread, a.dtype)), a.cast(mean, a.dtype))


def _between(a: AtenContext) -> str:
    low, high = float(a.setting("from", 1, 0.0)), float(a.setting("to", 2, 1.0))
    return a.g.map("add", a.g.map("mul", drawn(a.g, "uniform", a.shape(), a.dtype), high - low), low)


def _tossed(a: AtenContext) -> str:
    """1 with a probability, which is one for all (bernoulli.p) or the tensor's own."""
    share = a.setting("p", 1) if a.op.endswith(".p") else a.at(0)
    draw = _uniform(a, a.shape())
    return a.cast(a.g.map("less", draw, a.cast(share, a.g.types[draw].dtype)), a.dtype)


def _waited(a: AtenContext, shape: Sequence[Extent], rate: float = 1.0) -> str:
    """-log(1 - u) / rate, of which u = 1 is never drawn and u = 0 is made the least there is: nothing divides by 0."""
    draw = a.g.map("max", drawn(a.g, "uniform", shape, "fp64"), _LEAST)
    log = a.g.map("log", a.g.map("sub", a.g.constant(1, "fp64"), draw))
    return a.g.map("div", log, -rate)


def _exponential(a: AtenContext) -> str:
    return a.cast(_waited(a, a.shape(), float(a.setting("lambd", 1, 1.0))), a.dtype)


def _chosen(a: AtenContext) -> str:
    """The places with the largest shares over waits (Efraimidis and Spirakis), which is drawing without replacement."""
    count, again = a.at(1), bool(a.setting("replacement", 2, False))
    if again and count != 1:
        raise UsageError(f"{a.op}: more than one draw with replacement has no rule; draw one at a time")
    shares = a.cast(a.at(0), "fp64")
    raced = a.g.map("div", shares, _waited(a, a.shape()))
    return a.several("TopK", raced, a.whole(count), axis=len(a.shape()) - 1, largest=1)[1]


def _mixed(a: AtenContext) -> str:
    """The order of uniform numbers."""
    order = a.several("TopK", drawn(a.g, "uniform", [a.at(0)], "fp64"), a.whole(a.at(0)), axis=0, largest=1)[1]
    return a.cast(order, a.dtype)


def _dropped(a: AtenContext) -> list[str]:
    """Elements left out by chance, the others made so much larger; and which were kept."""
    share = float(a.at(1))
    if not a.at(2, True) or share == 0:
        return [a.at(0), a.g.add("broadcast", a.cast(True, "bool"), shape=a.shape())]
    selected = a.g.map("greater_equal", _uniform(a, a.shape()), share)
    more = 1 / (1 - share) if share < 1 else 0.0
    return [a.g.map("select", selected, a.g.map("mul", a.at(0), more), a.g.constant(0, a.g.types[a.at(0)].dtype)), selected]


RANDOM: Mapping[str, Rule] = {
    "randn.default": _law("normal"), "randn_like.default": _law("normal"),
    "rand.default": _law("uniform"), "rand_like.default": _law("uniform"),
    **{name: _whole for name in ("randint.default", "randint.low", "randint_like.default", "randint_like.low_dtype")},
    **{f"normal.{kind}": _normal for kind in ("Tensor_float", "float_Tensor", "Tensor_Tensor")},
    "normal_functional.default": _normal, "uniform.default": _between,
    "bernoulli.default": _tossed, "bernoulli.p": _tossed, "exponential.default": _exponential,
    "multinomial.default": _chosen, "randperm.default": _mixed, "native_dropout.default": _dropped,
}  # fmt: skip
