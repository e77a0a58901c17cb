"""An op in a pack's library, as C source: its axes, operands and plans, and the tables of kinds without own loops.

An op of a pack whose kind has no loops of its own: a kernel and a way to share for every cell of its shapes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Protocol

from haotuner.codegen.multi_stage import StagePlan
from haotuner.codegen.rfactor import JOINS
from haotuner.ops.dtypes import DTYPES
from haotuner.ops.groups import definition_of
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.limits import MAX_AXES, MAX_DYNAMIC, MAX_OPERANDS, kind_table
from haotuner.spec.op import Op

ROLES = {"input": "HT_INPUT", "constant": "HT_CONSTANT", "beside": "HT_BESIDE", "output": "HT_OUTPUT"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedAxis:
    """An axis: its extent, or None and the tuned range where it is dynamic."""

    name: str
    extent: int | None = None
    first: int = 1
    last: int = 1
    derived: bool = False  # its extent follows from the others'
    formula: str = ""  # how, where that is known as a text

    def entry(self) -> dict[str, Any]:
        """As the manifest says it."""
        if self.derived:
            return {"name": self.name, "derived": True} | ({"is": self.formula} if self.formula else {})
        if self.extent is None:
            return {"name": self.name, "first": self.first, "last": self.last}
        return {"name": self.name, "extent": self.extent}


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedOperand:
    """A tensor of the op: names of its axes as it is stored, outermost first."""

    name: str
    role: str  # input, constant or output
    axes: tuple[str, ...]
    dtype: str = "fp32"
    optional: bool = False
    compact: bool = False  # the caller's tensor must be contiguous as a whole, not only in its inner axis
    in_place: bool = False  # the output may be this tensor itself

    def entry(self) -> dict[str, Any]:
        """As the manifest says it."""
        result: dict[str, Any] = {"name": self.name, "role": self.role, "dims": list(self.axes), "dtype": self.dtype}
        return result | {key: True for key in ("optional", "compact", "in_place") if getattr(self, key)}


class PackedWords(Protocol):
    """Description of an op of any kind, for the library and the manifest."""

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def kind(self) -> str: ...  # noqa: D102

    @property
    def axes(self) -> tuple[PackedAxis, ...]: ...  # noqa: D102

    @property
    def operands(self) -> tuple[PackedOperand, ...]: ...  # noqa: D102

    @property
    def kernel_names(self) -> tuple[str, ...]: ...  # noqa: D102

    @property
    def tiles(self) -> tuple[Mapping[str, int], ...]:
        """Tile that each kernel computes at a time, by axis."""
        ...

    @property
    def threads(self) -> tuple[int, ...]:
        """The thread count of each plan."""
        ...


class PackedAny(PackedWords, Protocol):
    """An op of any kind, as ``pack_data`` takes it."""

    @property
    def micro_kernels(self) -> tuple[MicroKernel, ...]:
        """Micro-kernels that the compiler has to build."""
        ...

    def declarations(self) -> str:
        """C declarations of the kernels' functions."""
        ...

    def tables(self, index: int) -> list[str]:
        """C source of ``plans_<index>`` and ``data_<index>``."""
        ...

    def entry(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """The op's entry in the manifest."""
        ...


def axes_of(op: Op, ranges: Mapping[str, tuple[int, int]]) -> tuple[PackedAxis, ...]:
    """The axes of an op, in the order of its kind; ``ranges``: (first, last) of each dynamic axis."""
    static = dict(op.static)
    if set(ranges) != set(op.dynamic):
        raise ValueError(f"{op.name}: ranges of {sorted(ranges)} are given, its dynamic axes are {list(op.dynamic)}")
    return tuple(
        PackedAxis(name=axis, extent=static[axis])
        if axis in static
        else PackedAxis(name=axis, first=ranges[axis][0], last=ranges[axis][1])
        for axis in op.axes
    ) + tuple(PackedAxis(name=axis, derived=True, formula=op.meaning.formulas.get(axis, "")) for axis in op.meaning.derived)


def operands_of(op: Op) -> tuple[PackedOperand, ...]:
    """The operands of an op: those of its kind, what its epilogue reads, and the output."""
    options = op.all_options()
    every = tuple(
        PackedOperand(name=o.name, role=o.role, axes=o.axes(options), dtype=op.dtype_of(o))
        for o in (*op.meaning.inputs, *op.meaning.written)
    )
    extra = (
        # Values of a channel are fp32 whatever the op's type: they are bound once.
        PackedOperand(
            name=name,
            role="constant" if name in op.channel_operands else "input",
            axes=axes,
            dtype="fp32" if name in op.channel_operands else op.extra_dtype(name),
            compact=name in op.channel_operands,
        )
        for name, axes in op.epilogue_operands.items()
    )
    inputs = len(op.meaning.inputs)
    return (*every[:inputs], *extra, *every[inputs:])


def entry_of(op: PackedWords, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a manifest's entry that all kinds have."""
    return {
        "name": op.name,
        "kind": op.kind,
        "axes": [axis.entry() for axis in op.axes],
        "operands": [operand.entry() for operand in op.operands],
        "kernels": [{"name": name, "tile": dict(tile)} for name, tile in zip(op.kernel_names, op.tiles, strict=True)],
        "threads": list(op.threads),
        "facts": dict(facts),
    } | ({"group": definition} if (definition := definition_of(op.kind)) else {})


def head(op: PackedWords, index: int) -> list[str]:
    """C source of ``axes_<index>`` and ``operands_<index>``. ValueError where the runtime has no room for the op."""
    required = [operand for operand in op.operands if not operand.optional]
    known = getattr(op, "dynamic", None)
    dynamic = [axis for axis in op.axes if axis.extent is None and (known is None or axis.name in known)]
    if len(op.axes) > MAX_AXES or len(op.operands) > MAX_OPERANDS or len(dynamic) > MAX_DYNAMIC:
        raise ValueError(
            f"{op.name} has {len(op.axes)} axes, {len(dynamic)} dynamic ones and {len(op.operands)} operands; "
            f"the runtime has room for {MAX_AXES}, {MAX_DYNAMIC} and {MAX_OPERANDS}"
        )
    if required[-1].role != "output" or [o.role for o in op.operands].count("output") != 1:
        raise ValueError(f"{op.name}: the output comes last, before what is optional")
    axis_index = {axis.name: index for index, axis in enumerate(op.axes)}
    axes = [f'  {{"{a.name}", {a.extent or 0}, {a.first}, {a.last}}},' for a in op.axes]
    operands, one_output = [], not any(o.role == "beside" for o in op.operands)
    for operand in op.operands:
        argument = "out" if one_output and operand.role == "output" else operand.name  # refusals name what a caller passes
        dtype = DTYPES[operand.dtype]
        order = ", ".join(str(axis_index[axis]) for axis in operand.axes)
        operands.append(
            f'  {{"{argument}", {ROLES[operand.role]}, {dtype.code}, {dtype.size * 8}, {len(operand.axes)}, '
            f"{{{order}}}, {int(operand.compact)}, {int(operand.in_place)}}},"
        )
    return [f"static const ht_axis axes_{index}[] = {{", *axes, "};",
            f"static const ht_operand operands_{index}[] = {{", *operands, "};"]  # fmt: skip


def row(op: PackedWords, index: int, table: str | None = None) -> str:
    """The op's row of ``ht_ops``; ``table``: the C table that serves it, where that is not its kind's on a CPU."""
    optional = sum(operand.optional for operand in op.operands)
    known = getattr(op, "dynamic", None)  # where some axes of unknown extent follow from others
    dynamic = [str(at) for at, axis in enumerate(op.axes) if axis.extent is None and (known is None or axis.name in known)]
    counts = (len(op.axes), len(op.operands) - optional, optional, len(op.threads), len(op.kernel_names), len(dynamic))
    return (
        f'  {{"{op.name}", &{table or kind_table(op.kind)}, {", ".join(map(str, counts))}, {{{", ".join(dynamic)}}}, '
        f"axes_{index}, operands_{index}, plans_{index}, &data_{index}}},"
    )


def plan_row(threads: int, grid: Sequence[tuple[int, int | str, int]], data: str) -> str:
    """A row of ``plans_<index>``. ``grid``: of each axis its place, the name of its bounds (0: rows) and its cells."""
    places, bounds, counts = (", ".join(str(item[part]) for item in grid) for part in range(3))
    return f"  {{{threads}, {{{len(grid)}, {{{places}}}, {{{counts}}}, {{{bounds}}}}}, {data}}},"


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
    return f", {stages.calls}, {axes.index(stages.along)}, {rows}, {stages.partials}, {stages.parts}, {stages.row}"


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
