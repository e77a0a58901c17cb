"""The dense fp32 family for CPUs: Y[m, n] = X[m, k] · W[n, k]^T, m and k known at run time.

One micro-kernel computes an ``mr x nr`` tile of Y in SIMD registers (the GotoBLAS register kernel: Goto & van de Geijn,
ACM TOMS 2008, section 4). The weight is packed once as panels ``[panel][k][pw]``, so that a tile reads ``nr/pw`` streams
front to back; kernels of different ``nr`` share one packed weight when their ``pw`` is equal. The program keeps its
accumulators in one small buffer a row: below TVM's stack limit of 1024 bytes they become registers and the kernel
needs no workspace, so it can be served without TVM.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from haotuner.microkernels.cpu import dense_demand
from haotuner.microkernels.cpu.dense_demand import SPARSE, SPARSE_BYTES
from haotuner.microkernels.cpu.epilogue import code_of
from haotuner.spec.constraint import Laws
from haotuner.spec.demand import Demand, DemandQuery, Expectation
from haotuner.spec.device import Device
from haotuner.spec.family import Layout, rounded_up
from haotuner.spec.kernel import Edge, Footprint, MicroKernel, Tile
from haotuner.spec.op import Op
from haotuner.spec.traffic import Traffic

FP32_BYTES = 4
# TVM turns a constant buffer of fewer bytes into registers or stack, a larger one into a heap call (kMaxStackAlloca).
TVM_STACK_BYTES = 1024
MAX_TILE_ROWS = 16  # beyond it no tile fits 32 registers with two vectors a row
MAX_TILE_VECTORS = 12  # a one-row tile needs latency x pipes = 8 accumulators; 12 leaves a choice around it
UNROLLS = (1, 2, 4, 8)
# Steps of k that the weight is fetched ahead of its use; 0 leaves it to the hardware. Measured cold on one core (Zen 5,
# k=768): one-row tiles gain up to 1.3x at 4..16, tiles of 4..8 rows up to 1.2x at 16..32. From FAR steps on into L2, which
# has room for more requests than L1: n=4096, k=1024, 8x32 at m=8, cold, from 126 (16 steps) to 150 GFLOP/s (64), 8x48 at
# m=16, hot in L3, from 226 (32) to 234 (64) and 240 (128); into L1, 64 steps lost everywhere.
# Fewer than 8 is another kind: the panel after this one is brought into L2 while so many row tiles pass, so that memory and
# arithmetic overlap; the tiles after those fetch nothing. Cold, one core, 8x48, GFLOP/s: n=k=1024 m=16 from 155 (no kind
# but this one) to 205 (2 tiles), m=32 from 181 to 223 (4), m=96 from 204 to 224 (6). Hot, n=4096, m=64 from 205 to 229 (6).
NEXT_PANEL_TILES = (2, 4, 6)
NEXT_PANEL_ROWS = range(4, 11)  # flatter tiles have no time for it; taller ones no pointer register left: they fall to 0.3
FAR = 64
# SPARSE is a third kind, of flat tiles: of each SPARSE_BYTES of a stream one line, a page ahead, into L2. It starts the
# hardware's own streams, which stop at pages; fetching every line slows hits in L3: decision 668.
SPARSE_ROWS, PAGE_BYTES = range(1, 4), 4096
PREFETCHES = (0, SPARSE, *NEXT_PANEL_TILES, 8, 16, 32, FAR, 2 * FAR)
LINE_BYTES = 64

# A tile past n computes whole vectors of the columns that are left, down to half a vector of 16 lanes: where those are two
# operations it takes half the time, elsewhere it costs nothing.
TAIL_LANES = 8
TAIL_UNROLL = 2  # of k in that tile: it is one of many, and compiled as well


def tail_columns(kernel: MicroKernel) -> int:
    """Columns that the kernel computes of a tile past n; 0 where it has no program for that and computes all of them."""
    return dict(kernel.params).get("nt", 0)


def computed_columns(kernel: MicroKernel, n: int) -> int:
    """Columns that the kernel computes for an output of n: whole tiles, of the last one what its tail has."""
    return n if n % kernel["nr"] == 0 else n // kernel["nr"] * kernel["nr"] + (tail_columns(kernel) or kernel["nr"])


class CpuDense:
    """Family ``cpu_dense_fp32``; parameters mr, nr, pw (panel width), ku (k unroll), vl (lanes), pf (prefetch), nt, ep.

    ``pf`` is 0 (none), SPARSE, one of NEXT_PANEL_TILES, or the steps of k that the weight is fetched ahead within its panel.
    ``nt`` is only there where tiles do not divide n: the columns computed of the last one (``tail_columns``). ``ep`` names
    the epilogue, where there is one (``epilogue.py``): its program is one of its own, which kernels share.
    """

    name = "cpu_dense_fp32"
    backend = "cpu"
    frontier = 512  # scoring them takes 20 ms a round; only those that are measured are ever compiled

    def serves(self, op: Op) -> bool:
        """Dense in fp32 with n and k static."""
        return op.kind == "dense" and op.plain and op.dynamic == ("m",)

    def points(self, op: Op, device: Device) -> Iterator[MicroKernel]:
        """Every tile of whole vectors up to the family's limits; selection refuses what does not fit."""
        lanes, n, behind = device.wave_width, op["n"], code_of(op.epilogue)
        for rows in range(1, MAX_TILE_ROWS + 1):
            for vectors in range(1, MAX_TILE_VECTORS + 1):
                for streams in range(1, vectors + 1):
                    if vectors % streams:
                        continue
                    for unroll in UNROLLS:
                        for ahead in PREFETCHES:
                            if ahead in NEXT_PANEL_TILES and rows not in NEXT_PANEL_ROWS:
                                continue
                            if ahead == SPARSE and rows not in SPARSE_ROWS:
                                continue
                            width = vectors * lanes
                            yield self.kernel(rows, width, width // streams, unroll, lanes, ahead, n, behind)

    def kernel(self, mr: int, nr: int, pw: int, ku: int, vl: int, pf: int = 0, n: int = 0, ep: int = 0) -> MicroKernel:
        """The micro-kernel of these parameters for an output of n columns; 0: of any, with one program for all tiles.

        ``ep``: the code of its epilogue.
        """
        if nr % pw or pw % vl:
            raise ValueError(f"a tile of {nr} columns needs whole panels of {pw}, and panels whole vectors of {vl}")
        least = min(vl, TAIL_LANES)
        tail = -(-(n % nr) // least) * least
        last = (("nt", tail),) if 0 < tail < nr else ()
        behind = (("ep", ep),) if ep else ()
        return MicroKernel(
            self.name, (("mr", mr), ("nr", nr), ("pw", pw), ("ku", ku), ("vl", vl), ("pf", pf), *last, *behind)
        )

    def suits(self, device: Device) -> bool:
        """Any CPU: the points are made for the device's own vectors."""
        return device.kind == "cpu"

    def footprint(self, kernel: MicroKernel) -> Footprint:
        """SIMD registers held through the k loop, and bytes of L1 that one unrolled k step touches."""
        rows, vectors = kernel["mr"], kernel["nr"] // kernel["vl"]
        # x86 FMAs take one operand from memory: hold the shorter side of the outer product, stream the other.
        stored = min(vectors, rows)
        step_bytes = (kernel["mr"] + kernel["nr"]) * kernel["ku"] * FP32_BYTES
        return Footprint(registers_per_thread=rows * vectors + stored + 1, shared_bytes=step_bytes)

    def tile(self, kernel: MicroKernel) -> Tile:
        """Exact in rows; the last columns have a program of their own where the name says so."""
        edge: Edge = "tail" if tail_columns(kernel) else "masked"
        extent = {"m": kernel["mr"], "n": kernel["nr"]}
        return Tile(extent=extent, edge={"m": "exact", "n": edge}, step={"k": kernel["ku"]})

    def computed(self, kernel: MicroKernel, axis: str, extent: int) -> int:
        """Whole tiles; of the last one along n what its tail has."""
        return computed_columns(kernel, extent) if axis == "n" else rounded_up(self.tile(kernel), axis, extent)

    def layout(self, kernel: MicroKernel) -> Layout:
        """Panel width of the packed weight."""
        return (kernel["pw"],)

    def laws(self, op: Op, device: Device) -> Laws:
        """Tiles that the op can fill, few streams, a short loop."""
        return dense_demand.LAWS

    def demand(self, requested: DemandQuery) -> Demand:
        """See ``dense_demand``."""
        return dense_demand.demand(requested)

    def expectation(self, op: Op, device: Device, traffic: Traffic) -> Expectation | None:
        """None: the cost model's is better."""
        return None

    def schedule(self, kernel: MicroKernel, symbol: str) -> Any:
        """TVM module with a function ``symbol(X, W, Y, tiles, groups, add)``, and ``symbol_tail`` of a kernel with a tail.

        X (>= tiles*mr, k) and Y (>= tiles*mr, groups*nr) have inner stride 1 and any row stride; W (groups*nr/pw, k, pw)
        any stride between panels, so that k may be a part of a longer sum: ``add`` other than 0 adds to what Y holds. Column
        groups are the outer loop, so a weight panel is read from memory once for all row tiles. The tail computes the first
        nt columns of its tiles and leaves Y's other columns alone.
        """
        import tvm

        programs = {symbol: _tile_program(kernel, symbol)}
        if tail_columns(kernel):
            programs[f"{symbol}_tail"] = _tile_program(kernel, f"{symbol}_tail", tail_columns(kernel))
        return tvm.IRModule(programs)


def _tile_program(kernel: MicroKernel, symbol: str, columns: int = 0, terms_of: str = "") -> Any:
    """The tile program; of only the first ``columns`` columns of each tile unless 0; ``terms_of`` see ``tile_program``."""
    from tvm import tirx
    from tvm.script.ir_builder import IRBuilder
    from tvm.script.ir_builder import tirx as T

    mr, nr, pw, ku, lanes, ahead = (kernel[key] for key in ("mr", "nr", "pw", "ku", "vl", "pf"))
    if columns:  # the last panel: nothing comes after it, and a step of few columns is short
        ku, ahead = min(ku, TAIL_UNROLL), 0 if ahead in (SPARSE, *NEXT_PANEL_TILES) else ahead
    width = columns or nr
    vectors = [(column, min(lanes, width - column)) for column in range(0, width, lanes)]  # first column, lanes
    whole = len(vectors) - (vectors[-1][1] < lanes)
    per_buffer = max(1, (TVM_STACK_BYTES - 1) // (lanes * FP32_BYTES))  # vectors that stay under the stack limit

    def int64(value: int) -> Any:  # int32 shape variables truncate silently
        return tirx.IntImm("int64", value)

    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name(symbol)
        T.func_attr({"global_symbol": symbol, "tirx.noalias": True})  # the dispatcher refuses aliases
        x_arg, w_arg, y_arg = (T.arg(name, T.handle()) for name in ("x", "w", "y"))
        tiles, groups, add = (T.arg(name, T.int64()) for name in ("tiles", "groups", "add"))
        terms_arg = T.arg("terms", T.handle()) if terms_of else None
        x_rows, x_stride, k, y_rows, y_columns, y_stride, panels, w_stride = (
            tirx.Var(name, "int64")
            for name in ("x_rows", "x_stride", "k", "y_rows", "y_columns", "y_stride", "panels", "w_stride")
        )
        # align=4: NumPy promises 16 bytes, users' views less; unaligned vector moves cost nothing here.
        x = T.match_buffer(x_arg, (x_rows, k), "float32", strides=[x_stride, int64(1)], align=FP32_BYTES)
        w_strides = [w_stride, int64(pw), int64(1)]
        w = T.match_buffer(w_arg, (panels, k, int64(pw)), "float32", strides=w_strides, align=FP32_BYTES)
        y = T.match_buffer(y_arg, (y_rows, y_columns), "float32", strides=[y_stride, int64(1)], align=FP32_BYTES)
        terms = T.match_buffer(terms_arg, (k,), "int64") if terms_of else None
        with T.serial(groups) as group, T.serial(tiles) as tile:

            def accumulators(count: int, size: int) -> Any:
                return T.sblock_alloc_buffer((count,), f"float32x{size}", scope="global")

            places = []  # of each row: buffer and slot of every vector
            for _ in range(mr):
                counts = [min(per_buffer, whole - j) for j in range(0, whole, per_buffer)]
                row = [
                    (buffer, slot) for count in counts for buffer in [accumulators(count, lanes)] for slot in range(count)
                ]
                if whole < len(vectors):
                    row.append((accumulators(1, vectors[-1][1]), 0))
                places.append(row)

            def fetch_ahead(at: Any) -> None:
                panels_read = ((first, min(first + pw, width)) for first in range(0, width, pw))
                for column in (line for panel in panels_read for line in range(*panel, LINE_BYTES // FP32_BYTES)):
                    line = w[group * (nr // pw) + column // pw, at + ahead, int64(column % pw)]
                    # Read, keep in all levels or from L2 on, data. Past the last panel nothing is ever touched: harmless.
                    hint = (tirx.IntImm("int32", value) for value in (0, 2 if ahead >= FAR else 3, 1))
                    T.evaluate(tirx.call_llvm_intrin("void", "llvm.prefetch", tirx.address_of(line), *hint))

            # Lines of the next panel a step of the unrolled loop: all of it within so many row tiles. More tiles fetch on.
            next_lines = -(-ku * nr * FP32_BYTES // LINE_BYTES // ahead) if ahead in NEXT_PANEL_TILES else 0

            def fetch_next_panel(step: Any, number: int) -> None:
                line = (tile * (k // ku) + step) * next_lines + number
                position = w[(group + 1) * (nr // pw), int64(0), line * (LINE_BYTES // FP32_BYTES)]
                hint = (tirx.IntImm("int32", value) for value in (0, 2, 1))  # read, into L2, data
                T.evaluate(tirx.call_llvm_intrin("void", "llvm.prefetch", tirx.address_of(position), *hint))

            def fetch_some(at: Any, u: int) -> None:
                far = -(-PAGE_BYTES // (pw * FP32_BYTES))  # steps
                for column in range(0, width, LINE_BYTES // FP32_BYTES):
                    if (u * pw + column % pw) * FP32_BYTES % SPARSE_BYTES == 0:
                        line = w[group * (nr // pw) + column // pw, at + far, int64(column % pw)]
                        hint = (tirx.IntImm("int32", value) for value in (0, 2, 1))  # read, into L2, data
                        T.evaluate(tirx.call_llvm_intrin("void", "llvm.prefetch", tirx.address_of(line), *hint))

            def multiply_add(at: Any, u: int | None = None) -> None:
                if ahead == SPARSE:
                    if u is not None:
                        fetch_some(at, u)
                elif ahead and not next_lines:
                    fetch_ahead(at)
                position = at if terms is None else terms[at]
                term = position if terms_of == "x" else at
                for i in range(mr):
                    for (column, size), (buffer, slot) in zip(vectors, places[i], strict=True):
                        scalar = tirx.Broadcast(x[tile * mr + i, term], size)
                        panel, first = group * (nr // pw) + column // pw, int64(column % pw)
                        row, first = (int64(0), first + position) if terms_of == "w" else (at, first)
                        weights = w[panel, row, tirx.Ramp(first, int64(1), size)]
                        T.buffer_store(buffer, buffer[slot] + scalar * weights, [slot])

            def columns_of(column: int, size: int) -> Any:
                return tirx.Ramp(group * nr + column, int64(1), size)

            with T.If(add == 0):
                with T.Then():
                    for row in places:
                        for (_, size), (buffer, slot) in zip(vectors, row, strict=True):
                            T.buffer_store(buffer, tirx.Broadcast(tirx.FloatImm("float32", 0), size), [slot])
                with T.Else():
                    for i, row in enumerate(places):
                        for vector, (buffer, slot) in zip(vectors, row, strict=True):
                            T.buffer_store(buffer, y[tile * mr + i, columns_of(*vector)], [slot])
            with T.serial(k // ku) as step:
                if next_lines:
                    with T.If(tile < ahead), T.Then():
                        for number in range(next_lines):
                            fetch_next_panel(step, number)
                for u in range(ku):
                    multiply_add(step * ku + u, u)
            with T.serial(k % ku) as left:
                multiply_add(k // ku * ku + left)
            for i, row in enumerate(places):
                for vector, (buffer, slot) in zip(vectors, row, strict=True):
                    T.buffer_store(y, buffer[slot], [tile * mr + i, columns_of(*vector)])
    return builder.get()


def tile_program(kernel: MicroKernel, symbol: str, columns: int = 0, terms_of: Literal["", "x", "w"] = "") -> Any:
    """The tile program for families that lay out both operands themselves; of only the first ``columns`` unless 0.

    ``terms_of``: the operand whose terms lie apart. The function has a further argument then, int64 (k,): how far each
    term of a row of x, or of a panel of w, lies from its first element.
    """
    return _tile_program(kernel, symbol, columns, terms_of)
