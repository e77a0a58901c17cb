"""conv2d, conv1d and their transposes, grouped and depthwise too: images of channels times a window of weights.

Extents of an image after a convolution follow from those before it. Everything here is the two-dimensional case; a
one-dimensional image has a height of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from haotuner.ops import minimal_filtering
from haotuner.ops.kind import FILTERED, Arrays, Extents, Operand, OpKind, Option, Options, plain, sum_rounding
from haotuner.ops.minimal_filtering import Axis
from haotuner.ops.products import PRODUCT_OPTIONS

MOST = 1 << 20  # a stride, pad or dilation: beyond any image, and products of two stay far inside 64 bits
Reach = Literal["h", "w"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Movement of a window over one axis of an image: ``taps`` of it ``dilation`` apart, ``before`` and ``after`` padded."""

    taps: int
    stride: int
    dilation: int
    before: int
    after: int
    more: int = 0  # of a transposed convolution: elements added behind the output
    transposed: bool = False

    def out(self, extent: Any) -> Any:
        """Extent of the output along the axis, for one extent or for a column of them; under 1 where nothing fits."""
        reach = self.dilation * (self.taps - 1)
        if self.transposed:
            return (extent - 1) * self.stride - self.before - self.after + reach + self.more + 1
        return (extent + self.before + self.after - reach - 1) // self.stride + 1


ONE_TAP = Window(taps=1, stride=1, dilation=1, before=0, after=0)  # of a flat image's height


def numbers(text: str, count: int) -> tuple[int, ...]:
    """An option's numbers, one standing for all of them."""
    result = tuple(int(part) for part in text.split("."))
    return result * count if len(result) == 1 else result


def windows(kind: str, extents: Mapping[str, Any], options: Options) -> dict[Reach, Window]:
    """The windows of an op, by axis of its image."""
    flat, transposed = "1d" in kind, "transpose" in kind
    taps: dict[Reach, int] = {"w": int(extents["s"])} if flat else {"h": int(extents["r"]), "w": int(extents["s"])}
    stride, dilation = (numbers(options[name], len(taps)) for name in ("stride", "dilation"))
    more = numbers(options["opad"], len(taps)) if transposed else (0,) * len(taps)
    pad = numbers(options["pad"], 2 * len(taps))
    if len(pad) == 2 and not flat:  # of height and width
        pad = (pad[0], pad[1], pad[0], pad[1])
    return {
        axis: Window(
            taps=count,
            stride=stride[at],
            dilation=dilation[at],
            before=pad[at],
            after=pad[at + len(taps)],
            more=more[at],
            transposed=transposed,
        )  # fmt: skip
        for at, (axis, count) in enumerate(taps.items())
    }


