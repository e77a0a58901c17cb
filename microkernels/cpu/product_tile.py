"""Tile program of products whose operands are read where they are or from a packed block: any strides, known at run time.

One call computes ``tiles x groups`` tiles of ``rows`` x ``vectors * lanes`` elements, each in SIMD registers over all of
``depth`` (the GotoBLAS register kernel: Goto & van de Geijn, ACM TOMS 2008, section 4). Every element is one sum in the
order of the terms, with any tile, so which program computed it cannot be seen in its bits.
"""

from __future__ import annotations

from typing import Any

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
