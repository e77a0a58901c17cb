"""Convolutions on CUDA devices: the kernels of products side by side, on image columns that are laid out ahead of them.

A convolution is a batch_matmul of its weight, as torch stores it, and what each output's window sees, a row a pixel
(``runtime/native/kinds/cuda_conv.c``). Kernels, cubins and times are those of that product: what is laid out is the same
for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import gcd, prod
from typing import Any, NamedTuple

import numpy as np

from haotuner.microkernels.cuda.dense import CudaDense
from haotuner.microkernels.cuda.dense_mma import CudaMma
from haotuner.microkernels.cuda.dense_wgmma_windows import CudaWgmmaWindows
from haotuner.microkernels.cuda.direct import DIRECT_FAMILIES, CudaDirect, sides_of
from haotuner.microkernels.cuda.families import BATCHED_FAMILIES, PHASE_FAMILIES, WINDOW_FAMILIES
from haotuner.microkernels.cuda.fused import fused, stepped, steps_of
from haotuner.ops.convolution import is_convolution, lies_as_columns
from haotuner.spec.constraint import ConstraintQuery, Law, Laws
from haotuner.spec.demand import Column, Demand, DemandQuery, Expectation, Work
from haotuner.spec.device import Device
from haotuner.spec.family import Layout
from haotuner.spec.kernel import Footprint, MicroKernel, Tile
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from haotuner.spec.traffic import Traffic

FP32_BYTES = 4
MOST_PHASES = 8  # of an axis: what a launch can be told (native/cuda/ht_cuda_args.h)


def channels_last(op: Op) -> bool:
    """True if rows of the product are pixels, as channels are the innermost axis; else rows are features."""
    return op.option("layout") in ("nhwc", "nwc")


def transposed(op: Op) -> bool:
    """True if the product comes first: every pixel of x with every tap, gathered by a launch behind it; but for windows."""
    return "transpose" in op.kind


def product_of(op: Op, *, phased: bool = False) -> Op:
    """The batch_matmul that a convolution is, once its image columns are laid out.

    ``phased``: of a transposed one, that of the results of one residue, with the most taps that reach any.
    """
    groups, taps = int(op.option("groups")), dict(op.static).get("r", 1) * op["s"]
    if phased:
        taps = prod(side.taps for side in residues_of(op))
    elif transposed(op):
        layout = "nn" if channels_last(op) else "tn"
        return _product(op, op["f"] // groups * taps, op["c"] // groups, layout)
    return _product(op, op["f"] // groups, op["c"] // groups * taps, "nt")


def _product(op: Op, features: int, depth: int, layout: str) -> Op:
    """The batch_matmul of a convolution's types: its features are columns where channels come last, else rows."""
    static = ((("n" if channels_last(op) else "m"), features), ("k", depth))
    options = (("layout", layout), ("in", op.option("in")))
    return Op(kind="batch_matmul", static=static, dtype=op.dtype, options=options)


class Residues(NamedTuple):
    """Residues of the stride of a transposed convolution, along one side."""

    live: int  # that any tap reaches; results of the others are zero
    taps: int  # the most that reach one


