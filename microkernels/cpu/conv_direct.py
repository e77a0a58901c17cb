"""The family of depthwise convolutions for CPUs: one channel makes each feature, so there is no product.

Its programs are the serving runtime's own (``runtime/native/kinds/conv_direct.c``). With channels first a line of the image
that is loaded serves several output rows at once; with channels last a tap's weights serve several pixels. Channels of
small images are turned into lanes (``conv_direct_lanes.h``), whatever the kernel: a rule in C says where.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from haotuner.microkernels.cpu.conv import channels_last
from haotuner.microkernels.cpu.epilogue import with_epilogue
from haotuner.ops.convolution import is_convolution, windows
from haotuner.spec.constraint import Laws
from haotuner.spec.demand import Demand, DemandQuery, Expectation, Work
from haotuner.spec.device import Device
from haotuner.spec.family import Layout
from haotuner.spec.kernel import Footprint, MicroKernel, Tile
from haotuner.spec.op import Op
from haotuner.spec.traffic import Traffic

FP32_BYTES = 4
MOST_TAPS, MOST_STRIDE = 16, 4
ROWS, PIXELS = (4, 8), (1, 2, 4, 8)  # that conv_direct.c has programs for; 2 pixels: those of four rows


def is_direct(op: Op) -> bool:
    """True if a convolution is computed without a product: depthwise, by a window whose lines find room; as conv_phase.c."""
    if "transpose" in op.kind or int(op.option("groups")) != op["c"]:
        return False
    if channels_last(op):
        return op["f"] == op["c"]
    sides = windows(op.kind, dict(op.static), op.all_options())
    few = all(side.taps <= MOST_TAPS and side.stride <= MOST_STRIDE for side in sides.values())
    return few and sides["w"].dilation <= MOST_STRIDE and ("h" not in sides or sides["h"].dilation <= 1)


class CpuConvDirect:
    """Family ``cpu_conv_direct_fp32``; parameters cl (channels last), mr (rows or pixels at a time), nr and vl (lanes)."""

    name = "cpu_conv_direct_fp32"
    backend = "cpu"
    frontier = max(len(ROWS), len(PIXELS))  # all

    def serves(self, op: Op) -> bool:
        """Depthwise convolutions in fp32; with channels last those of one feature a channel."""
        return is_convolution(op.kind) and op.plain and bool(op.dynamic) and is_direct(op)

    def suits(self, device: Device) -> bool:
        """Any CPU: the programs come for vectors of 16, 8 and 4 lanes."""
        return device.kind == "cpu"

    def points(self, op: Op, device: Device) -> Iterator[MicroKernel]:
        """Every number of rows, or of pixels, at a time."""
        last, lanes = channels_last(op), device.wave_width
        for rows in PIXELS if last else ROWS:
            params = (("cl", int(last)), ("mr", rows), ("nr", lanes), ("pw", lanes), ("vl", lanes))
            yield with_epilogue(MicroKernel(self.name, params), op.epilogue)

    def footprint(self, kernel: MicroKernel) -> Footprint:
        """Sums, what is loaded, and a weight."""
        return Footprint(registers_per_thread=kernel["mr"] + 3, shared_bytes=(kernel["mr"] + 2) * kernel["nr"] * FP32_BYTES)

    def tile(self, kernel: MicroKernel) -> Tile:
        """Pixels of a few rows, or a few pixels of some features; masks end every axis, so nothing is padded."""
        extent = {"q": kernel["mr"], "f": kernel["nr"]} if kernel["cl"] else {"q": kernel["nr"] * kernel["mr"], "f": 1}
        return Tile(extent=extent, edge={}, step={"c": 1})

    def computed(self, kernel: MicroKernel, axis: str, extent: int) -> int:
        """Extent as asked and no more."""
        return extent

    def layout(self, kernel: MicroKernel) -> Layout:
        """One for all."""
        return (kernel["cl"], kernel["vl"])

    def laws(self, op: Op, device: Device) -> Laws:
        """None of its own."""
        return ()

    def demand(self, requested: DemandQuery) -> Demand:
        """Images once through all levels; lines are loaded from L1 again for every tap that no tile shares."""
        e = requested.extents
        item = np.ones_like(e["b"])
        taps, pixels = e.get("r", item) * e["s"], e["b"] * e.get("p", item) * e["q"]
        image = e["b"] * e["c"] * e.get("h", item) * e["w"]
        moved = FP32_BYTES * (image + e["f"] * (pixels + taps))
        work = Work(
            flops={"simd": 2.0 * pixels * e["f"] * taps},
            least_bytes=moved,
            far_bytes=moved,
            mid_bytes=moved,
            near_bytes=FP32_BYTES * pixels * e["f"] * taps / np.sqrt(_shared(requested)),
        )
        return Demand(work=work, tiles=requested.tiles(self.tile, self.footprint, vector=requested.param("vl")))

    def expectation(self, op: Op, device: Device, traffic: Traffic) -> Expectation | None:
        """None: the cost model's."""
        return None

    def schedule(self, kernel: MicroKernel, symbol: str) -> Any:
        """A module without a function: the runtime has the program."""
        import tvm

        return tvm.IRModule({})


def _shared(requested: DemandQuery) -> Any:
    """Sums at a time: of rows or pixels, four rows where pixels are two."""
    return np.where((requested.param("cl") == 1) & (requested.param("mr") == 2), 8, requested.param("mr"))
