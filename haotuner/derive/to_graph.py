"""Graphs of expressions: each nest as primitives that the planner of models knows kernels for.

A product becomes a ``contract`` in the form of a dense layer, a batch of products or a convolution, its operands laid out
first. What is no product has its small sums written out, so that it is one generated loop. Constants are computed at once.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from itertools import product as every_combination
from math import prod
from typing import Any

import numpy as np

from haotuner.derive.affine import Affine, Quotient, Remainder, iterator, number, plus
from haotuner.derive.expression import (
    Apply,
    Body,
    Loop,
    Number,
    Read,
    Scope,
    Tensor,
    fresh,
    names,
    put,
    reads,
    scopes,
    tensors,
)
from haotuner.derive.kernels import Kernel, hangs_on, kernels
from haotuner.derive.lay_out import Folding, at_axes, flat, gathered, windowed_image
from haotuner.derive.price import kernel_of, points
from haotuner.derive.rules import swapped
from haotuner.errors import UsageError
from haotuner.graph.extents import Extent, canonical, floor_division, is_symbolic
from haotuner.graph.graph import Graph

MOST_TERMS = 64  # of a sum that is written out


def graph_of(
    expressions: Sequence[Scope],
    constants: Mapping[str, Any],
    sizes: Mapping[str, int],
    *,
    may_be_loops: bool = True,
    chosen_by: Sequence[Scope] = (),
) -> Graph:
    """The graph whose outputs are the expressions; its inputs are the tensors that are no constants, in fp32.

    Args:
        expressions: a nest that several read is computed once.
        constants: numbers of tensors that are constants; of another one zeros are taken.
        sizes: of a request, by which a kernel is chosen where a nest may be several.
        chosen_by: the expressions of other extents, by whose nests kernels are chosen; none: their own.
        may_be_loops: whether generated loops compute products where they are expected to be cheaper.

    Raises:
        UsageError: no primitives compute them.
    """
    g = Folding()
    tensor_types = {name: tensor for scope in expressions for name, tensor in tensors(scope).items()}
    for name, tensor in sorted(tensor_types.items()):
        if tensor.constant:
            numbers = constants.get(name)
            g.constant(np.zeros([int(e) for e in tensor.shape]) if numbers is None else numbers, "fp32", name=name)
        else:
            g.input(name, tensor.shape)
    pairs = zip(expressions, chosen_by or expressions, strict=True)
    kernel_nests = {
        own: kernel_nest for scope, other in pairs for own, kernel_nest in zip(scopes(scope), scopes(other), strict=True)
    }
    lowering = _Lowering(g, sizes, may_be_loops, kernel_nests)
    return g.finish(*(lowering.scope(scope) for scope in expressions))


class _Lowering:
    """Nests that were written already, by the nest. ``kernel_nests``: by nests, those that choose their kernels."""

    def __init__(self, g: Folding, sizes: Mapping[str, int], may_be_loops: bool, kernel_nests: dict[Scope, Scope]) -> None:
        self.g, self.sizes, self.may_be_loops, self.kernel_nests = g, sizes, may_be_loops, kernel_nests
        self.written: dict[Scope, str] = {}

    def source(self, read: Read) -> str:
        return read.source.name if isinstance(read.source, Tensor) else self.scope(read.source)

    def scope(self, scope: Scope) -> str:
        """Tensor of a nest, its axes in the nest's order."""
        if scope not in self.written:
            self.written[scope] = self.new(scope)
        return self.written[scope]

    def new(self, scope: Scope) -> str:
        parted = _parted(scope)
        if parted is not None:
            return self.unparted(scope, *parted)
        kernel_nest = self.kernel_nests[scope]
        kernel = kernel_of(kernel_nest, self.sizes, may_be_loops=self.may_be_loops)
        if kernel is not None and kernel_nest is not scope:
            kernel = next((own for own in kernels(scope) if own.alike(kernel)), None)
        if kernel is not None and kernel.kind == "conv":
            return self.conv(scope, kernel)
        if kernel is not None and kernel.kind in ("matmul", "batch_matmul"):
            return self.matmul(scope, kernel)
        small = (
            not any(is_symbolic(loop.extent) for loop in scope.sums)
            and points(scope.sums if kernel_nest is scope else kernel_nest.sums, self.sizes) <= MOST_TERMS
        )
        if small and (kernel is None or kernel.kind != "band"):
            return self.terms(scope)
        return self.contraction(scope)

    # Whole parts and remainders of an axis

    def unparted(self, scope: Scope, name: str, dividend: Affine, divisor: int) -> str:
        """The axis as two, then as one again, cut to its range."""
        at = [loop.name for loop in scope.spatial].index(name)
        loop, kernel_nest = scope.spatial[at], self.kernel_nests[scope]
        in_parts, start = _in_parts(scope, name, dividend, divisor)
        other = _parted(kernel_nest)
        parted = in_parts if other is None or kernel_nest is scope else _in_parts(kernel_nest, *other)[0]
        self.kernel_nests.setdefault(in_parts, parted)
        tensor = self.scope(in_parts)
        shape = list(self.g.types[tensor].shape)
        shape[at : at + 2] = [canonical(shape[at] * divisor)]
        tensor = self.g.add("reshape", tensor, shape=tuple(shape))
        begin = canonical(loop.low - start)
        return self.g.cut(tensor, at, begin, plus(begin, loop.extent))

    # Products

    def matmul(self, scope: Scope, kernel: Kernel) -> str:
        """``bm,k`` times ``n,k`` where the second is a constant, else a batch of products."""
        loops = {loop.name: loop for loop in (*scope.spatial, *scope.sums)}
        b, m, n, k = ([loops[name] for name in kernel.roles[role]] for role in "bmnk")
        first, second = kernel.first, kernel.second
        if not b:
            x = flat(self.g, self.read(first, [*m, *k]), [1] * len(m) + [len(k)])
            w = flat(self.g, self.read(second, [*n, *k]), [len(n), len(k)])
            letters = string.ascii_letters[: len(m)]
            result = self.g.add("contract", x, w, labels=f"{letters}Y,ZY->{letters}Z")
        else:
            counts = [len(m), len(k)] if m else [0, len(k)]
            x = flat(self.g, self.read(first, [*b, *m, *k]), [len(b), *counts])
            w = flat(self.g, self.read(second, [*b, *n, *k]), [len(b), len(n), len(k)])
            result = self.g.add("contract", x, w, labels="bmk,bnk->bmn")
        return self.ordered(result, [*b, *m, *n], scope)

    def ordered(self, tensor: str, loops: Sequence[Loop], scope: Scope) -> str:
        """A flat result with an axis for each iterator, in the nest's order."""
        shape = tuple(loop.extent for loop in loops)
        if self.g.types[tensor].shape != shape:
            tensor = self.g.add("reshape", tensor, shape=shape)
        order = [loop.name for loop in loops]
        return self.g.ordered(tensor, [order.index(loop.name) for loop in scope.spatial])

    def conv(self, scope: Scope, kernel: Kernel) -> str:
        """``bc`` and sides times ``fc`` and windows, as the planner knows convolutions."""
        loops = {loop.name: loop for loop in (*scope.spatial, *scope.sums)}
        spots, taps = [side.position for side in kernel.windows], [side.tap for side in kernel.windows]
        data = kernel.first
        batch = [loops[name] for name in kernel.roles["m"] if name not in spots]
        channels = [loops[name] for name in kernel.roles["k"] if name not in taps]
        features = [loops[name] for name in kernel.roles["n"]]
        windows = [loops[name] for name in taps]
        image = windowed_image(self.g, self.source(data), data, kernel.windows, loops, batch, channels)
        weight = self.read(kernel.second, [*features, *channels, *windows])
        weight = flat(self.g, weight, [len(features), len(channels), *[1] * len(taps)])
        sides, window = "pq"[: len(taps)], "uv"[: len(taps)]
        result = self.g.add("contract", image, weight, labels=f"bc{sides}{window},fc{window}->bf{sides}")
        return self.ordered(result, [*batch, *features, *(loops[name] for name in spots)], scope)

    def contraction(self, scope: Scope) -> str:
        """Any product of reads, by letters."""
        parts = scope.body.operands if isinstance(scope.body, Apply) and scope.body.function == "mul" else (scope.body,)
        factor = prod(part.value for part in parts if isinstance(part, Number))
        operands = [part for part in parts if isinstance(part, Read)]
        all_loops = [*scope.spatial, *scope.sums]
        if len(operands) + sum(isinstance(part, Number) for part in parts) != len(parts):
            raise UsageError("a sum over a range that is not fixed, of what is no product, has no primitives")
        letters = {loop.name: letter for loop, letter in zip(all_loops, string.ascii_letters, strict=False)}
        operand_loops = [[loop for loop in all_loops if loop.name in hangs_on(read)] for read in operands]
        seen = {loop.name for part in operand_loops for loop in part}
        if not {loop.name for loop in all_loops} <= seen:
            raise UsageError("an axis on which no operand hangs")
        tensors_ = [self.read(read, loops) for read, loops in zip(operands, operand_loops, strict=True)]
        inputs = ",".join("".join(letters[loop.name] for loop in loops) for loops in operand_loops)
        labels = f"{inputs}->{''.join(letters[loop.name] for loop in scope.spatial)}"
        result = self.g.add("contract", *tensors_, labels=labels)
        return result if factor == 1 else self.g.map("mul", result, factor)

    # What is no product

    def terms(self, scope: Scope) -> str:
        """Sums written out, element-wise; the result has every axis."""
        total = ""
        spans = [range(int(loop.low), int(loop.high)) for loop in scope.sums]
        for values in every_combination(*spans):
            put_ = {loop.name: number(value) for loop, value in zip(scope.sums, values, strict=True)}
            term = self.body(put(scope.body, put_, scope.ranges), scope.spatial)
            total = self.g.map("add", total, term) if total else term
        shape = tuple(loop.extent for loop in scope.spatial)
        return total if self.g.types[total].shape == shape else self.g.add("broadcast", total, shape=shape)

    def body(self, body: Body, spatial: Sequence[Loop]) -> str:
        if isinstance(body, Number):
            return self.g.constant(body.value, "fp32")
        if isinstance(body, Read):
            read_loops = [loop for loop in spatial if loop.name in hangs_on(body)]
            tensor = self.read(body, read_loops)
            return at_axes(self.g, tensor, [loop in read_loops for loop in spatial])
        parts = [self.body(operand, spatial) for operand in body.operands]
        if body.function not in ("add", "mul"):
            return self.g.map(body.function, *parts)
        result = parts[0]
        for part in parts[1:]:
            result = self.g.map(body.function, result, part)
        return result

    def read(self, read: Read, loops: Sequence[Loop]) -> str:
        """Tensor of all that is read, with an axis for each iterator."""
        return gathered(self.g, self.source(read), read, loops)


