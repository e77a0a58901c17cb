"""OpKind and Operand: what an operator reads and writes, what it means, and how exact a result must be."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

from haotuner.ops.formula import Formula, evaluate

AxisRole = Literal["spatial", "reduction"]  # reduction: an element of the output depends on all of the axis
# input: known at the call. constant: bound once, may be packed, cold in a server. output: written by the call.
# beside: another tensor that the call writes, over the same points as the output or over their rows.
OperandRole = Literal["input", "constant", "beside", "output"]
WRITTEN: tuple[OperandRole, ...] = ("beside", "output")
Extents: TypeAlias = Mapping[str, int]
Options: TypeAlias = Mapping[str, str]
Arrays: TypeAlias = Mapping[str, Any]  # float64 arrays by operand, axes in the order of the operand's first layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One more word of a spec beside axes, ``KEY=VALUE``: one of ``choices``, or whole numbers where there are none.

    ``counts``: how many whole numbers, joined by dots, it may be. ``prefixed``: a name has the option's word before its
    choice, which alone would be read as another thing.
    """

    default: str
    choices: tuple[str, ...] = ()
    counts: tuple[int, ...] = (1,)
    prefixed: bool = False

    def allows(self, value: str) -> bool:
        """True if the option can have this value."""
        if self.choices:
            return value in self.choices
        parts = value.split(".")
        return len(parts) in self.counts and all(re.fullmatch(r"[0-9]{1,10}", part) for part in parts)

    def allowed(self) -> str:
        """Values that it can have, in words."""
        if self.choices:
            return ", ".join(self.choices)
        counts = " or ".join(map(str, sorted(self.counts)))
        return "whole numbers" if self.counts == (1,) else f"{counts} whole numbers with dots between them"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """One tensor of an operator.

    ``layouts``: names of layouts, each with the axes that are its dimensions, outermost first; the first is the default.
    ``option``: the option of a spec that names the layout; empty: the operand's own name. ``dtype``: None for the op's.
    ``own``: of the op's own type, as a constant is, though it comes with the call.
    """

    name: str
    role: OperandRole
    layouts: Mapping[str, tuple[str, ...]]
    option: str = ""
    dtype: str | None = None
    own: bool = False

    def layout_option(self) -> str:
        """The option that chooses the layout."""
        return self.option or self.name

    def axes(self, options: Options) -> tuple[str, ...]:
        """Axes of the operand as it is stored, outermost first."""
        first = next(iter(self.layouts))
        return self.layouts[options.get(self.layout_option(), first)]

    def shape(self, extents: Extents, options: Options) -> tuple[int, ...]:
        """Dimensions of the operand as it is stored."""
        return tuple(extents[axis] for axis in self.axes(options))


