"""Lower bound of what any form of a product takes: its multiplications that are not with 0, at the full rate.

No rule leaves out a multiplication of two numbers that are both inside of their tensors, but for factoring, which needs an
operand that does not hang on a sum. So a product whose kernel takes hardly longer than this has no form that pays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from haotuner.derive.affine import iterator
from haotuner.derive.expression import Loop, Read, Scope, Tensor, box_of
from haotuner.derive.interpret import positions
from haotuner.derive.kernels import hangs_on, product_of
from haotuner.graph.extents import evaluate
from haotuner.partition.costs import CORE, Rates

MOST_POINTS = 1 << 20  # of iterators that stand in one index together: a hundredth of a second


def least_us(scope: Scope, sizes: Mapping[str, int], rates: Rates = CORE) -> float:
    """Microseconds that no form of a product falls below at a request; 0 where this says nothing about it.

    ``sizes``: of all dimensions of the expression.
    """
    operands = product_of(scope)
    if operands is None or not all(isinstance(read.source, Tensor) for read in operands):
        return 0.0
    shared = hangs_on(operands[0]) & hangs_on(operands[1])
    if any(loop.name not in shared for loop in scope.sums):
        return 0.0
    return 2.0 * _points_inside(scope, operands, sizes) / rates.flops


def _points_inside(scope: Scope, operands: Sequence[Read], sizes: Mapping[str, int]) -> int:
    """Number of points at which both operands are read inside; 0 where it takes long to count them."""
    groups = _joined(scope, operands)
    counts = [_count([loop for loop in (*scope.spatial, *scope.sums) if loop.name in group], operands, sizes)
              for group in groups]  # fmt: skip
    return prod(counts)


def _joined(scope: Scope, operands: Sequence[Read]) -> list[set[str]]:
    """Iterators in groups: those that stand in one index, directly or through others, are in one."""
    result: list[set[str]] = [{loop.name} for loop in (*scope.spatial, *scope.sums)]
    for e in (e for read in operands for e in read.index):
        touched = [group for group in result if group & e.names]
        if len(touched) > 1:
            result = [group for group in result if group not in touched] + [set().union(*touched)]
    return result


def _count(loops: Sequence[Loop], operands: Sequence[Read], sizes: Mapping[str, int]) -> int:
    """Points of some iterators at which every index of them alone is inside of its axis."""
    spans = [(evaluate(loop.low, sizes), evaluate(loop.high, sizes)) for loop in loops]
    shape = [max(0, high - low) for low, high in spans]
    names = {loop.name for loop in loops}
    indices = [(e, ends) for read in operands for e, ends in zip(read.index, box_of(read.source), strict=True)
               if e.names & names]  # fmt: skip
    if prod(shape) > MOST_POINTS:
        return prod(shape) if all(e == iterator(loops[0].name) for e, _ in indices) else 0
    axes = {
        loop.name: np.arange(*span).reshape([-1 if number == at else 1 for number in range(len(loops))])
        for at, (loop, span) in enumerate(zip(loops, spans, strict=True))
    }
    inside = np.ones(shape, np.bool_)
    for e, (low, high) in indices:
        position = positions(e, axes, sizes)
        inside &= (position >= evaluate(low, sizes)) & (position < evaluate(high, sizes))
    return int(inside.sum())
