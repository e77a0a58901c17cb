"""The operands of a call that is raced and the check of its result, by the side that the op's contenders are of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from haotuner.bench import any_op, groups, images, inputs, products
from haotuner.bench.field import ANY, CONVOLUTION, DENSE, GROUPED
from haotuner.words.op import Op
from haotuner.words.shape import Shape


def drawn(side: str, op: Op, shape: Shape, seed: int) -> Any:
    """What ``Contender.aim`` takes: rows or images, both factors of products, or all operands by name."""
    if side in (DENSE, GROUPED):
        draw: Any = inputs.draw_x if side == DENSE else groups.draw
        return draw(op, shape["m"], seed)
    of = {CONVOLUTION: images.draw_image, ANY: any_op.draw}
    return of.get(side, products.draw)(op, shape, seed)


def size_of(side: str, shape: Mapping[str, int]) -> int | Mapping[str, int]:
    """What ``Contender.plan`` takes: rows, where they are the one dynamic axis."""
    return shape["m"] if side in (DENSE, GROUPED) else shape


def error_share(side: str, op: Op, x: Any, weight: Any, found: Any) -> float:
    """Largest error of a result as a share of what is allowed; over 1 (or inf) is wrong."""
    if side == DENSE:
        return inputs.error_share(x, weight, found, op.dtype)
    if side in (GROUPED, CONVOLUTION):
        return float((groups if side == GROUPED else images).error_share(op, x, weight, found))
    return float((any_op if side == ANY else products).error_share(op, x, found))
