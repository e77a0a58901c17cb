"""Error bounds of a derived form beside those of what it stands for, by running error analysis at small extents.

Both are graphs of primitives, as they would be served. A sum in parts has other roundings than one of all terms.
A form whose largest bound is above the original's is refused. Sums of few channels are the hardest for forms.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from haotuner.derive.expression import Scope, tensors
from haotuner.derive.general_extents import concrete, sizes_needed
from haotuner.derive.search import counts_of, small_sizes
from haotuner.derive.to_graph import graph_of
from haotuner.errors import UsageError
from haotuner.graph.error_bounds import bounded, wide
from haotuner.graph.extents import evaluate

SMALL = 4  # extents of dimensions; sums of so few terms have the smallest bounds
SEED = 1
NEAR = 1e-6  # of a bound, below which two are the same


class Bounds:
    """Largest error bound of an expression, and of others that stand for it, at the same numbers."""

    def __init__(self, original: Scope) -> None:
        """``original``: whose dimensions are all small where its bound is computed. UsageError where no graph says it."""
        self.sizes = small_sizes(dict.fromkeys(sizes_needed(original), SMALL), counts_of(original))
        draw = np.random.default_rng(SEED)
        self.arrays: dict[str, Any] = {
            name: draw.normal(size=[evaluate(extent, self.sizes) for extent in tensor.shape]).astype(np.float32)
            for name, tensor in sorted(tensors(original).items())
        }
        self.most = self.largest(original)
        self._known: dict[Scope, bool] = {}

    def largest(self, scope: Scope) -> float:
        """The largest bound of a result's elements."""
        small = concrete(scope, self.sizes)
        graph = wide(graph_of((small,), self.arrays, self.sizes))
        ((_, off),) = bounded(graph, _inputs(self.arrays, graph.inputs)).values()
        return float(np.max(off, initial=0.0))

    def hold(self, scope: Scope) -> bool:
        """True if an expression's bound is at most the original's; False where no graph says it."""
        if scope not in self._known:
            try:
                self._known[scope] = self.largest(scope) <= self.most * (1 + NEAR)
            except UsageError:
                self._known[scope] = False
        return self._known[scope]


def _inputs(arrays: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: arrays[name].astype(np.float64) for name in names}


def bounds_of(original: Scope) -> Bounds | None:
    """Bounds of an expression; None where no graph says it at small extents, so that nothing is compared."""
    try:
        return Bounds(original)
    except UsageError:
        return None
