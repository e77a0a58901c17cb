"""The C source of a pack: its ops, their micro-kernels, and the plan tables, all constant data."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from haotuner.backends.cpu.compile import RUNTIME_SOURCES, declarations, kernel_table, object_code
from haotuner.backends.cpu.setting import Setting
from haotuner.backends.toolchain import Toolchain
from haotuner.words.composition import WAYS
from haotuner.words.kernel import MicroKernel
from haotuner.words.op import Op

PACK_SOURCES = ("ffi.c", "door.c", "serve.c", "absent.c", "check.c", "plan.c", "run.c", "pool.c")
SPLIT_WORDS = dict(zip(WAYS, ("HT_SERIAL", "HT_COLUMNS", "HT_ROWS", "HT_TERMS"), strict=True))
TILES_LIMIT = 65535  # uint16 in ht_entry

CompileObject = Callable[[Sequence[MicroKernel], str, Path], None]
Entry = tuple[tuple[tuple[int, int], ...], str]  # regions as (kernel index, tiles), and the split


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedPlan:
    """One thread count's table: ``entries[m-1]`` for m = 1..len(entries)."""

    threads: int
    entries: Sequence[Entry]
    row_block: int = 0
    row_block_from: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedOp:
    """Everything the library holds about one op."""

    name: str
    setting: Setting
    first_m: int
    last_m: int
    kernels: Sequence[MicroKernel]
    plans: Sequence[PackedPlan]


def pack_data(ops: Sequence[PackedOp]) -> str:
    """``pack_data.c``: kernels, plans and ops of a pack, and one exported function an op."""
    text = ['#include "ht_pack.h"\n']
    kernels = sorted({kernel for op in ops for kernel in op.kernels}, key=lambda kernel: kernel.name)
    text.append(declarations(kernels))
    for index, op in enumerate(ops):
        table = kernel_table(op.kernels, f"kernels_{index}")
        text.append("static " + table[table.index("const ht_kernel") :])
        for place, plan in enumerate(op.plans):
            text.append(f"static const ht_entry entries_{index}_{place}[] = {{")
            text += [_entry(entry) for entry in plan.entries]
            text.append("};")
        text.append(f"static const ht_plan plans_{index}[] = {{")
        text += [
            f"  {{{p.threads}, {len(p.entries)}, entries_{index}_{place}, {p.row_block}, {p.row_block_from}}},"
            for place, p in enumerate(op.plans)
        ]
        text.append("};")
    text.append("const ht_op ht_ops[] = {")
    for index, op in enumerate(ops):
        s, kn = op.setting, Op.parse(op.name).option("weight") == "kn"
        text.append(
            f'  {{"{op.name}", {s.n}, {s.k}, {s.panels}, {s.pw}, {s.col_block}, '
            f"{s.k_block}, {s.k_block_from}, {s.k_block_rows}, {op.first_m}, {op.last_m}, "
            f"kernels_{index}, plans_{index}, {len(op.plans)}, {int(kn)}}},"
        )
    text += ["};", f"const int ht_op_count = {len(ops)};"]
    for index, op in enumerate(ops):
        text.append(
            f"HT_EXPORT int __tvm_ffi_{op.name}(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) "
            f"{{ (void)self; return ht_ffi_call({index}, args, count, result); }}"
        )
    return "\n".join(text) + "\n"


def _entry(entry: Entry) -> str:
    parts, split = entry
    tiles, kernels = [0, 0, 0], [0, 0, 0]
    for place, (kernel, count) in enumerate(parts):
        if not 0 < count <= TILES_LIMIT:
            raise ValueError(f"a region of {count} tiles does not fit the plan table (1..{TILES_LIMIT})")
        tiles[place], kernels[place] = count, kernel
    return (
        f"  {{{{{tiles[0]}, {tiles[1]}, {tiles[2]}}}, {{{kernels[0]}, {kernels[1]}, {kernels[2]}}}, {SPLIT_WORDS[split]}}},"
    )


def pack_library(
    ops: Sequence[PackedOp], mcpu: str, toolchain: Toolchain, out: Path, compile_object: CompileObject = object_code
) -> None:
    """Build the pack's library: kernels (TVM), tables and runtime (C compiler). RuntimeError with the compiler's words.

    ``compile_object`` turns kernels into one object file; a tuner has it done by a process that TVM is loaded in already.
    """
    with tempfile.TemporaryDirectory(prefix="haotuner-", dir=out.parent) as scratch:
        data, code = Path(scratch) / "pack_data.c", Path(scratch) / "kernels.o"
        data.write_text(pack_data(ops))
        compile_object(sorted({k for op in ops for k in op.kernels}, key=lambda k: k.name), mcpu, code)
        toolchain.link([code], [data, *(RUNTIME_SOURCES / name for name in PACK_SOURCES)], [RUNTIME_SOURCES], out)
