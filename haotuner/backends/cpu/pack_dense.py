"""A dense op of a pack: its blocking, compositions of micro-kernels by rows, and the layout of its packed weight.

Blocking: the fixed numbers that run.c needs for an op with a set of micro-kernels. The same when timed and served.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from haotuner.backends.cpu.compile import declarations, kernel_table, types_of
from haotuner.backends.cpu.pack_op import PackedAxis, PackedOperand, axes_of, entry_of, operands_of, plan_row
from haotuner.microkernels.cpu.dense_demand import K_BLOCK_LEAST_ROWS, k_block
from haotuner.microkernels.cpu.typed import begun, word_of
from haotuner.microkernels.cpu.typed_source import on_tiles
from haotuner.ops.dtypes import DTYPES
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.limits import MAX_REGIONS, MAX_TILES, share_word
from haotuner.spec.op import Op

L2_SHARE = 0.5  # the weight of one column block; the other half is for X and for what the prefetchers bring
L2_DEFAULT_BYTES = 512 << 10  # smallest private L2 of server cores since 2017 is 1 MiB, of desktop ones 256-512 KiB

# Rows whose X stays in L2 while the weight streams past. Measured at m=2048 (Zen 5): 48 to 96 rows gave 1.00 to 1.10x of no
# blocking on one core and 1.05 to 1.10x on two, for k=768 and 3072; under 24 the weight is streamed too often.
ROWS_LEAST, ROWS_MOST = 24, 96
# Of kernels on AMX tiles, which compute ten times as much in the time that the weight takes to stream past. Measured at
# m=1920 (Emerald Rapids, 1 MB of X and more): half of L2 was 1.1 to 1.25x of 96 rows for bf16, 0.94 to 1.2x for int8.
ROWS_MOST_ON_TILES = 576


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocking:
    """Extents and layout of a packed weight, and the blocks of columns and rows that stay in L2."""

    n: int
    k: int
    pw: int
    panels: int
    col_block: int
    row_block: int
    k_block: int = 0  # terms of a part of the sum over k; 0: it is never cut
    k_block_from: int = 0  # rows from which on it is
    k_block_rows: int = 0  # row_block there
    floats: int = 0  # of the packed weight

    @staticmethod
    def of(op: Op, kernels: Sequence[MicroKernel], device: Device) -> Blocking:
        """ValueError unless the kernels share one panel width."""
        widths = {kernel["pw"] for kernel in kernels}
        if len(widths) != 1:
            raise ValueError(f"kernels of one shape share one packed weight; panel widths are {sorted(widths)}")
        pw = widths.pop()
        n, k = op["n"], op["k"]
        panels = max(-(-n // kernel["nr"]) * (kernel["nr"] // pw) for kernel in kernels)
        l2 = device.l2_bytes or L2_DEFAULT_BYTES
        fits = int(l2 * L2_SHARE) // (DTYPES[op.dtype].size * k)  # rows of X, or columns of the weight, in half of L2
        word = word_of(kernels[0])
        part = k_block(k) if word is None else 0  # sums of a part would lie in Y, which typed ones do not
        return Blocking(
            n=n,
            k=k,
            pw=pw,
            panels=panels,
            col_block=max(pw, fits // pw * pw),
            row_block=_rows(fits, ROWS_MOST_ON_TILES if any(map(on_tiles, kernels)) else ROWS_MOST),
            k_block=part,
            k_block_from=K_BLOCK_LEAST_ROWS if part else 0,
            k_block_rows=_rows(int(l2 * L2_SHARE) // (4 * part)) if part else 0,
            floats=panels * (k * pw if word is None else word.depth(k) * word.floats(pw) + begun(kernels[0]) * pw),
        )

    def words(self, m: int) -> dict[str, int]:
        """Settings of a call of m rows, by name."""
        blocked = self.k_block > 0 and m >= self.k_block_from
        return {
            "n": self.n,
            "k": self.k,
            "pw": self.pw,
            "panels": self.panels,
            "col_block": self.col_block,
            "row_block": self.k_block_rows if blocked else self.row_block,
            "k_block": self.k_block if blocked else 0,
            "floats": self.floats,
        }


def _rows(fits: int, most: int = ROWS_MOST) -> int:
    return min(max(fits, ROWS_LEAST), most)


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
    """Everything the library holds about a dense op."""

    op: Op
    setting: Blocking
    first_m: int
    last_m: int
    kernels: Sequence[MicroKernel]
    plans: Sequence[PackedPlan]

    @property
    def name(self) -> str:
        """Canonical name of the op."""
        return self.op.name

    @property
    def kind(self) -> str:
        """Its kind of operator."""
        return "dense"

    @property
    def axes(self) -> tuple[PackedAxis, ...]:
        """m, n and k."""
        return axes_of(self.op, {"m": (self.first_m, self.last_m)})

    @property
    def operands(self) -> tuple[PackedOperand, ...]:
        """x, weight, what the epilogue reads, y; without an epilogue an optional bias behind it, but of integers."""
        op = self.op
        bias = PackedOperand(name="bias", role="constant", axes=("n",), optional=True, compact=True)
        return operands_of(op) if op.epilogue or op.sums != "fp32" else (*operands_of(op), bias)

    @property
    def micro_kernels(self) -> tuple[MicroKernel, ...]:
        """Micro-kernels that the compiler has to build."""
        return tuple(self.kernels)

    @property
    def kernel_names(self) -> tuple[str, ...]:
        """Names in the order of the library's table."""
        return tuple(kernel.name for kernel in self.kernels)

    @property
    def tiles(self) -> tuple[Mapping[str, int], ...]:
        """Rows and columns of each kernel's tile."""
        return tuple({"m": kernel["mr"], "n": kernel["nr"]} for kernel in self.kernels)

    @property
    def threads(self) -> tuple[int, ...]:
        """The thread count of each plan."""
        return tuple(plan.threads for plan in self.plans)

    def declarations(self) -> str:
        """C declarations of the kernels' functions."""
        return declarations(self.kernels)

    def entry(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """The op's entry in the manifest: the weight's operand says how it is packed."""
        result = entry_of(self, facts)
        result["operands"][1]["packed"] = {"pw": self.setting.pw, "panels": self.setting.panels}
        if (word := word_of(self.kernels[0])) is not None:
            result["operands"][1]["packed"]["terms"] = word.terms
        return result

    def tables(self, index: int) -> list[str]:
        """C source of ``plans_<index>`` and ``data_<index>``."""
        table = kernel_table(self.kernels, f"kernels_{index}")
        text = ["static " + table[table.index("const ht_kernel") :]]
        for position, plan in enumerate(self.plans):
            text.append(f"static const ht_entry entries_{index}_{position}[] = {{")
            text += [_entry(entry) for entry in plan.entries]
            text.append("};")
            text.append(
                f"static const ht_dense_plan plan_{index}_{position} = "
                f"{{entries_{index}_{position}, {plan.row_block}, {plan.row_block_from}}};"
            )
        text.append(f"static const ht_plan plans_{index}[] = {{")
        text += [
            plan_row(plan.threads, [(0, 0, len(plan.entries))], f"&plan_{index}_{position}")
            for position, plan in enumerate(self.plans)
        ]
        s, flags = self.setting, int(self.op.option("weight") == "kn")
        typed = word_of(self.kernels[0]) is not None
        words = (s.n, s.k, s.panels, s.pw, s.col_block, s.k_block, s.k_block_from, s.k_block_rows, f"kernels_{index}")
        data = f"{{{', '.join(map(str, words))}, {flags + 2 * typed}}}"  # HT_WEIGHT_KN, HT_TYPED
        text.append("};")
        if typed:
            text.append(types_of(self.kernels[0], f"typed_{index}"))
            text.append(f"static const ht_typed_dense data_{index} = {{{data}, &typed_{index}}};")
        else:
            text.append(f"static const ht_dense data_{index} = {data};")
        return text


def _entry(entry: Entry) -> str:
    parts, split = entry
    tiles, kernels = [0] * MAX_REGIONS, [0] * MAX_REGIONS
    for index, (kernel, count) in enumerate(parts):
        if not 0 < count <= MAX_TILES:
            raise ValueError(f"a region of {count} tiles does not fit the plan table (1..{MAX_TILES})")
        tiles[index], kernels[index] = count, kernel
    return f"  {{{{{', '.join(map(str, tiles))}}}, {{{', '.join(map(str, kernels))}}}, {share_word(split)}}},"
