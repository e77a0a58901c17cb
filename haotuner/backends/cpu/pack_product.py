"""batch_matmul in libraries and packs: its micro-kernels as C source, and a kernel for every cell of its shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from haotuner.backends.cpu.compile import kernel_table, typed_declarations, types_of
from haotuner.backends.cpu.pack_op import (
    PackedOperand,
    PackedSliced,
    SlicedKernel,
    SlicedPlan,
    axes_of,
    operands_of,
    plan_tables,
)
from haotuner.microkernels.cpu.dense_demand import MAX_STREAMS
from haotuner.microkernels.cpu.epilogue import symbol_of
from haotuner.microkernels.cpu.product import MOST_ROWS, MOST_VECTORS, program_name, programs
from haotuner.microkernels.cpu.typed import programs_of, word_of
from haotuner.microkernels.cpu.typed_source import on_tiles
from haotuner.ops.products import BESIDE
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op


def product_declarations(kernels: Sequence[MicroKernel]) -> list[str]:
    """C declarations of every program that the kernels need."""
    names = sorted({symbol_of(kernel) for kernel in kernels} - {""})
    typed = word_of(kernels[0]) is not None
    if not typed:
        names += sorted({program_name(kernel, *tile) for kernel in kernels for tile in programs(kernel)})
    result = typed_declarations(kernels) if typed else []
    return [*result, *(f"extern int __tvm_ffi_{name}(void*, const TVMFFIAny*, int32_t, TVMFFIAny*);" for name in names)]


def product_data(kernels: Sequence[MicroKernel], suffix: str) -> list[str]:
    """C source of ``data<suffix>``, an ``ht_product``. ValueError if the kernels are of several layouts or vector widths."""
    alike = {(kernel["vl"], kernel["xk"], kernel["wk"], symbol_of(kernel)) for kernel in kernels}
    if len(alike) != 1:
        raise ValueError(f"kernels of one op have one layout, epilogue and width of vectors, these have {sorted(alike)}")
    (lanes, x_across, w_across, steps) = alike.pop()
    after = f"__tvm_ffi_{steps}" if steps else "NULL"
    if word_of(kernels[0]) is not None:
        return _typed_data(kernels, suffix, (lanes, x_across, w_across), after)
    known = {tile: program_name(kernel, *tile) for kernel in kernels for tile in programs(kernel)}
    lines = [f"static const ht_kernel_fn tiles{suffix}[HT_PRODUCT_VECTORS * HT_PRODUCT_ROWS] = {{"]
    for vectors in range(1, MOST_VECTORS + 1):
        row = [known.get((rows, vectors)) for rows in range(1, MOST_ROWS + 1)]
        lines.append(f"  {', '.join(f'__tvm_ffi_{name}' if name else 'NULL' for name in row)},")
    lines += ["};", f"static const ht_product_kernel kernels{suffix}[] = {{"]
    for kernel in kernels:
        lines.append(f'  {{"{kernel.name}", {kernel["mr"]}, {kernel["nv"]}, {kernel["pk"]}, {kernel["kb"]}}},')
    lines += [
        "};",
        f'_Static_assert(HT_PRODUCT_ROWS == {MOST_ROWS} && HT_PRODUCT_VECTORS == {MOST_VECTORS}, "a table of tiles");',
    ]
    own = f"tiles{suffix}, {lanes}, {x_across}, {w_across}, kernels{suffix}"
    more = f", NULL, NULL, NULL, {after}" if steps else ""
    return [*lines, f"static const ht_product data{suffix} = {{{own}{more}}};"]


def _typed_data(kernels: Sequence[MicroKernel], suffix: str, alike: tuple[int, int, int], after: str) -> list[str]:
    """C tables of other types than fp32: the tiles of typed dense, and the types."""
    table = kernel_table(kernels, f"typed_kernels{suffix}", "static ")
    rows = [f'  {{"{k.name}", {k["mr"]}, {k["nr"] // k["vl"]}, 1, 0}},' for k in kernels]
    widths = [", ".join(tile.name for tile in programs_of(k)) if not on_tiles(k) else "NULL" for k in kernels]
    named = f"kernels{suffix}, NULL, &typed{suffix}, typed_kernels{suffix}, {after}, widths{suffix}"
    data = f"{{NULL, {', '.join(map(str, alike))}, {named}}}"
    return [
        *table[table.index("static const") :].splitlines(),
        types_of(kernels[0], f"typed{suffix}", beside=True),
        f"static const ht_product_kernel kernels{suffix}[] = {{",
        *rows,
        "};",
        f"static const ht_typed_fn widths{suffix}[][HT_TYPED_VECTORS] = {{",
        *(f"  {{{row}}}," for row in widths),
        "};",
        f'_Static_assert(HT_TYPED_VECTORS == {MAX_STREAMS}, "a table of widths");',
        f"static const ht_product data{suffix} = {data};",
    ]


def product_table(kernels: Sequence[MicroKernel]) -> str:
    """C source of a measuring library's candidates."""
    lines = ['#include "kinds/product.h"', *product_declarations(kernels), *product_data(kernels, "")]
    return "\n".join([*lines, *timed("ht_product_kind", "data", len(kernels)), ""])


def timed(kind: str, data: str, count: int) -> list[str]:
    """C symbols by which ``native/timing_sliced.c`` finds the candidates."""
    return [
        f"const ht_kind* const ht_timed_kind = &{kind};",
        f"const void* const ht_timed_data = &{data};",
        f"const int ht_timed_count = {count};",
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedProduct(PackedSliced):
    """Everything the library holds about such an op."""

    @staticmethod
    def of(
        op: Op, ranges: Mapping[str, tuple[int, int]], kernels: Sequence[SlicedKernel], plans: Sequence[SlicedPlan]
    ) -> PackedProduct:
        """``ranges``: (first, last) of each dynamic axis."""
        beside = (PackedOperand(name=name, role="input", axes=axes, optional=True) for name, axes in BESIDE.items())
        return PackedProduct(
            name=op.name,
            kind=op.kind,
            axes=axes_of(op, ranges),
            operands=(*operands_of(op), *beside),
            kernels=tuple(kernels),
            plans=tuple(plans),
        )

    def declarations(self) -> str:
        """C declarations of the programs of all tiles."""
        return "\n".join(product_declarations(self.micro_kernels))

    def tables(self, index: int) -> list[str]:
        """C source of ``plans_<index>`` and ``data_<index>``. ValueError for a plan that is none."""
        for plan in self.plans:
            self._check(plan)
        axis_index = {axis.name: index for index, axis in enumerate(self.axes)}
        return product_data(self.micro_kernels, f"_{index}") + plan_tables(index, self.plans, axis_index)
