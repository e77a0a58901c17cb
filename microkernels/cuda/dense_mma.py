"""fp16, bf16 and int8 dense on tensor cores through mma.sync.m16n8k16 (of bytes k32), for sm_80 and later.

cp.async fills a ring of ``st`` shared-memory stages while the warps multiply (CUTLASS's multistage pipeline, Kerr et al.
2017 and the PTX ISA, *cp.async*); a XOR swizzle of 16-byte chunks keeps both the stores and ldmatrix free of bank
conflicts. Loads outside the matrices read zeros through cp.async's source size, stores outside are skipped.
Bytes travel in pairs: a fragment of m16n8k32 has its pairs where that of m16n8k16 has its elements (PTX ISA, *mma*), so the
program is the same with half the k. An odd k is not for it, nor W (k, n), whose bytes ldmatrix cannot turn.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"
# (the program at the end is a script that TVM parses; its functions are never called as Python)

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from haotuner.microkernels.cuda import dense_demand, device_calls
from haotuner.microkernels.cuda.dense import (
    TVM_DTYPES,
    WARP,
    CudaDense,
    module_of,
    resident_blocks,
    stored_kn,
    vector_elements,
)
from haotuner.microkernels.cuda.dense_demand import Step
from haotuner.microkernels.cuda.dense_wgmma import CudaWgmma
from haotuner.spec.constraint import Laws
from haotuner.spec.device import Device
from haotuner.spec.kernel import Footprint, MicroKernel
from haotuner.spec.op import Op

WARP_GRIDS = ((1, 2), (2, 1), (1, 4), (2, 2), (4, 1), (2, 4), (4, 2))  # 2 to 8 warps; one warp cannot hide its loads
WARP_ROWS = (16, 32, 64)  # multiples of the instruction's 16
WARP_COLUMNS = (16, 32, 64)  # ldmatrix.x4 brings two 8-column fragments at once
K_STEPS = (32, 64)  # 64 to 128 bytes a row: whole sectors, and 4 or 8 chunks to swizzle
STAGES = (2, 3, 4, 5)
WIDEST_VECTOR = 8  # elements of a 16-byte cp.async, or pairs of bytes
BYTE_RATE = 2.0  # of products of bytes, times those of fp16 (CUDA guide, arithmetic instructions)
HOPPER_SHARE = 0.63  # of the wgmma rate, measured by Luo et al. (arXiv 2402.13499)
TILE_LIMIT = 256  # beyond it a block's accumulators leave no second warp per scheduler
# Pointers, predicates and loop state, and one more for each load of a stage beyond the first eight; with fewer ptxas spills
# somewhere in the space.
ADDRESS_REGISTERS, FREE_LOADS = 16, 8
# Instructions of a warp: eight rows of sums by shared memory, where columns are not turned by 32; a matrix of a batch.
STAGED_ROWS, TURNED_COLUMNS, FOUND_MATRIX = 120.0, 32, 200.0
# Of windows; and instructions for each piece of X that is copied: whether its tap lies in the image (55 for 4 on sm_90a).
CORNER_REGISTERS, TAP_REGISTERS, CORNER_CHECKS = 3, 8, 14


@dataclass(frozen=True, slots=True, kw_only=True)
class _Elements:
    """Elements that a program multiplies: one, or a pair of bytes, as TVM and mma.sync name it, and what it sums in."""

    dtype: str
    mma: str
    sums: str
    stored: str  # the function that ends it, and its first arguments


def _elements_of(dtype: str, signs: str) -> _Elements:
    if dtype == "int8":
        mma = f"mma.sync.aligned.m16n8k32.row.col.s32.{signs[0]}8.{signs[1]}8.s32"
        return _Elements(dtype="uint16", mma=mma, sums="uint32", stored="ht_store_byte_fragments<")
    named = {"fp16": "f16", "bf16": "bf16"}[dtype]
    mma = f"mma.sync.aligned.m16n8k16.row.col.f32.{named}.{named}.f32"
    stored = f"ht_store_fragments<{device_calls.ELEMENT_TYPES[TVM_DTYPES[dtype]]}, "
    return _Elements(dtype=TVM_DTYPES[dtype], mma=mma, sums="float32", stored=stored)


class CudaMma(CudaDense):
    """Families ``cuda_mma_`` and fp16, bf16, int8 or sint8; parameters bm, bn, bk, wm x wn warps, st stages, v, kn."""

    oldest_sm = 80

    def serves(self, op: Op) -> bool:
        """As every family; of bytes none where k is odd or lies across."""
        return super().serves(op) and self.takes(op)

    def takes(self, op: Op) -> bool:
        """Of bytes none where k is odd or lies across."""
        return self.dtype != "int8" or (vector_elements(op, 2) == 2 and not stored_kn(op))

    def programs(self, op: Op, device: Device) -> Iterator[MicroKernel]:
        """Every grid of warps, warp tile, k step and ring length; of bytes none where k is odd or lies across."""
        of = 2 if self.dtype == "int8" else 1
        v, kn = vector_elements(op, WIDEST_VECTOR * of), stored_kn(op)
        if of > 1 and (v < of or kn):
            return
        for (wm, wn), rows, columns, bk, st in product(WARP_GRIDS, WARP_ROWS, WARP_COLUMNS, K_STEPS, STAGES):
            if wm * rows <= TILE_LIMIT and wn * columns <= TILE_LIMIT:
                yield self.kernel(bm=wm * rows, bn=wn * columns, bk=bk * of, wm=wm, wn=wn, st=st, v=v, kn=kn)

    @property
    def least_step(self) -> int:
        """The shortest of ``K_STEPS``."""
        return K_STEPS[0] * (2 if self.dtype == "int8" else 1)

    def packed(self, kernel: MicroKernel) -> int:
        """Bytes in pairs."""
        return 2 if self.dtype == "int8" else 1

    def kernel(self, *, bm: int, bn: int, bk: int, wm: int, wn: int, st: int, v: int = 8, kn: int = 0) -> MicroKernel:
        """The micro-kernel of these parameters."""
        of = 2 if self.dtype == "int8" else 1
        if bm % (16 * wm) or bn % (16 * wn) or bk % (16 * of) or bk < 32 * of:
            raise ValueError(
                f"a {bm}x{bn}x{bk} tile of {wm}x{wn} warps: each warp needs multiples of 16, bk at least {32 * of}"
            )
        if v not in (of, 2 * of, 4 * of, 8 * of) or st < 2 or kn not in (range(2 + self.batched) if of == 1 else (0,)):
            raise ValueError(
                f"v={v} must be 1, 2, 4 or 8 (of bytes twice that), st={st} at least 2, kn={kn} 0 or 1, 2 of batches"
            )
        params = (("bm", bm), ("bn", bn), ("bk", bk), ("wm", wm), ("wn", wn), ("st", st), ("v", v), ("kn", kn))
        return MicroKernel(self.name, params)

    def footprint(self, kernel: MicroKernel) -> Footprint:
        """Accumulators, two sets of fragments and addresses; shared memory of the whole ring."""
        rows, columns = kernel["bm"] // kernel["wm"], kernel["bn"] // kernel["wn"]
        accumulators = rows * columns // WARP
        fragments = 2 * (rows // 16 * 4 + columns // 8 * 2)
        threads = kernel["wm"] * kernel["wn"] * WARP
        stage = (kernel["bm"] + kernel["bn"]) * kernel["bk"]
        addresses = ADDRESS_REGISTERS + max(0, stage // (threads * WIDEST_VECTOR * self.packed(kernel)) - FREE_LOADS)
        if self.windows:  # of each row that a thread copies where its window's corner lies
            copied = threads * WIDEST_VECTOR * self.packed(kernel)
            addresses += CORNER_REGISTERS * -(-kernel["bm"] * kernel["bk"] // copied) + TAP_REGISTERS
        return Footprint(
            registers_per_thread=self.registers(accumulators + fragments + addresses),
            shared_bytes=max(
                kernel["st"] * stage * self.bytes_per_element(), device_calls.staged_bytes(threads // WARP, columns)
            ),
            threads=threads,
        )

    def ahead(self, kernel: MicroKernel) -> int:
        """All stages of the ring but the one that is computed."""
        return kernel["st"] - 1

    def tail(self, kernel: MicroKernel) -> float:
        """Sums of narrow warps go through shared memory, eight rows at a time; others are turned in registers."""
        staged = kernel["bm"] // kernel["wm"] / 8 * bool(kernel["bn"] // kernel["wn"] % TURNED_COLUMNS)
        return STAGED_ROWS * staged + FOUND_MATRIX * self.batched

    def near_bytes(self, kernel: MicroKernel) -> int:
        """Every warp reads its rows of X and its columns of W."""
        return (kernel["bm"] * kernel["wn"] + kernel["bn"] * kernel["wm"]) * self.bytes_per_element()

    def step(self, kernel: MicroKernel) -> Step:
        """A sixteenth of the mma.sync, ldmatrix and cp.async of 16 elements of k; checks where rows and columns end."""
        rows, columns = kernel["bm"] // kernel["wm"], kernel["bn"] // kernel["wn"]
        copies = (kernel["bm"] + kernel["bn"]) / (self.footprint(kernel).threads * kernel["v"])
        depth = 16 * self.packed(kernel)
        requested = CORNER_CHECKS * bool(self.windows) * kernel["bm"] / (self.footprint(kernel).threads * kernel["v"])
        return Step(
            fmas=(rows // 16) * (columns // 8) / depth, loads=(rows / 16 + columns / 16) / depth + copies,
            checks=copies + requested, rows=rows / 8, columns=columns / 4, tensor=True,
            rate=BYTE_RATE if self.dtype == "int8" else 1.0,
        )  # fmt: skip

    def peak_share(self, device: Device) -> float:
        """On Hopper mma.sync reaches only part of the tensor cores' peak."""
        share = HOPPER_SHARE if device.arch in ("sm_90", "sm_90a") else 1.0
        return share * (BYTE_RATE if self.dtype == "int8" else 1.0)

    def laws(self, op: Op, device: Device) -> Laws:
        """No large tiles of a warp with a short step; on Hopper none at all where wgmma computes the op."""
        by_wgmma = CudaWgmma(self.name, self.dtype, grouped=self.grouped)
        may = self.dtype != "int8" and by_wgmma.suits(device) and by_wgmma.serves(op)
        beside = dense_demand.BESIDE_WGMMA if may else ()
        return *dense_demand.MMA_LAWS, *beside

    def schedule(self, kernel: MicroKernel, symbol: str) -> Any:
        """TVM module with one function ``symbol(X, W)``."""
        footprint = self.footprint(kernel)
        blocks = resident_blocks(footprint.threads, footprint.registers_per_thread)
        of = _elements_of(self.dtype, self.signs)
        return module_of(
            _program(kernel, of, self.packed(kernel), blocks, strided=self.batched, windows=bool(self.windows)), symbol
        )


