"""Dense for few rows on CUDA cores, for every CUDA architecture: W is read once at memory speed.

Below some sixteen rows a product is bound by the bytes of W. No tensor core is needed, nor a tile of 64 rows that are
mostly padding: each warp takes ``c`` columns, its lanes walk along k with 16-byte loads, and X comes from the L1. Of W
stored (k, n) lanes lie along n, ``v`` columns each, and what lanes are left walk along k. On sm_75 it is what computes bf16,
for any number of rows.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"
# (the program at the end is a script that TVM parses; its functions are never called as Python)

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from haotuner.microkernels.cuda import device_calls
from haotuner.microkernels.cuda.dense import (
    TVM_DTYPES,
    WARP,
    CudaDense,
    module_of,
    resident_blocks,
    vector_elements,
)
from haotuner.microkernels.cuda.dense_demand import Step
from haotuner.spec.device import Device
from haotuner.spec.kernel import Footprint, MicroKernel
from haotuner.spec.op import Op

ROWS = (1, 2, 4, 8, 16)
WARP_COLUMNS = (1, 2, 4)
WARP_LANES = (4, 8, 16, 32)  # along n, of W stored (k, n): 64 bytes to whole 512 of a row
WARP_GRIDS = ((4, 1), (2, 2), (1, 4), (8, 1), (4, 2), (2, 4), (1, 8))  # across columns, along k
SUMS = 64  # of a lane at most
LOAD_BYTES = 16
ADDRESS_REGISTERS = 40
EXCHANGE = 7.0  # instructions of one sum that lanes exchange: two selections, an addition, a shuffle that counts as four


class CudaGemv(CudaDense):
    """Families ``cuda_gemv_DTYPE``; parameters bm rows, bn = wn * c columns, bk, c columns a warp, wn x wk warps, v, kn."""

    device = (*CudaDense.device, "gemv")

    def programs(self, op: Op, device: Device) -> Iterator[MicroKernel]:
        """Every number of rows, columns of a warp, and grid of warps."""
        if not self.serves(op):
            return
        v, kn = vector_elements(op, LOAD_BYTES // self.bytes_per_element()), int(op.option("weight") == "kn")
        columns = tuple(lanes * v for lanes in WARP_LANES) if kn else WARP_COLUMNS
        for bm, c, (wn, wk) in product(ROWS, columns, WARP_GRIDS):
            if bm * (v if kn else c) <= SUMS:
                yield self.kernel(bm=bm, c=c, wn=wn, wk=wk, v=v, kn=kn)

    def kernel(self, *, bm: int, c: int, wn: int, wk: int, v: int, kn: int = 0) -> MicroKernel:
        """The micro-kernel of these parameters."""
        if (wn, wk) not in WARP_GRIDS or v not in (1, 2, 4, 8) or v * self.bytes_per_element() > LOAD_BYTES:
            raise ValueError(f"wn={wn} wk={wk} must be one of {WARP_GRIDS}, v={v} a load of at most {LOAD_BYTES} bytes")
        columns = tuple(lanes * v for lanes in WARP_LANES) if kn else WARP_COLUMNS
        if bm not in ROWS or c not in columns or bm * (v if kn else c) > SUMS or kn not in (0, 1):
            raise ValueError(f"bm={bm} c={c} kn={kn} is outside: rows {ROWS}, columns {columns}, {SUMS} sums a lane")
        bk = wk * (WARP * v // c if kn else WARP) * v
        params = (("bm", bm), ("bn", wn * c), ("bk", bk), ("c", c), ("wn", wn), ("wk", wk), ("v", v), ("kn", kn))
        return MicroKernel(self.name, params)

    def footprint(self, kernel: MicroKernel) -> Footprint:
        """Sums, the loads of W and half of X's, and addresses; shared memory for the sums of the warps along k."""
        bm, bn, c, v = (kernel[key] for key in ("bm", "bn", "c", "v"))
        if kernel["kn"]:
            c, loads = v, bm * v + v * v * self.bytes_per_element() // 4  # X as floats, W's rows as they come
        else:
            loads = self.ahead(kernel) * (c * v + -(-bm * v // 2))
        return Footprint(
            registers_per_thread=self.registers(bm * c + loads + ADDRESS_REGISTERS),
            shared_bytes=kernel["wk"] * bm * bn * 4,
            threads=kernel["wn"] * kernel["wk"] * WARP,
        )

    def ahead(self, kernel: MicroKernel) -> int:
        """Steps that are unrolled together, so that four loads of W are on their way; v of them are in one of (k, n)."""
        return 1 if kernel["kn"] else max(1, 4 // kernel["c"])

    def tail(self, kernel: MicroKernel) -> float:
        """Sums of a warp's lanes: by each halving a lane gives half of what is left away."""
        c, v = kernel["c"], kernel["v"]
        lanes, left = (WARP * v // c, kernel["bm"] * v) if kernel["kn"] else (WARP, kernel["bm"] * c)
        exchanged = 0
        while lanes > 1:
            lanes, left = lanes // 2, max(left // 2, 1)
            exchanged += left
        return EXCHANGE * exchanged

    def near_bytes(self, kernel: MicroKernel) -> int:
        """Every warp across reads X's rows and its columns of W, all through the L1."""
        return (kernel["bm"] * kernel["wn"] + kernel["bn"]) * self.bytes_per_element()

    def step(self, kernel: MicroKernel) -> Step:
        """A lane has one of 32 elements of k: FMAs, loads of X and W, and their conversion where they are no floats."""
        bm, c, v = (kernel[key] for key in ("bm", "c", "v"))
        share = WARP * kernel["wk"]
        if kernel["kn"]:  # a lane has one of fewer elements of k, and v columns
            share, c = share * v // c, v
        converted = 0.0 if self.dtype == "fp32" else (bm + c) / share
        loads = (bm + c) / (share * v)
        return Step(fmas=bm * c / share, loads=loads, checks=loads + converted, rows=bm, columns=c)

    def schedule(self, kernel: MicroKernel, symbol: str) -> Any:
        """TVM module with one function ``symbol(X, W)``."""
        footprint = self.footprint(kernel)
        blocks = resident_blocks(footprint.threads, footprint.registers_per_thread)
        return module_of(_program(kernel, TVM_DTYPES[self.dtype], footprint.threads, blocks), symbol)


def _program(kernel: MicroKernel, dtype: str, threads: int, blocks: int) -> Any:
    from tvm.script import tirx as T

    bm, bn, _, c, wn, wk, v, *_ = (value for _, value in kernel.params)
    kn = bool(kernel["kn"])  # the script language takes no number for a condition
    function, across = ("ht_gemv_kn", c // v) if kn else ("ht_gemv", c)
    gemv = f"{function}<{device_calls.ELEMENT_TYPES[dtype]}, {bm}, {across}, {wn}, {wk}, {v}>"

    @T.prim_func
    def program(x_arg: T.handle, w_arg: T.handle):
        m = T.int32()
        n = T.int32()
        k = T.int32()
        x_stride = T.int32()
        x = T.match_buffer(x_arg, (m, k), dtype, strides=(x_stride, 1), align=16)  # noqa: F841  read by the device function
        w = T.match_buffer(w_arg, (k, n) if kn else (n, k), dtype, align=16)  # noqa: F841
        T.device_entry()
        T.attr({"tirx.launch_bounds_min_blocks_per_sm": blocks})
        block = T.cta_id([T.truncdiv(m + (bm - 1), bm) * T.truncdiv(n + (bn - 1), bn)])
        thread = T.thread_id([threads])  # noqa: F841
        tile = T.alloc_local([2], "int32")
        T.evaluate(device_calls.find_tile(T, tile, block, T.truncdiv(m + (bm - 1), bm), T.truncdiv(n + (bn - 1), bn)))
        pool = T.SMEMPool()
        parts = pool.alloc((wk * bm * bn,), "float32", align=128)
        pool.commit()
        T.evaluate(device_calls.call(T, gemv, parts.ptr_to([0]), tile[0] * bm, tile[1] * bn))

    return program
