"""Rules of operators whose results depend on data or chance: places of what is not 0, and random numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from haotuner.frontends.onnx.constant_folding import ConstantFolding
from haotuner.frontends.onnx.layout import reshaped
from haotuner.frontends.onnx.lengths import new_dimension
from haotuner.frontends.onnx.node_context import NodeContext, Rule
from haotuner.frontends.onnx.types import dtype_of_onnx
from haotuner.graph.extents import Extent, product
from haotuner.ops.host_steps import nonzero

_SEEDS = 1 << 32


def places_of(c: NodeContext) -> str:
    """Indices of what is not 0: (rank, how many)."""
    known = c.g.numbers(c.tensor(0))
    if known is not None:
        return c.g.constant(nonzero(known))
    alike = (node.output for node in c.g.nodes if node.primitive == "nonzero" and node.inputs == (c.tensor(0),))
    same = filter(c.g.seen, alike)
    return next(same, None) or c.g.plain("nonzero", c.tensor(0), extent=new_dimension(c.g, "count"))


def _compress(c: NodeContext) -> str:
    """The places of an axis, or of the flat tensor, where a condition holds."""
    x, flat = c.tensor(0), "axis" not in c.attributes
    x = reshaped(c, x, (product(c.shape()),)) if flat else x
    places = places_of(replace(c, inputs=(c.tensor(1),), attributes={}))
    chosen = reshaped(c, places, (c.g.types[places].shape[1],))
    return c.g.add("gather", x, chosen, axis=0 if flat else c.axis(c.attributes["axis"]))


def drawn(
    g: ConstantFolding, law: str, shape: Sequence[Extent], dtype: str, *, low: float = 0.0, high: float = 1.0, **more: Any
) -> str:
    """Numbers of a distribution: ``normal`` of mean ``low`` and deviation ``high``, or ``uniform`` between both."""
    number = sum(node.primitive == "random" for node in g.nodes)
    return g.plain("random", shape=tuple(shape), dtype=dtype, law=law, number=number, low=low, high=high, **more)


def _random(c: NodeContext, law: str, shape: Sequence[Extent], dtype: str) -> str:
    low, high = ("mean", "scale") if law == "normal" else ("low", "high")
    more: dict[str, Any] = {}
    if "seed" in c.attributes:  # a float whose bits are the seed
        more["seed"] = int(np.float32(c.attributes["seed"]).view(np.uint32)) % _SEEDS
    return drawn(c.g, law, shape, dtype, low=float(c.attribute(low, 0.0)), high=float(c.attribute(high, 1.0)), **more)


def _like(law: str) -> Rule:
    def rule(c: NodeContext) -> str:
        kind = c.type()
        return _random(
            c, law, kind.shape, dtype_of_onnx(c.attributes["dtype"], c.op) if "dtype" in c.attributes else kind.dtype
        )

    return rule


def _shaped(law: str) -> Rule:
    def rule(c: NodeContext) -> str:
        return _random(c, law, c.required("shape"), dtype_of_onnx(c.attribute("dtype", 1), c.op))

    return rule


DATA: Mapping[str, Rule] = {
    "NonZero": places_of,
    "Compress": _compress,
    "RandomNormal": _shaped("normal"),
    "RandomNormalLike": _like("normal"),
    "RandomUniform": _shaped("uniform"),
    "RandomUniformLike": _like("uniform"),
}
