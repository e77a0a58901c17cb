"""fp16 and bf16 dense on Hopper's tensor cores: TMA, mbarriers and wgmma, for sm_90a only, few rows included.

One producer thread asks the TMA for the operands of the next ``st`` k steps; consumer warpgroups wait for a full stage,
start wgmma on it and hand back the stage before (the warp-specialised ring of CUTLASS 3; PTX ISA, *wgmma* and *mbarrier*).
A k step is 64 elements, one 128-byte row of the swizzle that TMA and wgmma share. TMA fills zeros outside the matrices,
stores are skipped there. Needs k, and X's row stride, in multiples of 8 (``v8``: TMA's 16-byte pitch).

The instruction always multiplies 64 rows; for few rows of X most of them would be padding. Here the 64 rows run over W's
rows and the columns, 8 to 32, over X's; of W stored (k, n) they lie in panels of 64. Ring, producer and
consumers are those of ``dense_wgmma``.
"""

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
    CudaDense,
    module_of,
    resident_blocks,
    rounded_registers,
    vector_elements,
)
from haotuner.microkernels.cuda.dense_demand import Step
from haotuner.microkernels.cuda.launch import Map
from haotuner.spec.device import Device
from haotuner.spec.kernel import Footprint, MicroKernel
from haotuner.spec.op import Op

# mypy: disable-error-code="untyped-decorator, no-untyped-def"
# (the program at the end is a script that TVM parses; its functions are never called as Python)


WARPGROUP = 128  # threads that issue one wgmma together
SLAB = 64  # rows of one wgmma
SUSTAINED = 0.87  # of the tensor cores' rate on paper: under full load an H200's clock falls (docs/results/cuda-h200.md)
K_STEP = 64  # 2-byte elements of a 128-byte swizzled row
PITCH_ELEMENTS = 8  # TMA row pitches are multiples of 16 bytes
ROWS = ((64, 1), (128, 1), (128, 2), (192, 1), (256, 2))  # bm, slabs of a consumer warpgroup
# wgmma takes multiples of 8 up to 256; finer steps thin the space, and at 8 ptxas keeps descriptors in vector registers.
COLUMNS = (16, 32, 64, 96, 112, 128, 144, 160, 176, 192, 208, 224, 256)
STAGES = (3, 4, 5, 6, 8, 12)
BARRIER_BYTES = 16  # a full and an empty mbarrier for each stage
PRODUCER_REGISTERS = 40  # one thread with a few addresses; CUTLASS gives 24 to 40
ADDRESS_REGISTERS = 40  # a consumer's descriptors, barriers and epilogue addresses besides its accumulators
ENTRY_REGISTERS = 32  # ptxas refuses a launch bound that leaves less than this besides one wgmma's accumulators (C7602)
CONSUMER_LIMIT = 232  # registers of a consumer: with two of them (40 + 2 x 232) x 128 just fit the SM's file
SWIZZLE_128_BYTES = 3  # CU_TENSOR_MAP_SWIZZLE_128B


class CudaHopper(CudaDense):
    """Base of all families of wgmma."""

    oldest_sm = 90

    def suits(self, device: Device) -> bool:
        """Only compute capability 9.0: later ones have other tensor-core instructions."""
        return device.arch in ("sm_90", "sm_90a")

    def peak_share(self, device: Device) -> float:
        """Share of the clock that is kept when all tensor cores multiply."""
        return SUSTAINED

    def near_bytes(self, kernel: MicroKernel) -> int:
        """Each slab's instruction reads 64 rows of X and all columns of W."""
        return kernel["bm"] // SLAB * (SLAB + kernel["bn"]) * self.bytes_per_element()


