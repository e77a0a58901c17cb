"""C of values inside of loops: every expression in the outermost loop that knows its variables, reductions as loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from haotuner.codegen.expressions import (
    Apply,
    Expression,
    Fold,
    Load,
    Number,
    Size,
    Variable,
    dtype_of,
    free_variables,
)
from haotuner.codegen.loops.c_math import C_TYPES, applied, fused, joined, loaded, neutral, number, rounded
from haotuner.codegen.loops.c_sums import BLOCK_TERMS, MOST_BY_PRAGMA, direct, needs_unrolling, one_axis, summed_by_function
from haotuner.codegen.loops.loop_nest import Scope
from haotuner.codegen.loops.loop_partition import Clipped, clipped
from haotuner.codegen.loops.recompute import RowBuffer
from haotuner.codegen.mixed_radix import merged
from haotuner.codegen.values import nan_propagating_maxima
from haotuner.errors import UsageError
from haotuner.graph.extents import Extent
from haotuner.graph.graph import Graph
from haotuner.graph.types import HALVES


class ValueWriter:
    """Bodies of one group's loops."""

    clips = True  # whether loops of a reduction leave out what a pad adds
    functions = True  # whether functions add terms up: C has them, CUDA C++ has lanes of its own

    def __init__(self, graph: Graph, name: str, size: Callable[[Extent], int]) -> None:
        self.graph, self.name, self.size = graph, name, size
        self.count = 0
        self.top = Scope(frozenset())
        self.used: list[str] = []
        self.kept: list[Expression] = []
        self.may_lose_nan = nan_propagating_maxima(graph)
        self.row: RowBuffer | None = None  # what waits in the output's row

    def _open(self, head: str, variable: str) -> Scope:
        scope = Scope(frozenset({variable}))
        scope.lines.append(head)
        return scope

    def _close(self, stack: list[Scope], keep: int) -> None:
        while len(stack) > keep:
            inner = stack.pop()
            stack[-1].lines.append(inner.lines)

    def _pointer(self, tensor: str) -> str:
        if tensor not in self.used:
            self.used.append(tensor)
        return f"p{self.used.index(tensor)}"

    def _depth(self, e: Expression, stack: Sequence[Scope]) -> int:
        free = free_variables(e)
        return max((index for index, scope in enumerate(stack) if scope.bound & free), default=0)

    def _value(self, e: Expression, stack: Sequence[Scope]) -> str:
        if isinstance(e, Variable):
            return e.name
        if isinstance(e, Number):
            return number(e.value, e.dtype)
        depth = self._depth(e, stack)
        scope = stack[depth]
        if id(e) not in scope.by_identity:
            scope.by_identity[id(e)] = self._written(e, stack[: depth + 1], scope)
            self.kept.append(e)  # or another expression could get its identity
        return scope.by_identity[id(e)]

    def _written(self, e: Expression, stack: Sequence[Scope], scope: Scope) -> str:
        if isinstance(e, Size):
            return self._once(f"s[{self.size(e.extent)}]", "int64_t", scope)
        if isinstance(e, Fold):
            return self._fold(e, stack, scope)
        if isinstance(e, Load):
            digits = merged(list(zip(e.indices, self.graph.types[e.tensor].shape, strict=True)))
            position = self._offset(
                [extent for _, extent in digits], [self._value(item, stack) for item, _ in digits], stack
            )
            result = loaded(f"{self._pointer(e.tensor)}[{position}]", e.dtype)
            if e.nonempty:
                some = " && ".join(f"{self._wide(item, stack)} > 0" for item in e.nonempty)
                result = f"{some} ? {result} : {number(0, e.dtype)}"
            return self._once(result, C_TYPES[e.dtype], scope)
        assert isinstance(e, Apply)
        arguments = [self._value(argument, stack) for argument in e.arguments]
        try:
            text = applied(e.function, arguments, e.dtype, dtype_of(e.arguments[-1]))
        except KeyError as error:
            raise UsageError(f"{e.function} of {dtype_of(e.arguments[-1])} has no plain loops") from error
        return self._once(text, C_TYPES[e.dtype], scope)

    def _once(self, text: str, kind: str, scope: Scope) -> str:
        if text not in scope.by_text:
            self.count += 1
            scope.by_text[text] = f"v{self.count}"
            scope.lines.append(f"const {kind} v{self.count} = {text};")
        return scope.by_text[text]

    def _offset(self, shape: Sequence[Extent], indices: Sequence[str], stack: Sequence[Scope]) -> str:
        """The place of an element, row by row (Horner)."""
        result = "0"
        for extent, size in zip(shape, indices, strict=True):
            wide = self._wide(extent, stack)
            result = size if result == "0" else f"({result}) * {wide} + {size}"
        return result

    def _fold(self, e: Fold, stack: Sequence[Scope], scope: Scope) -> str:
        self.count += 1
        name, kind = f"v{self.count}", C_TYPES[e.dtype]
        inner = list(stack)
        selected = clipped(e) if self.clips else None
        bounded = e if selected is None else replace(e, value=selected.value)
        fold = one_axis(e, self.graph) if self.functions and selected is None else bounded
        in_row = self.row is not None and e is self.row.fold
        if self.functions and summed_by_function(fold):
            self._sum(fold, selected, name, stack, scope, in_row=in_row)
            return self._once(rounded(name, e.dtype), kind, scope) if e.dtype in HALVES else name
        for index, (variable, extent) in enumerate(e.axes):
            begin, step = self._share(stack) if index == len(e.axes) - 1 else ("0", "1")
            end = self._wide(extent, stack)
            if selected:
                begin, end = (self._value(bound, inner) for bound in selected.bounds[variable.name])
            inner.append(self._loop(variable.name, end, begin, step))
        if self.functions and selected is None and needs_unrolling(fold):
            inner[-1].lines[0] = f'_Pragma("GCC unroll {MOST_BY_PRAGMA}") {inner[-1].lines[0]}'
        value = self._value(bounded.value, inner)
        if e.how in ("max", "min") and kind == "float":
            return self._extreme(e, name, value, inner, stack, scope)
        summed = "fp32" if e.dtype in HALVES else e.dtype
        if in_row:
            inner[-1].lines.append(f"{self._in_row(e.axes[0][0].name, inner)}[0] = {value};")
        inner[-1].lines.append(f"{name} = {self._added(bounded, name, value, summed, inner)};")
        scope.lines.append(f"{kind} {name} = {neutral(e.how, e.dtype)};")
        self._close(inner, len(stack))
        scope.lines += self._joined(name, e.how, summed, stack)
        return self._once(rounded(name, e.dtype), kind, scope) if e.dtype in HALVES else name

    def _added(self, fold: Fold, name: str, value: str, dtype: str, stack: Sequence[Scope]) -> str:
        """A reduction with one more term; of a sum of products, where a processor does, in one rounding."""
        e = fold.value
        if fold.how == "sum" and isinstance(e, Apply) and e.function == "mul" and e.dtype in ("fp32", "fp64"):
            return (
                f"{fused(C_TYPES[e.dtype])}({', '.join(self._value(argument, stack) for argument in e.arguments)}, {name})"
            )
        return joined(fold.how, name, value, dtype)

    def _sum(
        self, fold: Fold, selected: Clipped | None, name: str, stack: Sequence[Scope], scope: Scope, *, in_row: bool
    ) -> None:
        """A sum or product by a function: of terms as they lie in memory, or computed a block at a time.

        ``in_row``: the terms are what waits in the output's row.
        """
        self.kept.append(fold)
        summed = "fp32" if fold.dtype in HALVES else fold.dtype
        real, inner = C_TYPES[summed], list(stack)
        scope.lines.append(f"{real} {name} = {neutral(fold.how, fold.dtype)};")
        *outer, (axis, extent) = fold.axes
        for variable, wide in outer:
            begin, end = self._bounds(selected, variable, wide, inner)
            inner.append(self._loop(variable.name, end, begin))
        begin, end = self._bounds(selected, axis, extent, inner)
        loads = () if in_row else direct(fold, self.graph)
        if loads:
            addresses = [self._from(load, axis, begin, inner) for load in loads]
            count = end if begin == "0" else f"{end} - {begin}"
            added = f"ht_{'dot' if len(loads) == 2 else fold.how}_{real}({', '.join(addresses)}, {count})"
            line = f"{name} = {joined(fold.how, name, added, summed)};"
            (inner[-1] if len(inner) > len(stack) else scope).lines.append(line)
        else:
            self._terms(fold, name, (begin, end), inner, summed, in_row=in_row)
        self._close(inner, len(stack))

    def _bounds(self, selected: Clipped | None, axis: Variable, extent: Extent, stack: Sequence[Scope]) -> tuple[str, str]:
        """Start and end of a loop of a reduction, in C."""
        if selected is None:
            return "0", self._wide(extent, stack)
        low, high = selected.bounds[axis.name]
        return self._value(low, stack), self._value(high, stack)

    def _from(self, load: Load, axis: Variable, begin: str, stack: Sequence[Scope]) -> str:
        """The address of a load's element where its last index begins."""
        digits = merged(list(zip(load.indices, self.graph.types[load.tensor].shape, strict=True)))
        indices = [begin if digit == axis else self._value(digit, stack) for digit, _ in digits]
        return f"{self._pointer(load.tensor)} + {self._offset([extent for _, extent in digits], indices, stack)}"

    def _terms(
        self, fold: Fold, name: str, bounds: tuple[str, str], inner: list[Scope], summed: str, *, in_row: bool
    ) -> None:
        """Loops over blocks of terms, which are computed to memory and added; appended to the innermost scope."""
        (axis, extent), (begin, end) = fold.axes[-1], bounds
        real, first, stop, terms = C_TYPES[fold.dtype], f"{name}_first", f"{name}_stop", f"{name}_terms"
        keep = len(inner)
        if isinstance(extent, int) and extent <= BLOCK_TERMS and bounds == ("0", f"{extent}LL"):
            inner.append(Scope(frozenset(), [f"for (int {first} = 0; {first} < 1; ++{first})"]))
            stop = end
        else:
            inner.append(Scope(frozenset(), [f"for (int64_t {first} = {begin}; {first} < {end}; {first} += {BLOCK_TERMS})"]))
            left = f"{end} - {first} < {BLOCK_TERMS}"
            inner[-1].lines.append(f"const int64_t {stop} = {left} ? {end} : {first} + {BLOCK_TERMS};")
        block = inner[-1]
        if in_row:
            block.lines.append(f"{real}* restrict {terms} = {self._in_row(first, inner)};")
        else:
            block.lines.append(f"{real} {terms}[{BLOCK_TERMS}];")
        inner.append(self._loop(axis.name, stop, first))
        inner[-1].lines.append(f"{terms}[{axis.name} - {first}] = {self._value(fold.value, inner)};")
        self._close(inner, keep + 1)
        added = f"ht_{fold.how}_{real}({terms}, {stop} - {first})"
        block.lines.append(f"{name} = {joined(fold.how, name, added, summed)};")
        self._close(inner, keep)

    def _in_row(self, index: str, stack: Sequence[Scope]) -> str:
        """The address of a term that waits in the output's row."""
        assert self.row is not None
        out = self.graph.outputs[0]
        return f"({self._pointer(out)} + {self._offset(self.graph.types[out].shape, [*self.row.rows, index], stack)})"

    def _share(self, stack: Sequence[Scope]) -> tuple[str, str]:
        """Start of a thread in the innermost axis of a reduction in this scope, and how far apart its terms are."""
        return "0", "1"

    def _joined(self, name: str, how: str, dtype: str, stack: Sequence[Scope]) -> list[str]:
        """Lines that join what threads have of a reduction that they share."""
        return []

    def _loop(self, variable: str, end: str, begin: str = "0", step: str = "1") -> Scope:
        return self._open(f"for (int64_t {variable} = {begin}; {variable} < {end}; {variable} += {step})", variable)

    def _wide(self, extent: Extent, stack: Sequence[Scope]) -> str:
        return f"{extent}LL" if isinstance(extent, int) else self._value(Size(extent), stack[:1])

    def _extreme(self, e: Fold, name: str, value: str, inner: list[Scope], stack: Sequence[Scope], scope: Scope) -> str:
        """A maximum or minimum of floats, as one of whole numbers; a NaN is the extreme, where an output asks for it."""
        of_nan, sign = ("0x7fc00000", ">") if e.how == "max" else ("(int32_t)0x803fffff", "<")
        self.count += 2
        key, result = f"v{self.count - 1}", f"v{self.count}"
        ordered = f"ordered_numbers({value})" if e.tensor in self.may_lose_nan else f"ordered({value}, {of_nan})"
        inner[-1].lines += [
            f"const int32_t {key} = {ordered};",
            f"{name} = {key} {sign} {name} ? {key} : {name};",
        ]
        scope.lines.append(f"int32_t {name} = ordered({neutral(e.how, e.dtype)}, 0);")
        self._close(inner, len(stack))
        scope.lines += self._joined(name, e.how, "int32", stack)
        scope.lines.append(f"const float {result} = unordered({name});")
        return result
