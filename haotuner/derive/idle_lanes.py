"""Products of a plan by what a form could save of them: those whose kernels leave lanes idle come first."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from haotuner.derive.form_prices import Array, PricesOfForms
from haotuner.derive.least_price import least_us
from haotuner.derive.model import Derivation
from haotuner.partition.costs import Prices
from haotuner.partition.ilp_partition import IlpPartitioner


class IdleLanes:
    """Expected times of a plan's products beside the least that any form of them takes, at the plan's requests."""

    def __init__(self, plan: IlpPartitioner, derivation: Derivation) -> None:
        self.derivation, self.requests, self.rates = derivation, plan.prices.requests, plan.prices.rates
        self.us: dict[str, Array] = {}  # by each tensor that a product makes
        self.full_us: dict[str, Array] = {}  # the same with full lanes
        prices = PricesOfForms(self.requests, self.rates), Prices(self.requests, self.rates)
        for product in plan.products.values():
            for result, own in zip((self.us, self.full_us), prices, strict=True):
                result |= dict.fromkeys(product.nodes, np.array(own.each_product_us(product, plan.graph)))

    def products(self) -> Iterator[str]:
        """Products whose lanes are idle longest first, then those that take longest."""

        def key(tensor: str) -> tuple[float, float]:
            if tensor not in self.us:
                return 0.0, 0.0
            us, full_us = self.us[tensor].sum(), self.full_us[tensor].sum()
            return float(full_us - us), -float(us)

        yield from sorted(self.derivation.products(), key=key)

    def may_save(self, share: float, *tensors: str) -> bool:
        """True unless no form of some products together can save more than a share of their time at any request.

        UsageError where no expression describes one of them.
        """
        scopes = [self.derivation.expression(tensor) for tensor in tensors]
        if any(tensor not in self.us for tensor in tensors):
            return True
        own = np.sum([self.us[tensor] for tensor in tensors], axis=0)
        least = [sum(least_us(scope, request, self.rates) for scope in scopes) for request in self.requests]
        return bool(np.any(np.array(least) < own * (1 - share)))
