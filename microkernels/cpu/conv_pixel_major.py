"""Convolutions with channels first by tiles whose rows are pixels and whose columns are features.

Where the rows of a tile are features (``conv.py``) its columns are whole vectors of pixels: 49 pixels take 64. Here pixels
are counted one by one, and each weight is read once for all pixels of a block. Windows are turned while they are laid out,
and results on their way back (``runtime/native/kinds/conv_pixel_major.c``); the packed weight has a second form for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

import numpy as np

from haotuner.microkernels.cpu.conv import CpuConv, channels_last, features_end, of_group, pixel_tiles
from haotuner.microkernels.cpu.conv_direct import is_direct
from haotuner.microkernels.cpu.dense import FP32_BYTES
from haotuner.microkernels.cpu.epilogue import with_epilogue
from haotuner.ops.convolution import windows
from haotuner.spec.constraint import ConstraintQuery, Laws
from haotuner.spec.demand import Demand, DemandQuery, Work
from haotuner.spec.device import Device
from haotuner.spec.family import Form
from haotuner.spec.kernel import MicroKernel, Tile
from haotuner.spec.op import Op

TURNED = 1  # as HT_CONV_TURNED
UNROLL = 4
LEAST_SHARE = 0.6  # of the registers that hold sums: tiles of 7 rows and 3 vectors, which images of 7 x 7 fill
LEAST_CHANNELS = 8  # of a group: squares of fewer are turned in vain
CHANNELS, BAND, TAPS = (
    32,
    64 * 1024,
    128,
)  # as conv_pixel_major.c has them: windows that find room in its band, and in its rows


class CpuConvPixelMajor(CpuConv):
    """Family ``cpu_conv_turned_fp32``; parameters as channels-last ``cpu_conv_fp32`` but cl=0, and wt=1."""

    name = "cpu_conv_turned_fp32"
    frontier = 10  # beside those of image columns, within the same minute
    features_are_columns = True
    first_programs = True  # those of ``cpu_conv_fp32``, so that one analysis fits both
    own_order = True  # its sums have another order than other families' of the op, so bits depend on which one serves

    def serves(self, op: Op) -> bool:
        """Channels first in fp32, a product in either layout, of some channels in a group."""
        if not super().serves(op) or channels_last(op) or is_direct(op):
            return False
        sides = windows(op.kind, dict(op.static), op.all_options()).values()
        reach = prod((side.taps - 1) * side.dilation + 1 for side in sides)
        fits = reach * CHANNELS <= BAND and prod(side.taps for side in sides) <= TAPS
        return fits and of_group(op, "c") >= LEAST_CHANNELS

    def points(self, op: Op, device: Device) -> Iterator[MicroKernel]:
        """Tiles that fill most of the registers, and tall ones of one vector."""
        for tile in pixel_tiles(device, LEAST_SHARE):
            yield self.kernel_with(op, tile, device.wave_width)

    def kernel_with(self, op: Op, tile: tuple[int, int], vl: int) -> MicroKernel:
        """The micro-kernel of these parameters for an op."""
        mr, nr = tile
        more = features_end(of_group(op, "f"), nr, vl)
        params = (
            ("cl", 0),
            ("mr", mr),
            ("nr", nr),
            ("pw", vl),
            ("ku", UNROLL),
            ("vl", vl),
            ("pf", 0),
            *more,
            ("wt", TURNED),
        )
        return with_epilogue(MicroKernel(self.name, params), op.epilogue)

    def form(self, kernel: MicroKernel, op: Op) -> Form:
        """Turned."""
        return Form(TURNED, 1.0)

    def tile(self, kernel: MicroKernel) -> Tile:
        """Pixels of all rows and images are numbered through."""
        return Tile(extent={"q": kernel["mr"], "f": kernel["nr"]}, edge={}, step={"c": kernel["ku"]})

    def laws(self, op: Op, device: Device) -> Laws:
        """No tile of more features than there are, but the least."""

        def features(q: ConstraintQuery) -> tuple[float, float]:
            least = device.wave_width
            return q.kernel["nr"], -(-of_group(q.op, "f") // least) * least

        return (("features", features),)

    def demand(self, requested: DemandQuery) -> Demand:
        """That of the product, and windows and results turned around it."""
        e = requested.extents
        item = np.ones_like(e["b"])
        result = self.product_demand(requested, last=True, met=False)
        pixels = e["b"] * e.get("p", item) * e["q"]
        deep = (e["cg"] if "cg" in e else e["c"]) * e.get("r", item) * e["s"]
        turned, none = FP32_BYTES * pixels * (deep + e["f"]), np.zeros_like(pixels)
        around = Work(
            flops={"simd": pixels * (deep + e["f"])}, least_bytes=none, far_bytes=none, mid_bytes=none, near_bytes=2 * turned
        )
        return replace(result, work=result.work + around)
