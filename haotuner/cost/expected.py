"""Expectation over traffic by the cost model: what selection ranks micro-kernels by whose tiles serve a shape alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from haotuner.cost.families import Named, demand
from haotuner.cost.features import features
from haotuner.cost.model import CostModel
from haotuner.cost.roofline import expected_us, roofline_us
from haotuner.words.demand import Expectation
from haotuner.words.device import Device
from haotuner.words.kernel import MicroKernel
from haotuner.words.op import Op
from haotuner.words.traffic import Traffic

ROWS = 20_000  # of a demand at a time: some tens of MB


def over_traffic(
    op: Op, family: Named, device: Device, traffic: Traffic, model: CostModel | None = None, *, weights: str = "cold"
) -> Expectation:
    """The share of the roofline that is expected of each kernel, its mean over the traffic by the traffic's weights.

    ``model``: None ranks by the analytic time alone. ``weights`` is ``cold`` or ``hot``. The device runs as a whole.
    """
    shapes = traffic.shapes()
    shares = np.array([weight for _, weight in traffic], np.float64)
    roof = np.asarray(roofline_us(device, op, shapes), np.float64)

    def some(kernels: Sequence[MicroKernel]) -> NDArray[np.float64]:
        pairs = [(kernel, shape) for kernel in kernels for shape in shapes]
        if model is None:
            us = expected_us(device, demand(device, family, op, pairs, weights=weights)).reshape(len(kernels), -1)
            return np.asarray((roof / us) @ shares, np.float64)
        said = model.predict(features(device, family, op, pairs, weights=weights)).reshape(len(kernels), -1)
        return np.asarray(np.exp(said) @ shares, np.float64)

    def score(kernels: Sequence[MicroKernel]) -> NDArray[np.float64]:
        step = max(1, ROWS // len(shapes))
        return np.concatenate([some(kernels[at : at + step]) for at in range(0, len(kernels), step)])

    return score
