"""An op of a pack whose kind has no loops of its own: a kernel and a way to share for every cell of its shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from haotuner.backends.cpu.pack_op import PackedAxis, PackedOperand, axes_of, entry_of, operands_of, plan_row
from haotuner.codegen.multi_stage import StagePlan
from haotuner.codegen.rfactor import JOINS
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.limits import MAX_AXES
from haotuner.spec.op import Op

Grid = Mapping[str, int | Sequence[int]]  # by axis: cells of extents 1, 2, …, or the largest extent of each cell, ascending


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicedKernel:
    """A function ``__tvm_ffi_<name>(operand views…, output view)``; a slice of an axis begins at a multiple of its tile."""

    name: str
    tile: Mapping[str, int]
    kernel: MicroKernel | None = None  # what the compiler builds it from; None: the function comes from elsewhere
    joins: Mapping[str, str] = field(default_factory=dict)  # folded axes that may be cut, and how parts are joined
    in_place: tuple[str, ...] = ()  # operands that the output may be, too
    stages: StagePlan | None = None  # of a program whose rows threads share in stages


def kernel_row(
    name: str,
    tile: Mapping[str, int],
    axes: Sequence[str],
    joins: Mapping[str, str],
    in_place: int = 0,
    stages: StagePlan | None = None,
) -> str:
    """A row of a C table of ``ht_sliced_kernel``; ``axes`` in the op's order; ``in_place``: a bit for each operand."""
    tiles = [max(1, int(tile.get(axis, 1))) for axis in axes] + [1] * (MAX_AXES - len(axes))
    ways = [JOINS.index(joins.get(axis, "")) for axis in axes] + [0] * (MAX_AXES - len(axes))
    return (
        f'  {{"{name}", __tvm_ffi_{name}, {{{", ".join(map(str, tiles))}}}, {{{", ".join(map(str, ways))}}}, {in_place}u'
        f"{_stages_row(stages, tile, axes)}}},"
    )