class CudaWgmma(CudaHopper):
    """Families ``cuda_wgmma_fp16`` and ``cuda_wgmma_bf16``; parameters bm, bn, bk, wr slabs a warpgroup, st, v, kn."""

    swapped = False  # the instruction's 64 rows run over W's rows, its columns over X's

    def serves(self, op: Op) -> bool:
        """Dense of this dtype whose static k (for ``kn`` weights also n) fits TMA's pitch."""
        if not super().serves(op) or "k" in op.dynamic:
            return False
        # One map holds the matrices of all groups: a step past one's last row of k would read the next one's, NaN perhaps.
        whole = not self.grouped or op.option("weight") != "kn" or op["k"] % K_STEP == 0
        return whole and vector_elements(op, PITCH_ELEMENTS) == PITCH_ELEMENTS

    def programs(self, op: Op, device: Device) -> Iterator[MicroKernel]:
        """Every tile and ring length whose accumulators a warpgroup can hold; none for an op that TMA cannot load."""
        if not self.serves(op):
            return
        kn = int(op.option("weight") == "kn")
        for (bm, wr), bn, st in product(ROWS, COLUMNS, STAGES):
            if self._fits(bm, bn, wr) and not (kn and bn % K_STEP):
                yield self.kernel(bm=bm, bn=bn, wr=wr, st=st, kn=kn)

    def kernel(self, *, bm: int, bn: int, st: int, wr: int = 1, kn: int = 0) -> MicroKernel:
        """The micro-kernel of these parameters."""
        if bm % (SLAB * wr) or bn % 8 or not 8 <= bn <= 256 or bm > 256:
            raise ValueError(f"a {bm}x{bn} tile: rows in whole warpgroups of {SLAB * wr} up to 256, columns multiples of 8")
        if not self._fits(bm, bn, wr):
            raise ValueError(f"the accumulators of a {bm}x{bn} tile with wr={wr} do not fit the registers of an SM")
        if st < 2 or kn not in (0, 1) or (kn and bn % K_STEP):
            raise ValueError(f"st={st} must be at least 2; kn={kn} 0 or 1, and with kn1 bn={bn} in panels of {K_STEP}")
        params = (("bm", bm), ("bn", bn), ("bk", K_STEP), ("wr", wr), ("st", st), ("v", PITCH_ELEMENTS), ("kn", kn))
        return MicroKernel(self.name, params)

    def sides(self, kernel: MicroKernel) -> tuple[int, int]:
        """Extents of a tile along the 64 rows and along the columns of the instruction."""
        return kernel["bm"], kernel["bn"]

    def footprint(self, kernel: MicroKernel) -> Footprint:
        """Registers a thread starts with, to be shared out by setmaxnreg; shared memory of the ring and its barriers."""
        down, across = self.sides(kernel)
        consumers = down // (SLAB * kernel["wr"])
        stage = (kernel["bm"] + kernel["bn"]) * K_STEP * self.bytes_per_element() + BARRIER_BYTES
        return Footprint(
            registers_per_thread=self._entry_registers(down, across, kernel["wr"]),
            shared_bytes=max(kernel["st"] * stage, device_calls.staged_bytes(consumers * WARPGROUP // WARP, across)),
            threads=(consumers + 1) * WARPGROUP,
        )

    def ahead(self, kernel: MicroKernel) -> int:
        """All stages of the ring but the one that is computed."""
        return kernel["st"] - 1

    def step(self, kernel: MicroKernel) -> Step:
        """A sixteenth of the wgmma of 16 elements of k; two copies by the TMA, a wait and an arrival in a step of bk."""
        slabs = kernel["wr"]
        return Step(
            fmas=slabs / 16, loads=2 / K_STEP, checks=2 / K_STEP, rows=2 * slabs, columns=kernel["bn"] / 4, tensor=True
        )

    def maps(self, kernel: MicroKernel) -> tuple[Map, ...]:
        """A tile of each operand; W of (k, n) in panels of 64 columns."""
        bm, bn, bk = (kernel[key] for key in ("bm", "bn", "bk"))
        w_rows, w_columns = (bk, K_STEP) if kernel["kn"] else (bn, bk)
        return (
            Map(operand="x", rows=bm, columns=bk, swizzle_bytes=128),
            Map(operand="w", rows=w_rows, columns=w_columns, swizzle_bytes=128),
        )

    def schedule(self, kernel: MicroKernel, symbol: str) -> Any:
        """TVM module with one function ``symbol(X, W)``."""
        footprint = self.footprint(kernel)
        blocks = resident_blocks(footprint.threads, footprint.registers_per_thread)
        # setmaxnreg.inc may not take registers away.
        registers = max(self._consumer_registers(self.sides(kernel)[1], kernel["wr"]), footprint.registers_per_thread)
        return module_of(_program(self, kernel, blocks, registers), symbol)

    def _fits(self, bm: int, bn: int, wr: int) -> bool:
        """True if one block's registers exist: a consumer's own, and all warpgroups' when they start."""
        threads = (bm // (SLAB * wr) + 1) * WARPGROUP
        started = self._entry_registers(bm, bn, wr) * threads
        return self._consumer_registers(bn, wr) <= CONSUMER_LIMIT and started <= SCHEDULERS * SCHEDULER_REGISTERS

    def _entry_registers(self, bm: int, bn: int, wr: int) -> int:
        """Registers of every thread before setmaxnreg shares them out."""
        consumers = bm // (SLAB * wr)
        shared_out = PRODUCER_REGISTERS + consumers * self._consumer_registers(bn, wr)
        return rounded_registers(max(-(-shared_out // (consumers + 1)), SLAB * bn // WARPGROUP + ENTRY_REGISTERS))

    def _consumer_registers(self, bn: int, wr: int) -> int:
        """Accumulators of ``wr`` slabs of 64 x bn over 128 threads, and addresses; setmaxnreg takes multiples of 8."""
        return -(-(wr * SLAB * bn // WARPGROUP + ADDRESS_REGISTERS) // 8) * 8


def _program(family: CudaWgmma, kernel: MicroKernel, blocks: int, consumer_registers: int) -> Any:
    from tvm.script import tirx as T

    swapped, grouped, dtype = family.swapped, family.grouped, TVM_DTYPES[family.dtype]
    bm, bn, bk, wr, st, *_ = (value for _, value in kernel.params)
    kn = bool(kernel["kn"])  # the script language takes no number for a condition
    down, across = (bn, bm) if swapped else (bm, bn)
    consumers = down // (SLAB * wr)
    threads = (consumers + 1) * WARPGROUP
    sums_of_slab = SLAB * across // WARPGROUP
    x_bytes, w_bytes = bm * bk * 2, bn * bk * 2
    a_bytes, b_bytes = (w_bytes, x_bytes) if swapped else (x_bytes, w_bytes)
    element_type = device_calls.ELEMENT_TYPES[dtype]
    element = {"float16": "f16", "bfloat16": "bf16"}[dtype]
    wgmma = f"wgmma.mma_async.sync.aligned.m64n{across}k16.f32.{element}.{element}"
    # A group's place takes registers, too: its sums go through shared memory.
    store, at_once = ("ht_store_across", "") if swapped else ("ht_store_fragments", f", {str(not grouped).lower()}")
    tma = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
    # Shared-memory descriptors of the 128-byte swizzle, in 16-byte units (PTX ISA, *matrix-descriptor*):
    #   rows along k (X, and W (n, k)): groups of 8 rows 1024 bytes apart; the next k16 lies 32 bytes on in the row.
    #   rows along n (W (k, n)): panels of 64 columns bk * 128 bytes apart; the next k16 lies 16 rows of 128 bytes on.
    leading, stride, next_w = (bk * 128 // 16, 64, 16 * 128 // 16) if kn else (1, 64, 2)
    next_a, next_b = (next_w, 2) if swapped else (2, next_w)
    a_leading, b_leading = (leading, 1) if swapped else (1, leading)

    @T.prim_func
    def program(x_arg: T.handle, w_arg: T.handle):
        m = T.int32()
        n = T.int32()
        k = T.int32()
        x_stride = T.int32()
        x = T.match_buffer(x_arg, (m, k), dtype, strides=(x_stride, 1), align=16)
        w = T.match_buffer(w_arg, (k, n) if kn else (n, k), dtype, align=16)
        # TVM passes a map that is encoded on its host; that code is dropped, ours encodes by the family's ``maps``.
        x_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.evaluate(
            T.tensormap_encode_tiled(
                x_map, x.data, k, m, x_stride * 2, bk, bm, 1, 1, descriptor_dtype=dtype, rank=2, swizzle=SWIZZLE_128_BYTES
            )
        )
        w_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.evaluate(
            T.tensormap_encode_tiled(
                w_map, w.data, k, n, k * 2, bk, bn, 1, 1, descriptor_dtype=dtype, rank=2, swizzle=SWIZZLE_128_BYTES
            )
        )
        T.device_entry()
        T.attr({"tirx.launch_bounds_min_blocks_per_sm": blocks})
        block = T.cta_id([T.truncdiv(m + (bm - 1), bm) * T.truncdiv(n + (bn - 1), bn)])
        thread = T.thread_id([threads])
        # Nobody computes before the first load: what it takes to ask for it comes first, in the order it is waited for.
        pool = T.SMEMPool()
        xs = pool.alloc((st, bm, bk), dtype, align=1024)  # the swizzle's pattern repeats every 1024 bytes
        ws = pool.alloc((st, bn * bk), dtype, align=1024)
        full = pool.alloc((st,), "uint64", align=8)
        empty = pool.alloc((st,), "uint64", align=8)
        pool.commit()
        if thread == 0:
            T.ptx.prefetch.tensormap(T.address_of(w_map))
            T.ptx.prefetch.tensormap(T.address_of(x_map))
            for s in T.unroll(st):
                T.ptx.mbarrier.init.shared.b64(full.ptr_to([s]), T.uint32(1))
                T.ptx.mbarrier.init.shared.b64(empty.ptr_to([s]), T.uint32(consumers))
            T.ptx.fence.mbarrier_init.release.cluster()
        tile = T.alloc_local([2], "int32")
        T.evaluate(device_calls.find_tile(T, tile, block, T.truncdiv(m + (bm - 1), bm), T.truncdiv(n + (bn - 1), bn)))
        m0: T.int32 = tile[0] * bm
        n0: T.int32 = tile[1] * bn
        x_row = T.meta_var(m0 + device_calls.x_row(T) if grouped else m0)  # in the map of all groups
        w_row = T.meta_var(device_calls.w_row(T) if grouped else 0)
        first: T.int32 = device_calls.first_step(T, T.truncdiv(k + (bk - 1), bk))
        last: T.int32 = device_calls.last_step(T, T.truncdiv(k + (bk - 1), bk))

        @T.inline
        def load_stage(slot, at_k):
            """Ask for both operands' tiles from ``at_k`` on."""
            T.ptx.mbarrier.arrive.expect_tx.shared.b64(full.ptr_to([slot]), T.uint32(x_bytes + w_bytes))
            if kn:
                for p in T.unroll(bn // 64):
                    T.ptx[tma](
                        ws.ptr_to([slot, p * bk * 64]), T.address_of(w_map), n0 + p * 64, at_k + w_row, full.ptr_to([slot])
                    )
            else:
                T.ptx[tma](ws.ptr_to([slot, 0]), T.address_of(w_map), at_k, n0 + w_row, full.ptr_to([slot]))
            T.ptx[tma](xs.ptr_to([slot, 0, 0]), T.address_of(x_map), at_k, x_row, full.ptr_to([slot]))

        if thread == 0:
            T.ptx.fence.proxy.async_.shared__cta()
            # Who made the barriers need not wait for anybody to fill the ring.
            for s in T.serial(T.min(last - first, st)):
                load_stage(s, (first + s) * bk)
        warp: T.int32 = device_calls.warp(T)  # descriptors come of it, and so stay in uniform registers
        T.cuda.cta_sync()
        if thread < WARPGROUP:  # the producer warpgroup
            T.ptx["setmaxnreg.dec.sync.aligned.u32"](PRODUCER_REGISTERS)
            if thread == 0:
                slot: T.int32 = 0
                phase: T.int32 = 0
                T.evaluate(
                    device_calls.unroll(T, 4)
                )  # as nvcc does of itself; NVRTC, which does it twice, lost 5 to 12 % on short sums
                for step in T.serial(last - first - st):
                    T.cuda.mbarrier_wait(empty.ptr_to([slot]), phase)
                    load_stage(slot, (first + st + step) * bk)
                    slot = slot + 1
                    if slot == st:
                        slot = 0
                        phase = phase ^ 1
        else:  # the consumer warpgroups
            T.ptx["setmaxnreg.inc.sync.aligned.u32"](consumer_registers)
            group: T.let = T.truncdiv(warp, WARPGROUP // WARP) - 1
            local: T.let = T.truncmod(thread, WARPGROUP)
            sums = T.alloc_local([wr * sums_of_slab], "float32")
            a_low = T.alloc_local([1], "uint32")
            b_low = T.alloc_local([1], "uint32")
            for i in T.unroll(wr * sums_of_slab):
                sums[i] = T.float32(0)
            at: T.int32 = 0
            turn: T.int32 = 0
            before: T.int32 = 0
            x_rows = T.meta_var(xs.ptr_to([0, 0 if swapped else group * (SLAB * wr), 0]))
            w_rows = T.meta_var(ws.ptr_to([0, group * (SLAB * wr * bk) if swapped else 0]))
            a_low[0] = device_calls.call(T, "ht_descriptor_low", w_rows if swapped else x_rows, a_leading, gives="uint32")
            b_low[0] = device_calls.call(T, "ht_descriptor_low", x_rows if swapped else w_rows, b_leading, gives="uint32")
            T.evaluate(device_calls.unroll(T, 2))  # once, ptxas keeps some tiles' descriptors out of uniform registers
            for step in T.serial(last - first):
                T.cuda.mbarrier_wait(full.ptr_to([at]), turn)
                T.ptx.wgmma.fence.sync.aligned()
                for kk in T.unroll(bk // 16):
                    for r in T.unroll(wr):
                        T.ptx[wgmma](
                            *[sums[r * sums_of_slab + q] for q in range(sums_of_slab)],
                            device_calls.call(
                                T,
                                "ht_descriptor",
                                a_low[0] + T.Cast("uint32", at * (a_bytes // 16) + (r * SLAB * 128 // 16 + kk * next_a)),
                                64,
                                gives="uint64",
                            ),
                            device_calls.call(
                                T,
                                "ht_descriptor",
                                b_low[0] + T.Cast("uint32", at * (b_bytes // 16) + kk * next_b),
                                stride,
                                gives="uint64",
                            ),
                            T.ptx.pred(1),
                            1,
                            1,
                            1 if kn and swapped else 0,
                            1 if kn and not swapped else 0,
                        )
                T.ptx.wgmma.commit_group.sync.aligned()
                T.ptx.wgmma.wait_group.sync.aligned(1)  # the step before is finished: hand its stage back
                if T.And(local == 0, step > 0):
                    T.ptx.mbarrier.arrive.shared.b64(empty.ptr_to([before]), T.uint32(1))
                before = at
                at = at + 1
                if at == st:
                    at = 0
                    turn = turn ^ 1
            T.ptx.wgmma.wait_group.sync.aligned(0)
            below = T.meta_var(
                group * (SLAB * wr) + T.truncmod(warp, 4) * 16
            )  # where the warp's rows of the first slab begin
            T.evaluate(
                device_calls.call(
                    T, f"{store}<{element_type}, {wr}, {across}, {SLAB}, {consumers * WARPGROUP}{at_once}>",
                    sums.ptr_to([0]), xs.ptr_to([0, 0, 0]), warp - WARPGROUP // WARP,
                    m0 if swapped else m0 + below, n0 + below if swapped else n0,
                )
            )  # fmt: skip

    return program


SHORT_ROWS = (8, 16, 24, 32)
SHORT_COLUMNS = ((64, 1), (128, 1), (128, 2), (256, 2))  # bn, slabs of a consumer warpgroup
SHORT_STAGES = (3, 4, 6, 8, 12)


class CudaWgmmaShort(CudaWgmma):
    """Families ``cuda_wgmmas_fp16`` and ``cuda_wgmmas_bf16``; parameters bm, bn, bk, wr slabs a warpgroup, st, v, kn."""

    swapped = True

    def programs(self, op: Op, device: Device) -> Iterator[MicroKernel]:
        """Every tile and ring length; none for an op that TMA cannot load."""
        if not self.serves(op):
            return
        kn = int(op.option("weight") == "kn")
        for bm, (bn, wr), st in product(SHORT_ROWS, SHORT_COLUMNS, SHORT_STAGES):
            yield self.kernel(bm=bm, bn=bn, wr=wr, st=st, kn=kn)

    def kernel(self, *, bm: int, bn: int, st: int, wr: int = 1, kn: int = 0) -> MicroKernel:
        """The micro-kernel of these parameters."""
        if bm not in SHORT_ROWS or bn % (SLAB * wr) or not SLAB <= bn <= 256 or wr not in (1, 2):
            raise ValueError(f"a {bm}x{bn} tile: rows {SHORT_ROWS}, columns in whole warpgroups of {SLAB * wr} up to 256")
        if st < 2 or kn not in (0, 1):
            raise ValueError(f"st={st} must be at least 2, kn={kn} 0 or 1")
        params = (("bm", bm), ("bn", bn), ("bk", K_STEP), ("wr", wr), ("st", st), ("v", PITCH_ELEMENTS), ("kn", kn))
        return MicroKernel(self.name, params)

    def sides(self, kernel: MicroKernel) -> tuple[int, int]:
        """W's rows along the instruction's 64, X's along its columns."""
        return kernel["bn"], kernel["bm"]

    def near_bytes(self, kernel: MicroKernel) -> int:
        """Each slab's instruction reads 64 rows of W and all of X."""
        return kernel["bn"] // SLAB * (SLAB + kernel["bm"]) * self.bytes_per_element()

    def step(self, kernel: MicroKernel) -> Step:
        """A sixteenth of the wgmma of 16 elements of k; two copies by the TMA, a wait and an arrival in a step of bk."""
        slabs = kernel["wr"]
        return Step(
            fmas=slabs / 16, loads=2 / K_STEP, checks=2 / K_STEP, rows=kernel["bm"] / 4, columns=2 * slabs, tensor=True
        )
