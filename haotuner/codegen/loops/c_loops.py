"""Plain loops in C of one fused group: an output and its sibling outputs. Correct first; the C compiler makes the vectors.

Every expression is computed in the outermost loop that knows its variables. The loops of the output have bounds, so that
threads can share any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from haotuner.codegen.expressions import Expression, Fold, Variable, parts
from haotuner.codegen.loops.c_math import (
    MEMORY_TYPES,
    stored,
)
from haotuner.codegen.loops.c_ordered import ordered_node, ordered_source
from haotuner.codegen.loops.c_sums import needs_unrolling
from haotuner.codegen.loops.c_values import ValueWriter
from haotuner.codegen.loops.concat_loops import interleaved_part, interleaved_parts, pieces
from haotuner.codegen.loops.loop_nest import Group, Scope, elements_of, rows_before, text_of
from haotuner.codegen.loops.loop_partition import interior_of
from haotuner.codegen.loops.recompute import row_buffer_of
from haotuner.codegen.loops.strided_reads import BLOCK, PART, ROWS, StridedReads, strided_folds, strided_loads, wide
from haotuner.codegen.sibling_outputs import SiblingOutput
from haotuner.graph.extents import Extent
from haotuner.graph.graph import Graph

# gcc does not see that two outputs lie apart, or an output and ten reads: without vectors it takes 3 to 20 times as long
APART = '_Pragma("GCC ivdep")'


def loops_of(graph: Graph, name: str, size: Callable[[Extent], int]) -> Group:
    """The C function ``name`` of a graph. ``size`` gives an extent's place among the sizes of a call."""
    node = ordered_node(graph)
    if node is not None:
        source, tensors, loops = ordered_source(graph, node, name, size)
        return Group(source=source, tensors=tensors, loops=loops)
    return LoopsWriter(graph, name, size).group()


