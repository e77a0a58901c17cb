"""Any op in a race: with its epilogue, in its own types, by all operands of one call."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from haotuner.bench.inputs import rolled
from haotuner.bench.rotation import resting
from haotuner.ops.convolution import is_convolution
from haotuner.ops.dtypes import DTYPES
from haotuner.spec import numerics
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape

_AT = "haotuner.bench.peers.any_"
PEERS = {
    "torch": f"{_AT}torch:TorchAnyOp",
    "inductor": f"{_AT}torch:InductorAnyOp",
    "openvino": f"{_AT}onnx:OpenvinoAnyOp",
    "onnxruntime": f"{_AT}onnx:OnnxruntimeAnyOp",
}
OURS = f"{_AT}ours:OurAnyOp"
GPU_PEERS = {name: f"haotuner.bench.peers.gpu_any:Gpu{name.capitalize()}AnyOp" for name in ("torch", "inductor")}
OUR_GPU = "haotuner.bench.peers.gpu_any:GpuOurAnyOp"
KINDS = (
    "dense", "batch_matmul", "attention", "softmax", "log_softmax", "layer_norm", "rms_norm", "add_layer_norm", "gelu",
    "gelu_tanh", "silu", "bias_gelu", "instance_norm", "group_norm", "reduce_sum", "reduce_mean", "reduce_max", "reduce_min",
    "reduce_prod", "transpose", "max_pool", "avg_pool", "resize",
)  # fmt: skip
CHECKED_FLOPS = 2**27  # of a result that is compared; of larger ones the first rows or images are
Operands: TypeAlias = dict[str, NDArray[Any]]  # by name, in the op's order, as the op stores them


def raceable(op: Op) -> bool:
    """Whether peers know the op: products, convolutions and the usual generated kinds, with a dynamic axis."""
    return (op.kind in KINDS or is_convolution(op.kind)) and bool(op.dynamic) and len(op.meaning.written) == 1


def bound(op: Op) -> tuple[str, ...]:
    """Operands that a server binds once: the weight of a layer, and one value a channel of the epilogue."""
    if op.kind != "dense" and not is_convolution(op.kind):
        return ()
    return ("weight", *(name for name, axes in op.epilogue_operands.items() if len(axes) == 1))


def images_of(op: Op) -> tuple[str, ...]:
    """Operands of a convolution that have its image's axes: what it reads, and a residual."""
    return ("x", *(name for name, axes in op.epilogue_operands.items() if len(axes) > 1))


def draw(op: Op, shape: Shape, seed: int) -> Operands:
    """Operands of a call, those of the epilogue last."""
    return numerics.draw(op, shape, np.random.default_rng([seed, *op.extents(shape).values()]))


def draw_bound(op: Op, shape: Shape, count: int, seed: int) -> list[Operands]:
    """So many copies, which differ, of what a server binds; each empty where it binds nothing."""
    selected = {name: values for name, values in draw(op, shape, seed).items() if name in bound(op)} if bound(op) else {}
    return [{name: rolled(values, index) for name, values in selected.items()} for index in range(count)]


def of_call(op: Op, operands: Operands, copies: Sequence[Operands], index: int) -> Operands:
    """All operands of the call of that number: its copy of what a server binds, or else of what rests."""
    if bound(op):
        return {**operands, **copies[index]}
    return {name: rolled(values, index) if name in resting(op) else values for name, values in operands.items()}


def error_share(op: Op, operands: Mapping[str, NDArray[Any]], y: NDArray[Any]) -> float:
    """Largest error as a share of what is allowed; over 1 (or inf) is wrong.

    In 16 bits every step of an epilogue may round its result, as libraries do which compute it step by step.
    """
    if DTYPES[op.dtype_of(op.meaning.output)].eps and not np.isfinite(np.asarray(y, np.float32)).all():
        return math.inf
    inputs, result = _first(op, operands, y)
    want = numerics.reference(op, inputs)
    if result.shape != want.shape:
        return math.inf
    eps = max(DTYPES[op.dtype_of(operand)].eps for operand in (op.meaning.operands[0], op.meaning.output))
    return numerics.compare(result, want, numerics.tolerance(op, inputs, want, step_eps=max(eps, DTYPES["fp32"].eps))).worst


def shape_of(op: Op, operands: Mapping[str, NDArray[Any]]) -> Shape:
    """The shape at which operands are."""
    known: dict[str, int] = {}
    for operand in op.meaning.inputs:
        known |= zip(operand.axes(op.all_options()), operands[operand.name].shape, strict=True)
    return Shape.of({axis: known[axis] for axis in op.dynamic})


def _first(op: Op, operands: Mapping[str, NDArray[Any]], y: NDArray[Any]) -> tuple[Operands, NDArray[Any]]:
    """As much of a call along one axis of its results as is soon compared: all of it, mostly."""
    shape = shape_of(op, operands)
    axis = next((axis for axis in op.parallel if axis in op.dynamic), None)
    most = op.flops(shape) if axis is None else CHECKED_FLOPS * shape[axis] // max(1, op.flops(shape))
    if axis is None or most >= shape[axis]:
        return dict(operands), y
    options, count = op.all_options(), max(1, most)
    axes = {operand.name: operand.axes(options) for operand in op.meaning.inputs} | op.epilogue_operands
    inputs = {name: _cut(values, axes[name], axis, count) for name, values in operands.items()}
    return inputs, _cut(y, op.meaning.output.axes(options), axis, count)


def _cut(values: NDArray[Any], axes: tuple[str, ...], axis: str, count: int) -> NDArray[Any]:
    return values if axis not in axes else values.take(range(count), axes.index(axis))
