"""Convolutions with 3x3 windows by minimal filtering (Winograd; Lavin & Gray, CVPR 2016): fewer products, and transforms.

``wt x wt`` outputs come from ``(wt + 2)^2`` products of transformed inputs and weights, instead of ``9 wt^2``: 2.25 times
fewer of 2, 4 times fewer of 4. The products are dense's register tiles, one product of matrices a point
(``runtime/native/kinds/conv_winograd.c``). Sums meet factors up to 8 on the way back, so that errors grow:
``ops/minimal_filtering.py`` says how far.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from haotuner.microkernels.cpu import dense_demand
from haotuner.microkernels.cpu.conv import LEAST_SHARE, CpuConv, channels_last, features_end, pixel_tiles
from haotuner.microkernels.cpu.dense import FP32_BYTES
from haotuner.microkernels.cpu.epilogue import with_epilogue
from haotuner.ops.convolution import windows
from haotuner.ops.minimal_filtering import TILES, growth, points
from haotuner.words.demand import Asked, Demand, Work
from haotuner.words.device import Device
from haotuner.words.family import Layout
from haotuner.words.kernel import MicroKernel, Tile
from haotuner.words.law import Laws, Question
from haotuner.words.op import Op

UNROLL = 4
ADDS = 8.0  # flops of a point in the transforms on each side, twice since they wait for one another
ROOM = {"points": 224 * 1024, "products": 96 * 1024}  # floats, as conv_winograd.c has it
APART = 32  # floats that a row may be longer, so that rows do not meet in L1
WORST = 2.0**-13  # of the magnitudes that meet in a sum: a quarter of what operands in TF32 or fp16 would lose


def is_filtered(op: Op) -> bool:
    """Whether an op is a 3x3 convolution whose window moves by one."""
    if op.kind != "conv2d" or int(op.option("groups")) != 1:
        return False
    sides = windows(op.kind, dict(op.static), op.all_options()).values()
    return all((side.taps, side.stride, side.dilation) == (3, 1, 1) for side in sides)


class CpuConvWinograd(CpuConv):
    """Family ``cpu_conv_winograd_fp32``; parameters as channels-last ``cpu_conv_fp32``, and wt: outputs of a tile."""

    name = "cpu_conv_winograd_fp32"
    frontier = 8  # beside those of image columns, within the same minute
    own_order = True  # its sums have another order than other families' of the op, so bits depend on which one serves

    def serves(self, op: Op) -> bool:
        """3x3 convolutions of one group whose window moves by one, in fp32."""
        return super().serves(op) and is_filtered(op)

    def points(self, op: Op, device: Device) -> Iterator[MicroKernel]:
        """Tiles that fill most of the registers, for 2 and for 4 outputs each way."""
        for tile in pixel_tiles(device, LEAST_SHARE):
            for outputs in TILES:
                yield self.filtering(op, tile, device.wave_width, outputs)

    def filtering(self, op: Op, tile: tuple[int, int], vl: int, wt: int) -> MicroKernel:
        """The micro-kernel of these parameters for an op."""
        mr, nr = tile
        more = features_end(op["f"], nr, vl)
        params = (("cl", int(channels_last(op))), ("mr", mr), ("nr", nr), ("pw", vl), ("ku", UNROLL), ("vl", vl), ("pf", 0))
        return with_epilogue(MicroKernel(self.name, (*params, *more, ("wt", wt))), op.epilogue)

    def tile(self, kernel: MicroKernel) -> Tile:
        """Tiles of outputs are numbered through all rows and images."""
        return Tile(extent={"q": kernel["mr"] * kernel["wt"] ** 2, "f": kernel["nr"]}, edge={}, step={"c": kernel["ku"]})

    def computed(self, kernel: MicroKernel, axis: str, extent: int) -> int:
        """Whole tiles of outputs; of the features what the last tile's program has."""
        if axis == "q":
            return -(-extent // kernel["wt"]) * kernel["wt"]
        return super().computed(kernel, axis, extent)

    def layout(self, kernel: MicroKernel) -> Layout:
        """Transformed weights lie behind the plain ones, those of each tile for itself."""
        return (kernel["cl"], kernel["vl"])

    def laws(self, op: Op, device: Device) -> Laws:
        """No tile of more features than there are; room in scratch memory; errors that stay small."""

        def features(q: Question) -> tuple[float, float]:
            return q.kernel["nr"], -(-q.op["f"] // device.wave_width) * device.wave_width

        def room(q: Question) -> tuple[float, float]:
            row = -(-q.op["c"] // 16) * 16 + APART
            return points(q.kernel["wt"]) * (q.kernel["mr"] * row + APART), ROOM["points"]

        def products(q: Question) -> tuple[float, float]:
            return points(q.kernel["wt"]) * (q.kernel["mr"] * q.kernel["nr"] + APART), ROOM["products"]

        def accuracy(q: Question) -> tuple[float, float]:
            return growth(q.kernel["wt"], q.op["c"]), WORST

        return (("features", features), ("scratch", room), ("products", products), ("accuracy", accuracy))

    def demand(self, asked: Asked) -> Demand:
        """That of a product a point, each with a weight of its own, and the transforms around them."""
        e = asked.extents
        wt = asked.param("wt")
        count = (wt + 2) ** 2
        tiles = e["b"] * np.ceil(e["p"] / wt) * np.ceil(e["q"] / wt)
        product = replace(asked, extents={"m": tiles, "n": e["f"], "k": e["cg"]})
        values = count * tiles  # of all points, of a channel or a feature
        moved, none = FP32_BYTES * 2 * values * (e["cg"] + e["f"]), np.zeros_like(tiles)  # they are written and read again
        around = Work(
            flops={"simd": ADDS * values * (e["cg"] + e["f"])},
            least_bytes=none,
            far_bytes=none,
            mid_bytes=moved,
            near_bytes=2 * moved,
        )
        one = dense_demand.demand(product)
        stream = one.stream
        return replace(
            one,
            work=one.work.times(count) + around,
            tiles=replace(one.tiles, count=count * one.tiles.count),
            stream=stream and replace(stream, new_pages=count * stream.new_pages, new_streams=count * stream.new_streams),
        )
