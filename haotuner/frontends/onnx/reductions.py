"""Rules of reductions."""

from __future__ import annotations

from collections.abc import Mapping

from haotuner.frontends.onnx.layout import cut
from haotuner.frontends.onnx.node_context import NodeContext, Rule
from haotuner.graph import decompositions


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
        x = _turned(c, c.tensor(0), axis) if c.attribute("reverse", 0) else c.tensor(0)
        if c.attribute("exclusive", 0):
            widths = [1 if index == axis else 0 for index in range(rank)]
            x = c.g.add("pad", x, before=tuple(widths), after=(0,) * rank, mode="constant", value=first)
            x = cut(c, x, axis, 0, c.shape()[axis])
        result = c.g.add("scan", x, how=how, axis=axis)
        return _turned(c, result, axis) if c.attribute("reverse", 0) else result

    return rule


def _turned(c: NodeContext, x: str, axis: int) -> str:
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