def _program(kernel: MicroKernel, of: _Elements, packed: int, blocks: int, *, strided: bool, windows: bool) -> Any:
    from tvm.script import tirx as T

    bm, bn, bk, wm, wn, st, v, *_ = (value for _, value in kernel.params)
    bk, v, dtype, mma = bk // packed, v // packed, of.dtype, of.mma  # a pair of bytes is an element
    kn = bool(kernel["kn"])  # the script language takes no number for a condition
    x_kn = kernel["kn"] == 2  # X is stored (k, m)
    threads = wm * wn * WARP
    rows, columns = bm // wm, bn // wn  # of one warp
    mt, nt, ksteps = rows // 16, columns // 8, bk // 16  # instructions of a warp, k16 steps of a stage
    ldmatrix = "ldmatrix.sync.aligned.m8n8.x4.shared.b16"
    turned = "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16"
    ldmatrix_x, ldmatrix_w = turned if x_kn else ldmatrix, turned if kn else ldmatrix
    load_loop = T.unroll if v > 1 else T.serial  # plain loads wait in registers: unrolled they spill
    copy = "cp.async.cg.shared.global" if v == 8 else "cp.async.ca.shared.global"  # .cg (past L1) exists for 16 bytes only
    x_bytes, stage_bytes = bm * bk * 2, (bm + bn) * bk * 2  # of a stage: X's tile, and W's behind it
    as_stored = not windows
    seen = -(-bm * bk // (threads * v)) if windows else 1  # pieces of X's tile that a thread copies
    # Where all copies of a thread have the same columns, they differ in their rows by constants: one number of rows that
    # are left tells which are inside.
    x_even, w_even = threads % ((bm if x_kn else bk) // v) == 0, threads % ((bn if kn else bk) // v) == 0

    def piece(i: Any, thread: Any, width: int) -> tuple[Any, Any]:
        """Row and column of what a thread copies i-th, of a tile of so many columns."""
        e = i * threads + thread
        return T.truncdiv(e, width // v), T.truncmod(e, width // v) * v

    def in_tile(row: Any, column: Any, width: int) -> Any:
        """Bytes from the begin of a tile: indices in elements would cost a shift for each address."""
        chunk = device_calls.swizzled_chunk(T, row, column, width)
        return row * (width * 2) + T.shift_left(chunk, 4) + T.bitwise_and(column, 7) * 2

    @T.prim_func
    def program(x_arg: T.handle, w_arg: T.handle):
        m = T.int32()
        n = T.int32()
        k = T.int32()
        x_stride = T.int32()
        w_stride = T.int32()
        x_rows = T.match_buffer(x_arg, (k, m) if x_kn else (m, k), dtype, strides=(x_stride, 1), align=16)
        w = T.match_buffer(w_arg, (k, n) if kn else (n, k), dtype, strides=(w_stride, 1) if strided else None, align=16)
        w_pitch = T.meta_var(w_stride if strided else n if kn else k)
        # Flat views: this pipeline computes addresses from shapes alone and would ignore the row strides.
        x = T.decl_buffer(((k if x_kn else m) * x_stride,), dtype, data=x_rows.data)
        wf = T.decl_buffer(((k if kn else n) * w_pitch,), dtype, data=w.data)
        T.device_entry()
        T.attr({"tirx.launch_bounds_min_blocks_per_sm": blocks})
        block = T.cta_id([T.truncdiv(m + (bm - 1), bm) * T.truncdiv(n + (bn - 1), bn)])
        thread = T.thread_id([threads])
        tile = T.alloc_local([2], "int32")
        T.evaluate(device_calls.find_tile(T, tile, block, T.truncdiv(m + (bm - 1), bm), T.truncdiv(n + (bn - 1), bn)))
        m0: T.int32 = tile[0] * bm  # written out where they are used, the division would run in the main loop
        n0: T.int32 = tile[1] * bn
        warp: T.let = T.truncdiv(thread, WARP)
        lane: T.let = T.truncmod(thread, WARP)
        warp_m: T.let = T.truncdiv(warp, wn) * rows
        warp_n: T.let = T.truncmod(warp, wn) * columns
        pool = T.SMEMPool()
        ring = pool.alloc((st * stage_bytes,), "uint8", align=128)
        pool.move_base_to(0)
        elements = pool.alloc((st * stage_bytes // 2,), dtype, align=128)
        pool.commit()
        sums = T.alloc_local([mt * nt * 4], of.sums)
        xf = T.alloc_local([2 * mt * 4], "uint32")
        wr = T.alloc_local([2 * nt * 2], "uint32")
        first: T.int32 = device_calls.first_step(T, T.truncdiv(k + (bk - 1), bk))
        last: T.int32 = device_calls.last_step(T, T.truncdiv(k + (bk - 1), bk))
        # Of the step that is loaded next: elements from the operands' begin to the tiles', and what is left of k.
        x_from = T.alloc_local([5 + 3 * seen if windows else 1], "int32")  # of windows the tap, then corners
        w_from = T.alloc_local([1], "int32")
        left = T.alloc_local([1], "int32")
        x_from[0] = first * bk * x_stride + m0 if x_kn else m0 * x_stride + first * bk
        w_from[0] = first * bk * w_pitch + n0 if kn else n0 * w_pitch + first * bk
        left[0] = k - first * bk

        @T.inline
        def load(index, flat, start, pitch, height, width, rows_left, columns_left, even):
            """One tile of global memory into a stage, zeros outside the matrix."""
            own = T.meta_var(piece(0, thread, width))
            room: T.int32 = T.if_then_else(own[1] < columns_left, rows_left - own[0], 0)
            for i in load_loop((height * width + threads * v - 1) // (threads * v)):
                its = T.meta_var(piece(i, thread, width))
                r = T.meta_var(its[0])
                c = T.meta_var(its[1])
                source = T.meta_var(start + r * pitch + c)
                inside = T.meta_var(i * (threads * v // width) < room if even else T.And(r < rows_left, c < columns_left))
                if i * threads + thread < height * width // v:
                    if v >= 2:
                        T.ptx[copy](
                            ring.ptr_to([index + in_tile(r, c, width)]),
                            flat.ptr_to([source]),  # never read when the source size is 0
                            v * 2,
                            T.if_then_else(inside, T.uint32(v * 2), T.uint32(0)),
                        )
                    else:
                        elements[T.shift_right(index + in_tile(r, c, width), 1)] = T.if_then_else(
                            inside, flat[source], T.Cast(dtype, 0)
                        )

        if windows:
            for i in T.unroll(seen):
                its = T.meta_var(piece(i, thread, bk))
                T.evaluate(
                    device_calls.call(T, f"ht_window_corner<{packed}, false>", x_from.ptr_to([5 + 3 * i]), m0 + its[0])
                )
            for i in T.unroll(5):
                x_from[i] = 0

        @T.inline
        def load_windows(index):
            """X's tile: of each row 16 bytes at a time, zeros where a tap lies outside its image."""
            for i in T.unroll(seen):
                its = T.meta_var(piece(i, thread, bk))
                spot = T.meta_var(x_from.ptr_to([5 + 3 * i]))
                inside = T.meta_var(
                    device_calls.call(T, f"ht_window_inside<{packed}, false>", spot, x_from.ptr_to([0]), gives="bool")
                )
                if i * threads + thread < bm * bk // v:
                    T.ptx[copy](
                        ring.ptr_to([index + in_tile(its[0], its[1], bk)]),
                        x.ptr_to([x_from[5 + 3 * i] + x_from[0] + its[1]]),
                        v * 2,
                        T.if_then_else(inside, T.uint32(v * 2), T.uint32(0)),
                    )
            T.evaluate(device_calls.call(T, f"ht_window_next<{packed}, false>", x_from.ptr_to([0]), bk))

        @T.inline
        def load_stage(index):
            """The next step's tiles; past the end of k zeros or what nobody reads."""
            if windows:
                load_windows(index)
            elif x_kn:
                load(index, x, x_from[0], x_stride, bk, bm, left[0], m - m0, x_even)
            else:
                load(index, x, x_from[0], x_stride, bm, bk, m - m0, left[0], x_even)
            if kn:
                load(index + x_bytes, wf, w_from[0], w_pitch, bk, bn, left[0], n - n0, w_even)
            else:
                load(index + x_bytes, wf, w_from[0], w_pitch, bn, bk, n - n0, left[0], w_even)
            if as_stored:
                x_from[0] = x_from[0] + (bk * x_stride if x_kn else bk)
            w_from[0] = w_from[0] + (bk * w_pitch if kn else bk)
            left[0] = left[0] - bk

        # Where ldmatrix reads in a stage; rows 16 apart have the same swizzle, so constants lead to all others.
        x_reads = T.alloc_local([mt if x_kn else ksteps], "int32")
        w_reads = T.alloc_local([nt // 2 if kn else ksteps], "int32")
        if x_kn:
            for i in T.unroll(mt):
                r = T.meta_var(T.truncdiv(lane, 16) * 8 + T.truncmod(lane, 8))
                c = T.meta_var(warp_m + i * 16 + T.truncmod(T.truncdiv(lane, 8), 2) * 8)
                x_reads[i] = device_calls.in_register(T, in_tile(r, c, bm))
        else:
            for kk in T.unroll(ksteps):
                r = T.meta_var(warp_m + T.truncmod(lane, 16))
                x_reads[kk] = device_calls.in_register(T, in_tile(r, kk * 16 + T.truncdiv(lane, 16) * 8, bk))
        if kn:
            for j in T.unroll(nt // 2):
                c = T.meta_var(warp_n + j * 16 + T.truncdiv(lane, 16) * 8)
                w_reads[j] = device_calls.in_register(T, x_bytes + in_tile(T.truncmod(lane, 16), c, bn))
        else:
            for kk in T.unroll(ksteps):
                r = T.meta_var(warp_n + T.truncdiv(lane, 16) * 8 + T.truncmod(lane, 8))
                c = T.meta_var(kk * 16 + T.truncmod(T.truncdiv(lane, 8), 2) * 8)
                w_reads[kk] = device_calls.in_register(T, x_bytes + in_tile(r, c, bk))

        @T.inline
        def fragments(index, kk, half):
            """The operands of k16 step kk into one of two register sets."""
            for i in T.unroll(mt):
                from_x = T.meta_var(x_reads[i] + kk * (16 * bm * 2) if x_kn else x_reads[kk] + i * (16 * bk * 2))
                T.ptx[ldmatrix_x](*[xf[(half * mt + i) * 4 + q] for q in range(4)], ring.ptr_to([index + from_x]))
            for j in T.unroll(nt // 2):
                from_w = T.meta_var(w_reads[j] + kk * (16 * bn * 2) if kn else w_reads[kk] + j * (16 * bk * 2))
                T.ptx[ldmatrix_w](*[wr[(half * nt + j * 2) * 2 + q] for q in range(4)], ring.ptr_to([index + from_w]))

        for i in T.unroll(mt * nt * 4):
            sums[i] = T.Cast(of.sums, 0)
        for s in T.unroll(st - 1):
            load_stage(s * stage_bytes)
            T.ptx.cp.async_.commit_group()
        at_stage: T.int32 = 0  # bytes from the ring's begin to this step's stage
        freed: T.int32 = (st - 1) * stage_bytes  # and to that of the step before
        for _ in T.serial(last - first):
            T.ptx.cp.async_.wait_group(st - 2)
            T.cuda.cta_sync()
            fragments(at_stage, 0, 0)
            load_stage(freed)
            T.ptx.cp.async_.commit_group()
            for kk in T.unroll(ksteps):
                if kk + 1 < ksteps:
                    fragments(at_stage, kk + 1, (kk + 1) % 2)
                for i in T.unroll(mt):
                    for j in T.unroll(nt):
                        T.ptx[mma](
                            *[sums[(i * nt + j) * 4 + q] for q in range(4)],
                            *[xf[((kk % 2) * mt + i) * 4 + q] for q in range(4)],
                            *[wr[((kk % 2) * nt + j) * 2 + q] for q in range(2)],
                            *[sums[(i * nt + j) * 4 + q] for q in range(4)],
                        )
            freed = at_stage
            at_stage = T.if_then_else(at_stage == (st - 1) * stage_bytes, 0, at_stage + stage_bytes)
        T.ptx.cp.async_.wait_group(0)
        T.cuda.cta_sync()  # the ring is free: sums go through it
        again: T.int32 = device_calls.thread_again(T)
        block_again: T.int32 = device_calls.block_again(T)
        at = T.alloc_local([2], "int32")
        T.evaluate(device_calls.find_tile(T, at, block_again, T.truncdiv(m + (bm - 1), bm), T.truncdiv(n + (bn - 1), bn)))
        T.evaluate(
            device_calls.call(
                T, f"{of.stored}{mt}, {columns}, 16>",
                sums.ptr_to([0]), ring.ptr_to([0]), T.truncdiv(again, WARP),
                at[0] * bm + T.truncdiv(again, wn * WARP) * rows,
                at[1] * bn + T.truncmod(T.truncdiv(again, WARP), wn) * columns,
            )
        )  # fmt: skip

    return program
