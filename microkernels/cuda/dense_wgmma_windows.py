"""fp16 and bf16 convolutions whose windows are read where they lie, on Hopper's tensor cores: wgmma, for sm_90a only.

TMA cannot ask for pixels of several rows whose taps lie outside: all threads copy 16 bytes at a time by cp.async, zeros
where a tap lies outside, into rows of 128 bytes in the swizzle that wgmma reads (``device/windows.cuh`` finds them). A ring
of ``st`` stages; the warpgroups multiply a stage and meanwhile ask for the one that the step before has left (CUTLASS 3's
multistage main loop for wgmma). Channels come last, a step of 64 terms lies in one tap.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"
# (the program at the end is a script that TVM parses; its functions are never called as Python)

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from haotuner.microkernels.cuda import device_calls
from haotuner.microkernels.cuda.dense import (
    SCHEDULER_REGISTERS,
    SCHEDULERS,
    TVM_DTYPES,
    WARP,
    module_of,
    resident_blocks,
)
from haotuner.microkernels.cuda.dense_demand import Step
from haotuner.microkernels.cuda.dense_mma import CORNER_CHECKS, CORNER_REGISTERS, TAP_REGISTERS
from haotuner.microkernels.cuda.dense_wgmma import K_STEP, SLAB, WARPGROUP, CudaHopper
from haotuner.spec.device import Device
from haotuner.spec.kernel import Footprint, MicroKernel
from haotuner.spec.op import Op

ROWS = ((64, 1), (128, 1), (128, 2), (192, 1), (256, 1), (256, 2))  # bm, slabs of a warpgroup
COLUMNS = (16, 32, 64, 96, 128, 192, 256)
STAGES = (3, 4, 5, 6)
PIECE = 8  # elements of a copy
ADDRESS_REGISTERS = 40  # pointers, predicates, descriptors and loop state
MOST_REGISTERS = 255
SHARED_LIMIT = 227 * 1024  # of a block on sm_90


class CudaWgmmaWindows(CudaHopper):
    """Families ``cuda_windows_wgmma_`` and fp16 or bf16; parameters bm, bn, bk, wr slabs a warpgroup, st, v, kn."""

    @property
    def least_step(self) -> int:
        """The only one."""
        return K_STEP

    def programs(self, op: Op, device: Device) -> Iterator[MicroKernel]:
        """Every tile and ring length that fits a block."""
        for (bm, wr), bn, st in product(ROWS, COLUMNS, STAGES):
            if self._fits(bm, bn, wr, st):
                yield self.kernel(bm=bm, bn=bn, wr=wr, st=st)

    def kernel(self, *, bm: int, bn: int, st: int, wr: int = 1) -> MicroKernel:
        """The micro-kernel of these parameters."""
        if bm % (SLAB * wr) or bm > 256 or bn % 8 or not 8 <= bn <= 256 or st < 3 or not self._fits(bm, bn, wr, st):
            raise ValueError(
                f"a {bm}x{bn} tile with wr={wr} and st={st}: rows in whole warpgroups of {SLAB * wr} up to 256, columns "
                "multiples of 8 up to 256, three stages or more, registers and shared memory of a block"
            )
        params = (("bm", bm), ("bn", bn), ("bk", K_STEP), ("wr", wr), ("st", st), ("v", PIECE), ("kn", 0))
        return MicroKernel(self.name, params)

    def footprint(self, kernel: MicroKernel) -> Footprint:
        """Accumulators, corners of the rows that a thread copies, and addresses; shared memory of the ring."""
        bm, bn, wr = kernel["bm"], kernel["bn"], kernel["wr"]
        threads = _threads(bm, wr)
        return Footprint(
            registers_per_thread=self.registers(self._wanted(bm, bn, wr)),
            shared_bytes=max(self._ring(bm, bn, kernel["st"]), device_calls.staged_bytes(threads // WARP, bn)),
            threads=threads,
        )

    def ahead(self, kernel: MicroKernel) -> int:
        """All stages of the ring but the one that is computed and the one that is asked for meanwhile."""
        return kernel["st"] - 2

    def step(self, kernel: MicroKernel) -> Step:
        """A sixteenth of the wgmma of 16 elements of k; copies, and where their taps lie."""
        slabs, each = kernel["wr"], self.footprint(kernel).threads * PIECE
        copies = (kernel["bm"] + kernel["bn"]) / each
        return Step(
            fmas=slabs / 16, loads=copies, checks=copies + CORNER_CHECKS * kernel["bm"] / each,
            rows=2 * slabs, columns=kernel["bn"] / 4, tensor=True,
        )  # fmt: skip

    def schedule(self, kernel: MicroKernel, symbol: str) -> Any:
        """TVM module with one function ``symbol(X, W)``."""
        footprint = self.footprint(kernel)
        blocks = resident_blocks(footprint.threads, footprint.registers_per_thread)
        return module_of(_program(TVM_DTYPES[self.dtype], kernel, footprint.threads, blocks), symbol)

    def _wanted(self, bm: int, bn: int, wr: int) -> int:
        corners = CORNER_REGISTERS * (bm * K_STEP // (_threads(bm, wr) * PIECE)) + TAP_REGISTERS
        return wr * SLAB * bn // WARPGROUP + corners + ADDRESS_REGISTERS

    def _fits(self, bm: int, bn: int, wr: int, st: int) -> bool:
        required = self.registers(self._wanted(bm, bn, wr))
        stored = required < MOST_REGISTERS and required * _threads(bm, wr) <= SCHEDULERS * SCHEDULER_REGISTERS
        return stored and self._ring(bm, bn, st) <= SHARED_LIMIT

    def _ring(self, bm: int, bn: int, st: int) -> int:
        """Bytes of all stages."""
        return st * (bm + bn) * K_STEP * self.bytes_per_element()


def _threads(bm: int, wr: int) -> int:
    """Of a block."""
    return bm // (SLAB * wr) * WARPGROUP


def _program(dtype: str, kernel: MicroKernel, threads: int, blocks: int) -> Any:
    from tvm.script import tirx as T

    bm, bn, bk, wr, st, v, *_ = (value for _, value in kernel.params)
    sums_of_slab = SLAB * bn // WARPGROUP
    x_bytes, stage_bytes = bm * bk * 2, (bm + bn) * bk * 2
    seen = bm * bk // (threads * v)  # pieces of X's tile that a thread copies
    of_w = -(-bn * bk // (threads * v))
    element = {"float16": "f16", "bfloat16": "bf16"}[dtype]
    wgmma = f"wgmma.mma_async.sync.aligned.m64n{bn}k16.f32.{element}.{element}"
    copy = "cp.async.cg.shared.global"

    def piece(i: Any, thread: Any) -> tuple[Any, Any]:
        """Row and column of what a thread copies i-th."""
        e = i * threads + thread
        return T.truncdiv(e, bk // v), T.truncmod(e, bk // v) * v

    def in_tile(row: Any, column: Any) -> Any:
        """Bytes from the begin of a tile."""
        return row * (bk * 2) + T.shift_left(device_calls.swizzled_chunk(T, row, column, bk), 4)

    @T.prim_func
    def program(x_arg: T.handle, w_arg: T.handle):
        m = T.int32()
        n = T.int32()
        k = T.int32()
        x_stride = T.int32()
        w_stride = T.int32()
        x_rows = T.match_buffer(x_arg, (m, k), dtype, strides=(x_stride, 1), align=16)
        w = T.match_buffer(w_arg, (n, k), dtype, strides=(w_stride, 1), align=16)
        # Flat views: this pipeline computes addresses from shapes alone and would ignore the row strides.
        x = T.decl_buffer((m * x_stride,), dtype, data=x_rows.data)
        wf = T.decl_buffer((n * w_stride,), dtype, data=w.data)
        T.device_entry()
        T.attr({"tirx.launch_bounds_min_blocks_per_sm": blocks})
        block = T.cta_id([T.truncdiv(m + (bm - 1), bm) * T.truncdiv(n + (bn - 1), bn)])
        thread = T.thread_id([threads])
        tile = T.alloc_local([2], "int32")
        T.evaluate(device_calls.find_tile(T, tile, block, T.truncdiv(m + (bm - 1), bm), T.truncdiv(n + (bn - 1), bn)))
        m0: T.int32 = tile[0] * bm
        n0: T.int32 = tile[1] * bn
        pool = T.SMEMPool()
        ring = pool.alloc((st * stage_bytes,), "uint8", align=1024)  # the swizzle's pattern repeats every 1024 bytes
        pool.commit()
        steps: T.int32 = T.truncdiv(k, bk)
        x_from = T.alloc_local([5 + 3 * seen], "int32")  # the tap, then corners
        w_from = T.alloc_local([1], "int32")
        left = T.alloc_local([1], "int32")
        w_from[0] = n0 * w_stride
        left[0] = k
        for i in T.unroll(seen):
            its = T.meta_var(piece(i, thread))
            T.evaluate(device_calls.call(T, "ht_window_corner<1, false>", x_from.ptr_to([5 + 3 * i]), m0 + its[0]))
        for i in T.unroll(5):
            x_from[i] = 0

        @T.inline
        def load_stage(index):
            """The next step's tiles; past the end of k what nobody reads."""
            for i in T.unroll(seen):
                its = T.meta_var(piece(i, thread))
                spot = T.meta_var(x_from.ptr_to([5 + 3 * i]))
                inside = T.meta_var(
                    device_calls.call(T, "ht_window_inside<1, false>", spot, x_from.ptr_to([0]), gives="bool")
                )
                T.ptx[copy](
                    ring.ptr_to([index + in_tile(its[0], its[1])]),
                    x.ptr_to([x_from[5 + 3 * i] + x_from[0] + its[1]]),
                    v * 2,
                    T.if_then_else(inside, T.uint32(v * 2), T.uint32(0)),
                )
            T.evaluate(device_calls.call(T, "ht_window_next<1, false>", x_from.ptr_to([0]), bk))
            for i in T.unroll(of_w):
                its = T.meta_var(piece(i, thread))
                inside = T.meta_var(T.And(n0 + its[0] < n, its[1] < left[0]))
                if i * threads + thread < bn * bk // v:
                    T.ptx[copy](
                        ring.ptr_to([index + x_bytes + in_tile(its[0], its[1])]),
                        wf.ptr_to([w_from[0] + its[0] * w_stride + its[1]]),  # never read when the source size is 0
                        v * 2,
                        T.if_then_else(inside, T.uint32(v * 2), T.uint32(0)),
                    )
            w_from[0] = w_from[0] + bk
            left[0] = left[0] - bk

        warp: T.int32 = device_calls.warp(T)  # descriptors come of it, and so stay in uniform registers
        group: T.let = T.truncdiv(warp, WARPGROUP // WARP)
        sums = T.alloc_local([wr * sums_of_slab], "float32")
        a_low = T.alloc_local([1], "uint32")
        b_low = T.alloc_local([1], "uint32")
        for i in T.unroll(wr * sums_of_slab):
            sums[i] = T.float32(0)
        # Descriptors of the 128-byte swizzle, in units of 16 bytes: groups of 8 rows are 64 apart, the next k16 is 2 on.
        a_low[0] = device_calls.call(T, "ht_descriptor_low", ring.ptr_to([group * (SLAB * wr * bk * 2)]), 1, gives="uint32")
        b_low[0] = device_calls.call(T, "ht_descriptor_low", ring.ptr_to([x_bytes]), 1, gives="uint32")
        for s in T.unroll(st - 1):
            load_stage(s * stage_bytes)
            T.ptx.cp.async_.commit_group()
        at: T.int32 = 0  # stages from the ring's begin to this step's
        freed: T.int32 = st - 1  # and to that of the step before
        for _ in T.serial(steps):
            T.ptx.cp.async_.wait_group(st - 2)
            T.ptx.wgmma.wait_group.sync.aligned(0)  # the step before is finished: its stage is free once all have met
            T.ptx.fence.proxy.async_.shared__cta()
            T.cuda.cta_sync()
            T.ptx.wgmma.fence.sync.aligned()
            for kk in T.unroll(bk // 16):
                for r in T.unroll(wr):
                    T.ptx[wgmma](
                        *[sums[r * sums_of_slab + q] for q in range(sums_of_slab)],
                        device_calls.call(
                            T,
                            "ht_descriptor",
                            a_low[0] + T.Cast("uint32", at * (stage_bytes // 16) + (r * SLAB * 128 // 16 + kk * 2)),
                            64,
                            gives="uint64",
                        ),
                        device_calls.call(
                            T,
                            "ht_descriptor",
                            b_low[0] + T.Cast("uint32", at * (stage_bytes // 16) + kk * 2),
                            64,
                            gives="uint64",
                        ),
                        T.ptx.pred(1),
                        1,
                        1,
                        0,
                        0,
                    )
            T.ptx.wgmma.commit_group.sync.aligned()
            load_stage(freed * stage_bytes)
            T.ptx.cp.async_.commit_group()
            freed = at
            at = at + 1
            if at == st:
                at = 0
        T.ptx.wgmma.wait_group.sync.aligned(0)
        T.ptx.cp.async_.wait_group(0)
        T.cuda.cta_sync()  # the ring is free: sums go through it
        below = T.meta_var(group * (SLAB * wr) + T.truncmod(warp, 4) * 16)  # where the warp's rows of the first slab begin
        T.evaluate(
            device_calls.call(
                T, f"ht_store_fragments<{device_calls.ELEMENT_TYPES[dtype]}, {wr}, {bn}, {SLAB}>",
                sums.ptr_to([0]), ring.ptr_to([0]), warp, m0 + below, n0,
            )
        )  # fmt: skip

    return program