class LoopsWriter(ValueWriter):
    """Writes one group; what a device does otherwise is in methods of its own."""

    def group(self) -> Group:
        """The whole function: first for whole rows, where something may wait in them."""
        out = self.graph.outputs[0]
        extents = self.graph.types[out].shape
        result = elements_of(self.graph)
        variables, value = result.variables, result.value
        alone = not result.beside
        turned = strided_loads(self.graph, variables, value) if alone else None
        first = self._rows_whole(variables, value) if alone else self._rows_before()
        stack, names = [self.top], [variable.name for variable in variables]
        across = strided_folds(value, variables) if alone and variables and wide(extents[-1]) else []
        for index, variable in enumerate(variables):
            if turned is not None and index in (turned.index, len(variables) - 1):
                stack += self._turning(turned, variables, index, stack)
                continue
            if across and index == len(variables) - 1:
                stack += self._lanes(across, variable.name, index, stack)
                continue
            last = index == len(variables) - 1
            begin, end = f"lo[{index}]", f"hi[{index}]"
            if alone and last and (row := pieces(value, variable, extents[-1])):
                for piece in row[:-1]:
                    stack.append(self._loop(variable.name, *reversed(piece.bounds(begin, end))))
                    self._assign(piece.value, names, stack)
                    self._close(stack, len(stack) - 1)
                value, (begin, end) = row[-1].value, row[-1].bounds(begin, end)
            elif alone and last and (self._inside(value, variables, stack) or self._woven(value, variables, stack)):
                stack.append(Scope(frozenset(), ["for (int half = 0; half < 2; ++half)"]))
                begin, end = f"half ? middle_end : {begin}", f"(half ? {end} : middle)"
            stack.append(self._loop(variable.name, end, begin))
        many = any(isinstance(part, Fold) and needs_unrolling(part) for part in parts(value))
        if (many and names[-1] in stack[-1].bound) or any(sibling.axes == len(names) for sibling in result.beside):
            stack[-1].lines[0] = f"{APART} {stack[-1].lines[0]}"
        for sibling in result.beside:
            once = [
                f"lo[{index}] == 0" for index in range(sibling.axes, len(names))
            ]  # else a call has an inner part of the row
            self._beside(sibling, stack[: sibling.axes + 1], once)
        self._assign(value, names, stack)
        self._close(stack, 1)
        tensors, pointers, body = self._parts()
        bounds = "const int64_t* restrict lo, const int64_t* restrict hi"  # a byte that is written might be one of theirs
        head = f"static void {self.name}(const int64_t* s, void* const* t, {bounds}) {{"
        source = "\n".join([head, "  (void)s; (void)t; (void)lo; (void)hi;", *pointers, *text_of(first, 1), *body, "}"])
        return Group(source=source, tensors=tensors, loops=extents)

    def _rows_whole(self, variables: Sequence[Variable], value: Expression) -> list[Any]:
        """Code of a call that has whole rows of an output whose terms may wait there; empty where none may."""
        self.row = row_buffer_of(self.graph, variables, value)
        if self.row is None:
            return []
        index, stack = len(variables) - 1, [self.top]
        for at, variable in enumerate(variables):
            stack.append(self._loop(variable.name, f"hi[{at}]", f"lo[{at}]"))
        self._assign(self.row.value, [variable.name for variable in variables], stack)
        self._close(stack, 1)
        condition = self._whole(index)
        condition += [f"lo[{at}] < hi[{at}]" for at, row in enumerate(self.row.rows) if row == "0"]  # the row is this call's
        result = [[f"if ({' && '.join(condition)})", *self.top.lines, "return;"]]
        self.top, self.row = Scope(frozenset()), None
        return result

    def _whole(self, index: int) -> list[str]:
        """Conditions under which a call has whole rows, in C."""
        extent = self.graph.types[self.graph.outputs[0]].shape[-1]
        return [
            f"lo[{index}] == 0",
            f"hi[{index}] == {f'{extent}LL' if isinstance(extent, int) else f's[{self.size(extent)}]'}",
        ]

    def _rows_before(self) -> list[Any]:
        """Code for an output that sums over its row read: it is written before them."""
        result = rows_before(self.graph)
        if result is None:
            return []
        names = [variable.name for variable in result.variables]
        loops = [self._loop(name, f"hi[{index}]", f"lo[{index}]") for index, name in enumerate(names)]
        stack = [self.top, *loops[:-1]]
        for sibling in result.before:
            stack.append(self._loop(names[-1], f"hi[{len(names) - 1}]", f"lo[{len(names) - 1}]"))
            self._beside(sibling, stack, [])
            self._close(stack, len(names))
        stack.append(loops[-1])
        loops[-1].lines[0] = f"{APART} {loops[-1].lines[0]}"
        for sibling_ in result.beside:
            self._beside(
                sibling_, stack[: sibling_.axes + 1], [f"lo[{index}] == 0" for index in range(sibling_.axes, len(names) - 1)]
            )
        self._assign(result.value, names, stack)
        self._close(stack, 1)
        lines = [f"if ({' && '.join(self._whole(len(names) - 1))})", *self.top.lines, "return;"]
        self.top = Scope(frozenset())
        return [lines]

    def _inside(self, value: Expression, variables: Sequence[Variable], stack: list[Scope]) -> bool:
        """The middle of a row, from ``middle`` to ``middle_end``, for which a pad asks nothing; False: nothing is padded."""
        index = len(variables) - 1
        middle = interior_of(value, variables[-1], self.graph.types[self.graph.outputs[0]].shape[-1])
        if middle is None:
            return False
        first, end = (self._value(item, stack) for item in (middle.first, middle.end))
        low, high = f"lo[{index}]", f"hi[{index}]"
        none = "" if middle.holds is None else f"!{self._value(middle.holds, stack)} ? {low} : "
        stack[-1].lines += [
            f"const int64_t middle = {none}{first} < {low} ? {low} : {first} < {high} ? {first} : {high};",
            f"const int64_t middle_end = {none}{end} < middle ? middle : {end} < {high} ? {end} : {high};",
        ]
        stack.append(self._loop(variables[-1].name, "middle_end", "middle"))
        self._assign(middle.value, [variable.name for variable in variables], stack)
        self._close(stack, len(stack) - 1)
        return True

    def _woven(self, value: Expression, variables: Sequence[Variable], stack: list[Scope]) -> bool:
        """True if a row interleaves strands, now written: whole groups, an element of each strand; False: it does not."""
        index, count = len(variables) - 1, interleaved_parts(value, variables[-1])
        if count is None:
            return False
        low, high, along = f"lo[{index}]", f"hi[{index}]", Variable(f"{variables[-1].name}_group")
        up, down = f"({low} + {count - 1}) / {count} * {count}", f"{high} / {count} * {count}"
        stack[-1].lines += [
            f"const int64_t middle = {up} < {high} ? {up} : {high};",
            f"const int64_t middle_end = {down} < middle ? middle : {down};",
        ]
        stack.append(self._loop(along.name, f"middle_end / {count}", f"(middle + {count - 1}) / {count}"))
        names = [variable.name for variable in variables[:-1]]
        for rest in range(count):
            self._assign(
                interleaved_part(value, variables[-1], count, rest, along),
                [*names, f"{count} * {along.name} + {rest}"],
                stack,
            )
        self._close(stack, len(stack) - 1)
        return True

    def _assign(self, value: Expression, names: Sequence[str], stack: Sequence[Scope]) -> None:
        """The line that stores the output's element at these indices."""
        out = self.graph.outputs[0]
        result = self._value(value, stack)
        target = self._offset(self.graph.types[out].shape, names, stack)
        stack[-1].lines.append(f"{self._pointer(out)}[{target}] = {stored(result, self.graph.types[out].dtype)};")

    def _beside(self, sibling: SiblingOutput, stack: Sequence[Scope], once: Sequence[str]) -> None:
        """The line that stores an element of another output, ``once`` a row."""
        kind, result = self.graph.types[sibling.tensor], self._value(sibling.value, stack)
        target = self._offset(kind.shape, [self._value(index, stack) for index in sibling.indices], stack)
        guard = f"if ({' && '.join(once)}) " if once else ""
        stack[-1].lines.append(f"{guard}{self._pointer(sibling.tensor)}[{target}] = {stored(result, kind.dtype)};")

    def _parts(self) -> tuple[tuple[str, ...], list[str], list[str]]:
        """Written parts: the tensors, the outputs last, the first of them at the end; a pointer to each; the body."""
        body = text_of(self.top.lines, 1)
        first, *others = self.graph.outputs
        tensors = (*(item for item in self.used if item not in self.graph.outputs), *others, first)
        pointers = []
        for at, tensor in enumerate(tensors):
            kind = f"{'' if tensor in self.graph.outputs else 'const '}{MEMORY_TYPES[self.graph.types[tensor].dtype]}*"
            pointers.append(f"  {kind} restrict {self._pointer(tensor)} = ({kind})t[{at}];")
        return tensors, pointers, body

    def _lanes(self, folds: Sequence[Fold], variable: str, index: int, stack: Sequence[Scope]) -> list[Scope]:
        """Loops over blocks of the last axis and over a block's elements; sums are made before, all of a block at a time."""
        block, count = f"{variable}_block", f"{variable}_count"
        outer = Scope(frozenset(), [f"for (int64_t {block} = lo[{index}]; {block} < hi[{index}]; {block} += {BLOCK})"])
        left = f"hi[{index}] - {block}"
        outer.lines.append(f"const int64_t {count} = {left} < {BLOCK} ? {left} : {BLOCK};")
        lane = self._lane(variable, block, count)
        for fold in folds:
            self.count += 2
            sums, part, inner = f"v{self.count - 1}", f"v{self.count}", [*stack, outer]
            *outside, (axis, extent) = fold.axes
            inner += [self._loop(loop.name, self._wide(wide, stack)) for loop, wide in outside]
            end, begin, stop = self._wide(extent, stack), f"{axis.name}_part", f"{axis.name}_end"
            inner.append(Scope(frozenset(), [f"for (int64_t {begin} = 0; {begin} < {end}; {begin} += {PART})"]))
            inner[-1].lines.append(f"const int64_t {stop} = {end} - {begin} < {PART} ? {end} : {begin} + {PART};")
            inner[-1].lines.append(f"float {part}[{BLOCK}] = {{0}};")
            inner += [self._loop(axis.name, stop, begin), self._lane(variable, block, count)]
            at = f"[{variable} - {block}]"
            value = self._value(fold.value, inner)
            inner[-1].lines.append(f"{part}{at} = {self._added(fold, part + at, value, fold.dtype, inner)};")
            self._close(inner, len(inner) - 2)
            inner[-1].lines.append([*self._lane(variable, block, count).lines, f"{sums}{at} += {part}{at};"])
            outer.lines.append(f"float {sums}[{BLOCK}] = {{0}};")
            self._close(inner, len(stack) + 1)
            lane.by_identity[id(fold)] = f"{sums}{at}"
            self.kept.append(fold)
        return [outer, lane]

    def _turning(
        self, turned: StridedReads, variables: Sequence[Variable], index: int, stack: Sequence[Scope]
    ) -> list[Scope]:
        """A loop over blocks of an axis; inside of the second one what is read across lies turned, for loops over both."""
        variable = variables[index].name
        block, count = f"{variable}_block", f"{variable}_count"
        step = ROWS if index == turned.index else BLOCK
        outer = Scope(frozenset(), [f"for (int64_t {block} = lo[{index}]; {block} < hi[{index}]; {block} += {step})"])
        outer.lines.append(f"const int64_t {count} = hi[{index}] - {block} < {step} ? hi[{index}] - {block} : {step};")
        if index == turned.index:
            return [outer]
        along, here = variables[turned.index].name, [*stack, outer]
        loops = [self._lane(item, f"{item}_block", f"{item}_count") for item in (along, variable)]
        for load in turned.loads:
            self.count += 1
            tile, right = f"v{self.count}", " * ".join(self._wide(item, here) for item in load.behind)
            begun = {variables[turned.index]: f"{along}_block", variables[index]: block}
            indices = [
                begun[digit] if isinstance(digit, Variable) and digit in begun else self._value(digit, here)
                for digit, _ in load.digits
            ]
            at = self._offset([extent for _, extent in load.digits], indices, here)
            outer.lines += [
                f"float {tile}[{ROWS * BLOCK}];",
                f"ht_turned({self._pointer(load.load.tensor)} + ({at}), {right}, {count}, {along}_count, {tile});",
            ]
            inside = f"{tile}[({along} - {along}_block) * {BLOCK} + {variable} - {block}]"
            loops[-1].by_identity[id(load.load)] = inside
            self.kept.append(load.load)
        return [outer, *loops]

    def _lane(self, variable: str, block: str, count: str) -> Scope:
        return self._open(f"for (int64_t {variable} = {block}; {variable} < {block} + {count}; ++{variable})", variable)
