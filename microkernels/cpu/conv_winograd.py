"""Convolutions by minimal filtering (Winograd; Lavin & Gray, CVPR 2016): fewer products, and transforms around them.

Along an axis ``wt`` outputs of a window of r taps come from ``wt + r - 1`` products instead of ``wt * r``: of 3 x 3 taps
2.25 times fewer of 2, 4 times fewer of 4. The products are dense's register tiles, one product of matrices a point
(``runtime/native/kinds/conv_winograd.c``). Sums meet factors up to 32 on the way back, so that errors grow:
``ops/minimal_filtering.py`` says how far.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from math import prod

import numpy as np

from haotuner.microkernels.cpu import dense_demand
from haotuner.microkernels.cpu.conv import LEAST_SHARE, CpuConv, channels_last, features_end, pixel_tiles, woven_residues
from haotuner.microkernels.cpu.dense import FP32_BYTES
from haotuner.microkernels.cpu.epilogue import with_epilogue
from haotuner.ops.convolution import filter_axes, is_convolution, windows
from haotuner.ops.minimal_filtering import TILES, Axis, fits, growth, points, terms
from haotuner.spec.constraint import ConstraintQuery, Laws
from haotuner.spec.demand import Demand, DemandQuery, Work
from haotuner.spec.device import Device
from haotuner.spec.family import Form, Layout
from haotuner.spec.kernel import MicroKernel, Tile
from haotuner.spec.op import Op

UNROLL = 4
ADDS = 4.0  # flops of a point in the transforms of one axis on each side, twice since they wait for one another
ROOM = {"points": 1280 * 1024, "products": 256 * 1024}  # floats, as conv_winograd.c has it
APART = 32  # floats that a row may be longer, so that rows do not meet in L1
WORST = 2.0**-13  # of the magnitudes that meet in a sum: a quarter of what operands in TF32 or fp16 would lose
SAVED = 0.75  # of the products that windows take: transforms take their own time
FROM_LEAST = 2.5  # products of a tile over those of the best one: smaller tiles fit small images, and read fewer weights
MOST_RESIDUES, VECTORS = 16, 320  # of a transposed convolution, and outputs of its tile, as conv_winograd.c has them
MOST_WEIGHT = 12  # times the plain one: a pack holds both


def axes_of(op: Op) -> tuple[Axis, Axis] | None:
    """The windows of an op that filtering serves, down the image and across it; None of another op."""
    if not is_convolution(op.kind) or int(op.option("groups")) != 1:
        return None
    result = windows(op.kind, dict(op.static), op.all_options())
    if "transpose" in op.kind:
        fits_whole = all(side.dilation == 1 and side.taps % side.stride == 0 for side in result.values())
        if not fits_whole or not 1 < woven_residues(op) <= MOST_RESIDUES:
            return None
    axes = filter_axes(result)
    moves = all(1 in (side.dilation, side.stride) or side.transposed for side in result.values())
    return axes if moves and all(axis.before >= 0 for axis in axes) else None


def filter_tiles(op: Op) -> tuple[int, ...]:
    """Outputs each way of tiles that save products, not many more than the best one takes; none of an op not served."""
    axes = axes_of(op)
    if axes is None:
        return ()
    taps = prod(axis.taps for axis in axes)
    light = [tile for tile in TILES if fits(tile, axes) and weight_size(tile, axes) <= MOST_WEIGHT]
    light = [tile for tile in light if prod(axis.outputs(tile) * axis.residues for axis in axes) <= VECTORS]
    each = {tile: terms(tile, axes) / prod(axis.outputs(tile) for axis in axes) for tile in light}
    most = min(SAVED * taps, FROM_LEAST * min(each.values(), default=0.0))
    return tuple(tile for tile, products in each.items() if products <= most)


def weight_size(tile: int, axes: Iterable[Axis]) -> float:
    """Numbers of the weight of a tile's points, times those of the plain one."""
    axes = tuple(axes)
    return points(tile, axes) * prod(axis.phases for axis in axes) / prod(axis.taps for axis in axes)