def residue_taps(side: Window) -> list[int]:
    """Of a transposed window: taps that reach outputs ``i * stride + r - before``, for each residue r (dilation 1)."""
    return [-(-(side.taps - r) // side.stride) for r in range(side.stride)]


def lies_as_columns(kind: str, extents: Mapping[str, Any], options: Options) -> bool:
    """True if an image as it lies is what the windows see, pixel by pixel: one tap, stride 1, no pads, channels last."""
    result = windows(kind, extents, options).values()
    item = all((side.taps, side.stride, side.before, side.after) == (1, 1, 0, 0) for side in result)
    return item and options["layout"] in ("nhwc", "nwc") and "transpose" not in kind


def convolve(x: Any, weight: Any, result: Mapping[Reach, Window], groups: int) -> Any:
    """The convolution of ``x`` (b, c, h, w) with ``weight`` (f, c/groups, r, s), or transposed (c, f/groups, r, s)."""
    tall, wide = result.get("h", ONE_TAP), result["w"]
    b, c, h, w = x.shape
    p, q = (max(0, side.out(extent)) for side, extent in ((tall, h), (wide, w)))
    features = weight.shape[1] * groups if wide.transposed else weight.shape[0]
    y = np.zeros((b, groups, features // groups, p, q))
    x = x.reshape(b, groups, c // groups, h, w)
    every = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
    if wide.transposed:
        every = every.swapaxes(1, 2)
    for i in range(tall.taps):
        for j in range(wide.taps):
            rows, columns = _meeting(tall, i, h, p), _meeting(wide, j, w, q)
            size = (rows[0].size, columns[0].size)
            if not all(size):
                continue
            part = x[:, :, :, rows[0]][..., columns[0]].reshape(b, groups, c // groups, size[0] * size[1])
            y[:, :, :, rows[1][:, np.newaxis], columns[1]] += (every[..., i, j] @ part).reshape(*y.shape[:3], *size)
    return y.reshape(b, features, p, q)


def filter_axes(result: Mapping[Reach, Window]) -> tuple[Axis, Axis]:
    """The windows of a convolution as minimal filtering has them: down the image and across it.

    Of a transposed one whose taps are a multiple of the stride: those that each residue of the stride has over the image.
    """
    return _filter_axis(result.get("h", ONE_TAP)), _filter_axis(result["w"])


def _filter_axis(side: Window) -> Axis:
    if side.transposed:
        taps = max(1, side.taps // side.stride)
        return Axis(taps=taps, before=taps - 1 - side.before // side.stride, residues=side.stride)
    return Axis(taps=side.taps, stride=side.stride, before=side.before, dilation=side.dilation)


def _filtered(x: Any, weight: Any, result: Mapping[Reach, Window], out: tuple[int, int], tile: int) -> Any:
    """Tolerance of minimal filtering, in units of roundoff; transposed ones are filtered residue by residue."""
    axes, sides = filter_axes(result), (result.get("h", ONE_TAP), result["w"])
    if not result["w"].transposed:
        return minimal_filtering.tolerance(x, weight, axes, out, tile)
    skipped = [side.before % side.stride for side in sides]
    tall, wide = (-(-(count + skip) // side.stride) for count, skip, side in zip(out, skipped, sides, strict=True))
    room = np.zeros((x.shape[0], weight.shape[1], tall * sides[0].stride, wide * sides[1].stride))
    for a in range(sides[0].stride):
        for r in range(sides[1].stride):
            taps = weight.swapaxes(0, 1)[:, :, a :: sides[0].stride, r :: sides[1].stride][:, :, ::-1, ::-1]
            room[:, :, a :: sides[0].stride, r :: sides[1].stride] = minimal_filtering.tolerance(
                x, taps, axes, (tall, wide), tile
            )
    return room[:, :, skipped[0] :, skipped[1] :][:, :, : out[0], : out[1]]


def _meeting(side: Window, tap: int, extent: int, out: int) -> tuple[Any, Any]:
    """Elements of the image, and of the output, that meet at a tap."""
    if side.transposed:
        source = np.arange(extent)
        target = source * side.stride + tap * side.dilation - side.before
        inside = (target >= 0) & (target < out)
    else:
        target = np.arange(out)
        source = target * side.stride + tap * side.dilation - side.before
        inside = (source >= 0) & (source < extent)
    return source[inside], target[inside]


def _kind(name: str, flat: bool, transposed: bool) -> OpKind:
    def images(x: Any, weight: Any, options: Options) -> tuple[Any, Any, Mapping[Reach, Window]]:
        if flat:
            x, weight = x[:, :, None], weight[:, :, None]
        taps = {"r": weight.shape[2], "s": weight.shape[3]}
        return x, weight, windows(name, taps, options)

    def result(inputs: Arrays, options: Options) -> Any:
        y = convolve(*images(inputs["x"], inputs["weight"], options), int(options["groups"]))
        return y[:, :, 0] if flat else y

    def tolerance(inputs: Arrays, options: Options) -> Any:
        x, weight = np.abs(inputs["x"]), np.abs(inputs["weight"])
        depth = int(np.prod(weight.shape)) // max(1, weight.shape[1 if transposed else 0])
        y = convolve(*images(x, weight, options), int(options["groups"]))
        units, tile = sum_rounding(depth) * (y[:, :, 0] if flat else y), int(options.get(FILTERED, 0))
        if not tile:
            return units
        x, weight, result = images(x, weight, options)
        more = _filtered(x, weight, result, (y.shape[2], y.shape[3]), tile)
        return np.maximum(units, more[:, :, 0] if flat else more)

    def flops(extents: Extents) -> int:
        deep, taps = ("fg", "c") if transposed else ("cg", "f"), extents.get("r", 1) * extents["s"]
        points = (extents.get("h", 1) * extents["w"]) if transposed else extents.get("p", 1) * extents["q"]
        return 2 * extents["b"] * extents[deep[0]] * extents[deep[1]] * points * taps

    def objection(static: Extents, options: Options) -> str:
        missing = [axis for axis in ("c", "f", *(("s",) if flat else ("r", "s"))) if axis not in static]
        if missing:
            return f"give {', '.join(missing)} an extent; only b, {'w' if flat else 'h and w'} may be dynamic"
        groups = int(options["groups"])
        if groups < 1 or static["c"] % groups or static["f"] % groups:
            return f"groups={groups} must divide c={static['c']} and f={static['f']}"
        result = windows(name, static, options)
        for axis, side in result.items():
            if not 1 <= side.stride <= MOST or not 1 <= side.dilation <= MOST or max(side.before, side.after) > MOST:
                return f"stride and dilation along {axis} must be in 1..{MOST}, pads in 0..{MOST}"
            if side.dilation * (side.taps - 1) > MOST:
                return f"its window reaches over more than {MOST} elements along {axis}"
            if side.more and side.more >= max(side.stride, side.dilation):
                return f"opad={side.more} along {axis} must be less than the stride or the dilation"
            if axis in static and side.out(static[axis]) < 1:
                return f"the window is larger than the padded image of {axis}={static[axis]}"
        return ""

    image = ("b", "c", "w") if flat else ("b", "c", "h", "w")
    after = ("b", "f", "q") if flat else ("b", "f", "p", "q")
    layouts = ("ncw", "nwc") if flat else ("nchw", "nhwc")
    window = ("s",) if flat else ("r", "s")

    def both(axes: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        return dict(zip(layouts, (axes, (axes[0], *axes[2:], axes[1])), strict=True))

    def side_of(axis: Reach) -> Any:
        return lambda extents, options: windows(name, extents, options)[axis].out(extents[axis])

    of_group = "f" if transposed else "c"
    derived = {
        f"{of_group}g": lambda extents, options: extents[of_group] // int(options["groups"]),
        **({} if flat else {"p": side_of("h")}),
        "q": side_of("w"),
    }
    stored = ("c", "fg", *window) if transposed else ("f", "cg", *window)
    sides = 1 if flat else 2
    own = {
        "stride": Option(default="1", counts=tuple({1, sides})),
        "pad": Option(default="0", counts=tuple(sorted({1, sides, 2 * sides}))),
        "dilation": Option(default="1", counts=tuple({1, sides})),
        "groups": Option(default="1"),
        **({"opad": Option(default="0", counts=tuple({1, sides}))} if transposed else {}),
        **PRODUCT_OPTIONS,
    }
    return OpKind(
        name=name,
        channel="f",
        meaning=f"{name}: Y[b,f] = sum over c and the window of X[b,c] · W[f,c], as torch has it",
        axes={"b": "spatial", "c": "reduction", **({} if flat else {"h": "spatial"}), "w": "spatial", "f": "spatial",
              **({} if flat else {"r": "reduction"}), "s": "reduction"},
        operands=(
            Operand(name="x", role="input", layouts=both(image), option="layout"),
            plain("weight", "constant", *stored),
            Operand(name="y", role="output", layouts=both(after), option="layout"),
        ),
        flops=flops,
        reference=result,
        tolerance=tolerance,
        exact=True,
        own_options=own,
        derived=derived,
        objection=objection,
        example=f"{name}:c=64,f=64,{'' if flat else 'r=3,'}s=3,pad=1",
    )  # fmt: skip


CONV2D = _kind("conv2d", flat=False, transposed=False)
CONV1D = _kind("conv1d", flat=True, transposed=False)
CONV_TRANSPOSE2D = _kind("conv_transpose2d", flat=False, transposed=True)
CONV_TRANSPOSE1D = _kind("conv_transpose1d", flat=True, transposed=True)
CONVOLUTIONS = (CONV2D, CONV1D, CONV_TRANSPOSE2D, CONV_TRANSPOSE1D)


def is_convolution(kind: str) -> bool:
    """True if a kind of operator is a convolution."""
    return kind in {item.name for item in CONVOLUTIONS}