def _stages_row(stages: StagePlan | None, tile: Mapping[str, int], axes: Sequence[str]) -> str:
    """C fields of a program in stages; threads share the first axis of its tile where the workspace is too small."""
    if stages is None:
        return ", 0, HT_WHOLE, HT_WHOLE, 0, 0, 0"
    rows = next((str(axes.index(axis)) for axis in tile if axis in axes and axis != stages.along), "HT_WHOLE")
    return f", {stages.calls}, {axes.index(stages.along)}, {rows}, {stages.left}, {stages.parts}, {stages.row}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicedEntry:
    """Kernel and shared axis that serve a cell's shapes."""

    kernel: int  # index
    axis: str | None = None  # that threads share; None: one thread computes all
    least: int = 1  # tiles of a slice at least


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicedPlan:
    """One thread count's table: ``entries`` of all cells, row-major in the order of ``grid``'s axes.

    Extents below the first cell and beyond the last of an axis belong to that cell, so every shape has an entry.
    """

    threads: int
    grid: Grid
    entries: Sequence[SlicedEntry]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedSliced:
    """Everything the library holds about such an op."""

    name: str
    kind: str
    axes: tuple[PackedAxis, ...]
    operands: tuple[PackedOperand, ...]
    kernels: Sequence[SlicedKernel]
    plans: Sequence[SlicedPlan]

    @staticmethod
    def of(
        op: Op, ranges: Mapping[str, tuple[int, int]], kernels: Sequence[SlicedKernel], plans: Sequence[SlicedPlan]
    ) -> PackedSliced:
        """An op whose kind says its axes and operands; ``ranges``: (first, last) of each dynamic axis."""
        return PackedSliced(
            name=op.name,
            kind=op.kind,
            axes=axes_of(op, ranges),
            operands=in_place_operands(operands_of(op), kernels),
            kernels=tuple(kernels),
            plans=tuple(plans),
        )

    @property
    def dynamic(self) -> tuple[str, ...]:
        """The axes that a plan is looked up by."""
        return tuple(axis.name for axis in self.axes if axis.extent is None and not axis.derived)

    @property
    def micro_kernels(self) -> tuple[MicroKernel, ...]:
        """Micro-kernels that the compiler has to build."""
        return tuple(kernel.kernel for kernel in self.kernels if kernel.kernel is not None)

    @property
    def kernel_names(self) -> tuple[str, ...]:
        """Names in the order of the library's table."""
        return tuple(kernel.name for kernel in self.kernels)

    @property
    def tiles(self) -> tuple[Mapping[str, int], ...]:
        """Tile that each kernel computes at a time, by axis."""
        return tuple(kernel.tile for kernel in self.kernels)

    @property
    def threads(self) -> tuple[int, ...]:
        """The thread count of each plan."""
        return tuple(plan.threads for plan in self.plans)

    def declarations(self) -> str:
        """C declarations of the kernels' functions."""
        return "\n".join(
            f"extern int __tvm_ffi_{name}(void*, const TVMFFIAny*, int32_t, TVMFFIAny*);" for name in self.kernel_names
        )

    def entry(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """The op's entry in the manifest."""
        return entry_of(self, facts)

    def tables(self, index: int) -> list[str]:
        """C source of ``plans_<index>`` and ``data_<index>``. ValueError for a plan that is none."""
        axis_index = {axis.name: index for index, axis in enumerate(self.axes)}
        text = [f"static const ht_sliced_kernel kernels_{index}[] = {{"]
        for kernel in self.kernels:
            bits = in_place_bits(self.operands, kernel)
            text.append(kernel_row(kernel.name, kernel.tile, tuple(axis_index), kernel.joins, bits, kernel.stages))
        over = in_place_kernel(self.operands, self.kernels)
        text += ["};", f"static const ht_sliced data_{index} = {{kernels_{index}, {over}}};"]
        for plan in self.plans:
            self._check(plan)
        return text + plan_tables(index, self.plans, axis_index)

    def _check(self, plan: SlicedPlan) -> None:
        dynamic = set(self.dynamic)
        derived = {axis.name for axis in self.axes if axis.derived}
        shared = {axis for operand in self.operands if operand.role == "output" for axis in operand.axes} - derived
        sizes = [cells if isinstance(cells, int) else len(cells) for cells in plan.grid.values()]
        if not plan.grid or not set(plan.grid) <= dynamic or min(sizes) < 1 or prod(sizes) != len(plan.entries):
            raise ValueError(f"{self.name}: {len(plan.entries)} entries for cells {dict(plan.grid)} of the axes {dynamic}")
        for cells in plan.grid.values():
            if not isinstance(cells, int) and (
                list(cells) != sorted(set(cells)) or not 0 < min(cells) <= max(cells) < 2**31
            ):
                raise ValueError(f"{self.name}: bounds must ascend in 1..2^31-1, got {list(cells)}")
        for entry in plan.entries:
            if not 0 <= entry.kernel < min(len(self.kernels), 255) or not 1 <= entry.least < 2**16:
                raise ValueError(f"{self.name}: no such kernel, or no such number of tiles: {entry}")
            kernel = self.kernels[entry.kernel]
            staged = {kernel.stages.along} if kernel.stages is not None else set()
            if entry.axis is not None and entry.axis not in shared | set(kernel.joins) | staged:
                raise ValueError(f"{self.name}: threads cannot share {entry.axis}, which is no axis of the output")


def in_place_operands(operands: Sequence[PackedOperand], kernels: Sequence[SlicedKernel]) -> tuple[PackedOperand, ...]:
    """The operands of an op, those marked that the output may be: one kernel allows all of them, whichever a cell has."""
    most = max((kernel.in_place for kernel in kernels if kernel.stages is None), key=len, default=())
    return tuple(replace(operand, in_place=operand.name in most) for operand in operands)


def in_place_bits(operands: Sequence[PackedOperand], kernel: SlicedKernel) -> int:
    """Bit mask of operands that the output may overwrite when a kernel runs, as ``ht_call.over`` says it."""
    return sum(1 << index for index, operand in enumerate(operands) if operand.name in kernel.in_place)


def in_place_kernel(operands: Sequence[PackedOperand], kernels: Sequence[SlicedKernel]) -> int:
    """The first kernel that allows every operand which is marked; none in stages, which may want more room than there is."""
    marked = {operand.name for operand in operands if operand.in_place}
    sound = (index for index, kernel in enumerate(kernels) if kernel.stages is None and marked <= set(kernel.in_place))
    return next(sound, 0)


def plan_tables(index: int, plans: Sequence[SlicedPlan], places: Mapping[str, int]) -> list[str]:
    """C source of ``plans_<index>``, whose cells are rows of ``ht_sliced_entry``; ``places``: of the op's axes."""
    text, rows = [], []
    for number, plan in enumerate(plans):
        grid: list[tuple[int, int | str, int]] = []
        for axis, cells in plan.grid.items():
            if isinstance(cells, int):
                grid.append((places[axis], 0, cells))
                continue
            bounds = f"bounds_{index}_{number}_{axis}"
            text.append(f"static const int32_t {bounds}[] = {{{', '.join(map(str, cells))}}};")
            grid.append((places[axis], bounds, len(cells)))
        entries = [f"  {{{e.kernel}, {'HT_WHOLE' if e.axis is None else places[e.axis]}, {e.least}}}," for e in plan.entries]
        text += [f"static const ht_sliced_entry entries_{index}_{number}[] = {{", *entries, "};"]
        rows.append(plan_row(plan.threads, grid, f"entries_{index}_{number}"))
    return [*text, f"static const ht_plan plans_{index}[] = {{", *rows, "};"]
