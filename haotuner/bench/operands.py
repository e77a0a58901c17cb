"""Operands of calls that are raced, alike for every contender, as their dtypes store them.

Numbers as a dtype stores them: data of other types are drawn as fp32 that the dtype holds exactly. Needs numpy only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from haotuner.bench.contender import Array, Operands
from haotuner.bench.rotation import resting
from haotuner.ops.convolution import is_convolution, windows
from haotuner.ops.dtypes import DTYPES
from haotuner.spec import numerics
from haotuner.spec.call_case import CallCase
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape

HIGH = 16  # bf16 is the upper half of an fp32


def encoded(values: Array, dtype: str) -> NDArray[Any]:
    """Values as the dtype stores them: float32, float16, int8, uint8, or the bits of bf16 as uint16. Finite values only."""
    if dtype == "bf16":
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        even = (bits >> np.uint32(HIGH)) & np.uint32(1)
        return ((bits + np.uint32(0x7FFF) + even) >> np.uint32(HIGH)).astype(np.uint16)
    if dtype == "int32":
        return np.ascontiguousarray(values, np.int32)
    if dtype in ("int8", "uint8"):
        element_type = DTYPES[dtype]
        return np.clip(np.rint(values), element_type.low, element_type.high).astype(element_type.numpy)
    if dtype not in ("fp32", "fp16"):
        raise ValueError(f"{dtype} is not raced; fp32, fp16, bf16, int8 and uint8 are")
    return np.ascontiguousarray(values, DTYPES[dtype].numpy)


def decoded(stored: NDArray[Any], dtype: str) -> Array:
    """Values of what `encoded` made, as fp32."""
    if dtype == "bf16":
        return (stored.astype(np.uint32) << np.uint32(HIGH)).view(np.float32)
    return np.asarray(stored, np.float32)


KINDS = (
    "dense", "batch_matmul", "attention", "softmax", "log_softmax", "layer_norm", "rms_norm", "add_layer_norm", "gelu",
    "gelu_tanh", "silu", "bias_gelu", "instance_norm", "group_norm", "reduce_sum", "reduce_mean", "reduce_max", "reduce_min",
    "reduce_prod", "transpose", "max_pool", "avg_pool", "resize",
)  # fmt: skip
SKEW = 2.0  # of a Dirichlet distribution: how unevenly a router of experts shares rows


def raceable(op: Op) -> bool:
    """True if peers know the op: products, convolutions and the usual generated kinds, with a dynamic axis."""
    return (op.kind in KINDS or is_convolution(op.kind)) and bool(op.dynamic) and len(op.meaning.written) == 1


def plain_layer(op: Op) -> bool:
    """True if an op is a product of rows with a weight (n, k), and nothing else."""
    return op.kind == "dense" and not op.options and not op.epilogue and op.dynamic == ("m",)


def plain_convolution(op: Op) -> bool:
    """True if an op is a convolution in fp32 with the same pads on both sides, and nothing else.

    A transposed one adds fewer elements behind its output than the stride or the dilation, as torch wants it.
    """
    if not is_convolution(op.kind) or not op.plain or op.epilogue:
        return False
    sides = windows(op.kind, dict(op.static), op.all_options()).values()
    return all(side.before == side.after and side.more < max(side.stride, side.dilation) for side in sides)


def plain_product(op: Op) -> bool:
    """True if an op is a batch of products in fp32, and nothing else."""
    return op.kind == "batch_matmul" and op.plain and not op.epilogue


def plain_groups(op: Op) -> bool:
    """True if an op is a product of groups of rows with weights (g, n, k), and nothing else."""
    return op.kind == "grouped" and not op.options and not op.epilogue and op.dynamic == ("m",)


def binds_weight(op: Op) -> bool:
    """True if a server binds one operand and calls with the others."""
    return op.kind in ("dense", "grouped") or is_convolution(op.kind)


def bound(op: Op) -> tuple[str, ...]:
    """Operands that a server binds once: the weight of a layer, and one value a channel of the epilogue."""
    return ("weight", *op.channel_operands) if binds_weight(op) else ()


def images_of(op: Op) -> tuple[str, ...]:
    """Operands of a convolution that have its image's axes: what it reads, and a residual."""
    return ("x", *(name for name, axes in op.epilogue_operands.items() if len(axes) > 1))


def copies(op: Op, shape: Shape, count: int, seed: int) -> list[Operands]:
    """So many copies, which differ, of what a server binds; each empty where it binds nothing.

    One is drawn, the others are its elements moved on by one each: to draw 128 MB for every contender takes longer than a
    race.
    """
    names = bound(op)
    drawn = _drawn(op, shape, _rng(op, shape, seed), names)
    return [{name: rolled(values, index) for name, values in drawn.items()} for index in range(count)]


def calls(op: Op, shape: Shape, seed: int, bound_copies: Sequence[Operands], count: int) -> list[CallCase]:
    """So many calls at a shape, each with its copy of what a server binds, or else of what rests between calls."""
    names = bound(op)
    order = [*(operand.name for operand in op.meaning.inputs), *op.epilogue_operands]
    rng = _rng(op, shape, seed)
    drawn = _drawn(op, shape, rng, [name for name in order if name not in names])
    for name, axis in op.meaning.ends.items():
        drawn[name] = routed(rng, op.extents(shape)[axis], len(drawn[name]))
    result = []
    for index in range(count):
        if names:
            operands = {**drawn, **bound_copies[index]}
        else:
            operands = {name: rolled(values, index) if name in resting(op) else values for name, values in drawn.items()}
        result.append(CallCase(op, shape, {name: operands[name] for name in order}))
    return result


def routed(rng: np.random.Generator, rows: int, groups: int) -> NDArray[np.int32]:
    """Ends of groups of rows as a router of experts makes them: uneven, some groups perhaps empty."""
    ends = np.rint(np.cumsum(rng.dirichlet(np.full(groups, SKEW))) * rows).astype(np.int32)
    ends[-1] = rows
    return ends


def rolled(values: NDArray[Any], index: int) -> NDArray[Any]:
    """The copy of that number: the elements moved on by so many, in memory of its own; the values themselves for 0."""
    return np.roll(values.ravel(), index).reshape(values.shape) if index else values


def result_of(op: Op, shape: Shape) -> NDArray[Any]:
    """Room for the result of a call."""
    output = op.meaning.output
    return np.empty(op.operand_shape(output, shape), numerics.numpy_dtype(op.dtype_of(output)))


def _drawn(op: Op, shape: Shape, rng: np.random.Generator, names: Sequence[str]) -> Operands:
    """Operands of these names; bytes normal over most of their range.

    Of uniform bytes libraries saturate that add two products in 16 bits, where the CPU has nothing better.
    """
    drawn = numerics.draw(op, shape, rng, names=names)
    for operand in op.meaning.inputs:
        element_type = DTYPES[op.dtype_of(operand)]
        if operand.name in drawn and element_type.size == 1:
            middle, deviation = (element_type.high + element_type.low + 1) / 2, (element_type.high - element_type.low) / 8
            values = rng.standard_normal(drawn[operand.name].shape, dtype=np.float32) * deviation + middle
            drawn[operand.name] = encoded(values, element_type.name)
    return drawn


def _rng(op: Op, shape: Shape, seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, *op.extents(shape).values()])
