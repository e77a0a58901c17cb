"""Zeros that a form adds as factors: 0 times an infinity or a NaN is NaN, where the model never reads that element.

Ranges are relaxed by zeros, so a window of 5 becomes one of 6 whose last weight is 0. A form is computed at small extents
with ones for all numbers, and an infinity for one element at a time. Then only a factor of 0 makes NaN.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from haotuner.derive.affine import Affine
from haotuner.derive.expression import Loop, Scope, box_of, reads, scopes, tensors
from haotuner.derive.general_extents import sizes_needed
from haotuner.derive.interpret import interpret
from haotuner.derive.price import points
from haotuner.derive.search import counts_of, small_sizes
from haotuner.errors import UsageError
from haotuner.graph.extents import dimensions, evaluate, is_symbolic

LEAST = 2  # extents of dimensions along which nothing slides
DRAWN = 8  # elements of a tensor that become infinite, beside the first, a middle and the last one
MOST_POINTS = 1 << 20  # of one nest: a hundredth of a second
SEED = 1


class AddedZeros:
    """Test of forms of some expressions, at extents at which no window covers a whole side."""

    def __init__(self, *originals: Scope) -> None:
        every = [inner for scope in originals for inner in scopes(scope)]
        loops = {loop.name: loop for inner in every for loop in (*inner.spatial, *inner.sums)}
        every_read = [read for inner in every for read in reads(inner.body)]
        axes = [axis for read in every_read for axis in zip(read.index, box_of(read.source), strict=True)]
        indices = [e for e, _ in axes if len(e.names) > 1]
        windows = [high for e, (_, high) in axes if len(e.names) > 1 and isinstance(high, int)]
        side = LEAST * (1 + max([*windows, *(_window(e, loops) for e in indices)], default=0))
        sliding = frozenset[str]().union(*(dimensions(loops[name].extent) for e in indices for name in e.names))
        sizes = {name: side if name in sliding else LEAST for scope in originals for name in sizes_needed(scope)}
        self.sizes = small_sizes(sizes, [extent for scope in originals for extent in counts_of(scope)])
        self.tensors = {name: tensor for scope in originals for name, tensor in tensors(scope).items()}
        self.small = max(points((*inner.spatial, *inner.sums), self.sizes) for inner in every) <= MOST_POINTS

    def are_in(self, *forms: Scope) -> bool:
        """True if forms multiply an element of an input by a zero that no tensor has, or are too large to look at."""
        if not self.small:
            return True
        try:
            with np.errstate(invalid="ignore"):
                return any(np.isnan(interpret(form, arrays, self.sizes)).any() for arrays in self._cases() for form in forms)
        except UsageError:
            return True

    def _cases(self) -> Iterator[dict[str, NDArray[np.float64]]]:
        """Numbers of all tensors, each time with an infinity for another element of an input."""
        draw = np.random.default_rng(SEED)
        ones = {name: np.ones([evaluate(extent, self.sizes) for extent in tensor.shape])
                for name, tensor in sorted(self.tensors.items())}  # fmt: skip
        for name, array in ones.items():
            if self.tensors[name].constant or not array.size:
                continue
            middle = int(np.ravel_multi_index([extent // 2 for extent in array.shape], array.shape))
            for at in sorted({0, middle, array.size - 1, *draw.integers(0, array.size, DRAWN).tolist()}):
                infinite = array.copy()
                infinite.flat[at] = np.inf
                yield {**ones, name: infinite}


def _window(e: Affine, loops: Mapping[str, Loop]) -> int:
    """Elements that the iterators of fixed extents in an index reach over."""
    fixed = ((factor, loops[atom].extent) for atom, factor in e.terms if isinstance(atom, str))
    return sum(abs(factor) * extent for factor, extent in fixed if not is_symbolic(extent))