@dataclass(frozen=True, slots=True, kw_only=True)
class OpKind:
    """One kind of operator.

    ``reference(inputs, options)`` computes the output in float64; a ``formula`` says it, too, and programs are made from it.
    ``tolerance(inputs, options)`` gives how far each element of the output may be off, in units of the roundoff of the
    output's type. ``rounded(inputs, options, roundoff)``: how far more where values on the way, too, are rounded to a type
    of 16 bits; ``roundoff(values)`` gives how far those may be off. ``draw(rng, operand, shape)`` draws test data, standard
    normal where None; ``exact``: on small whole numbers every order of summation gives the same bits. ``ends``: inputs that
    cut an axis into groups, by name: the end of each group, ascending, the last one the axis's extent. ``rows_apart``: rows
    of the output can be had by calls of their own.
    """

    name: str
    meaning: str
    axes: Mapping[str, AxisRole]
    operands: tuple[Operand, ...]  # inputs and constants in the order of a call, then what is written, the output last
    flops: Callable[[Extents], int]
    tolerance: Callable[[Arrays, Options], Any]
    reference: Callable[[Arrays, Options], Any] | None = None  # needed where there is no formula
    rounded: Callable[[Arrays, Options, Callable[[Any], Any]], Any] | None = None
    formula: Formula | None = None  # of an element of the output
    draw: Callable[[np.random.Generator, Operand, tuple[int, ...]], Any] | None = None
    exact: bool = False
    ends: Mapping[str, str] = field(default_factory=dict)
    rows_apart: bool = True
    own_options: Mapping[str, Option] = field(default_factory=dict)
    channel: str = ""  # the output's axis that an epilogue's values of a channel run along; empty: its last one
    # Axes whose extent follows from the others' and the options, such as the height of an image after a convolution. The
    # functions take whole numbers or columns of them.
    derived: Mapping[str, Callable[[Mapping[str, Any], Options], Any]] = field(default_factory=dict)
    extents: Mapping[str, int] = field(default_factory=dict)  # of axes that are never dynamic, where the kind says them
    formulas: Mapping[str, str] = field(default_factory=dict)  # of derived axes as texts, where they are known as such
    # Why axes and options do not go together, as (static extents, options); empty where they do.
    objection: Callable[[Extents, Options], str] | None = None
    # The kind that options make of it, where they change its operands or its formula; its options are this one's.
    variant: Callable[[Options], OpKind] | None = None
    example: str = ""  # a spec, for messages
    # Of each operand beside the output: its elements in float64, and how far each may be off in units of roundoff.
    beside: Mapping[str, Callable[[Arrays], tuple[Any, Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = [operand.name for operand in self.operands]
        if len(set(names)) != len(names) or [o.role for o in self.operands].count("output") != 1:
            raise ValueError(f"op kind {self.name}: operands need different names and exactly one output, got {names}")
        if self.reference is None and self.formula is None:
            raise ValueError(f"op kind {self.name}: it needs a reference or a formula")
        used = {axis for o in self.operands for axes in o.layouts.values() for axis in axes}
        declared = {*self.axes, *self.derived}
        if not used <= declared or not set(self.axes) - used <= set(self.axes if self.derived else ()):
            raise ValueError(f"op kind {self.name}: operands use the axes {sorted(used)}, declared are {sorted(declared)}")

    @property
    def channel_axis(self) -> str:
        """The output's axis that an epilogue's values of a channel run along."""
        return self.channel or next(iter(self.output.layouts.values()))[-1]

    @property
    def ends_of_groups(self) -> tuple[str, ...]:
        """The axis that counts groups, where some input cuts rows into them: values of a channel are each group's own."""
        return tuple(
            axis for operand in self.inputs if operand.name in self.ends for axis in next(iter(operand.layouts.values()))
        )

    @property
    def output(self) -> Operand:
        """The operand that is written; of several the last, whose points the others have, or rows of them."""
        return next(operand for operand in self.operands if operand.role == "output")

    def complete(self, extents: Mapping[str, Any], options: Options) -> dict[str, Any]:
        """``extents`` of the axes, with those that follow from them; ``options``: every one."""
        result = dict(extents)
        for axis, of in self.derived.items():
            result[axis] = of(result, options)
        return result

    def result(self, inputs: Arrays, options: Options) -> Any:
        """The output in float64, from inputs with the axes of their first layout."""
        if self.reference is not None:
            return self.reference(inputs, options)
        assert self.formula is not None
        axes = {operand.name: next(iter(operand.layouts.values())) for operand in self.inputs}
        return evaluate(self.formula, inputs, axes, next(iter(self.output.layouts.values())))

    @property
    def inputs(self) -> tuple[Operand, ...]:
        """The operands that are read, in the order of a call."""
        return tuple(operand for operand in self.operands if operand.role not in WRITTEN)

    @property
    def written(self) -> tuple[Operand, ...]:
        """The operands that a call writes, in its order: the output is the last."""
        return tuple(operand for operand in self.operands if operand.role in WRITTEN)

    @property
    def options(self) -> dict[str, Option]:
        """Every option of a spec: the layouts of operands that have several, then the kind's own."""
        result: dict[str, Option] = {}
        for operand in self.operands:
            if len(operand.layouts) > 1:
                names = tuple(operand.layouts)
                result[operand.layout_option()] = Option(default=names[0], choices=names)
        return {**result, **self.own_options}


def plain(name: str, role: OperandRole, *axes: str, dtype: str | None = None) -> Operand:
    """An operand of one layout."""
    return Operand(name=name, role=role, layouts={"".join(axes): axes}, dtype=dtype)


FILTERED = "filtered"  # of a result, beside its op's options: the tile of the minimal filtering that computed it


def sum_rounding(depth: int) -> float:
    """Units of roundoff that a sum of ``depth`` terms may be off, times the sum of their magnitudes.

    The error of a sum in any order grows like the root of its length (Higham 2002, section 4.2); 4 covers the reordering.
    """
    return float(4 * np.sqrt(depth))
