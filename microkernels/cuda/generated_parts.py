"""Folds over one axis by several blocks: CUDA C++ of how a kernel takes its part, and of the launch that joins the parts.

The same kernel is launched twice (Ansor's rule 6, across blocks). First it runs on a part of the axis for each place of the
grid's second dimension, into a workspace; then it adds those results up, in the axis's order, whoever computed them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from haotuner.codegen.rfactor import joined
from haotuner.codegen.schedule import Plan, shareable
from haotuner.graph.extents import Extent, dimension, same
from haotuner.microkernels.cuda.generated_words import JOINS, Code, function_call

WHOLE, PART, JOIN = range(3)  # ``phase`` of ht_generated_args


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of ``axis``, a dimension of the graph at ``place``, in steps; how results are joined."""

    axis: str
    place: int
    step: int
    how: str

    @staticmethod
    def of(plan: Plan) -> Parts:
        """Those of a plan whose output is one fold (``shareable``); of rows in stages their own axis, which no join ends."""
        if not shareable(plan.graph, plan.schedule.lane_axis):
            schedule, axis = plan.schedule, str(plan.loops[-1][1])
            return Parts(axis, plan.graph.dimensions.index(axis), schedule.lanes * schedule.unroll, "")
        axis, how = next(iter(joined(plan.graph).items()))
        return Parts(axis, plan.graph.dimensions.index(axis), plan.schedule.step, how)


def prologue(plan: Plan, elements: Sequence[str], size: Callable[[Extent], str]) -> list[str]:
    """Code before the program, which reads ``a``: by ``given.phase`` all of it, a part, or the join and no more.

    ``elements``: types of the tensors in memory, the output's last; ``size``: an extent in C.
    """
    parts, graph = Parts.of(plan), plan.graph
    names, shape = (*graph.inputs, plan.output), [size(extent) for extent in graph.types[plan.output].shape]
    out, extent = len(names) - 1, f"given.sizes[{parts.place}]"
    lines = [
        "ht_generated_args a = given;",
        f"const long long ht_outputs = {' * '.join(shape)};",
        f"const long long ht_tiles = ({extent} + {parts.step - 1}ll) / {parts.step}ll;",
        f"if (given.phase == {JOIN}) {{",
        *(f"  {line}" for line in _join(parts, shape, f"(({elements[-1]}*)given.data[{out}])", elements[-1], out)),
        "  return;",
        "}",
        f"if (given.phase == {PART}) {{",
        f"  const long long ht_first = {_begin(parts, 'blockIdx.y')};",
        f"  a.sizes[{parts.place}] = {_end(parts, 'blockIdx.y')} - ht_first;",
    ]
    for index, (name, element) in enumerate(zip(names[:-1], elements, strict=False)):
        for axis, extent_ in enumerate(graph.types[name].shape):
            if same(extent_, dimension(parts.axis)):
                stride = f" * given.strides[{index}][{axis}]" if axis < graph.types[name].rank - 1 else ""
                lines.append(f"  a.data[{index}] = (void*)((const {element}*)given.data[{index}] + ht_first{stride});")
    for axis in range(len(shape) - 1):
        lines.append(f"  a.strides[{out}][{axis}] = {' * '.join(shape[axis + 1 :])};")
    return [*lines, f"  a.data[{out}] = (void*)(given.partial + blockIdx.y * ht_outputs);", "}"]


def _begin(parts: Parts, part: str) -> str:
    return f"ht_tiles * {part} / given.parts * {parts.step}ll"


def _end(parts: Parts, part: str) -> str:
    return f"ht_min<long long>(ht_tiles * ({part} + 1) / given.parts * {parts.step}ll, given.sizes[{parts.place}])"


def _join(parts: Parts, shape: Sequence[str], data: str, element: str, out: int) -> list[str]:
    """Elements of the output shared by all threads; each takes its parts in the axis's order."""
    mean = parts.how == "mean"
    how = "add" if mean else JOINS.get(parts.how, parts.how)
    share = f" * float(double({_end(parts, 's')} - {_begin(parts, 's')}) / double(given.sizes[{parts.place}]))" * mean
    position: list[str] = []
    for axis in reversed(range(len(shape))):
        stride = f" * given.strides[{out}][{axis}]" if axis < len(shape) - 1 else ""
        position += [f"at += left % ({shape[axis]}){stride};", f"left /= {shape[axis]};"]
    return [
        "const long long ht_all = (long long)gridDim.x * blockDim.x;",
        "for (long long e = (long long)blockIdx.x * blockDim.x + threadIdx.x; e < ht_outputs; e += ht_all) {",
        "  float v = 0.0f;",
        "  for (long long s = 0; s < given.parts; ++s) {",
        f"    const float o = given.partial[s * ht_outputs + e]{share};",
        f"    v = s == 0 ? o : {function_call(how, [Code('v'), Code('o')], 'fp32')};",
        "  }",
        "  long long left = e, at = 0;",
        *(f"  {line}" for line in position),
        f"  {data}[at] = {element}(v);",
        "}",
    ]
