"""Convolutions in bf16, fp16 and int8 for CPUs: the tiles of ``typed.py`` over rows of image columns, and depthwise ones.

In fp32 with results of another type, too.

Rows of a tile are pixels and its columns features, with channels last and with channels first: words hold several terms of
one column, which lie side by side in the weight only (``runtime/native/kinds/conv_typed.c``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from haotuner.microkernels.cpu import typed_source
from haotuner.microkernels.cpu.conv import CpuConv, of_group
from haotuner.microkernels.cpu.conv_direct import CpuConvDirect, is_direct
from haotuner.microkernels.cpu.dense_demand import MAX_STREAMS
from haotuner.microkernels.cpu.epilogue import with_epilogue
from haotuner.microkernels.cpu.typed import MAX_ROWS, UNROLLS, WORDS, serves_type, typed_name, typed_params
from haotuner.ops.convolution import is_convolution
from haotuner.ops.dtypes import DTYPES
from haotuner.spec.demand import Demand, DemandQuery
from haotuner.spec.device import Device
from haotuner.spec.family import rounded_up
from haotuner.spec.kernel import Footprint, MicroKernel, Tile
from haotuner.spec.op import Op

LEAST_SHARE = 0.6  # of the registers that a tile fills with sums
SMALL = 4  # vectors: tiles of so few serve outputs that no large one fits


class CpuTypedConv(CpuConv):
    """Families ``cpu_conv_bf16``, ``_fp16``, ``_int8``, ``_converted_fp32``.

    Parameters as those of typed dense, panels as wide as a vector.
    """

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.name = typed_name("conv", dtype)

    def serves(self, op: Op) -> bool:
        """Any convolution in the family's type, with any epilogue."""
        return is_convolution(op.kind) and serves_type(op, self.dtype) and bool(op.dynamic)

    def points(self, op: Op, device: Device) -> Iterator[MicroKernel]:
        """Tiles that fill most of the registers, and small ones; every AMX tile."""
        lanes, registers = device.wave_width, device.registers_per_thread
        for rows in range(1, MAX_ROWS + 1):
            for vectors in range(1, MAX_STREAMS + 1):
                sums = rows * vectors
                if LEAST_SHARE * registers <= sums < registers - vectors or (sums <= SMALL and rows <= SMALL):
                    for unroll in UNROLLS:
                        params = typed_params(op, (rows, vectors * lanes, lanes, unroll, lanes, 0))
                        yield with_epilogue(MicroKernel(self.name, params), op.epilogue)
        if typed_source.has_tiles(device, self.dtype):
            for tile in typed_source.shapes(lanes, panels="vectors"):
                yield with_epilogue(MicroKernel(self.name, typed_params(op, tile, on_tiles=True)), op.epilogue)

    def footprint(self, kernel: MicroKernel) -> Footprint:
        """As typed dense: sums, a row of the panel, and a broadcast word; or AMX registers."""
        if typed_source.on_tiles(kernel):
            return typed_source.footprint(kernel)
        rows, vectors = kernel["mr"], kernel["nr"] // kernel["vl"]
        step_bytes = (rows + kernel["nr"]) * kernel["ku"] * WORDS[self.dtype].bytes
        return Footprint(registers_per_thread=rows * vectors + vectors + 1, shared_bytes=step_bytes)

    def tile(self, kernel: MicroKernel) -> Tile:
        """Pixels and features, whatever the layout."""
        return Tile(extent={"q": kernel["mr"], "f": kernel["nr"]}, edge={}, step={"c": kernel["ku"]})

    def computed(self, kernel: MicroKernel, axis: str, extent: int) -> int:
        """Whole tiles."""
        return rounded_up(self.tile(kernel), axis, extent)

    def layout(self, kernel: MicroKernel) -> tuple[int, ...]:
        """Lanes of the packed weight, the same for all kernels of an op, and the order of sums."""
        return (kernel["vl"], *typed_source.order(kernel, self.dtype))

    def laws(self, op: Op, device: Device) -> Any:
        """No tile of more features than there are, but the least."""

        def features(q: Any) -> tuple[float, float]:
            return q.tile.extent["f"], -(-of_group(q.op, "f") // device.wave_width) * device.wave_width

        return (("features", features),)

    def demand(self, requested: DemandQuery) -> Demand:
        """That of the product, as with channels last, and of all taps."""
        return typed_source.demand(requested, self.product_demand(requested, last=True, met=False), WORDS[self.dtype].terms)

    def schedule(self, kernel: MicroKernel, symbol: str) -> Any:
        """An empty TVM module: ``typed_source`` says the program in C."""
        import tvm

        return tvm.IRModule({})


class CpuTypedConvDirect(CpuConvDirect):
    """Families ``cpu_conv_direct_bf16``, ``_fp16``, ``_int8``, ``_converted_fp32``: loops of the runtime, depthwise."""

    frontier = 1

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.name = typed_name("conv_direct", dtype)

    def serves(self, op: Op) -> bool:
        """Depthwise convolutions in the family's type; with channels last those of one feature a channel."""
        return is_convolution(op.kind) and serves_type(op, self.dtype) and bool(op.dynamic) and is_direct(op)

    def points(self, op: Op, device: Device) -> Iterator[MicroKernel]:
        """One: sums of a vector at a time."""
        last, lanes = int(op.option("layout") in ("nhwc", "nwc")), device.wave_width
        params = typed_params(op, (1, lanes, lanes, 1, lanes, 0))
        yield with_epilogue(MicroKernel(self.name, (("cl", last), *params)), op.epilogue)

    def footprint(self, kernel: MicroKernel) -> Footprint:
        """A vector of sums, of the image and of weights."""
        return Footprint(registers_per_thread=3, shared_bytes=3 * kernel["nr"] * DTYPES[self.dtype].size)


TYPED_CONV_FAMILIES = tuple(kind(dtype) for dtype in WORDS for kind in (CpuTypedConvDirect, CpuTypedConv))
