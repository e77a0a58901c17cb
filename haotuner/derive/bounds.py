"""Error bounds of a derived form beside those of what it stands for, by running error analysis at small extents.

Both are graphs of primitives, with the kernels that a request chooses. A sum in parts has other roundings than one of
all terms. A form whose largest bound is above the original's is refused. Sums of few channels are the hardest for forms.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from haotuner.derive.expression import Scope, scopes, tensors
from haotuner.derive.general_extents import concrete, sizes_needed
from haotuner.derive.price import kernel_of
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
        self.original = original
        self._known: dict[tuple[Scope, tuple[str, ...]], float] = {}
        self.largest(original, self.sizes)

    def largest(self, scope: Scope, sizes: Mapping[str, int]) -> float:
        """The largest bound of a result's elements, in the kernels that some sizes of all dimensions choose."""
        key = scope, tuple(str(kernel_of(inner, sizes)) for inner in scopes(scope))
        if key not in self._known:
            small = concrete(scope, self.sizes)
            graph = wide(graph_of((small,), self.arrays, sizes, chosen_by=(scope,)))
            ((_, off),) = bounded(graph, _inputs(self.arrays, graph.inputs)).values()
            self._known[key] = float(np.max(off, initial=0.0))
        return self._known[key]

    def hold(self, scope: Scope, sizes: Mapping[str, int]) -> bool:
        """True if an expression's bound is at most the original's; False where no graph says it. ``sizes``: of a request."""
        try:
            return self.largest(scope, sizes) <= self.largest(self.original, sizes) * (1 + NEAR)
        except UsageError:
            return False


def _inputs(arrays: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: arrays[name].astype(np.float64) for name in names}


def bounds_of(original: Scope) -> Bounds | None:
    """Bounds of an expression; None where no graph says it at small extents, so that nothing is compared."""
    try:
        return Bounds(original)
    except UsageError:
        return None
