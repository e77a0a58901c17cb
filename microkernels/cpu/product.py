"""The batch_matmul family for CPUs: Y[b] = X[b] · W[b], its tile program and its demand.

Tile program of products whose operands are read where they are or from a packed block: any strides, known at run time.

One call computes ``tiles x groups`` tiles of ``rows`` x ``vectors * lanes`` elements, each in SIMD registers over all of
``depth`` (the GotoBLAS register kernel: Goto & van de Geijn, ACM TOMS 2008, section 4). Every element is one sum in the
order of the terms, with any tile, so which program computed it cannot be seen in its bits.

A micro-kernel is a tile of at most ``mr`` rows and ``nv`` vectors of columns, whether blocks of W are packed, and how many
terms are summed at a time. Extents are cut evenly into tiles up to it, so it has a program of every smaller tile, too;
micro-kernels share these programs (``product.py``), and the runtime's loops call them (``native/kinds/product_run.c``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from haotuner.microkernels.cpu.epilogue import with_epilogue
from haotuner.ops.products import BATCH_MATMUL
from haotuner.spec.constraint import ConstraintQuery, Laws
from haotuner.spec.demand import CpuStream, Demand, DemandQuery, Expectation, MatmulTile, Staging, Tiles, Work
from haotuner.spec.device import Device
from haotuner.spec.family import Layout
from haotuner.spec.kernel import Footprint, MicroKernel, Tile
from haotuner.spec.op import Op
from haotuner.spec.traffic import Traffic

_LINE_BYTES = 64.0  # every x86-64 and most Arm servers
_BROADCAST_REGISTERS = 1.0  # holds the value of X that the current FMA uses
_MOST_TERMS = 1024.0  # of a block, as native/kinds/product_run.c has it
MOST_ROWS = 14  # of a tile: with two vectors they fill 32 registers; the runtime's table of programs is as large
_ROWS = 128.0  # that pass over a block of W before the next, as there
_ROW_POINTERS = 7.0  # of 16 address registers; further rows of X load theirs from the stack (dense_demand.py)


def demand(requested: DemandQuery, *, taller: bool = True) -> Demand:
    """``Y[b,m,n] = X[b,m,k] W[b,k,n]`` by register tiles of at most ``mr`` x ``nv * vl`` over blocks of W, packed or not.

    ``taller``: narrower groups of columns are computed by taller tiles, of as many sums; else by tiles of ``mr`` rows.

    Loop order of a matrix: columns, blocks of k, blocks of rows, groups of columns, tiles of rows; outputs larger than L2
    have the last two the other way round, which is not priced.
    """
    mr, vl = requested.param("mr"), requested.param("vl")
    packs, across = np.maximum(requested.param("pk"), requested.param("wk")), requested.param("xk")
    b, m, n, k = (requested.extents[axis] for axis in ("b", "m", "n", "k"))
    size = float(requested.element_bytes)
    required = requested.param("kb")
    block = np.minimum(np.where(required > 0, required, _MOST_TERMS), np.maximum(k, 1.0))
    units = np.ceil(n / vl)
    groups = np.ceil(units / requested.param("nv"))
    vectors = units / groups  # even tiles
    tall = np.minimum(MOST_ROWS, np.floor(mr * requested.param("nv") / np.ceil(vectors))) if taller else mr
    row_tiles = np.ceil(m / tall)
    rows = m / row_tiles
    width = vectors * vl
    tiles = b * row_tiles * groups
    blocks = np.ceil(k / block)
    columns = units * vl
    w_bytes, x_bytes, y_bytes = n * k * size, m * k * size, m * n * size
    copied = packs * columns * k * size * 2.0  # read and written once for every matrix
    panel = width * block * size
    l1 = float(requested.device.l1_bytes or 32 * 2**10)
    in_l1 = panel + rows * block * size <= l1
    far = float(requested.cold) * b * (w_bytes + x_bytes) + b * y_bytes
    near, mid = (
        (rows + width) * size,
        np.where(in_l1 & (row_tiles > 1), 0.0, width * size) + rows * size * size / _LINE_BYTES,
    )
    zero, item = np.zeros_like(m), np.ones_like(m)
    sums = rows * vectors
    return Demand(
        work=Work(
            flops={"simd": 2.0 * b * m * n * k},
            least_bytes=b * (w_bytes + x_bytes + y_bytes),
            far_bytes=far,
            mid_bytes=mid * k * tiles + b * copied,
            near_bytes=near * k * tiles + b * (copied + 2.0 * y_bytes * (blocks - 1.0)),
        ),
        tiles=Tiles(
            count=tiles * blocks,
            threads=item,
            waves=item,
            vector=vl,
            registers=sums + np.minimum(vectors, rows) + _BROADCAST_REGISTERS,
            shared_bytes=zero,
            l1_set_bytes=panel + rows * block * size,
            l2_set_bytes=panel * groups + np.minimum(m, _ROWS) * block * size,
        ),
        matmul=MatmulTile(
            rows=m * b,
            cols=n,
            depth=k,
            tile_rows=rows,
            tile_cols=width,
            computed_cols=columns,
            wave_rows=rows,
            wave_cols=width,
            unroll=item,
            depth_block=block,
            streams=item + np.where(across > 0, 1.0, rows),
            fmas=sums,
            tensor_fmas=zero,
            loads=vectors + rows + np.where(across > 0, 0.0, np.maximum(rows - _ROW_POINTERS, 0.0)),
            checks=zero,
            near_bytes=near,
            mid_bytes=mid,
            code=sums + vectors + rows,
            line_ratio=np.where(
                packs > 0, 1.0, np.minimum(width * size, n * size) / (np.ceil(width * size / _LINE_BYTES) * _LINE_BYTES)
            ),
            bank_ways=item,
            flags=packs,
        ),
        staging=Staging(rows=zero, cols=packs, row_threads=item, col_threads=item, vector_cols=item, waits=zero),
        stream=CpuStream.none(m),
    )


FP32_BYTES = 4
LINE_BYTES = 64  # every x86-64 and most Arm servers
# TVM turns a constant buffer of fewer bytes into registers or stack, a larger one into a heap call (kMaxStackAlloca).
TVM_STACK_BYTES = 1024


def tile_program(symbol: str, *, rows: int, vectors: int, lanes: int, across: bool) -> Any:
    """A function ``symbol(x, w, y, x_tile, x_stride, w_group, w_stride, y_stride, depth, tiles, groups, add, far)``.

    Pointers to fp32, strides and extents as int64 elements. ``across``: x is stored (depth, rows), ``x_stride`` apart in
    depth; else (rows, depth), ``x_stride`` apart in rows. ``x_tile``: from a tile of x to the next. w is (depth, columns),
    ``w_stride`` apart in depth, groups of columns ``w_group`` apart. y is (rows, columns), groups side by side; ``add``
    other than 0 adds to what it holds. ``far`` other than 0: y is no nearer than L3, and a tile's lines of it are asked for
    before its first term.
    """
    from tvm import tirx
    from tvm.script.ir_builder import IRBuilder
    from tvm.script.ir_builder import tirx as T

    per_buffer = max(1, (TVM_STACK_BYTES - 1) // (lanes * FP32_BYTES))  # vectors that stay under the stack limit
    width = vectors * lanes

    def int64(value: int) -> Any:  # int32 shape variables truncate silently
        return tirx.IntImm("int64", value)

    def vector_at(first: Any) -> Any:
        return tirx.Ramp(first, int64(1), lanes)

    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name(symbol)
        T.func_attr({"global_symbol": symbol, "tirx.noalias": True})  # the runtime refuses aliases
        pointers = [T.arg(name, T.handle("float32")) for name in ("x", "w", "y")]
        names = ("x_tile", "x_stride", "w_group", "w_stride", "y_stride", "depth", "tiles", "groups", "add", "far")
        x_tile, x_stride, w_group, w_stride, y_stride, depth, tiles, groups, add, far = (T.arg(n, T.int64()) for n in names)
        # Indices are offsets from the pointers; the extent is a formality.
        x, w, y = (T.decl_buffer((depth,), "float32", data=pointer, align=FP32_BYTES) for pointer in pointers)
        with T.serial(groups) as group, T.serial(tiles) as tile:
            places = []  # of each row: buffer and slot of every vector
            for _ in range(rows):
                counts = [min(per_buffer, vectors - j) for j in range(0, vectors, per_buffer)]
                buffers = [(T.sblock_alloc_buffer((count,), f"float32x{lanes}", scope="global"), count) for count in counts]
                places.append([(buffer, slot) for buffer, count in buffers for slot in range(count)])

            def y_at(row: int, vector: int) -> Any:
                return vector_at((tile * rows + row) * y_stride + group * width + vector * lanes)

            def multiply_add(at: Any) -> None:
                for i in range(rows):
                    element = x[tile * x_tile + (at * x_stride + i if across else x_stride * i + at)]
                    for j, (buffer, slot) in enumerate(places[i]):
                        term = tirx.Broadcast(element, lanes) * w[vector_at(group * w_group + at * w_stride + j * lanes)]
                        T.buffer_store(buffer, buffer[slot] + term, [slot])

            with T.If(far != 0), T.Then():
                for i, j in ((i, j) for i in range(rows) for j in range(0, width, LINE_BYTES // FP32_BYTES)):
                    line = y[(tile * rows + i) * y_stride + group * width + j]
                    hint = (tirx.IntImm("int32", value) for value in (0, 3, 1))  # read, keep in all levels, data
                    T.evaluate(tirx.call_llvm_intrin("void", "llvm.prefetch", tirx.address_of(line), *hint))
            with T.If(add == 0):
                with T.Then():
                    for row in places:
                        for buffer, slot in row:
                            T.buffer_store(buffer, tirx.Broadcast(tirx.FloatImm("float32", 0), lanes), [slot])
                with T.Else():
                    for i, row in enumerate(places):
                        for j, (buffer, slot) in enumerate(row):
                            T.buffer_store(buffer, y[y_at(i, j)], [slot])
            with T.serial(depth) as step:
                multiply_add(step)
            for i, row in enumerate(places):
                for j, (buffer, slot) in enumerate(row):
                    T.buffer_store(y, buffer[slot], [y_at(i, j)])
    return builder.get()


MOST_VECTORS = 4  # of a tile: six rows of them fill 32 registers; the runtime's table of programs is as large
# Fewer sums at once than this leave the multiply-adders waiting for their own results (latency 4, two start a cycle).
LEAST_SUMS = 8
K_BLOCKS = (
    0,
    256,
)  # 0: as many terms as the runtime's blocks hold. 256 rows of a panel of three vectors are all of a 48 KiB L1


class CpuProduct:
    """Family ``cpu_batch_matmul_fp32``; parameters mr, nv (vectors), vl (lanes), pk (packs W), kb (terms a block), xk, wk.

    ``xk`` and ``wk`` are 1 where X is stored (k, m) and W (n, k): with the latter W is always packed.
    """

    name = "cpu_batch_matmul_fp32"
    backend = "cpu"
    frontier = 24  # all are timed at three shapes in about ten seconds
    kind = BATCH_MATMUL
    shares_programs = True

    def serves(self, op: Op) -> bool:
        """batch_matmul in fp32, whatever is dynamic; with an epilogue of steps that read nothing."""
        return op.kind == self.kind.name and op.plain and not op.epilogue_operands and bool(op.dynamic)

    def suits(self, device: Device) -> bool:
        """Any CPU: the points are made for the device's own vectors."""
        return device.kind == "cpu"

    def points(self, op: Op, device: Device) -> Iterator[MicroKernel]:
        """Every largest tile, read in place or packed, with a long sum whole or in blocks."""
        layout = op.option("layout")
        for rows in range(1, MOST_ROWS + 1):
            for vectors in range(1, MOST_VECTORS + 1):
                for packs in (1,) if layout == "nt" else (0, 1):
                    for block in K_BLOCKS:
                        kernel = self.kernel(rows, vectors, device.wave_width, packs, block, layout)
                        yield with_epilogue(kernel, op.epilogue)

    def kernel(self, mr: int, nv: int, vl: int, pk: int, kb: int = 0, layout: str = "nn") -> MicroKernel:
        """The micro-kernel of these parameters for an op of a layout."""
        across = (("xk", int(layout == "tn")), ("wk", int(layout == "nt")))
        return MicroKernel(self.name, (("mr", mr), ("nv", nv), ("vl", vl), ("pk", pk), ("kb", kb), *across))

    def footprint(self, kernel: MicroKernel) -> Footprint:
        """SIMD registers held through the k loop, and bytes of L1 that one step touches."""
        rows, vectors = kernel["mr"], kernel["nv"]
        step_bytes = (rows + vectors * kernel["vl"]) * FP32_BYTES
        return Footprint(registers_per_thread=rows * vectors + min(vectors, rows) + 1, shared_bytes=step_bytes)

    def tile(self, kernel: MicroKernel) -> Tile:
        """The largest; smaller ones have programs of their own."""
        extent = {"b": 1, "m": kernel["mr"], "n": kernel["nv"] * kernel["vl"]}
        return Tile(extent=extent, edge={"b": "masked", "m": "tail", "n": "tail"}, step={"k": 1})

    def computed(self, kernel: MicroKernel, axis: str, extent: int) -> int:
        """Rows as there are; columns in whole vectors."""
        return -(-extent // kernel["vl"]) * kernel["vl"] if axis == "n" else extent

    def layout(self, kernel: MicroKernel) -> Layout:
        """Nothing is packed before a call."""
        return ()

    def laws(self, op: Op, device: Device) -> Laws:
        """Sums enough to keep the units busy, in tiles that the shapes can fill."""
        return _LAWS

    def demand(self, requested: DemandQuery) -> Demand:
        """See ``product_demand``."""
        return demand(requested)

    def expectation(self, op: Op, device: Device, traffic: Traffic) -> Expectation | None:
        """None: the cost model's."""
        return None

    def schedule(self, kernel: MicroKernel, symbol: str) -> Any:
        """TVM module of the programs that the kernel needs; they have names of their own, since kernels share them."""
        import tvm

        result = {}
        for rows, vectors in programs(kernel):
            name = program_name(kernel, rows, vectors)
            result[name] = tile_program(
                name, rows=rows, vectors=vectors, lanes=kernel["vl"], across=bool(kernel["xk"])
            )  # fmt: skip
        return tvm.IRModule(result)


def programs(kernel: MicroKernel) -> Iterator[tuple[int, int]]:
    """Rows and vectors of every tile that a call of the kernel may be cut into: narrow ones are taller, by as many sums."""
    for vectors in range(1, kernel["nv"] + 1):
        for rows in range(1, min(MOST_ROWS, kernel["mr"] * kernel["nv"] // vectors) + 1):
            yield rows, vectors


def program_name(kernel: MicroKernel, rows: int, vectors: int) -> str:
    """Symbol of a tile's program."""
    return f"cpu_product_{'t' if kernel['xk'] else 'n'}{kernel['vl']}_r{rows}_v{vectors}"


def _sums(q: ConstraintQuery) -> tuple[float, float] | None:
    """No more than the largest tile has that the shapes fill: results of few rows and columns have no others."""
    rows, vectors = _most(q, "m"), -(-_most(q, "n") // q.kernel["vl"])
    largest = min(MOST_ROWS, max(2, rows)) * min(MOST_VECTORS, vectors)
    return float(min(LEAST_SUMS, min(q.kernel["mr"], rows) * MOST_VECTORS, largest)), float(q.kernel["mr"] * q.kernel["nv"])


def _rows(q: ConstraintQuery) -> tuple[float, float] | None:
    return q.kernel["mr"], max(2, _most(q, "m"))


def _columns(q: ConstraintQuery) -> tuple[float, float] | None:
    return q.kernel["nv"], -(-_most(q, "n") // q.kernel["vl"])


def _most(q: ConstraintQuery, axis: str) -> int:
    return q.most[axis] if axis in q.op.dynamic else q.op[axis]


def _depth(q: ConstraintQuery) -> tuple[float, float] | None:
    most = q.most["k"] if "k" in q.op.dynamic else q.op["k"]
    return q.kernel["kb"], max(0, most - 1)


# In the order they are asked; a point counts against the first law it breaks.
_LAWS: Laws = (("rows", _rows), ("columns", _columns), ("depth", _depth), ("sums", _sums))