def residues_of(op: Op) -> tuple[Residues, Residues]:
    """Down and to the right. Taps a whole ``stride / gcd(stride, dilation)`` apart reach the same residue."""
    down, right = ((side.taps, side.stride // gcd(side.stride, side.dilation)) for side in sides_of(op))
    return Residues(min(down), -(-down[0] // down[1])), Residues(min(right), -(-right[0] // right[1]))


def product_extents(op: Op, extents: Mapping[str, Any], *, phased: bool = False) -> dict[str, Any]:
    """Extents of that product from those of the convolution: numbers, or columns of them."""
    groups, taps = int(op.option("groups")), extents.get("r", 1) * extents["s"]
    if phased:
        (tall, wide), (down, right) = sides_of(op), residues_of(op)
        rows, columns = -(-extents.get("p", 1) // tall.stride), -(-extents["q"] // wide.stride)
        result = {"b": groups * down.live * right.live, "m": extents["b"] * rows * columns, "n": extents["f"] // groups}
        return result | {"k": extents["c"] // groups * down.taps * right.taps}
    if transposed(op):
        plane, lines, k = extents.get("h", 1) * extents["w"], extents["f"] // groups * taps, extents["c"] // groups
        if channels_last(op):
            return {"b": groups, "m": extents["b"] * plane, "n": lines, "k": k}
        return {"b": extents["b"] * groups, "m": lines, "n": plane, "k": k}
    plane, k = extents.get("p", 1) * extents["q"], extents["c"] // groups * taps
    if channels_last(op):
        return {"b": groups, "m": extents["b"] * plane, "n": extents["f"] // groups, "k": k}
    return {"b": extents["b"] * groups, "m": extents["f"] // groups, "n": plane, "k": k}


def product_shape(op: Op, shape: Shape, *, phased: bool = False) -> Shape:
    """Shape of that product for one shape."""
    result = product_extents(op, op.extents(shape), phased=phased)
    return Shape.of({axis: int(result[axis]) for axis in product_of(op, phased=phased).dynamic})


class CudaConv:
    """One family of batched products as that of one convolution; kernels keep that family's name."""

    backend = "cuda"

    def __init__(self, op: Op, inner: CudaDense) -> None:
        self._op, self._inner, self._product = op, inner, product_of(op, phased=inner.phased)
        self.name, self.frontier = inner.name, inner.frontier

    def serves(self, op: Op) -> bool:
        """Its own convolution."""
        return op == self._op

    def suits(self, device: Device) -> bool:
        """As the product's family."""
        return self._inner.suits(device)

    def points(self, op: Op, device: Device) -> Iterator[MicroKernel]:
        """Those of the product, built for the convolution's steps; of windows those whose step along k lies in one tap."""
        every = self._inner.points(self._product, device)
        if self._inner.windows:
            every = (item for item in every if channels_of_group(self._op) % item["bk"] == 0)
        steps = steps_of(self._op, phased=self._inner.phased)
        return (stepped(item, steps) for item in every)

    def tile(self, kernel: MicroKernel) -> Tile:
        """Features and pixels, which are numbered through rows and, channels last, images."""
        pixels, lines = ("bm", "bn") if channels_last(self._op) else ("bn", "bm")
        first = transposed(self._op) and not self._inner.phased
        taps = dict(self._op.static).get("r", 1) * self._op["s"] if first else 1
        features = max(1, kernel[lines] // taps)
        return Tile(extent={"q": kernel[pixels], "f": features}, edge={}, step={"c": kernel["bk"]})

    def computed(self, kernel: MicroKernel, axis: str, extent: int) -> int:
        """Whole tiles of features; of a row's pixels those that there are, since tiles go on in the next row."""
        size = self.tile(kernel).extent["f"]
        return -(-extent // size) * size if axis == "f" else extent

    def layout(self, kernel: MicroKernel) -> Layout:
        """The weight is read as it is stored."""
        return ()

    def footprint(self, kernel: MicroKernel) -> Footprint:
        """As the product's."""
        return self._inner.footprint(kernel)

    def laws(self, op: Op, device: Device) -> Laws:
        """Those of the product's family, asked of the product."""

        def of_product(law: Law) -> Law:
            def asked(q: ConstraintQuery) -> tuple[float, float] | None:
                shape = Shape.of({axis: q.most[axis] for axis in op.dynamic})
                most = product_shape(op, shape, phased=self._inner.phased)
                return law(replace(q, op=self._product, tile=self._inner.tile(q.kernel), most=most.as_dict()))

            return asked

        return tuple((name, of_product(law)) for name, law in self._inner.laws(self._product, device))

    def demand(self, requested: DemandQuery) -> Demand:
        """The product's, and the launch beside it: columns, or what is gathered. For windows the weight is turned once.

        Windows overlap, so that the image is a part of its columns: a kernel that reads them where they lie brings no more
        than the image from memory, and takes all of it from the L2.
        """
        e, item = requested.extents, np.ones_like(requested.extents["b"])
        phased = self._inner.phased
        result = {axis: item * value for axis, value in product_extents(self._op, e, phased=phased).items()}
        groups = int(self._op.option("groups"))
        if transposed(self._op) and not phased:  # products in fp32 or int32, written and read once more
            product = self._inner.demand(replace(requested, extents=result))
            return replace(product, apart=_streamed(2 * FP32_BYTES * result["b"] * result["m"] * result["n"]))
        columns = (
            result["b"] * result["m"] * result["k"] if phased else e["b"] * e.get("p", item) * e["q"] * result["k"] * groups
        )
        image = np.minimum(e["b"] * e.get("h", item) * e["w"] * e["c"], columns)
        if self._inner.windows:
            result["m_seen" if self._inner.windows == "last" else "n_seen"] = image / columns
            return self._inner.demand(replace(requested, extents=result))
        product = self._inner.demand(replace(requested, extents=result))
        if lies_as_columns(self._op.kind, dict(self._op.static), self._op.all_options()):
            return product
        return replace(product, apart=_streamed(requested.element_bytes * (image + columns)))

    def expectation(self, op: Op, device: Device, traffic: Traffic) -> Expectation | None:
        """None: the cost model's."""
        return None

    def schedule(self, kernel: MicroKernel, symbol: str) -> Any:
        """The product's program."""
        return self._inner.schedule(kernel, symbol)


def _streamed(moved: Column) -> Work:
    """A launch that computes nothing."""
    return Work.streamed(0 * moved, moved)


def conv_families(op: Op) -> tuple[CudaConv | CudaDirect, ...]:
    """The families that compute a convolution; none where its type or that of its result is none of theirs."""
    if direct := tuple(family for family in DIRECT_FAMILIES if family.serves(op)):
        return direct  # a product of one channel would multiply columns of as many terms as taps, a row at a time
    if not is_convolution(op.kind) or fused(op) is None or not op.dynamic:
        return ()
    product, seen, changed = product_of(op), product_of(op, phased=transposed(op)), changes_signs(op)

    def multiplies(family: CudaDense, what: Op) -> bool:
        return family.signs == "su" and family.takes(what) if changed else family.serves(what)

    # Windows ahead of columns of the same instructions: where nothing is timed the first family alone takes part.
    result: list[CudaDense] = []
    for family in BATCHED_FAMILIES:
        windows = tuple(windows_of(op, family)) if multiplies(family, seen) else ()
        # Sums of taps are timed without what gathers them, and are dearer by every analysis.
        alone = transposed(op) and windows
        result += [*windows, *([family] if multiplies(family, product) and not alone else [])]
    return tuple(CudaConv(op, family) for family in result)


def channels_of_group(op: Op) -> int:
    """Terms of a tap."""
    return op["c"] // int(op.option("groups"))


def windows_of(op: Op, family: CudaDense) -> Iterator[CudaDense]:
    """Families with the instructions of one of columns that read the op's windows where they lie.

    None where the image lies as its columns would, and of transposed ones whose channels come first, or of large strides.
    """
    if not transposed(op) and lies_as_columns(op.kind, dict(op.static), op.all_options()):
        return
    side, channels = "last" if channels_last(op) else "first", channels_of_group(op)
    if transposed(op) and max(side.stride for side in sides_of(op)) > MOST_PHASES:
        return
    for item in PHASE_FAMILIES if transposed(op) else WINDOW_FAMILIES:
        of = CudaMma if isinstance(item, CudaWgmmaWindows) else type(item)  # both multiply on tensor cores
        same = of is type(family) and (item.dtype, item.signs) == (family.dtype, family.signs)
        if same and item.windows == side and channels % item.least_step == 0:
            yield item


def changes_signs(op: Op) -> bool:
    """True if its image, which has no signs, is the product's second factor and the weight, which has them, the first."""
    return op.sums == "int32" and op.option("in") == "own" and not channels_last(op)
