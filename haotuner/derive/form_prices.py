"""Prices of forms of a product: with what its features and depth leave idle, in which forms differ.

Plans compare products with generated groups alone, whose prices they need no such share for.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from haotuner.derive.price import utilisation
from haotuner.graph.extents import evaluate
from haotuner.graph.graph import Graph
from haotuner.ops.convolution import is_convolution
from haotuner.partition.costs import Prices
from haotuner.partition.greedy_fusion import Greedy, Loops
from haotuner.partition.products import Product
from haotuner.spec.shape import Shape

Array: TypeAlias = NDArray[np.float64]


class PricesOfForms(Prices):
    """Expected prices of groups, and of products by the share of a rate that they reach."""

    def plan_us(self, plan: Greedy) -> Array:
        """Microseconds of a plan's products and groups at each request."""
        result = np.zeros(len(self.requests))
        for step in plan.steps:
            if isinstance(step, Product):
                result += self.each_product_us(step, plan.graph)
            elif isinstance(step, Loops):
                result += self.each_us(step.graph)
        return result

    def each_product_us(self, product: Product, graph: Graph) -> list[float]:
        """Microseconds of a tuned kernel at each request."""
        op, static = product.op, dict(product.op.static)
        full_us = super().each_product_us(product, graph)
        if product.kind == "online":
            return full_us
        times_us = []
        for request, least_us in zip(self.requests, full_us, strict=True):
            sizes = {axis: max(0, evaluate(extent, request)) for axis, extent in product.extents.items()}
            rest = {**static, **sizes}
            convolves = is_convolution(op.kind)
            depth = rest["c"] * rest.get("r", 1) * rest["s"] if convolves else rest["k"]
            side = rest["f"] if convolves else max(rest["n"], rest["m"])
            share = utilisation(max(1, side), depth, 0 if convolves else min(rest["n"], rest["m"]))
            flops = max(0.0, float(op.flops(Shape.of(sizes))))
            times_us.append(max(least_us, flops / (self.rates.product_flops(op) * max(share, 1e-3))))
        return times_us
