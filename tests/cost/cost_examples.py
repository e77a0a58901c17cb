"""Devices, micro-kernels and shapes that the cost tests share."""

from __future__ import annotations

from dataclasses import dataclass

from haotuner.spec.demand import CpuStream, Demand, MatmulTile
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape


@dataclass(frozen=True)
class Named:
    name: str


CPU_DENSE = Named("cpu_dense_fp32")
OP = Op.parse("dense:n=2304,k=768")
BIG_CORE = Device(
    id="big-core", kind="cpu", name="AVX-512 core", arch="znver4", compute_units=1, wave_width=16, registers_per_thread=32,
    fma_pipes=1, l1_bytes=32 * 2**10, l2_bytes=2**20, l3_bytes=32 * 2**20, memory_gbps=20.0, clock_mhz=3700,
    peak_gflops=117.0,
)  # fmt: skip
SMALL_CORE = Device(
    id="small-core", kind="cpu", name="AVX2 core", arch="haswell", compute_units=1, wave_width=8, registers_per_thread=16,
    fma_pipes=2, l1_bytes=32 * 2**10, l2_bytes=256 * 2**10, l3_bytes=8 * 2**20, memory_gbps=12.0, clock_mhz=3000,
)  # fmt: skip
BARE_CORE = Device(
    id="bare-core", kind="cpu", name="?", arch="x86-64", compute_units=4, wave_width=4, registers_per_thread=16
)


def kernel(mr: int, nr: int, pw: int | None = None, ku: int = 4, vl: int = 16) -> MicroKernel:
    params = (("mr", mr), ("nr", nr), ("pw", pw or nr), ("ku", ku), ("vl", vl))
    return MicroKernel("cpu_dense_fp32", params)


KERNELS = tuple(
    kernel(mr, nr, vl=vl) for vl in (8, 16) for mr in range(1, 17) for nr in (16, 32, 48, 64, 96) if mr * nr // vl <= 30
)
SHAPES = tuple(Shape.of(m=m) for m in (1, 3, 5, 17, 37, 128, 512))
PAIRS = [(k, s) for s in SHAPES for k in KERNELS]


def product(demand: Demand) -> MatmulTile:
    assert demand.matmul is not None
    return demand.matmul


def stream(demand: Demand) -> CpuStream:
    assert demand.stream is not None
    return demand.stream


def waits(demand: Demand) -> float:
    assert demand.staging is not None
    return float(demand.staging.waits[0])
