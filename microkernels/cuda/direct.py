"""Convolutions whose every feature reads one channel, on CUDA devices: no columns and no product, bound by memory.

A thread computes ``tp`` rows of ``tq`` pixels of one feature: taps and the pixels of a row that they meet are in registers.
Window, strides and dilations are known when it is compiled; the epilogue comes with the launch (``fused.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from haotuner.microkernels.cuda.dense import sm_number
from haotuner.microkernels.cuda.device_calls import ELEMENT_TYPES
from haotuner.microkernels.cuda.fused import fused
from haotuner.microkernels.cuda.launch import Launch
from haotuner.ops.convolution import Window, is_convolution, windows
from haotuner.ops.dtypes import DTYPE_BYTES
from haotuner.spec.constraint import Laws
from haotuner.spec.demand import Demand, DemandQuery, Expectation, Tiles, Work
from haotuner.spec.device import Device
from haotuner.spec.family import Layout
from haotuner.spec.kernel import Footprint, MicroKernel, Tile
from haotuner.spec.op import Op
from haotuner.spec.traffic import Traffic

THREADS = 256  # of a block
ROWS, PIXELS = (1, 2, 4), (1, 2, 4, 8)  # of a thread
MOST_TAPS, MOST_LINE = 64, 48  # of a thread, in registers
MOST_HELD = 34  # taps and sums of a thread of more than one pixel: with 41 of them ptxas spilled
NUMPY_TYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


class CudaDirect:
    """Family ``cuda_direct_DTYPE``."""

    backend = "cuda"
    frontier = 12
    grouped = batched = False
    oldest_sm = 0

    def __init__(self, dtype: str) -> None:
        self.dtype, self.name = dtype, f"cuda_direct_{dtype}"

    def serves(self, op: Op) -> bool:
        """Convolutions of one channel a feature, of any epilogue that devices compute, with few taps."""
        if not is_convolution(op.kind) or "transpose" in op.kind or op.dtype != self.dtype or fused(op) is None:
            return False
        tall, wide = sides_of(op)
        return op["c"] == int(op.option("groups")) and tall.taps * wide.taps <= MOST_TAPS and bool(op.dynamic)

    def suits(self, device: Device) -> bool:
        """Any GPU."""
        return device.kind != "cpu" and sm_number(device.arch) >= self.oldest_sm

    def points(self, op: Op, device: Device) -> Iterator[MicroKernel]:
        """Rows and pixels of a thread, as many as its registers hold."""
        tall, wide = sides_of(op)
        last = int(op.option("layout") in ("nhwc", "nwc"))
        for tp in ROWS if "h" in op.axes else ROWS[:1]:
            for tq in PIXELS:
                stored = tp * tq + tall.taps * wide.taps
                if (stored <= MOST_HELD or tp * tq == 1) and (tq - 1) * wide.stride + (
                    wide.taps - 1
                ) * wide.dilation < MOST_LINE:
                    window = (("r", tall.taps), ("s", wide.taps), ("sd", tall.stride), ("sr", wide.stride))
                    apart = (("dd", tall.dilation), ("dr", wide.dilation))
                    params = (*window, *apart, ("tp", tp), ("tq", tq), ("cl", last))
                    yield MicroKernel(self.name, params)

    def tile(self, kernel: MicroKernel) -> Tile:
        """A thread's pixels."""
        return Tile(extent={"q": kernel["tq"], "f": 1}, edge={}, step={"c": 1})

    def computed(self, kernel: MicroKernel, axis: str, extent: int) -> int:
        """Pixels outside are left out."""
        return extent

    def layout(self, kernel: MicroKernel) -> Layout:
        """The weight is read as it is stored."""
        return ()

    def footprint(self, kernel: MicroKernel) -> Footprint:
        """Sums, taps and a row of pixels."""
        line = (kernel["tq"] - 1) * kernel["sr"] + (kernel["s"] - 1) * kernel["dr"] + 1
        registers = 32 + kernel["tp"] * kernel["tq"] + kernel["r"] * kernel["s"] + line
        return Footprint(registers_per_thread=min(registers, 255), shared_bytes=0, threads=THREADS)

    def laws(self, op: Op, device: Device) -> Laws:
        """None beyond those of every family."""
        return ()

    def demand(self, requested: DemandQuery) -> Demand:
        """The image and the result once; rows of pixels that neighbours share come from caches."""
        e, size = requested.extents, float(requested.element_bytes)
        item = np.ones_like(e["b"])
        high, wide = e.get("h", item), e["w"]
        outputs = e["b"] * e["f"] * e.get("p", item) * e["q"]
        taps, sums = requested.param("r") * requested.param("s"), requested.param("tp") * requested.param("tq")
        least = (e["b"] * e["c"] * high * wide + outputs) * size
        rows = (requested.param("tp") - 1) * requested.param("sd") + (requested.param("r") - 1) * requested.param("dd") + 1
        line = (requested.param("tq") - 1) * requested.param("sr") + (requested.param("s") - 1) * requested.param("dr") + 1
        near = outputs / sums * rows * line * size
        threads = item * THREADS
        return Demand(
            work=Work(
                flops={"simd": 2.0 * outputs * taps}, least_bytes=least, far_bytes=least, near_bytes=near,
                mid_bytes=np.maximum(least, near / 4),
            ),
            tiles=Tiles(
                count=np.ceil(outputs / sums / THREADS), threads=threads, vector=item,
                waves=threads / requested.device.wave_width,
                registers=requested.each(lambda kernel: self.footprint(kernel).registers_per_thread),
                shared_bytes=0 * item, l1_set_bytes=0 * item, l2_set_bytes=0 * item,
            ),
        )  # fmt: skip

    def expectation(self, op: Op, device: Device, traffic: Traffic) -> Expectation | None:
        """None: the cost model's."""
        return None

    def bytes_per_element(self) -> int:
        """Of x, weight and, unless asked otherwise, y."""
        return DTYPE_BYTES[self.dtype]

    def launch(self, kernel: MicroKernel) -> Launch:
        """A thread's rows and pixels instead of a block's tile."""
        return Launch(
            tile_m=kernel["tp"], tile_n=kernel["tq"], threads=THREADS, shared_bytes=0, vector=1, splits=False, direct=True
        )

    def schedule(self, kernel: MicroKernel, symbol: str) -> Any:
        """ValueError: the program is C++."""
        raise ValueError(f"{kernel.name} is written as CUDA C++: see text")

    def text(self, kernel: MicroKernel, symbol: str) -> str:
        """CUDA C++ of a kernel, on ``device/direct.cuh``."""
        element = ELEMENT_TYPES[NUMPY_TYPES[self.dtype]]
        words = ", ".join(str(kernel[name]) for name in ("r", "s", "sd", "sr", "dd", "dr", "tp", "tq"))
        return (
            f'extern "C" __global__ void __launch_bounds__({THREADS}) {symbol}'
            "(const __grid_constant__ ht_cuda_direct ht_image, const __grid_constant__ ht_cuda_args ht_args) {\n"
            f"  ht_direct<{element}, {words}, {str(bool(kernel['cl'])).lower()}>(ht_args, ht_image);\n}}\n"
        )


def sides_of(op: Op) -> tuple[Window, Window]:
    """Movement of the window down and to the right."""
    result = windows(op.kind, dict(op.static), op.all_options())
    return result.get("h", Window(taps=1, stride=1, dilation=1, before=0, after=0)), result["w"]


DIRECT_FAMILIES: tuple[CudaDirect, ...] = tuple(CudaDirect(dtype) for dtype in ("fp32", "fp16", "bf16"))


def direct_family(name: str) -> CudaDirect | None:
    """The family of that name, if it is one of these."""
    return next((family for family in DIRECT_FAMILIES if family.name == name), None)
