"""An op in a pack's library, as C source: its axes, operands and plans; each kind adds its own tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

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
