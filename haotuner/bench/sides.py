"""The operands of a call that is raced and the check of its result, by the side that the op's contenders are of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from haotuner.bench import any_op, groups, images, inputs, products
from haotuner.bench.field import ANY, CONVOLUTION, DENSE, GROUPED, PRODUCT
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape


def copies(side: str, op: Op, shape: Shape, count: int, seed: int) -> Sequence[Any]:
    """What ``Contender.prepare`` takes: so many weights, or sets of all that a server binds by name (at any shape)."""
    if side == ANY:
        return any_op.draw_bound(op, shape, count, seed)
    return () if side == PRODUCT else inputs.draw_weights(op, count, seed)


def drawn(side: str, op: Op, shape: Shape, seed: int, bound: Sequence[Any] = ()) -> Any:
    """What ``Contender.aim`` takes: rows or images, both factors of products, or all operands by name.

    ``bound``: the copies; what is bound is the first of them.
    """
    if side == ANY:
        return any_op.draw(op, shape, seed) | (bound[0] if bound else {})
    if side in (DENSE, GROUPED):
        draw: Any = inputs.draw_x if side == DENSE else groups.draw
        return draw(op, shape["m"], seed)
    return (images.draw_image if side == CONVOLUTION else products.draw)(op, shape, seed)


def size_of(side: str, shape: Mapping[str, int]) -> int | Mapping[str, int]:
    """What ``Contender.plan`` takes: rows, where they are the one dynamic axis."""
    return shape["m"] if side in (DENSE, GROUPED) else shape


def error_share(side: str, op: Op, x: Any, weights: Sequence[Any], index: int, result: Any) -> float:
    """Largest error of the result for the copy of that index as a share of what is allowed; over 1 (or inf) is wrong."""
    if side == DENSE:
        return inputs.error_share(x, weights[index], result, op.dtype)
    if side in (GROUPED, CONVOLUTION):
        return float((groups if side == GROUPED else images).error_share(op, x, weights[index], result))
    if side == ANY:
        return any_op.error_share(op, any_op.of_call(op, x, weights, index), result)
    return products.error_share(op, products.copy(x, index), result)
