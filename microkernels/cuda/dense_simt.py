"""fp32 and int8 dense on CUDA cores, for every CUDA architecture.

The classic blocked SGEMM: a block stages ``bk`` columns of X and W in shared memory, transposed, while each thread holds
a ``tm x tn`` tile in registers (Volkov & Demmel, SC 2008; the lane and strip arrangement follows Nath et al. 2010).
The next step's operands travel through registers into the second of two shared buffers, so one barrier a step is enough
and no asynchronous copy is needed (sm_75 has none).
Four bytes of k are a word, which dp4a multiplies and sums (PTX ISA, *dp4a*): the program of floats, with a quarter of the k.
Where k is no multiple of four, or lies across, words are gathered byte by byte.
Of convolutions X, or with channels first W, may be what windows see, read where it lies (``device/windows.cuh``).
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"
# (the program at the end is a script that TVM parses; its functions are never called as Python)

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from haotuner.microkernels.cuda import device_calls
from haotuner.microkernels.cuda.dense import (
    WARP,
    CudaDense,
    module_of,
    resident_blocks,
    stored_kn,
    vector_elements,
)
from haotuner.microkernels.cuda.dense_demand import Step
from haotuner.microkernels.cuda.simt_layout import BANKS, Elements, Places, elements_of
from haotuner.spec.device import Device
from haotuner.spec.kernel import Footprint, MicroKernel
from haotuner.spec.op import Op

# Lanes of a warp over its tile: 4 rows by 8 columns read 4 + 8 distinct 16-byte fragments, the least of all splits of 32
# that keep a row of Y's stores 128 bytes wide.
LANE_ROWS, LANE_COLUMNS = 4, 8
THREAD_ROWS = (2, 4, 8)  # 2: tiles of 8 rows for short m
THREAD_COLUMNS = (4, 8)
WARPS_DOWN = (1, 2, 4)
WARPS_ACROSS = (1, 2, 4)
WARPS = (2, 4, 8)  # of a block; one cannot hide its loads, 16 leave 64 accumulators no room
K_STEPS = (8, 16, 32)
WIDEST_VECTOR = 4  # floats of a 16-byte load, or words of four bytes
WORD = 4  # bytes
STRIP = 4  # floats of a 16-byte shared-memory load; a thread's rows and columns come in strips this wide
TIGHT_REGISTERS = 128
# A thread's sums and its operands on their way are fewer, and leave room for fragments. On an H200, kernels with more took
# 1.08 to 1.73 times as long as with half the step, at every shape where both were timed.
BUSY_REGISTERS = 128
# Where words are gathered byte by byte: registers more, at least and for each on its way; sums and words that leave room.
GATHER_REGISTERS, GATHERED_PIECE, GATHERING_SUMS, GATHERED_PIECES = 40, 6, 32, 12
ADDRESS_REGISTERS = 36  # pointers, predicates and loop state; with fewer ptxas spills somewhere in the space
# Of windows: a corner for each piece that is copied, and the tap; instructions that ask whether a tap lies inside.
CORNER_REGISTERS, TAP_REGISTERS, CORNER_CHECKS = 3, 8, 14


class CudaSimt(CudaDense):
    """Families ``cuda_simt_fp32``, ``_int8``, ``_sint8``; parameters bm, bn, bk, tm x tn per thread, v, kn."""

    device = (*CudaDense.device, "staged")

    @property
    def word(self) -> int:
        """Elements of k that are multiplied at once."""
        return WORD if self.dtype == "int8" else 1

    @property
    def least_step(self) -> int:
        """The shortest of ``K_STEPS``."""
        return K_STEPS[0] * self.word

    def packed(self, kernel: MicroKernel) -> int:
        """Words, where bytes need not be gathered."""
        return 1 if kernel["v"] < self.word else self.word

    def programs(self, op: Op, device: Device) -> Iterator[MicroKernel]:
        """Every thread tile, grid of 2, 4 or 8 warps, and k step, as long as a thread has the registers."""
        v, kn = vector_elements(op, WIDEST_VECTOR * self.word), stored_kn(op) or int(self.windows == "first")
        v = v if self.word == 1 or (v >= self.word and not kn) else 1
        for tm, tn, down, across, bk in product(THREAD_ROWS, THREAD_COLUMNS, WARPS_DOWN, WARPS_ACROSS, K_STEPS):
            if down * across in WARPS:
                bm, bn = down * LANE_ROWS * tm, across * LANE_COLUMNS * tn
                kernel = self.kernel(bm=bm, bn=bn, bk=bk * self.word, tm=tm, tn=tn, v=v, kn=kn)
                roomy = v >= self.word or (tm * tn <= GATHERING_SUMS and self._pieces(kernel) <= GATHERED_PIECES)
                if self.windows == "first" and self.footprint(kernel).threads % bn:
                    continue  # a thread's pixels would be several
                if roomy and tm * tn + self._pieces(kernel) * self._words(kernel) < BUSY_REGISTERS:
                    yield kernel

    def kernel(self, *, bm: int, bn: int, bk: int, tm: int, tn: int, v: int = 4, kn: int = 0) -> MicroKernel:
        """The micro-kernel of these parameters."""
        if bm % (LANE_ROWS * tm) or bn % (LANE_COLUMNS * tn):
            raise ValueError(f"a {bm}x{bn} tile needs whole warps of {LANE_ROWS * tm}x{LANE_COLUMNS * tn}")
        if (
            tm not in THREAD_ROWS
            or tn not in THREAD_COLUMNS
            or bk not in [step * self.word for step in K_STEPS]
            or v not in {1, *(words * self.word for words in (1, 2, 4))}
            or (kn and v > 1 < self.word)
            or kn not in range(2 + self.batched)
        ):
            raise ValueError(f"tm={tm} tn={tn} bk={bk} v={v} kn={kn} is outside the family")
        return MicroKernel(self.name, (("bm", bm), ("bn", bn), ("bk", bk), ("tm", tm), ("tn", tn), ("v", v), ("kn", kn)))

    def footprint(self, kernel: MicroKernel) -> Footprint:
        """Accumulators, fragments, the operands on their way to shared memory and addresses; two shared buffers."""
        bm, bn, bk, tm, tn = (kernel[key] for key in ("bm", "bn", "bk", "tm", "tn"))
        threads = bm // tm * (bn // tn)
        stored = self._pieces(kernel) * (self._words(kernel) + 1)
        if self.windows:
            stored += TAP_REGISTERS + CORNER_REGISTERS * (1 if self.windows == "first" else self._copied(kernel)[0])
        gathering = max(GATHER_REGISTERS, GATHERED_PIECE * self._pieces(kernel)) * (kernel["v"] < self.word)
        return Footprint(
            registers_per_thread=self.registers(tm * tn + tm + tn + stored + gathering + ADDRESS_REGISTERS),
            shared_bytes=2 * (bm + bn) * bk * self.bytes_per_element(),
            threads=threads,
        )

    def _words(self, kernel: MicroKernel) -> int:
        """Registers that a load fills: floats, or words."""
        return max(1, kernel["v"] // self.word)

    def _copied(self, kernel: MicroKernel) -> tuple[int, int]:
        """Loads of a thread for one step of k, of X and of W: pixels of images whose channels come first one by one."""
        bm, bn, bk, tm, tn, *_ = (value for _, value in kernel.params)
        threads, words = bm // tm * (bn // tn) * self.word, self._words(kernel)
        return -(-bm * bk // (threads * words)), -(-bn * bk // (threads * (1 if self.windows == "first" else words)))

    def _pieces(self, kernel: MicroKernel) -> int:
        """Both."""
        return sum(self._copied(kernel))

    def ahead(self, kernel: MicroKernel) -> int:
        """One: the next step's operands wait in registers."""
        return 1

    def near_bytes(self, kernel: MicroKernel) -> int:
        """A fragment of each operand for every thread."""
        return self.footprint(kernel).threads * (kernel["tm"] + kernel["tn"]) * self.bytes_per_element()

    def step(self, kernel: MicroKernel) -> Step:
        """FFMAs; fragments in strips; the next step's operands, loaded and stored one by one."""
        tm, tn, bk, v = kernel["tm"], kernel["tn"], kernel["bk"] // self.word, self._words(kernel)
        gathered = self.word if kernel["v"] < self.word else 1
        staged = self._pieces(kernel) * gathered / bk
        loads, checks = -(-tm // STRIP) + -(-tn // STRIP) + staged, staged * v
        if self.windows == "first":  # pixels come one by one
            of_x, of_w = self._copied(kernel)
            checks = (of_x * v + of_w) / bk
        if self.windows:
            checks += CORNER_CHECKS * (1 if self.windows == "first" else self._copied(kernel)[0]) / bk
        return Step(
            fmas=tm * tn / self.word, loads=loads / self.word, checks=checks / self.word, rows=tm, columns=tn, rate=self.word
        )

    def schedule(self, kernel: MicroKernel, symbol: str) -> Any:
        """TVM module with one function ``symbol(X, W)``."""
        footprint = self.footprint(kernel)
        blocks = resident_blocks(footprint.threads, footprint.registers_per_thread)
        # Twice the loop wants a few registers more: not where they are few, nor where the loop is long as it is.
        twice = kernel["bk"] < K_STEPS[-1] * self.word and footprint.registers_per_thread > TIGHT_REGISTERS
        of = elements_of(self.word, self._words(kernel), gathered=kernel["v"] < self.word, signs=self.signs)
        program = _program(kernel, of, footprint.threads, blocks, twice, strided=self.batched, windows=self.windows)
        return module_of(program, symbol)


def _program(
    kernel: MicroKernel, of: Elements, threads: int, blocks: int, twice: bool, *, strided: bool, windows: str
) -> Any:
    from tvm.script import tirx as T

    bm, bn, bk, tm, tn, *_ = (value for _, value in kernel.params)
    bk, v, dtype, memory = bk // of.word, of.words, of.dtype, of.memory  # a word is an element
    of_bytes, gathered = bool(of.dot), of.gathered
    kn = bool(kernel["kn"])  # the script language takes no number for a condition
    x_kn = kernel["kn"] == 2  # X is stored (k, m)
    across = bn // (LANE_COLUMNS * tn)
    row_strip, column_strip = min(STRIP, tm), min(STRIP, tn)
    pixels_down, pixels_across = windows == "last", windows == "first"  # X, or W, is what windows see
    w_v = 1 if pixels_across else v
    x_loads = -(-bm * bk // (threads * v))
    w_loads = -(-bn * bk // (threads * w_v))
    side = f"<{of.word}, {str(pixels_across).lower()}>"
    places = Places(T, threads, v, bk // v)
    along_rows, along_k, stored_at, strip_of, row_of_k = (
        places.along_rows, places.along_k, places.stored_at, places.strip_of, places.row_of_k
    )  # fmt: skip

    # Indices are written as strips (or chunks) times their width: only then is it provable that a load is aligned, and one
    # instruction.
    @T.prim_func
    def program(x_arg: T.handle, w_arg: T.handle):
        m = T.int32()
        n = T.int32()
        k = T.int32()
        x_stride = T.int32()
        w_stride = T.int32()
        x_rows = T.match_buffer(x_arg, (k, m) if x_kn else (m, k), memory, strides=(x_stride, 1), align=16)
        w = T.match_buffer(w_arg, (k, n) if kn else (n, k), memory, strides=(w_stride, 1) if strided else None, align=16)
        w_pitch = T.meta_var(w_stride if strided else n if kn else k)
        # Flat views: this pipeline computes addresses from shapes alone and would ignore the row strides.
        x = T.decl_buffer(((k if x_kn else m) * x_stride,), memory, data=x_rows.data)
        wf = T.decl_buffer(((k if kn else n) * w_pitch,), memory, data=w.data)
        depth = T.meta_var(T.truncdiv(k + 3, 4) if gathered else k)  # words of k
        T.device_entry()
        T.attr({"tirx.launch_bounds_min_blocks_per_sm": blocks})
        block = T.cta_id([T.truncdiv(m + (bm - 1), bm) * T.truncdiv(n + (bn - 1), bn)])
        thread = T.thread_id([threads])
        # The tile's row and column; of windows the tap behind them, then corners.
        tile = T.alloc_local([7 + 3 * x_loads if pixels_down else 10 if pixels_across else 2], "int32")
        T.evaluate(device_calls.find_tile(T, tile, block, T.truncdiv(m + (bm - 1), bm), T.truncdiv(n + (bn - 1), bn)))
        m0: T.int32 = tile[0] * bm  # written out where they are used, the division would run in the main loop
        n0: T.int32 = tile[1] * bn
        warp: T.let = T.truncdiv(thread, WARP)
        lane: T.let = T.truncmod(thread, WARP)
        # The thread's first strip of rows and of columns in the tile.
        row: T.let = T.truncdiv(warp, across) * (LANE_ROWS * tm // row_strip) + T.truncdiv(lane, LANE_COLUMNS)
        column: T.let = T.truncmod(warp, across) * (LANE_COLUMNS * tn // column_strip) + T.truncmod(lane, LANE_COLUMNS)
        pool = T.SMEMPool()
        xs = pool.alloc((2, bk, bm), dtype, align=128)
        ws = pool.alloc((2, bk, bn), dtype, align=128)
        pool.commit()
        sums = T.alloc_local([tm * tn], dtype)
        xf = T.alloc_local([tm], dtype)
        wr = T.alloc_local([tn], dtype)
        x_next = T.alloc_local([x_loads * v], dtype)
        w_next = T.alloc_local([w_loads * w_v], dtype)

        @T.inline
        def fetch(stored, loads, flat, pitch, height, width, row0, column0, row_end, column_end, index, down):
            """One tile of global memory into registers, zeros outside; column0 counts chunks; down: its rows are k's."""
            for i in T.unroll(loads):
                at = T.meta_var(index(thread, i, width // v))
                c = T.meta_var((column0 + at[2]) * v)
                left = T.meta_var(T.if_then_else(c < column_end, row_end - row0 - at[0], 0))
                inside = T.meta_var(T.And(i * threads + thread < height * width // v, at[1] < left))
                if gathered:  # of a word the bytes that there are, `apart` from one another
                    r = T.meta_var(row0 + at[0] + at[1])
                    place_of = T.meta_var(r * (4 * pitch) + c if down else r * pitch + c * 4)
                    there = T.meta_var(T.if_then_else(inside, k - 4 * (r if down else c), 0))
                    T.evaluate(
                        device_calls.call(
                            T, "ht_gather", stored.ptr_to([i]), flat.ptr_to([place_of]), pitch if down else 1, there
                        )
                    )
                else:
                    source = T.meta_var(flat.ptr_to([(row0 + at[0] + at[1]) * pitch + c]))
                    T.evaluate(device_calls.call(T, f"{of.fetch}<{v}>", stored.ptr_to([i * v]), source, inside))

        if pixels_down:
            for i in T.unroll(x_loads):
                at = T.meta_var(along_k(thread, i, bk // v))
                T.evaluate(device_calls.call(T, f"ht_window_corner{side}", tile.ptr_to([7 + 3 * i]), m0 + at[0] + at[1]))
        if pixels_across:
            T.evaluate(device_calls.call(T, f"ht_window_corner{side}", tile.ptr_to([7]), n0 + T.truncmod(thread, bn)))
        if pixels_down or pixels_across:
            for i in T.unroll(5):
                tile[2 + i] = 0

        @T.inline
        def fetch_windows():
            """Elements in the step's tap, zeros outside of images: channels of some pixels, or a pixel of some channels."""
            if pixels_down:
                for i in T.unroll(x_loads):
                    at = T.meta_var(along_k(thread, i, bk // v))
                    spot = T.meta_var(tile.ptr_to([7 + 3 * i]))
                    there = T.meta_var(device_calls.call(T, f"ht_window_inside{side}", spot, tile.ptr_to([2]), gives="bool"))
                    inside = T.meta_var(T.And(i * threads + thread < bm * bk // v, there))
                    source = T.meta_var(x.ptr_to([tile[7 + 3 * i] + tile[2] + at[2] * v]))
                    T.evaluate(device_calls.call(T, f"{of.fetch}<{v}>", x_next.ptr_to([i * v]), source, inside))
            else:
                there = T.meta_var(
                    device_calls.call(T, f"ht_window_inside{side}", tile.ptr_to([7]), tile.ptr_to([2]), gives="bool")
                )
                for i in T.unroll(w_loads):
                    channel = T.meta_var(T.truncdiv(thread, bn) + i * (threads // bn))
                    source = T.meta_var(wf.ptr_to([tile[7] + tile[2] + channel * w_stride]))
                    T.evaluate(
                        device_calls.call(T, f"{of.fetch}<1>", w_next.ptr_to([i]), source, T.And(channel < bk, there))
                    )
            T.evaluate(device_calls.call(T, f"ht_window_next{side}", tile.ptr_to([2]), bk))

        @T.inline
        def fetch_step(step):
            if pixels_down:
                fetch_windows()
            elif x_kn:
                fetch(x_next, x_loads, x, x_stride, bk, bm, step * bk, T.truncdiv(m0, v), depth, m, along_rows, True)
            else:
                fetch(x_next, x_loads, x, x_stride, bm, bk, m0, step * (bk // v), m, depth, along_k, False)
            if pixels_across:
                fetch_windows()
            elif kn:
                fetch(w_next, w_loads, wf, w_pitch, bk, bn, step * bk, T.truncdiv(n0, v), depth, n, along_rows, True)
            else:
                fetch(w_next, w_loads, wf, w_pitch, bn, bk, n0, step * (bk // v), n, depth, along_k, False)

        @T.inline
        def put_across(shared, half, stored, loads, height):
            """Registers that hold rows of k into [k][row], shifted against bank conflicts."""
            for i in T.unroll(loads):
                e = T.meta_var(i * threads + thread)
                at = T.meta_var(along_k(thread, i, bk // v))
                if e < height * bk // v:
                    for q in T.unroll(v):
                        shared[half, row_of_k(at[2], q, height), stored_at(at[0], at[1], at[2], height)] = stored[i * v + q]

        @T.inline
        def put_along(shared, half, stored, loads, height, wide):
            """Registers that hold rows of the tile as they are, so many elements side by side."""
            for i in T.unroll(loads):
                e = T.meta_var(i * threads + thread)
                row_of = T.meta_var(T.truncdiv(e, height // wide))
                if e < bk * height // wide:
                    for q in T.vectorized(wide):
                        shared[half, row_of, T.truncmod(e, height // wide) * wide + q] = stored[i * wide + q]

        @T.inline
        def put_step(half):
            if x_kn:
                put_along(xs, half, x_next, x_loads, bm, v)
            else:
                put_across(xs, half, x_next, x_loads, bm)
            if kn:
                put_along(ws, half, w_next, w_loads, bn, w_v)
            else:
                put_across(ws, half, w_next, w_loads, bn)

        for i in T.unroll(tm * tn):
            sums[i] = T.Cast(dtype, 0)
        first: T.int32 = device_calls.first_step(T, T.truncdiv(depth + (bk - 1), bk))
        last: T.int32 = device_calls.last_step(T, T.truncdiv(depth + (bk - 1), bk))
        fetch_step(first)
        put_step(0)
        T.cuda.cta_sync()
        if twice:
            T.evaluate(device_calls.unroll(T, 2))  # the two buffers' addresses become constants
        for step in T.serial(last - first):
            fetch_step(first + step + 1)  # past the end it fetches zeros or the next share's, which nobody reads
            for kk in T.unroll(bk):
                k_row = T.meta_var(row_of_k(T.truncdiv(kk, v), T.truncmod(kk, v), bm) if bm < BANKS and not x_kn else kk)
                for s in T.unroll(tm // row_strip):
                    chunk = T.meta_var(T.truncdiv(kk, v))
                    across_k = T.meta_var(strip_of(row, s, chunk, bm, row_strip, LANE_ROWS, tm // row_strip))
                    strip = T.meta_var(row + s * LANE_ROWS if x_kn else across_k)
                    for q in T.vectorized(row_strip):
                        xf[s * row_strip + q] = xs[T.truncmod(step, 2), k_row, strip * row_strip + q]
                for s in T.unroll(tn // column_strip):
                    chunk = T.meta_var(T.truncdiv(kk, v))
                    across_k = T.meta_var(strip_of(column, s, chunk, bn, column_strip, LANE_COLUMNS, tn // column_strip))
                    strip = T.meta_var(column + s * LANE_COLUMNS if kn else across_k)
                    for q in T.vectorized(column_strip):
                        wr[s * column_strip + q] = ws[T.truncmod(step, 2), kk, strip * column_strip + q]
                for i in T.unroll(tm):
                    for j in T.unroll(tn):
                        if of_bytes:
                            sums[i * tn + j] = device_calls.call(T, of.dot, xf[i], wr[j], sums[i * tn + j], gives=dtype)
                        else:
                            sums[i * tn + j] = sums[i * tn + j] + xf[i] * wr[j]
            put_step(T.truncmod(step + 1, 2))
            T.cuda.cta_sync()
        T.evaluate(
            device_calls.call(
                T, f"{of.stored}{tm}, {tn}, {row_strip}, {LANE_ROWS * row_strip}, {LANE_COLUMNS * column_strip}>",
                sums.ptr_to([0]), m0 + row * row_strip, n0 + column * column_strip,
            )
        )  # fmt: skip

    return program