def outputs_of(kernel: MicroKernel) -> tuple[int, int]:
    """Outputs of a tile down the image and across it."""
    params = dict(kernel.params)
    return params.get("dn", params["wt"]), params.get("ac", params["wt"])


def _residues(kernel: MicroKernel) -> tuple[int, int]:
    """Of a transposed convolution's stride, down the image and across it."""
    params = dict(kernel.params)
    return params.get("rd", 1), params.get("ra", 1)


def _outputs(kernel: MicroKernel, side: int) -> int:
    return outputs_of(kernel)[side]


class CpuConvWinograd(CpuConv):
    """Family ``cpu_conv_winograd_fp32``; parameters as channels-last ``cpu_conv_fp32``, and wt: outputs of a tile each way.

    ``dn`` or ``ac`` is 1 where windows have one tap down the image or across it, so that nothing is transformed that way;
    ``sd`` and ``sa`` are the stride, down and across, of windows that move by more than one. ``dd`` and ``da`` are the
    dilation of those whose taps are apart; ``rd`` and ``ra`` the stride of transposed ones: residues of it that are further
    features.
    """

    name = "cpu_conv_winograd_fp32"
    frontier = 8  # beside those of image columns, within the same minute
    features_are_columns = True
    own_order = True  # its sums have another order than other families' of the op, so bits depend on which one serves

    def serves(self, op: Op) -> bool:
        """Convolutions of one group in fp32, and transposed ones, whose windows' products filtering saves a quarter of."""
        return super().serves(op) and bool(filter_tiles(op))

    def points(self, op: Op, device: Device) -> Iterator[MicroKernel]:
        """Tiles that fill most of the registers, of some outputs each way."""
        for tile in pixel_tiles(device, LEAST_SHARE):
            for outputs in filter_tiles(op):
                yield self.filtering(op, tile, device.wave_width, outputs)

    def filtering(self, op: Op, tile: tuple[int, int], vl: int, wt: int) -> MicroKernel:
        """The micro-kernel of these parameters for an op that the family serves."""
        (mr, nr), axes = tile, axes_of(op) or ()
        residues = tuple((name, axis.residues) for name, axis in zip(("rd", "ra"), axes, strict=True) if axis.residues > 1)
        columns = -(-op["f"] // vl) * vl * prod(count for _, count in residues) if residues else op["f"]
        more = features_end(columns, nr, vl)
        params = (("cl", int(channels_last(op))), ("mr", mr), ("nr", nr), ("pw", vl), ("ku", UNROLL), ("vl", vl), ("pf", 0))
        alone = tuple((name, 1) for name, axis in zip(("dn", "ac"), axes, strict=True) if axis.outputs(wt) == 1)
        moves = [(f"s{way}", axis.stride) for way, axis in zip("da", axes, strict=True) if axis.stride > 1]
        moves += [(f"d{way}", axis.dilation) for way, axis in zip("da", axes, strict=True) if axis.dilation > 1]
        return with_epilogue(MicroKernel(self.name, (*params, *more, ("wt", wt), *alone, *moves, *residues)), op.epilogue)

    def form(self, kernel: MicroKernel, op: Op) -> Form:
        """Of its tile."""
        return Form(kernel["wt"], weight_size(kernel["wt"], axes_of(op) or ()))

    def tile(self, kernel: MicroKernel) -> Tile:
        """Tiles of outputs are numbered through all rows and images."""
        outputs = kernel["mr"] * prod(outputs_of(kernel)) * prod(_residues(kernel))
        return Tile(extent={"q": outputs, "f": kernel["nr"]}, edge={}, step={"c": kernel["ku"]})

    def computed(self, kernel: MicroKernel, axis: str, extent: int) -> int:
        """Whole tiles of outputs; of the features what the last tile's program has."""
        if axis == "q":
            across = outputs_of(kernel)[1] * _residues(kernel)[1]
            return -(-extent // across) * across
        return super().computed(kernel, axis, extent)

    def layout(self, kernel: MicroKernel) -> Layout:
        """Transformed weights lie behind the plain ones, those of each tile for itself."""
        return (kernel["cl"], kernel["vl"])

    def laws(self, op: Op, device: Device) -> Laws:
        """No tile of more features than there are; room in scratch memory; errors that stay small."""
        axes = axes_of(op) or ()
        depth = op["c"] * prod(axis.phases for axis in axes)

        def features(q: ConstraintQuery) -> tuple[float, float]:
            return q.kernel["nr"], -(-q.op["f"] // device.wave_width) * device.wave_width

        def room(q: ConstraintQuery) -> tuple[float, float]:
            row = -(-depth // 16) * 16 + APART
            return points(q.kernel["wt"], axes) * (q.kernel["mr"] * row + APART), ROOM["points"]

        def products(q: ConstraintQuery) -> tuple[float, float]:
            return points(q.kernel["wt"], axes) * (q.kernel["mr"] * q.kernel["nr"] + APART), ROOM["products"]

        def accuracy(q: ConstraintQuery) -> tuple[float, float]:
            return growth(q.kernel["wt"], axes, q.op["c"]), WORST

        return (("features", features), ("scratch", room), ("products", products), ("accuracy", accuracy))

    def demand(self, requested: DemandQuery) -> Demand:
        """That of a product a point, each with a weight of its own, and the transforms around them."""
        e = requested.extents
        item = np.ones_like(e["b"])
        residues, moves = (
            (requested.param("rd", 1.0), requested.param("ra", 1.0)),
            (requested.param("sd", 1.0), requested.param("sa", 1.0)),
        )
        taps = (e.get("r", item) / residues[0], e["s"] / residues[1])
        e = {
            "cg": e.get("c", item),
            **e,
            "p": e.get("p", item) / residues[0],
            "q": e["q"] / residues[1],
            "f": e["f"] * residues[0] * residues[1],
        }
        down, across = (requested.each(partial(_outputs, side=side)) for side in (0, 1))
        each = [np.ceil(some / stride) for some, stride in zip(taps, moves, strict=True)]
        phases = np.minimum(taps[0], moves[0]) * np.minimum(taps[1], moves[1])
        count, met = (down + each[0] - 1) * (across + each[1] - 1), item
        for outputs, some, stride, whole in zip((down, across), taps, moves, each, strict=True):  # as ``Axis.terms``
            met = met * ((outputs + whole - 2) * np.minimum(some, stride) + some - (whole - 1) * stride)
        tiles = e["b"]
        for extent, outputs, apart in zip((e["p"], e["q"]), (down, across), ("dd", "da"), strict=True):
            dilation = requested.param(apart, 1.0)  # each residue of it ends in a tile of its own
            tiles = tiles * np.minimum(dilation, extent) * np.ceil(np.ceil(extent / dilation) / outputs)
        product = replace(requested, extents={"m": tiles, "n": e["f"], "k": e["cg"] * met / count})
        values = count * tiles * (e["cg"] * phases + e["f"])  # of all points, of terms and of features
        moved, none = FP32_BYTES * 2 * values, np.zeros_like(tiles)  # they are written and read again
        around = Work(
            flops={"simd": ADDS * ((down > 1) + 1.0 * (across > 1)) * values},
            least_bytes=none,
            far_bytes=none,
            mid_bytes=moved,
            near_bytes=2 * moved,
        )
        one_product = dense_demand.demand(product)
        stream = one_product.stream
        return replace(
            one_product,
            work=one_product.work.times(count) + around,
            tiles=replace(one_product.tiles, count=count * one_product.tiles.count),
            stream=stream and replace(stream, new_pages=count * stream.new_pages, new_streams=count * stream.new_streams),
        )
