"""Calls of device functions (``device/*.cuh``) as TIRx expressions, and texts of warpgroup products.

A unit of kernels (``haotuner/backends/cuda/translation_unit.py``) defines them, and passes those that ask for it the
kernel's argument.

Products of a warpgroup (PTX ISA, *wgmma.mma_async*): an instruction's text names every register that it writes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from haotuner.microkernels.cuda.dense_demand import RASTER_ROWS
from haotuner.ops.dtypes import DTYPE_BYTES

DEVICE = Path(__file__).parent / "device"
ELEMENT_TYPES = {
    "float32": "float",
    "float16": "ht_half",
    "bfloat16": "ht_bf16",
    "int8": "ht_byte",
}  # of device/prelude.cuh, by TVM dtype
UNROLL = {2: "ht_unroll_2", 4: "ht_unroll_4"}  # TVM's loops have no such pragma: the unit puts it where this call stands
STAGED_ROWS = 8  # of a warp's accumulators, on their way to Y


def call(tirx: Any, function: str, *args: Any, gives: str = "void") -> Any:
    """A call of a device function or macro; ``gives`` is the dtype of its result."""
    return tirx.cuda.func_call(function, *args, source_code="", return_type=gives)


def first_step(tirx: Any, steps: Any) -> Any:
    """The first of ``steps`` steps along k that this block row sums."""
    return call(tirx, "ht_first_step", steps, gives="int32")


def last_step(tirx: Any, steps: Any) -> Any:
    """One past the last step along k that this block row sums; not below the first."""
    return call(tirx, "ht_last_step", steps, gives="int32")


def find_tile(tirx: Any, position: Any, block: Any, row_tiles: Any, column_tiles: Any) -> Any:
    """A statement that writes row and column of a block's tile; ``RASTER_ROWS`` row tiles run down a column."""
    return call(tirx, "ht_tile", position.ptr_to([0]), block, row_tiles, column_tiles, RASTER_ROWS)


def warp(tirx: Any) -> Any:
    """The thread's warp in its block; the compiler knows that it is one for all lanes."""
    return call(tirx, "ht_warp", gives="int32")


def x_row(tirx: Any) -> Any:
    """The first row of X of the block's group, where rows come in groups."""
    return call(tirx, "ht_x_row", gives="int32")


def w_row(tirx: Any) -> Any:
    """The first row of the group's W in the stack of them, likewise."""
    return call(tirx, "ht_w_row", gives="int32")


def unroll(tirx: Any, times: int) -> Any:
    """A statement before a loop, which the compiler then unrolls so many times (of ``UNROLL``)."""
    return call(tirx, UNROLL[times])


def in_register(tirx: Any, value: Any) -> Any:
    """A number that stays in a register: the compiler does not compute it anew, in parts, where it is used."""
    return call(tirx, "ht_held", value, gives="int32")


def thread_again(tirx: Any) -> Any:
    """The thread's number, not known to be the one before: what comes of it after a loop takes no register in the loop."""
    return call(tirx, "ht_thread_again", gives="int32")


def block_again(tirx: Any) -> Any:
    """The block's number along the first axis, likewise."""
    return call(tirx, "ht_block_again", gives="int32")


def swizzled(tirx: Any, row: Any, column: Any, width: int) -> Any:
    """Column of a row of ``width`` 2-byte elements, its 16-byte chunk moved: 8 rows at one chunk meet 8 groups of banks."""
    return tirx.shift_left(swizzled_chunk(tirx, row, column, width), 3) + tirx.bitwise_and(column, 7)


def swizzled_chunk(tirx: Any, row: Any, column: Any, width: int) -> Any:
    """The chunk alone that it is moved to."""
    chunks = min(width // 8, 8)  # 8 chunks are 128 bytes, all banks once
    mixed = tirx.shift_right(row, {8: 0, 4: 1, 2: 2}[chunks])  # rows that share 128 bytes differ in chunk already
    return tirx.bitwise_xor(tirx.shift_right(column, 3), tirx.bitwise_and(mixed, chunks - 1))


def pitch(columns: int) -> int:
    """Floats between the rows of staged accumulators, as ``ht_pitch``."""
    return columns if columns % 16 == 8 else columns + 8


def staged_bytes(warps: int, columns: int) -> int:
    """Shared memory through which ``warps`` warps store accumulators of ``columns`` columns."""
    return warps * STAGED_ROWS * pitch(columns) * 4


ELEMENTS = {"fp16": ("ht_half", "f16"), "bf16": ("ht_bf16", "bf16")}
ROWS = 64  # of one instruction
TERMS = 16  # that it adds up, of 2 bytes
MOST_COLUMNS, PIECE = 256, 8  # of its other operand, in pieces


def products_text() -> str:
    """Declaration of ``ht_warpgroup``; ``warpgroup_text`` says each."""
    return "template <int COLUMNS, class T>\nstruct ht_warpgroup;\n"


def warpgroup_text(columns: int, dtype: str) -> str:
    """``ht_warpgroup<columns, T>`` with its two products of 64 rows, 16 terms and so many columns; ValueError for others.

    ``scores(d, a, b, add)``: both operands by descriptors, terms side by side in memory; ``sums(d, a, b)``: rows from
    registers, added, columns side by side in memory.
    """
    if columns % PIECE or not PIECE <= columns <= MOST_COLUMNS or dtype not in ELEMENTS:
        raise ValueError(f"no product of a warpgroup with {columns} columns in {dtype}")
    assert DTYPE_BYTES[dtype] == 2
    element, name = ELEMENTS[dtype]
    count = ROWS * columns // 128
    written = ", ".join(f"%{index}" for index in range(count))
    outputs = ", ".join(f'"+f"(d[{index}])' for index in range(count))
    instruction = f"wgmma.mma_async.sync.aligned.m64n{columns}k{TERMS}.f32.{name}.{name} {{{written}}}"
    both = f"%{count}, %{count + 1}"
    stored = ", ".join(f"%{count + index}" for index in range(4))
    inputs = ", ".join(f'"r"(a[{index}])' for index in range(4))
    return f"""template <>
struct ht_warpgroup<{columns}, {element}> {{
    static HT_DEVICE void scores(float* d, uint64_t a, uint64_t b, int add) {{
        asm volatile("{{.reg .pred p; setp.ne.b32 p, %{count + 2}, 0; {instruction}, {both}, p, 1, 1, 0, 0;}}"
                     : {outputs}
                     : "l"(a), "l"(b), "r"(add));
    }}
    static HT_DEVICE void sums(float* d, const uint32_t* a, uint64_t b) {{
        asm volatile("{{.reg .pred p; setp.ne.b32 p, 1, 0; {instruction}, {{{stored}}}, %{count + 4}, p, 1, 1, 1;}}"
                     : {outputs}
                     : {inputs}, "l"(b));
    }}
}};
"""
