"""Products of a warpgroup (PTX ISA, *wgmma.mma_async*): an instruction's text names every register that it writes."""

from __future__ import annotations

from haotuner.ops.dtypes import DTYPE_BYTES

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
