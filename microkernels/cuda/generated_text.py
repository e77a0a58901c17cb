"""CUDA C++ of generated programs: types and functions, loops, and folds over one axis by several blocks.

Folds over one axis by several blocks: CUDA C++ of how a kernel takes its part, and of the launch that joins the parts.

The same kernel is launched twice (Ansor's rule 6, across blocks). First it runs on a part of the axis for each place of the
grid's second dimension, into a workspace; then it adds those results up, in the axis's order, whoever computed them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from haotuner.codegen.rfactor import joined
from haotuner.codegen.schedule import Plan, shareable
from haotuner.codegen.vector_functions import FORMULAS, OF_TWO
from haotuner.errors import UsageError
from haotuner.graph.extents import Extent, dimension, same

TYPES = {"fp32": "float", "fp64": "double", "int64": "long long", "int32": "int", "bool": "bool"}
INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "equal": "==", "less": "<", "less_equal": "<=", "greater": ">",
         "greater_equal": ">=", "and": "&&", "or": "||", "xor": "!="}  # fmt: skip
CALLS = {
    "max": "ht_max({0}, {1})",
    "min": "ht_min({0}, {1})",
    "floordiv": "ht_floordiv({0}, {1})",
    "mod": "ht_mod({0}, {1})",
    "select": "({0} ? {1} : {2})",
    "neg": "(-{0})",
    "not": "(!{0})",
    "isnan": "({0} != {0})",
    "sign": "ht_sign({0})",
    "reciprocal": "(1.0f / {0})",
}
# A quotient that is 0 where its divisor is beyond 2^126 is what a sigmoid wants.
FLOATS = {"exp": "expf({0})", "log": "logf({0})", "tanh": "tanhf({0})", "erf": "erff({0})", "sqrt": "sqrtf({0})",
          "rsqrt": "(1.0f / sqrtf({0}))", "sigmoid": "__fdividef(1.0f, 1.0f + expf(-{0}))", "pow": "powf({0}, {1})",
          "abs": "fabsf({0})", "floor": "floorf({0})", "ceil": "ceilf({0})", "round": "rintf({0})", "sin": "sinf({0})",
          "cos": "cosf({0})", **{name: f"{name}f({{0}})" for name in FORMULAS if name not in ("sin", "cos", "log", *OF_TWO)},
          "fmod": "fmodf({0}, {1})",
          "isinf": "(fabsf({0}) == __uint_as_float(0x7f800000u))"}  # fmt: skip
SHORT = {"exp": "ht_exp({0})", "erf": "ht_erf({0})", "sigmoid": "__fdividef(1.0f, 1.0f + ht_exp(-{0}))"}  # kept in 16 bits
JOINS = {"sum": "add", "prod": "mul", "any_max": "max"}


class Code(str):
    """An expression of C; sums and products of extents are written with Python's operators."""

    __slots__ = ()

    def __add__(self, other: str) -> Code:
        return Code(f"({self} + {other})")

    def __sub__(self, other: str) -> Code:
        return Code(f"({self} - {other})")

    def __mul__(self, other: object) -> Code:
        return Code(f"({self} * {other})")


class Neighbour(Code):
    """The base of one vector of an iteration: its place among them, and what they have in common.

    ``room``: the name of how much of the axis is left from ``first`` on, and of what axis; None where all vectors exist.
    """

    first: Code
    position: int
    vectors: int
    pitch: int
    room: Code | None
    limit: Code | None

    @staticmethod
    def of(base: Code, first: Code, index: int, count: int, pitch: int, room: Code | None, limit: Code | None) -> Neighbour:
        """Vector ``index`` of an iteration of ``count``, begun at ``first``; see ``Machine.together``."""
        item = Neighbour(base)
        item.first, item.position, item.vectors, item.pitch, item.room, item.limit = first, index, count, pitch, room, limit
        return item

    def moved(self, lanes: int) -> str:
        """Arguments of ``ht_take`` and ``ht_put`` of device/generated.cuh behind the tensor and the registers."""
        how = ("ht_even", "ht_own", "ht_apart") if self.pitch > 1 else ("false", "ht_lane", "1")
        return ", ".join([*how, str(lanes * self.pitch), str(self.room or 0)])

    @property
    def form(self) -> str:
        """Their template arguments."""
        return f"<{self.pitch}, {str(self.limit is not None).lower()}>"


