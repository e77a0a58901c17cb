"""A dense op of a pack: compositions of micro-kernels by rows, blocks, and the layout of its packed weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from haotuner.backends.cpu.blocking import Blocking
from haotuner.backends.cpu.compile import declarations, kernel_table
from haotuner.backends.cpu.pack_op import PackedAxis, PackedOperand, axes_of, entry_of, operands_of, plan_row
from haotuner.backends.cpu.typed_library import types_of
from haotuner.microkernels.cpu.typed import word_of
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.limits import MAX_REGIONS, MAX_TILES, share_word
from haotuner.spec.op import Op

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