def _in_parts(scope: Scope, name: str, dividend: Affine, divisor: int) -> tuple[Scope, Extent]:
    """A nest with whole parts of an axis and what is left as two axes, and the value at which the first part begins."""
    loop, shift, used = next(item for item in scope.spatial if item.name == name), dividend.const, names(scope)
    outer = fresh(name, used)
    inner = fresh(name, {*used, outer})
    first = floor_division(canonical(loop.low + shift), divisor)
    last = floor_division(canonical(loop.high - 1 + shift), divisor)
    spatial = swapped(scope.spatial, name, Loop(outer, 0, canonical(last - first + 1)), Loop(inner, 0, divisor))
    ranges = {**scope.ranges, **{item.name: (item.low, item.high) for item in spatial}}
    start = canonical(first * divisor - shift)
    body = put(scope.body, {name: iterator(outer) * divisor + iterator(inner) + number(start)}, ranges)
    return Scope(spatial, scope.sums, body), start


def _parted(scope: Scope) -> tuple[str, Affine, int] | None:
    """An axis of which quotients or remainders are read, their dividend and their divisor."""
    axes = {loop.name for loop in scope.spatial}
    for read in reads(scope.body):
        for e in read.index:
            for atom, _ in e.terms:
                if isinstance(atom, (Quotient, Remainder)):
                    name = next(iter(atom.dividend.names), "")
                    if atom.dividend.without(name).terms or atom.dividend.coefficient(name) != 1 or name not in axes:
                        raise UsageError(f"an index with {e} has no primitives")
                    return name, atom.dividend, atom.divisor
    return None
