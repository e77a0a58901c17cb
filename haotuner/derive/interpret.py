"""Interpreter of expressions with numpy: every element of a nest by its definition."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from haotuner.derive.affine import Affine, Quotient
from haotuner.derive.expression import Body, Number, Read, Scope, box_of
from haotuner.errors import UsageError
from haotuner.graph.extents import evaluate
from haotuner.ops.formula import FUNCTIONS

MOST_POINTS = 1 << 24  # of one nest: a gigabyte of indices


def interpret(scope: Scope, arrays: Mapping[str, Any], sizes: Mapping[str, int]) -> Any:
    """Array of the spatial axes. UsageError for a missing tensor or more than ``MOST_POINTS`` points."""
    return _Run(arrays, sizes).scope(scope)


class _Run:
    """One evaluation; a nest that several reads have is computed once."""

    def __init__(self, arrays: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
        self.arrays, self.sizes = arrays, sizes
        self.computed: dict[Scope, Any] = {}

    def scope(self, scope: Scope) -> Any:
        if scope in self.computed:
            return self.computed[scope]
        loops = (*scope.spatial, *scope.sums)
        spans = [(evaluate(loop.low, self.sizes), evaluate(loop.high, self.sizes)) for loop in loops]
        shape = [max(0, high - low) for low, high in spans]
        if prod(shape) > MOST_POINTS:
            raise UsageError(f"a nest of {prod(shape):,} points; at most {MOST_POINTS:,} are interpreted")
        axes = {
            loop.name: np.arange(low, high).reshape([-1 if index == at else 1 for index in range(len(loops))])
            for at, (loop, (low, high)) in enumerate(zip(loops, spans, strict=True))
        }
        values = np.broadcast_to(self.body(scope.body, axes), shape)
        result = values.sum(axis=tuple(range(len(scope.spatial), len(loops)))) if scope.sums else np.array(values)
        self.computed[scope] = result
        return result

    def body(self, body: Body, axes: Mapping[str, Any]) -> Any:
        if isinstance(body, Number):
            return np.float64(body.value)
        if isinstance(body, Read):
            return self.read(body, axes)
        operands = [self.body(operand, axes) for operand in body.operands]
        if body.function in ("add", "mul"):
            result = operands[0]
            for operand in operands[1:]:
                result = result + operand if body.function == "add" else result * operand
            return result
        with np.errstate(all="ignore"):
            return FUNCTIONS[body.function](*operands)

    def read(self, read: Read, axes: Mapping[str, Any]) -> Any:
        if isinstance(read.source, Scope):
            array = self.scope(read.source)
        elif read.source.name in self.arrays:
            array = np.asarray(self.arrays[read.source.name], np.float64)
        else:
            raise UsageError(f"tensor {read.source.name} is missing")
        if array.size == 0:
            return np.float64(0.0)
        index, within = [], np.bool_(True)
        for e, (low, _), extent in zip(read.index, box_of(read.source), array.shape, strict=True):
            position = positions(e, axes, self.sizes) - evaluate(low, self.sizes)
            within = within & (position >= 0) & (position < extent)
            index.append(np.clip(position, 0, extent - 1))
        return np.where(within, array[tuple(index)], 0.0)


def positions(e: Affine, axes: Mapping[str, Any], sizes: Mapping[str, int]) -> Any:
    """Values of an index where iterators have the values of ``axes``, as whole numbers that broadcast as these do."""
    result: Any = np.int64(evaluate(e.const, sizes))
    for atom, factor in e.terms:
        if isinstance(atom, str):
            value = axes[atom]
        else:
            inner = positions(atom.dividend, axes, sizes)
            value = inner // atom.divisor if isinstance(atom, Quotient) else inner % atom.divisor
        result = result + factor * value
    return result
