"""fp16 dense on Turing's tensor cores through mma.sync.m16n8k8, for sm_75 alone: no cp.async there, no bf16.

The next step's operands wait in registers while this one is multiplied, and go to the other of two shared buffers after
it (CUTLASS's two-stage pipeline, Kerr et al. 2017). Layout of shared memory and fragments are those of ``dense_mma``: a
fragment of 16 elements of k is two of 8 (PTX ISA, *matrix fragments for mma.m16n8k8*).
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
    module_of,
    resident_blocks,
    sm_number,
    vector_elements,
)
from haotuner.microkernels.cuda.dense_demand import Step
from haotuner.microkernels.cuda.dense_mma import (
    K_STEPS,
    TILE_LIMIT,
    WARP_COLUMNS,
    WARP_GRIDS,
    WARP_ROWS,
    WIDEST_VECTOR,
    CudaMma,
)
from haotuner.spec.device import Device
from haotuner.spec.kernel import Footprint, MicroKernel
from haotuner.spec.op import Op

TURING = 75
HELD_LIMIT = 48  # registers of a thread for the next step; with 64 ptxas spills beside the 128 sums of a 64x64 warp tile
ADDRESS_REGISTERS = 28  # pointers and a predicate for each load, loop state; with fewer ptxas spills somewhere in the space


class CudaMmaTuring(CudaMma):
    """Family ``cuda_mma8_fp16``; parameters bm, bn, bk, wm x wn warps, v, kn."""

    oldest_sm = TURING
    device = (*CudaMma.device, "staged")

    def suits(self, device: Device) -> bool:
        """Only compute capability 7.5: later ones have instructions twice as deep."""
        return sm_number(device.arch) == TURING

    def programs(self, op: Op, device: Device) -> Iterator[MicroKernel]:
        """Every grid of warps, warp tile and k step whose loads a thread can hold."""
        v, kn = vector_elements(op, WIDEST_VECTOR), int(op.option("weight") == "kn")
        for (wm, wn), rows, columns, bk in product(WARP_GRIDS, WARP_ROWS, WARP_COLUMNS, K_STEPS):
            if wm * rows <= TILE_LIMIT and wn * columns <= TILE_LIMIT:
                kernel = self.turing(bm=wm * rows, bn=wn * columns, bk=bk, wm=wm, wn=wn, v=v, kn=kn)
                if self.staged_registers(kernel) <= HELD_LIMIT:
                    yield kernel

    def turing(self, *, bm: int, bn: int, bk: int, wm: int, wn: int, v: int = 8, kn: int = 0) -> MicroKernel:
        """The micro-kernel of these parameters."""
        self.kernel(bm=bm, bn=bn, bk=bk, wm=wm, wn=wn, st=2, v=v, kn=kn)  # refuses what no tile can be
        params = (("bm", bm), ("bn", bn), ("bk", bk), ("wm", wm), ("wn", wn), ("v", v), ("kn", kn))
        return MicroKernel(self.name, params)

    def loads(self, kernel: MicroKernel) -> tuple[int, int]:
        """Loads of a thread for its share of a step's X and W."""
        share = kernel["wm"] * kernel["wn"] * WARP * kernel["v"]
        return -(-kernel["bm"] * kernel["bk"] // share), -(-kernel["bn"] * kernel["bk"] // share)

    def staged_registers(self, kernel: MicroKernel) -> int:
        """Registers in which a thread's share of the next step waits."""
        return sum(self.loads(kernel)) * -(-kernel["v"] // 2)

    def footprint(self, kernel: MicroKernel) -> Footprint:
        """Accumulators, two sets of fragments, the next step and addresses; two shared buffers."""
        rows, columns = kernel["bm"] // kernel["wm"], kernel["bn"] // kernel["wn"]
        fragments = 2 * (rows // 16 * 4 + columns // 8 * 2)
        threads = kernel["wm"] * kernel["wn"] * WARP
        buffers = 2 * (kernel["bm"] + kernel["bn"]) * kernel["bk"] * self.bytes_per_element()
        registers = rows * columns // WARP + fragments + self.staged_registers(kernel) + ADDRESS_REGISTERS
        return Footprint(
            registers_per_thread=self.registers(registers),
            shared_bytes=max(buffers, device_calls.staged_bytes(threads // WARP, columns)),
            threads=threads,
        )

    def ahead(self, kernel: MicroKernel) -> int:
        """One: the next step's operands wait in registers."""
        return 1

    def step(self, kernel: MicroKernel) -> Step:
        """An eighth of the mma.sync of 8 elements of k; ldmatrix, loads and their stores; checks where operands end."""
        rows, columns = kernel["bm"] // kernel["wm"], kernel["bn"] // kernel["wn"]
        copies = (kernel["bm"] + kernel["bn"]) / (self.footprint(kernel).threads * kernel["v"])
        return Step(
            fmas=(rows // 16) * (columns // 8) / 8, loads=(rows / 16 + columns / 16) / 16 + 2 * copies, checks=copies,
            rows=rows / 8, columns=columns / 4, tensor=True,
        )  # fmt: skip

    def schedule(self, kernel: MicroKernel, symbol: str) -> Any:
        """TVM module with one function ``symbol(X, W)``."""
        footprint = self.footprint(kernel)
        blocks = resident_blocks(footprint.threads, footprint.registers_per_thread)
        return module_of(_program(kernel, TVM_DTYPES[self.dtype], blocks, *self.loads(kernel)), symbol)


def _program(kernel: MicroKernel, dtype: str, blocks: int, x_loads: int, w_loads: int) -> Any:
    from tvm.script import tirx as T

    bm, bn, bk, wm, wn, v, *_ = (value for _, value in kernel.params)
    kn = bool(kernel["kn"])  # the script language takes no number for a condition
    threads = wm * wn * WARP
    rows, columns = bm // wm, bn // wn  # of one warp
    mt, nt, ksteps = rows // 16, columns // 8, bk // 16  # fragments of a warp, k16 steps of a stage
    stored = -(-v // 2)  # registers of one load
    w_rows, w_columns = (bk, bn) if kn else (bn, bk)  # W's tile as it lies in memory
    element_type = device_calls.ELEMENT_TYPES[dtype]
    mma = "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32"
    ldmatrix = "ldmatrix.sync.aligned.m8n8.x4.shared.b16"
    ldmatrix_w = "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16" if kn else ldmatrix

    def swizzled(row: Any, column: Any, width: int) -> Any:
        return device_calls.swizzled(T, row, column, width)

    @T.prim_func
    def program(x_arg: T.handle, w_arg: T.handle):
        m = T.int32()
        n = T.int32()
        k = T.int32()
        x_stride = T.int32()
        x_rows = T.match_buffer(x_arg, (m, k), dtype, strides=(x_stride, 1), align=16)
        w = T.match_buffer(w_arg, (k, n) if kn else (n, k), dtype, align=16)
        # Flat views: this pipeline computes addresses from shapes alone and would ignore the row strides.
        x = T.decl_buffer((m * x_stride,), dtype, data=x_rows.data)
        wf = T.decl_buffer((n * k,), dtype, data=w.data)
        T.device_entry()
        T.attr({"tirx.launch_bounds_min_blocks_per_sm": blocks})
        block = T.cta_id([T.truncdiv(m + (bm - 1), bm) * T.truncdiv(n + (bn - 1), bn)])
        thread = T.thread_id([threads])
        tile = T.alloc_local([2], "int32")
        T.evaluate(device_calls.find_tile(T, tile, block, T.truncdiv(m + (bm - 1), bm), T.truncdiv(n + (bn - 1), bn)))
        m0: T.let = tile[0] * bm
        n0: T.let = tile[1] * bn
        warp: T.let = T.truncdiv(thread, WARP)
        lane: T.let = T.truncmod(thread, WARP)
        warp_m: T.let = T.truncdiv(warp, wn) * rows
        warp_n: T.let = T.truncmod(warp, wn) * columns
        w_pitch = T.meta_var(n if kn else k)
        pool = T.SMEMPool()
        xs = pool.alloc((2, bm, bk), dtype, align=128)
        ws = pool.alloc((2, w_rows, w_columns), dtype, align=128)
        pool.commit()
        sums = T.alloc_local([mt * nt * 4], "float32")
        xf = T.alloc_local([2 * mt * 4], "uint32")
        wr = T.alloc_local([2 * nt * 2], "uint32")
        x_next = T.alloc_local([x_loads * stored], "uint32")
        w_next = T.alloc_local([w_loads * stored], "uint32")

        @T.inline
        def fetch(to, loads, flat, pitch, height, width, row0, column0, row_end, column_end):
            """One tile of global memory into registers, zeros outside the matrix."""
            for i in T.unroll(loads):
                e = T.meta_var(i * threads + thread)
                r = T.meta_var(row0 + T.truncdiv(e, width // v))
                c = T.meta_var(column0 + T.truncmod(e, width // v) * v)
                T.evaluate(
                    device_calls.call(
                        T, f"ht_fetch<{v}>", to.ptr_to([i * stored]), flat.ptr_to([r * pitch + c]),
                        T.And(e < height * width // v, T.And(r < row_end, c < column_end)),
                    )
                )  # fmt: skip

        @T.inline
        def put(shared, side, held_by, loads, height, width):
            """The registers into a shared buffer."""
            for i in T.unroll(loads):
                e = T.meta_var(i * threads + thread)
                r = T.meta_var(T.truncdiv(e, width // v))
                c = T.meta_var(T.truncmod(e, width // v) * v)
                if e < height * width // v:
                    T.evaluate(
                        device_calls.call(
                            T,
                            f"ht_put<{v}>",
                            shared.ptr_to([side, r, swizzled(r, c, width)]),
                            held_by.ptr_to([i * stored]),
                        )
                    )

        @T.inline
        def fetch_step(step):
            fetch(x_next, x_loads, x, x_stride, bm, bk, m0, step * bk, m, k)
            if kn:
                fetch(w_next, w_loads, wf, w_pitch, bk, bn, step * bk, n0, k, n)
            else:
                fetch(w_next, w_loads, wf, w_pitch, bn, bk, n0, step * bk, n, k)

        @T.inline
        def put_step(side):
            put(xs, side, x_next, x_loads, bm, bk)
            put(ws, side, w_next, w_loads, w_rows, w_columns)

        @T.inline
        def fragments(side, kk, half):
            """The operands of k16 step kk into one of two register sets."""
            for i in T.unroll(mt):
                r = T.meta_var(warp_m + i * 16 + T.truncmod(lane, 16))
                c = T.meta_var(kk * 16 + T.truncdiv(lane, 16) * 8)
                T.ptx[ldmatrix](*[xf[(half * mt + i) * 4 + q] for q in range(4)], xs.ptr_to([side, r, swizzled(r, c, bk)]))
            for j in T.unroll(nt // 2):
                if kn:
                    r = T.meta_var(kk * 16 + T.truncmod(lane, 16))
                    c = T.meta_var(warp_n + j * 16 + T.truncdiv(lane, 16) * 8)
                    T.ptx[ldmatrix_w](
                        *[wr[(half * nt + j * 2) * 2 + q] for q in range(4)], ws.ptr_to([side, r, swizzled(r, c, bn)])
                    )
                else:
                    r = T.meta_var(warp_n + j * 16 + T.truncdiv(lane, 16) * 8 + T.truncmod(lane, 8))
                    c = T.meta_var(kk * 16 + T.truncmod(T.truncdiv(lane, 8), 2) * 8)
                    T.ptx[ldmatrix_w](
                        *[wr[(half * nt + j * 2) * 2 + q] for q in range(4)], ws.ptr_to([side, r, swizzled(r, c, bk)])
                    )

        for i in T.unroll(mt * nt * 4):
            sums[i] = T.float32(0)
        first: T.int32 = device_calls.first_step(T, T.truncdiv(k + (bk - 1), bk))
        last: T.int32 = device_calls.last_step(T, T.truncdiv(k + (bk - 1), bk))
        fetch_step(first)
        put_step(0)
        T.cuda.cta_sync()
        for step in T.serial(last - first):
            fetch_step(first + step + 1)  # past the end it fetches zeros or the next share's, which nobody reads
            fragments(T.truncmod(step, 2), 0, 0)
            for kk in T.unroll(ksteps):
                if kk + 1 < ksteps:
                    fragments(T.truncmod(step, 2), kk + 1, (kk + 1) % 2)
                for deep in T.unroll(2):  # the halves of a k16 fragment
                    for i in T.unroll(mt):
                        for j in T.unroll(nt):
                            T.ptx[mma](
                                *[sums[(i * nt + j) * 4 + q] for q in range(4)],
                                *[xf[((kk % 2) * mt + i) * 4 + deep * 2 + q] for q in range(2)],
                                wr[((kk % 2) * nt + j) * 2 + deep],
                                *[sums[(i * nt + j) * 4 + q] for q in range(4)],
                            )
            put_step(T.truncmod(step + 1, 2))
            T.cuda.cta_sync()
        again: T.int32 = device_calls.thread_again(T)
        block_again: T.int32 = device_calls.block_again(T)
        at = T.alloc_local([2], "int32")
        T.evaluate(device_calls.find_tile(T, at, block_again, T.truncdiv(m + (bm - 1), bm), T.truncdiv(n + (bn - 1), bn)))
        T.evaluate(
            device_calls.call(
                T, f"ht_store_fragments<{element_type}, {mt}, {columns}, 16>",
                sums.ptr_to([0]), xs.ptr_to([0, 0, 0]), T.truncdiv(again, WARP),
                at[0] * bm + T.truncdiv(again, wn * WARP) * rows,
                at[1] * bn + T.truncmod(T.truncdiv(again, WARP), wn) * columns,
            )
        )  # fmt: skip

    return program