def apart(index: int, lanes: int, pitch: int) -> str:
    """Distance from an iteration's first vector to the vector of a place."""
    whole, own = index // pitch * lanes * pitch, index % pitch
    return f"{whole} + {own} * ht_apart" if own else str(whole)


def neighbour(indices: Sequence[Code], steps: Sequence[int] | None, lanes: int) -> Neighbour | None:
    """The base of a vector whose lanes lie along a tensor's last axis, just as an iteration's do."""
    last = indices[-1] if indices else None
    if lanes == 1 or steps is None or not isinstance(last, Neighbour):
        return None
    return last if steps[-1] == last.pitch and not any(steps[:-1]) else None


def function_call(function: str, arguments: Sequence[str], dtype: str, *, short: bool = False) -> str:
    """An expression of C for an element-wise function; ``short``: for results of 16 bits.

    UsageError for one that has no words in C.
    """
    if function == "cast":
        return f"({TYPES[dtype]})({arguments[0]})"
    if function in INFIX:
        return f"{arguments[0]} {INFIX[function]} {arguments[1]}"
    if function in ("floordiv", "mod") and dtype.startswith("fp"):
        raise UsageError(f"no program for the function {function!r} of {dtype}")
    if function in ("max", "min") or function in CALLS:
        typed = CALLS[function].replace("(", f"<{TYPES[dtype]}>(", 1) if function in ("max", "min") else CALLS[function]
        return typed.format(*arguments)
    if short and function in SHORT and dtype == "fp32":
        return SHORT[function].format(*arguments)
    if function in FLOATS and (dtype == "fp32" or function == "isinf"):
        return FLOATS[function].format(*arguments)
    if function == "abs":
        return f"({arguments[0]} < 0 ? -{arguments[0]} : {arguments[0]})"
    raise UsageError(f"no program for the function {function!r} of {dtype}")


WHOLE, PART, JOIN = range(3)  # ``phase`` of ht_generated_args


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of ``axis``, a dimension of the graph at ``dimension_index``, in steps; how results are joined."""

    axis: str
    dimension_index: int
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
    out, extent = len(names) - 1, f"given.sizes[{parts.dimension_index}]"
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
        f"  a.sizes[{parts.dimension_index}] = {_end(parts, 'blockIdx.y')} - ht_first;",
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
    return f"ht_min<long long>(ht_tiles * ({part} + 1) / given.parts * {parts.step}ll, given.sizes[{parts.dimension_index}])"


def _join(parts: Parts, shape: Sequence[str], data: str, element: str, out: int) -> list[str]:
    """Elements of the output shared by all threads; each takes its parts in the axis's order."""
    mean = parts.how == "mean"
    how = "add" if mean else JOINS.get(parts.how, parts.how)
    share = (
        f" * float(double({_end(parts, 's')} - {_begin(parts, 's')}) / double(given.sizes[{parts.dimension_index}]))" * mean
    )
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


_PURE = re.compile(r"const (?:\w+ )+([vs]i?\d+(?:_\d+)?) = (.*);")
_NAME = re.compile(r"\b[vis]i?\d+(?:_\d+)?\b")
_LOAD = re.compile(r"\bt\d+\[")


@dataclass(slots=True)
class Loop:
    """A loop and what is known of its body: statements and loops, in their order."""

    variable: str
    count: str
    items: list[str | Loop] = field(default_factory=list)
    stores: bool = False
    carries: bool = False  # a variable from outside changes in it: its rounds are not independent
    known: dict[tuple[str, ...], str] = field(default_factory=dict)  # registers that hold what was loaded, by what it is
    ordered: bool = False  # its own statements, those of loops inside aside, write: their order counts


