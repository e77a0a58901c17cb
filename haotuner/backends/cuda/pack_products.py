"""Products of a CUDA pack: dense, grouped, batch_matmul and convolutions, with kernels by rows or by cells.

A dense or grouped op of a CUDA pack: which kernels serve which rows, and into how many parts the sum over k is split.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from haotuner.backends.backend import Choice
from haotuner.backends.cpu.pack_conv import PLACES, PackedConv
from haotuner.backends.cpu.pack_conv import initializer as conv_initializer
from haotuner.backends.cpu.pack_op import (
    PackedAxis,
    PackedOperand,
    PackedSliced,
    axes_of,
    entry_of,
    operands_of,
    plan_row,
    plan_tables,
)
from haotuner.backends.cpu.packing import cell_plans, tiled
from haotuner.microkernels.cuda.conv import transposed
from haotuner.microkernels.cuda.fused import initializer
from haotuner.microkernels.cuda.launch import Launch
from haotuner.microkernels.index import family_named
from haotuner.ops.products import BESIDE
from haotuner.plan.table import CellTable, PlanTable
from haotuner.spec.composition import WHOLE, Composition
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op

REGIONS = 2  # of a cell; native/kinds/cuda_dense.h
MOST_SPLITS = 64  # of k in a plan
DTYPES = ("fp32", "fp16", "bf16", "int8")  # places are native/cuda/launch.h's numbers
_SPLITS = re.compile(r"k([1-9][0-9]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaEntry:
    """Regions that compute the rows of a cell, as (kernel index, row tiles); the last one takes what is left."""

    regions: tuple[tuple[int, int], ...]
    splits: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedCudaDense:
    """Everything the library holds about a dense or grouped op on a CUDA device; implements ``Packed``.

    ``bounds``: the largest number of rows of each cell, ascending; the last cell goes on beyond it.
    """

    op: Op
    first_m: int
    last_m: int
    kernels: Sequence[MicroKernel]
    launches: Sequence[Launch]
    bounds: Sequence[int]
    entries: Sequence[CudaEntry]

    @staticmethod
    def of(choice: Choice) -> PackedCudaDense:
        """Packed op from the result of tuning. ValueError where a table has what this device's loops cannot look up."""
        (axis,) = choice.op.dynamic
        (table,) = choice.tables
        index = {kernel.name: index for index, kernel in enumerate(choice.kernels)}
        bounds, entries = _cells(table, axis, index)
        first, last = choice.ranges[axis]
        launches = [_family_of(choice, kernel).launch(kernel) for kernel in choice.kernels]
        return PackedCudaDense(
            op=choice.op, first_m=first, last_m=last, kernels=tuple(choice.kernels), launches=launches,
            bounds=bounds, entries=entries,
        )  # fmt: skip

    def __post_init__(self) -> None:
        if len(self.bounds) != len(self.entries) or list(self.bounds) != sorted(set(self.bounds)) or min(self.bounds) < 1:
            raise ValueError(f"{self.name}: a plan needs one ascending bound for each cell")
        for entry in self.entries:
            self._check(entry)

    def _check(self, entry: CudaEntry) -> None:
        *before, last = entry.regions
        if len(before) >= REGIONS or any(tiles < 1 for _, tiles in before) or not 1 <= entry.splits <= MOST_SPLITS:
            raise ValueError(f"{self.name}: {entry} is not one or two regions and 1..{MOST_SPLITS} parts of k")
        for kernel, _ in entry.regions:
            if (entry.splits > 1 or before) and self.launches[kernel].groups:
                raise ValueError(f"{self.name}: groups are one launch, the plan asks for {entry}")
            if entry.splits > 1 and not self.launches[kernel].splits:
                raise ValueError(
                    f"{self.name}: {self.kernels[kernel].name} cannot split k, the plan asks for {entry.splits}"
                )

    @property
    def name(self) -> str:
        """Canonical name of the op."""
        return self.op.name

    @property
    def kind(self) -> str:
        """Its kind of operator."""
        return self.op.kind

    @property
    def dtype(self) -> str:
        """Of x, weight, bias and y."""
        return self.op.dtype

    @property
    def axes(self) -> tuple[PackedAxis, ...]:
        """m, n and k."""
        return axes_of(self.op, {"m": (self.first_m, self.last_m)})

    @property
    def operands(self) -> tuple[PackedOperand, ...]:
        """x, the weight as its owner stores it, where groups end or what the epilogue reads, y; perhaps an optional bias."""
        op = self.op
        x, weight, *more, y = operands_of(op)
        selected = PackedOperand(name=weight.name, role=weight.role, axes=weight.axes, dtype=weight.dtype, compact=True)
        if op.epilogue or not has_free_bias(op):
            return x, selected, *channels_in_own_type(op, more), y
        axes = ("g", "n") if more else ("n",)
        bias = PackedOperand(name="bias", role="constant", axes=axes, dtype=op.dtype, optional=True, compact=True)
        return x, selected, *more, y, bias

    @property
    def micro_kernels(self) -> tuple[MicroKernel, ...]:
        """Micro-kernels that the compiler has to build."""
        return tuple(self.kernels)

    @property
    def kernel_names(self) -> tuple[str, ...]:
        """Names in the order of the op's table."""
        return tuple(kernel.name for kernel in self.kernels)

    @property
    def tiles(self) -> tuple[Mapping[str, int], ...]:
        """Rows and columns of each kernel's tile."""
        return tuple({"m": launch.tile_m, "n": launch.tile_n} for launch in self.launches)

    @property
    def threads(self) -> tuple[int, ...]:
        """One plan: a device has no thread counts."""
        return (1,)

    @property
    def reads_kn(self) -> bool:
        """True if users store the weight as (k, n)."""
        return "".join(self.op.option("weight")) == "kn"

    @property
    def splits(self) -> bool:
        """True if any cell sums k in parts."""
        return any(entry.splits > 1 for entry in self.entries)

    def declarations(self) -> str:
        """Nothing: kernels are found in the device code by their names."""
        return ""

    def entry(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """The op's entry in the manifest."""
        return entry_of(self, facts)

    def placed_tables(self, index: int, places: Mapping[str, int]) -> list[str]:
        """C source of ``plans_<index>`` and ``data_<index>``; ``places``: of kernels in the pack's list, by name."""
        op = self.op
        groups = dict(op.static).get("g", 0)
        own = ", ".join(str(places[kernel.name]) for kernel in self.kernels)
        return [
            f"static const int32_t kernels_{index}[] = {{{own}}};",
            f"static const int32_t bounds_{index}[] = {{{', '.join(map(str, self.bounds))}}};",
            f"static const ht_cuda_entry entries_{index}[] = {{",
            *(_row(entry) for entry in self.entries),
            "};",
            f"static const ht_plan plans_{index}[] = {{",
            plan_row(1, [(0, f"bounds_{index}", len(self.bounds))], f"entries_{index}"),
            "};",
            f"static const ht_cuda_dense data_{index} = "
            f"{{{op['n']}, {op['k']}, {int(self.reads_kn)}, {groups}, {DTYPES.index(op.dtype)}, "
            f"{initializer(op)}, kernels_{index}}};",
        ]


def has_free_bias(op: Op) -> bool:
    """True if a weight may be bound with a bias that no epilogue names: where sums and results are floats."""
    return not op.epilogue and op.sums == "fp32"


def channels_in_own_type(op: Op, operands: Iterable[PackedOperand]) -> tuple[PackedOperand, ...]:
    """Operands of a device: values of a channel are read in the op's own type."""
    return tuple(
        replace(operand, dtype=op.extra_dtype(operand.name)) if operand.name in op.channel_operands else operand
        for operand in operands
    )


def splits_of(composition: Composition) -> int:
    """Parts of the sum over k that a composition asks for: its share is k4 for four, anything else for one."""
    match = _SPLITS.fullmatch(composition.share)
    return int(match[1]) if match else 1


def _family_of(choice: Choice, kernel: MicroKernel) -> Any:
    if kernel.family == choice.family.name:
        return choice.family
    from haotuner.microkernels.index import family_named

    return family_named(kernel.family)  # a search may compare several families


def _cells(table: PlanTable, axis: str, index: Mapping[str, int]) -> tuple[list[int], list[CudaEntry]]:
    if isinstance(table, CellTable):
        if list(table.bounds) != [axis]:
            raise ValueError(f"a table over {', '.join(table.bounds)}; this device's loops look up {axis} alone")
        pairs = list(zip(table.bounds[axis], (_entry(entry, index) for entry in table.entries), strict=True))
    else:
        pairs = [(row, _entry(entry.composition, index)) for row, entry in enumerate(table.entries, start=1)]
    bounds: list[int] = []
    entries: list[CudaEntry] = []
    for bound, entry in pairs:
        if entries and entries[-1] == entry:
            bounds[-1] = bound
        else:
            bounds.append(bound)
            entries.append(entry)
    return bounds, entries


def _entry(composition: Composition, index: Mapping[str, int]) -> CudaEntry:
    *before, last = composition.parts
    regions = (*((index[part.kernel], part.tiles) for part in before), (index[last.kernel], WHOLE))
    return CudaEntry(regions=regions, splits=splits_of(composition))


def _row(entry: CudaEntry) -> str:
    kernels = [kernel for kernel, _ in entry.regions] + [0] * (REGIONS - len(entry.regions))
    tiles = entry.regions[0][1] if len(entry.regions) > 1 else 0
    return f"  {{{tiles}, {{{', '.join(map(str, kernels))}}}, {entry.splits}}},"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedCudaProduct(PackedSliced):
    """Everything the library holds about such an op on a CUDA device."""

    op: Op
    launches: Sequence[Launch]
    splits = False  # no cell sums k in parts

    @staticmethod
    def chosen(choice: Choice) -> PackedCudaProduct:
        """Packed op from the result of tuning."""
        return PackedCudaProduct(
            op=choice.op,
            name=choice.op.name,
            kind=choice.op.kind,
            axes=axes_of(choice.op, choice.ranges),
            operands=placed_operands(choice.op),
            kernels=tiled(choice),
            plans=cell_plans(choice),
            launches=[family_named(kernel.family).launch(kernel) for kernel in choice.kernels],  # type: ignore[attr-defined]
        )

    @property
    def dtype(self) -> str:
        """Of x, w and y."""
        return self.op.dtype

    @property
    def reads_kn(self) -> bool:
        """True if w lies as (k, n)."""
        return self.op.option("layout") != "nt"

    def declarations(self) -> str:
        """Nothing: kernels are found in the device code by their names."""
        return ""

    def placed_tables(self, index: int, places: Mapping[str, int]) -> list[str]:
        """C source of ``plans_<index>`` and ``data_<index>``; ``places``: of kernels in the pack's list, by name."""
        for plan in self.plans:
            self._check(plan)
        own = ", ".join(str(places[name]) for name in self.kernel_names)
        x_across = int(self.op.option("layout") == "tn")
        across = f"NULL, 0, {x_across}, {int(not self.reads_kn)}, NULL, ht_cuda_product_type"
        return [
            f"static const int32_t kernels_{index}[] = {{{own}}};",
            f"static const ht_cuda_product data_{index} = "
            f"{{{{{across}}}, {DTYPES.index(self.dtype)}, {initializer(self.op)}, kernels_{index}}};",
            *plan_tables(index, self.plans, {axis.name: index for index, axis in enumerate(self.axes)}),
        ]


def placed_operands(op: Op) -> tuple[PackedOperand, ...]:
    """Both factors and y, and what a call may bring beside: bias and mask of its type (of bytes fp32), a scale in fp32."""
    return *operands_of(op), *(
        PackedOperand(
            name=name,
            role="input",
            axes=axes,
            dtype="fp32" if name == "scale" or op.sums != "fp32" else op.dtype,
            optional=True,
        )
        for name, axes in BESIDE.items()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedCudaConv(PackedConv):
    """Everything the library holds about such an op on a CUDA device."""

    launches: Sequence[Launch]
    splits = False  # no cell sums k in parts

    @property
    def reads_kn(self) -> bool:
        """True if the product's second factor lies as (k, n)."""
        return transposed(self.op)

    @staticmethod
    def chosen(choice: Choice) -> PackedCudaConv:
        """Packed op from the result of tuning."""
        tiles = [choice.family.tile(kernel) for kernel in choice.kernels]
        return PackedCudaConv(
            op=choice.op,
            ranges=choice.ranges,
            micro_kernels=tuple(choice.kernels),
            tiles=tuple({**tile.extent, **tile.step} for tile in tiles),
            plans=tuple(cell_plans(choice)),
            packed_floats=1,  # nothing is packed
            launches=[family_named(kernel.family).launch(kernel) for kernel in choice.kernels],  # type: ignore[attr-defined]
        )

    @property
    def dtype(self) -> str:
        """Of x, weight, bias and y."""
        return self.op.dtype

    @property
    def operands(self) -> tuple[PackedOperand, ...]:
        """x, the weight as its owner stores it, a bias where the epilogue has one, y; else perhaps an optional bias."""
        x, _, *more, y = operands_of(self.op)
        weight = PackedOperand(name="weight", role="constant", axes=("packed",), dtype=self.dtype, compact=True)
        optional = has_free_bias(self.op)
        bias = PackedOperand(name="bias", role="constant", axes=("f",), dtype=self.dtype, optional=optional, compact=True)
        if optional:
            return x, weight, y, bias
        return x, weight, *channels_in_own_type(self.op, more), y

    def declarations(self) -> str:
        """Nothing: kernels are found in the device code by their names."""
        return ""

    def entry(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """The op's entry in the manifest."""
        result = PackedConv.entry(self, facts)
        del result["operands"][1]["packed"]
        return result

    def placed_tables(self, index: int, places: Mapping[str, int]) -> list[str]:
        """C source of ``plans_<index>`` and ``data_<index>``; ``places``: of kernels in the pack's list, by name."""
        own = ", ".join(str(places[name]) for name in self.kernel_names)
        conv, dtype = conv_initializer(self.op, 1, (), "NULL", "NULL"), DTYPES.index(self.dtype)
        return [
            f"static const int32_t kernels_{index}[] = {{{own}}};",
            f"static const ht_cuda_conv data_{index} = {{{conv}, {dtype}, {initializer(self.op)}, kernels_{index}}};",
            *plan_tables(index, self.plans, {axis: index for index, axis in enumerate(PLACES)}),
        ]
