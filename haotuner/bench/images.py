"""Convolutions in a race: images and weights that every contender gets alike, how libraries are told of them, the check."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from haotuner.bench.contender import Array
from haotuner.microkernels.cpu.conv_winograd import filter_tiles
from haotuner.ops.convolution import convolve, filter_axes, is_convolution, windows
from haotuner.ops.kind import FILTERED
from haotuner.ops.minimal_filtering import growth
from haotuner.spec import numerics
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape

SAFETY = 8.0  # as of products, see inputs.py
EPS = float(np.finfo(np.float32).eps) / 2
PEERS = ("torch", "onednn", "openvino", "onnxruntime")  # that convolutions are set up for
DIRECT_FLOPS = 2**26  # of the images that are checked element by element


def raceable(op: Op) -> bool:
    """Whether peers are set up for the op: a convolution in fp32 with the same pads on both sides.

    A transposed one adds fewer elements behind its output than the stride or the dilation, as torch wants it.
    """
    if not is_convolution(op.kind) or not op.plain or op.epilogue:
        return False
    sides = windows(op.kind, dict(op.static), op.all_options()).values()
    return all(side.before == side.after and side.more < max(side.stride, side.dilation) for side in sides)


def weight_shape(op: Op) -> tuple[int, ...]:
    """Dimensions of a weight."""
    extents = op.meaning.complete({**dict(op.static), **{axis: 1 for axis in op.dynamic}}, op.all_options())
    return op.meaning.operands[1].shape(extents, op.all_options())


def draw_image(op: Op, shape: Shape, seed: int) -> Array:
    """An input as the op stores it."""
    size = op.operand_shape(op.meaning.operands[0], shape)
    return np.random.default_rng([seed, *size]).standard_normal(size, dtype=np.float32)


def output_shape(op: Op, x: Array) -> tuple[int, ...]:
    """Dimensions, channels first, of the result for an input as the op stores it."""
    extents = dict(zip(op.meaning.operands[0].axes(op.all_options()), x.shape, strict=True))
    full = op.extents(Shape.of({axis: extents[axis] for axis in op.dynamic}))
    return tuple(full[axis] for axis in next(iter(op.meaning.output.layouts.values())))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvAttributes:
    """A convolution in the words of other libraries; images are channels first for all of them."""

    flat: bool
    last: bool  # the op stores channels last: torch gets the same memory as channels_last, graph compilers their own layout
    stride: tuple[int, ...]
    pad: tuple[int, ...]  # on both sides of each axis
    dilation: tuple[int, ...]
    groups: int
    transposed: bool = False
    more: tuple[int, ...] = ()  # of a transposed one: elements added behind the output of each axis

    @staticmethod
    def of(op: Op) -> ConvAttributes:
        """The words for an op."""
        sides = tuple(windows(op.kind, dict(op.static), op.all_options()).values())
        return ConvAttributes(
            flat="h" not in op.axes,
            last=op.option("layout") in ("nhwc", "nwc"),
            stride=tuple(side.stride for side in sides),
            pad=tuple(side.before for side in sides),
            dilation=tuple(side.dilation for side in sides),
            groups=int(op.option("groups")),
            transposed=sides[0].transposed,
            more=tuple(side.more for side in sides),
        )

    def first(self, image: Any) -> Any:
        """A view of an image, or of a result, with channels first."""
        return np.moveaxis(image, -1, 1) if self.last else image

    def stored(self, image: Any) -> Any:
        """A result with channels first as the op stores it."""
        return np.moveaxis(image, 1, -1) if self.last else image


def error_share(op: Op, x: Array, weight: Array, y: Array) -> float:
    """Largest error of a result as a share of what sums in fp32 may leave; over 1 (or inf) is wrong.

    Features are added up with random signs (Freivalds 1977), which is the convolution with one feature a group whose
    weights are added up alike. The first image is compared element by element where it is small.
    """
    extents = dict(zip(op.meaning.operands[0].axes(op.all_options()), x.shape, strict=True))
    shape = Shape.of({axis: extents[axis] for axis in op.dynamic})
    if y.shape != op.operand_shape(op.meaning.output, shape) or not np.isfinite(y).all():
        return math.inf
    attributes, sides = ConvAttributes.of(op), windows(op.kind, dict(op.static), op.all_options())
    flat = attributes.flat
    image = attributes.first(x)[:, :, None] if flat else attributes.first(x)
    result = attributes.first(y)[:, :, None] if flat else attributes.first(y)
    filters = weight[:, :, None] if flat else weight
    groups, each = attributes.groups, op["f"] // attributes.groups
    signs = np.random.default_rng(x.size).choice((-1.0, 1.0), op["f"])
    added = _added(signs, filters, groups, attributes.transposed)
    output = (signs[:, None, None] * result).reshape(result.shape[0], groups, each, *result.shape[2:]).sum(axis=2)
    want = convolve(image.astype(np.float64), added.astype(np.float64), sides, groups)
    # A sum's error is about as large as one rounding of each of its terms; those of the features are independent, so that of
    # a signed sum of them grows with the root of their number.
    largest = np.sqrt(each) * np.abs(filters).max()
    reach = convolve(np.abs(image).astype(np.float64), np.full_like(added, largest, dtype=np.float64), sides, groups)
    # Ours or a peer's may come by minimal filtering, whose errors are larger.
    tile = max(filter_tiles(op), default=0) if op.dtype == "fp32" else 0
    grown = growth(tile, filter_axes(sides), op["c"]) if tile else 0.0
    bound = max(SAFETY * EPS, grown) * reach + np.finfo(np.float32).tiny
    share = float((np.abs(output - want) / bound).max())
    single_image = Shape.of({**shape.as_dict(), "b": 1})
    if op.flops(single_image) <= DIRECT_FLOPS:
        computed = {FILTERED: str(tile)} if tile else {}
        share = max(share, numerics.check(op, {"x": x[:1], "weight": weight}, y[:1], computed=computed).worst)
    return share


def _added(signs: Array, filters: Array, groups: int, transposed: bool) -> Array:
    """A convolution's weight with one feature a group: all features of the group, each with its sign."""
    if transposed:  # (c, f/groups, r, s)
        of_group = signs.reshape(groups, 1, -1, 1, 1) * filters.reshape(groups, -1, *filters.shape[1:])
        return np.asarray(of_group.sum(axis=2).reshape(-1, 1, *filters.shape[2:]))
    return np.asarray((signs[:, None, None, None] * filters).reshape(groups, -1, *filters.shape[1:]).sum(axis=1))
