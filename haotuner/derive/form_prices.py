"""Prices of forms of a product: with what its features and depth leave idle, in which forms differ.

Plans compare products with generated groups alone, whose prices they need no such share for.
"""

from __future__ import annotations

import numpy as np

from haotuner.derive.price import utilisation
from haotuner.graph.extents import evaluate
from haotuner.graph.graph import Graph
from haotuner.ops.convolution import is_convolution
from haotuner.partition.costs import Prices
from haotuner.partition.greedy_fusion import Greedy, Loops
from haotuner.partition.products import Product
from haotuner.spec.shape import Shape


class PricesOfForms(Prices):
    """Expected prices of groups, and of products by the share of a rate that they reach."""

    def plan_us(self, plan: Greedy) -> float:
        """Microseconds of a plan's products and groups, the mean over the requests."""
        products = sum(self.product_us(step, plan.graph) for step in plan.steps if isinstance(step, Product))
        return products + sum(self.loops_us(step.graph) for step in plan.steps if isinstance(step, Loops))

    def product_us(self, product: Product, graph: Graph) -> float:
        """Microseconds of a tuned kernel, the mean over the requests."""
        op, static = product.op, dict(product.op.static)
        if product.kind == "online":
            return super().product_us(product, graph)
        times_us = []
        for request in self.requests:
            sizes = {axis: max(0, evaluate(extent, request)) for axis, extent in product.extents.items()}
            rest = {**static, **sizes}
            convolves = is_convolution(op.kind)
            depth = rest["c"] * rest.get("r", 1) * rest["s"] if convolves else rest["k"]
            side = rest["f"] if convolves else max(rest["n"], rest["m"])
            share = utilisation(max(1, side), depth, 0 if convolves else min(rest["n"], rest["m"]))
            flops = max(0.0, float(op.flops(Shape.of(sizes))))
            times_us.append(flops / (self.rates.product_flops(op) * max(share, 1e-3)))
        return max(super().product_us(product, graph), float(np.mean(times_us)))
