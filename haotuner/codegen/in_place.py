"""Inputs of a program that the output may overwrite: what is read of such a tensor is read before it is written there.

A program writes the output's elements in the order of its loops, threads share the outer ones, and a compiler may take
tensors for apart. So an element is read where it is written, or by folds that are done before their rows are written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from haotuner.codegen.expressions import Expression, Fold, Load, Variable, children, free_variables, parts
from haotuner.codegen.schedule import Plan
from haotuner.graph.extents import same


def in_place(plan: Plan) -> tuple[str, ...]:
    """Names of the inputs whose memory may be the output's, each element at its own place; several may be at once.

    None of a program that writes other outputs beside it: those would read what was written over.
    """
    if plan.beside:
        return ()
    graph, out = plan.graph, plan.graph.types[plan.output]
    copied = {part.tensor for read in plan.reads for part in parts(read.value) if isinstance(part, Load)}
    alike = (
        name
        for name in graph.inputs
        if name not in copied
        and graph.types[name].dtype == out.dtype
        and graph.types[name].rank == out.rank
        and all(same(extent, other) for extent, other in zip(graph.types[name].shape, out.shape, strict=True))
    )
    return tuple(name for name in alike if _free(plan, name))


def _free(plan: Plan, tensor: str) -> bool:
    outer = [variable.name for variable, _ in plan.loops]
    if not plan.keeps:
        return all(_in_time(load, folds, plan.indices, outer) for load, folds in _loads(plan.value, tensor))
    (keep,) = plan.keeps
    own = list(_loads(keep.value, tensor))
    inner = [variable.name for variable, _ in keep.axes]
    rows = [index.name for index in keep.indices if isinstance(index, Variable) and index.name not in inner]
    early = {part for part in parts(keep.value) if isinstance(part, Fold)}
    if not all(_in_time(load, folds, keep.indices, rows, inner) for load, folds in own):
        return False
    stored = any(not folds for _, folds in own)
    for value, indices in _with_the_keep(plan):
        for load, folds in _loads(value, tensor):
            if folds and folds[0] in early:
                continue  # looked at above
            if folds or load.indices != indices or not stored:  # what is stored must wait for what was read
                return False
    later = [
        load for load, folds in _loads(plan.value, tensor) if not (folds and (folds[0] in early or folds[0] in plan.first))
    ]
    return not later  # what was kept lies where the input was


def _with_the_keep(plan: Plan) -> Iterator[tuple[Expression, tuple[Expression, ...]]]:
    """Values that are folded while a tensor is kept, and the place of the element that is kept meanwhile."""
    (keep,) = plan.keeps
    width = len(keep.axes)
    for fold, value in plan.first.items():
        yield value, (*keep.indices[: len(keep.indices) - width], *(variable for variable, _ in fold.axes))


def _in_time(
    load: Load, folds: Sequence[Fold], own: Sequence[Expression], loops: Sequence[str], inner: Sequence[str] = ()
) -> bool:
    """True if a load comes before its element is written, and no other thread's writes come before it.

    ``loops``: variables of the loops around the writing, outer ones first; ``inner``: those of loops inside them.
    """
    here = [axis for axis, (index, other) in enumerate(zip(load.indices, own, strict=True)) if index == other]
    if len(here) == len(own):
        return True
    if not folds:
        return False
    needs = set(free_variables(folds[0])) & {*loops, *inner}
    if not needs or needs & set(inner):
        return False
    around = set(loops[: 1 + max(loops.index(name) for name in needs)])  # those that the fold is computed inside of
    fixed = {item.name for axis in here if isinstance(item := own[axis], Variable)}
    return around <= fixed


def _loads(value: Expression, tensor: str) -> Iterator[tuple[Load, tuple[Fold, ...]]]:
    """Loads of a tensor with the folds that they are in, outermost first."""
    seen: set[tuple[int, int]] = set()

    def walk(e: Expression, folds: tuple[Fold, ...]) -> Iterator[tuple[Load, tuple[Fold, ...]]]:
        key = (id(e), id(folds[0]) if folds else 0)
        if key in seen:
            return
        seen.add(key)
        if isinstance(e, Load) and e.tensor == tensor:
            yield e, folds
        for child in children(e):
            yield from walk(child, (*folds, e) if isinstance(e, Fold) else folds)

    return walk(value, ())