def plain(items: Sequence[str | Loop]) -> list[str]:
    """Statements as they stand, loops inside loops."""
    lines: list[str] = []
    for item in items:
        if isinstance(item, str):
            lines.append(item)
            continue
        i = item.variable
        lines.append(f"for (long long {i} = 0; {i} < {item.count}; {i} += 1) {{")
        lines += [f"  {line}" for line in plain(item.items)]
        lines.append("}")
    return lines


def spread(loop: Loop, first: str, step: str, *, apart: bool) -> list[str]:
    """A loop that writes, its rounds shared: every ``step``-th one from ``first`` on.

    Where its body is nothing but further such loops, all their rounds are numbered through and shared together: few rows of
    many columns keep a GPU busy. What they have in common is computed in each round.
    ``apart``: no loop reads what another wrote.
    """
    flat = _flat(loop) if apart else _leaf(loop)
    at = f"f{loop.variable}"
    return [
        *flat.before,
        f"const long long n{loop.variable} = {flat.rounds};",
        f"for (long long {at} = {first}; {at} < n{loop.variable}; {at} += {step}) {{",
        *(f"  {line}" for line in flat.body(at)),
        "}",
    ]


@dataclass(frozen=True, slots=True)
class _Flat:
    before: list[str]  # what the number of rounds is computed from
    rounds: str
    body: Callable[[str], list[str]]  # of the round of a number


def _leaf(loop: Loop) -> _Flat:
    return _Flat([], loop.count, lambda at: [f"const long long {loop.variable} = {at};", *plain(loop.items)])


def _flat(loop: Loop) -> _Flat:
    inner = [item for item in loop.items if isinstance(item, Loop)]
    if not inner or loop.ordered or any(item.carries or not item.stores for item in inner):
        return _leaf(loop)
    parts = [_flat(item) for item in inner]
    tainted = {loop.variable}
    before: list[str] = []
    own: list[str] = []
    for line in [item for item in loop.items if isinstance(item, str)] + [line for part in parts for line in part.before]:
        pure = _PURE.fullmatch(line)
        if pure and not _LOAD.search(pure[2]) and not tainted & set(_NAME.findall(pure[2])):
            before.append(line)
            continue
        own.append(line)
        tainted |= set(re.findall(r"\b(v\d+) = ", line))
    needed = [line for part in parts for line in part.before]
    if set(needed) & set(own) or any(tainted & set(_NAME.findall(part.rounds)) for part in parts):
        return _leaf(loop)
    i = loop.variable
    ends = [f"s{i}_{index}" for index in range(len(parts))]
    for index, (end, part) in enumerate(zip(ends, parts, strict=True)):
        before.append(f"const long long {end} = {f'{ends[index - 1]} + ' if index else ''}{part.rounds};")

    def body(at: str) -> list[str]:
        whole = f"ht_flat ? 0 : ht_quotient({at}, {ends[-1]})"
        lines = [f"const long long {i} = {whole};", f"const long long r{i} = {at} - {i} * {ends[-1]};"]
        lines += own
        for index, (end, part) in enumerate(zip(ends, parts, strict=True)):
            last = index == len(parts) - 1
            head = "{" if index == 0 and last else f"if (r{i} < {end}) {{" if index == 0 else "} else {" if last else (
                f"}} else if (r{i} < {end}) {{"
            )  # fmt: skip
            base = f"r{i} - {ends[index - 1]}" if index else f"r{i}"
            lines += [head, f"  const long long q{i} = {base};", *(f"  {line}" for line in part.body(f"q{i}"))]
        return [*lines, "}"]

    return _Flat(before, f"{loop.count} * {ends[-1]}", body)
