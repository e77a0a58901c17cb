"""Forms of a group: plain loops, or a program of the searched space, where that space can express the group's graph."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from haotuner.backends.backend import CompileObject
from haotuner.backends.cpu.compile import object_code
from haotuner.backends.toolchain import Toolchain
from haotuner.codegen.group import kind_of_part
from haotuner.codegen.kinds import graph_of
from haotuner.codegen.loops.loop_nest import Group, collapsed
from haotuner.codegen.schedule import turnable
from haotuner.codegen.sibling_outputs import written
from haotuner.codegen.vector_functions import FORMULAS
from haotuner.cost.families import demand
from haotuner.cost.roofline import expected_us
from haotuner.errors import HaotunerError
from haotuner.graph.extents import Extent, canonical, dimension, dimensions, evaluate, is_symbolic, shown
from haotuner.graph.graph import Graph, Node, renamed
from haotuner.graph.types import TensorType
from haotuner.microkernels.cpu.generated import CpuGenerated
from haotuner.microkernels.cpu.generated_program import VECTOR_MATH
from haotuner.microkernels.index import families_for
from haotuner.ops.dtypes import DTYPES
from haotuner.ops.formula import COMPARISONS, TRANSCENDENTAL
from haotuner.ops.kind import OpKind
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape

STEM = "part"  # of the names of kinds that models' groups are
MOST_CORNERS = 8  # of requests at which schedules are compared beside them
MOST_NODES = 48  # of a group with a program
EDGES = ("pad", "window", "reverse")
HARD = (TRANSCENDENTAL | {"sqrt", "rsqrt"}) - {"cos", "sin"}  # functions of which a program is expected to take less
SECOND_SAVES = 0.95  # of the time with one program, at most what two may take: the second is compiled, too
ELEMENTS = ("fp32", "int32")  # of what is read and written
MOVES = ("reshape", "transpose", "broadcast", "slice", "iota", "size", "pad", "concat", "reverse", "window")
EXACT_FUNCTIONS = ("add", "sub", "mul", "neg", "abs", "max", "min", "select", *COMPARISONS)  # of whole numbers, too
FLOAT_FUNCTIONS = (*VECTOR_MATH, *FORMULAS, "div", "sqrt", "rsqrt", "reciprocal", "round", "floor", "ceil", "sign")


class SmallProgram(NamedTuple):
    """A program for requests in which an extent is at most ``most``. ``extent``: of the model, or an axis of the op."""

    kernel: MicroKernel
    extent: Extent
    most: int


class SelectedPrograms(NamedTuple):
    """Programs of an op, and their expected microseconds at each shape."""

    kernel: MicroKernel
    small: SmallProgram | None
    us: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ProgramForm:
    """A program that computes a group. ``tensors``: of a call, in its order, the first output last.

    ``axes``: of each tensor the loop that each of its axes is, -1: none that threads may share. ``us``: expected
    microseconds at each request. ``types``: of the tensors, in the model's dimensions. ``small``: another program, where an
    extent is at most some number.
    """

    kernel: MicroKernel
    small: SmallProgram | None
    tensors: tuple[str, ...]
    axes: tuple[tuple[int, ...], ...]
    us: tuple[float, ...]
    types: tuple[TensorType, ...]

    @property
    def words(self) -> str:
        """The form for people."""
        words = f"generated, schedule {_schedule_words(self.kernel)}"
        if self.small is None:
            return words
        return f"{words}; {_schedule_words(self.small.kernel)} where {shown(self.small.extent)} is at most {self.small.most}"

    @property
    def kernels(self) -> tuple[MicroKernel, ...]:
        """All programs."""
        return (self.kernel,) if self.small is None else (self.kernel, self.small.kernel)

    @property
    def loops(self) -> tuple[Extent, ...]:
        """Extents of the group's loops."""
        return self.types[-1].shape

    def source(self, name: str, size: Callable[[Extent], int]) -> str:
        """C of the table ``NAME_program``; ``size``: the index of an extent among the sizes of a call."""
        functions = [f"__tvm_ffi_{kernel.name}" for kernel in self.kernels]
        small = "" if self.small is None else f", {functions[1]}, {self.small.most}, {size(self.small.extent)}"
        lines = [str(size(extent)) for kind in self.types for extent in kind.shape]
        loops = [str(loop) for tensor_loops in self.axes for loop in tensor_loops]
        rows = [f"{{{kind.rank}, {DTYPES[kind.dtype].code}, {DTYPES[kind.dtype].size * 8}}}" for kind in self.types]
        return "\n".join(
            (
                *(f"extern int {function}(void*, const TVMFFIAny*, int32_t, TVMFFIAny*);" for function in functions),
                f"static const int32_t {name}_places[] = {{{', '.join(lines)}}};",
                f"static const int8_t {name}_loops[] = {{{', '.join(loops)}}};",
                f"static const ht_program_tensor {name}_tensors[] = {{{', '.join(rows)}}};",
                f"static const ht_program {name}_program = "
                f"{{{functions[0]}, {name}_tensors, {name}_places, {name}_loops{small}}};",
            )
        )

    @property
    def shared(self) -> int:
        """Loops of the first output that threads may share, a bit for each."""
        return sum(1 << axis for axis in {axis for tensor_loops in self.axes for axis in tensor_loops if axis >= 0})

    def group(self, name: str, size: Callable[[Extent], int]) -> Group:
        """C of the group and a call's tensors and loops; see ``source``."""
        return Group(source=self.source(name, size), tensors=self.tensors, loops=self.loops)


CodesOf = Callable[[Sequence[str]], Mapping[str, str]]  # hashes of kernels' code by name


def _codes_here(arch: str, names: Sequence[str]) -> Mapping[str, str]:
    from haotuner.backends.cpu.timing_library import codes_of, group_sources

    return codes_of(names, arch, Toolchain.find(), group_sources)


class ProgramSpace:
    """The programs of groups for one device, at some requests. Equal groups are searched once."""

    def __init__(
        self, device: Device, requests: Sequence[Mapping[str, int]], compile_object: CompileObject = object_code
    ) -> None:
        """``compile_object``: compiler of a host's kernels, for an architecture, into an object file."""
        self.device, self.requests, self.compile_object = device, requests, compile_object
        self._codes_of: CodesOf = partial(_codes_here, device.arch)
        self._codes: dict[str, str] = {}
        self._known: dict[Hashable, ProgramForm | None] = {}
        self._chosen: dict[tuple[str, tuple[Shape, ...]], SelectedPrograms | None] = {}

    def compiled_by(self, compile_object: CompileObject, codes_of: CodesOf) -> ProgramSpace:
        """Copy of the space whose kernels are compiled elsewhere. ``codes_of``: hashes of their code, by name."""
        result = copy(self)
        result.compile_object, result._codes_of = compile_object, codes_of
        return result

    def code_of(self, form: ProgramForm) -> str:
        """Hashes of a form's programs and of what calls them in a group; empty where some could not be made."""
        names = [kernel.name for kernel in form.kernels]
        missing = [name for name in names if name not in self._codes]
        try:
            self._codes |= self._codes_of(missing) if missing else {}
        except (HaotunerError, OSError, RuntimeError):  # its object code cannot be had either
            return ""
        return " ".join(self._codes[name] for name in names)

    def best(self, graph: Graph) -> ProgramForm | None:
        """The program with the least expected time over the requests; None where the space cannot express the graph."""
        key = graph.inputs, graph.outputs, frozenset(node.output for node in graph.nodes)
        if key not in self._known:
            self._known[key] = self._best(collapsed(graph))
        return self._known[key]

    def _best(self, graph: Graph) -> ProgramForm | None:
        group = ExpressedGroup.of(graph)
        shapes = () if group is None else group.shapes(self.requests)
        if group is None or not shapes:
            return None
        key = group.op.name, shapes
        if key not in self._chosen:
            self._chosen[key] = group.fastest(self.device, shapes, group.corners(self.requests))
        chosen = self._chosen[key]
        return None if chosen is None else group.form(chosen)


@dataclass(frozen=True)
class ExpressedGroup:
    """A group as an op of the searched space. ``graph``: the group's own; ``tensors``: of a call, in the op's order."""

    graph: Graph
    tensors: tuple[str, ...]
    kind: OpKind
    op: Op
    family: CpuGenerated

    @staticmethod
    def of(graph: Graph) -> ExpressedGroup | None:
        """None where the space cannot express the graph."""
        types = [graph.types[tensor] for tensor in (*graph.inputs, *graph.outputs)]
        if len(graph.nodes) > MOST_NODES or any(kind.dtype not in ELEMENTS or not kind.rank for kind in types):
            return None
        if not all(has_program(graph, node) for node in graph.nodes):
            return None
        order = tuple(dict.fromkeys(name for node in graph.nodes for name in node.inputs if name in graph.inputs))
        graph = replace(graph, inputs=order)
        plain = _in_own_names(graph)
        if plain is None or not plain.dimensions:
            return None
        try:
            kind = kind_of_part(plain, STEM)
            op = Op(kind=kind.name, static=())
            family = families_for(op, CpuGenerated.backend)[0]
        except HaotunerError:
            return None
        return ExpressedGroup(graph, (*order, *written(graph)), kind, op, family) if type(family) is CpuGenerated else None

    @property
    def _axes(self) -> list[tuple[str, ...]]:
        return [operand.axes({}) for operand in self.kind.operands]

    @property
    def _extents(self) -> dict[str, Extent]:
        """Of the op's axes, in the model's dimensions."""
        extents: dict[str, Extent] = {}
        for tensor, axes in zip(self.tensors, self._axes, strict=True):
            extents |= dict(zip(axes, self.graph.types[tensor].shape, strict=True))
        return extents

    def shapes(self, requests: Sequence[Mapping[str, int]]) -> tuple[Shape, ...]:
        """The op's shapes at some requests; none where one of them is empty."""
        extents = self._extents
        axis_sizes = [{axis: evaluate(extents[axis], request) for axis in self.op.dynamic} for request in requests]
        return tuple(map(Shape.of, axis_sizes)) if all(min(sizes.values()) > 0 for sizes in axis_sizes) else ()

    def corners(self, requests: Sequence[Mapping[str, int]]) -> tuple[Shape, ...]:
        """The op's shapes where each dimension is as small, or as large, as in any of some requests."""
        used = {name for tensor in self.tensors for extent in self.graph.types[tensor].shape for name in dimensions(extent)}
        ends = [{min(sizes), max(sizes)} for name in sorted(used) if (sizes := [request[name] for request in requests])]
        if 2 ** len(ends) > MOST_CORNERS:
            return ()
        corners = [dict(zip(sorted(used), sizes, strict=True)) for sizes in product(*map(sorted, ends))]
        return tuple(shape for corner in corners for shape in self.shapes([corner]))

    def fastest(self, device: Device, shapes: Sequence[Shape], more: Sequence[Shape] = ()) -> SelectedPrograms | None:
        """The schedules with the least expected time over ``shapes`` and ``more``, and their microseconds at ``shapes``.

        Each shape counts alike, whatever it takes: what is long there would else choose alone. Where that pays a second one
        serves what is small along an axis. Of a group with folds it is theirs: so the bits of a result depend on the number
        of its terms, and not on how many results there are.
        """
        try:
            kernels = list(self.family.points(self.op, device))
        except HaotunerError:
            return None
        kernels = list(filter(self.family.turns, kernels)) or kernels  # others read across the lanes, line by line
        every = [*shapes, *more]
        us = self._expected(kernels, device, every)
        logs = np.log(us / us.min(axis=0))
        best = int(logs.mean(axis=1).argmin())
        split = self._split(list(map(self.family.lanes, kernels)), every, logs, best)
        if split is None:
            return SelectedPrograms(kernels[best], None, tuple(us[best, : len(shapes)].tolist()))
        axis, low, high, (below, above) = split
        most = self._bound([kernels[low], kernels[high]], device, every, axis, below, above)
        chosen = [us[low if shape[axis] <= most else high, at] for at, shape in enumerate(shapes)]
        return SelectedPrograms(kernels[high], SmallProgram(kernels[low], axis, most), tuple(map(float, chosen)))

    def _split(
        self, lanes: Sequence[int], shapes: Sequence[Shape], logs: NDArray[np.float64], best: int
    ) -> tuple[str, int, int, tuple[int, int]] | None:
        """Axis, the kernels of small requests and of others, and the extents next to the cut; None where none pays.

        Both have vectors of as many ``lanes``. ``logs``: of times over the best of each shape, ``(kernels, shapes)``.
        """
        least = float(logs[best].sum()) + len(shapes) * float(np.log(SECOND_SAVES))
        result: tuple[str, int, int, tuple[int, int]] | None = None
        allowed = np.array([count == lanes[best] for count in lanes])
        folded = [
            {self.graph.types[node.inputs[0]].shape[axis] for axis in node.attributes["axes"]}
            for node in self.graph.nodes
            if node.primitive == "reduce"
        ]
        for axis in (name for name in self.op.dynamic if all(self._extents[name] in own for own in folded)):
            extents = np.array([shape[axis] for shape in shapes])
            values = sorted(set(extents.tolist()))
            for below, above in pairwise(values):
                halves = [
                    np.where(allowed, logs[:, side].sum(axis=1), np.inf) for side in (extents <= below, extents > below)
                ]
                total = sum(float(half.min()) for half in halves)
                if total < least:
                    low, high = (int(half.argmin()) for half in halves)
                    least, result = total, (axis, low, high, (below, above))
        return result

    def _bound(
        self, pair: Sequence[MicroKernel], device: Device, shapes: Sequence[Shape], axis: str, below: int, above: int
    ) -> int:
        """The extent up to which the first kernel is the faster: between two of ``below``, its doubles, and ``above``."""
        others = next(shape for shape in shapes if shape[axis] == above)
        extents = [below * 2**power for power in range((above // below).bit_length()) if below * 2**power < above]
        low, high = self._expected(pair, device, [Shape.of({**others.as_dict(), axis: extent}) for extent in extents])
        slower = np.flatnonzero(low > high)
        first = max(1, int(slower[0])) if slower.size else len(extents)
        return int((extents[first - 1] * [*extents, above][first]) ** 0.5)

    def _expected(self, kernels: Sequence[MicroKernel], device: Device, shapes: Sequence[Shape]) -> NDArray[np.float64]:
        """Microseconds on one thread, ``(kernels, shapes)``."""
        core = device.with_units(1)
        pairs = [(kernel, shape) for kernel in kernels for shape in shapes]
        us = expected_us(core, demand(core, self.family, self.op, pairs, weights="hot"))
        return np.asarray(us, np.float64).reshape(len(kernels), -1)

    def form(self, chosen: SelectedPrograms) -> ProgramForm:
        """Form of the selected programs."""
        spatial = {axis for axis, role in self.kind.axes.items() if role == "spatial"}
        loops = {axis: index for index, axis in enumerate(self.kind.output.axes({})) if axis in spatial}
        axes = tuple(tuple(loops.get(axis, -1) for axis in operand_axes) for operand_axes in self._axes)
        types = tuple(self.graph.types[tensor] for tensor in self.tensors)
        small = chosen.small
        if small is not None:
            small = small._replace(extent=self._extents[str(small.extent)])
        return ProgramForm(chosen.kernel, small, self.tensors, axes, chosen.us, types)


def _schedule_words(kernel: MicroKernel) -> str:
    return kernel.name.partition("_fp32__")[2]


def prefers_program(graph: Graph) -> bool:
    """True if a program is expected to be faster than plain loops, where neither was timed."""
    folds = any(node.primitive == "reduce" for node in graph.nodes)
    edges = [node for node in graph.nodes if node.primitive in EDGES]
    if edges:  # plain loops have the middle of a row apart from its ends, but load what is reflected one by one
        return not folds and all(node.attributes.get("mode") == "reflect" for node in edges)
    hard = any(node.attributes.get("function") in HARD for node in graph.nodes)
    orders = [node.attributes["order"] for node in graph.nodes if node.primitive == "transpose"]
    if folds and orders:
        return False  # plain loops compute a row's sums once where squares of it are turned
    if orders and not hard and any(order[-1] != len(order) - 1 for order in orders):
        return _turns(graph)  # else a program reads element by element as plain loops do
    return folds or hard or bool(orders)


def _turns(graph: Graph) -> bool:
    """True if a program of the group transposes squares in registers."""
    group = ExpressedGroup.of(collapsed(graph))
    if group is None:
        return False
    own = graph_of(group.kind, {})
    return turnable(own, own.types[own.outputs[0]].rank - 1)


def has_program(graph: Graph, node: Node) -> bool:
    """True if a program can compute a primitive on the types that it has here."""
    dtypes = {graph.types[tensor].dtype for tensor in (*node.inputs, node.output)}
    if node.primitive not in ("map", "reduce", "cast"):
        return node.primitive in MOVES and dtypes <= {*ELEMENTS, "int64", "bool"}
    if not dtypes <= {*ELEMENTS, "int64", "bool"}:
        return False
    function = node.attributes.get("function")
    if node.primitive == "cast" and graph.types[node.output].dtype != "fp32":
        return False  # the loops define what a number beyond the type becomes
    if node.primitive == "map" and function not in EXACT_FUNCTIONS:
        return function in FLOAT_FUNCTIONS and dtypes == {"fp32"}
    return node.primitive != "reduce" or dtypes == {"fp32"}


def _in_own_names(graph: Graph) -> Graph | None:
    """The graph with numbered names, and a dimension for each extent of its inputs that is no number.

    None where an extent of another tensor does not follow from them.
    """
    dimensions_by_extent: dict[Extent, Extent] = {}
    for tensor in graph.inputs:
        for extent in graph.types[tensor].shape:
            if not isinstance(extent, int) and extent not in dimensions_by_extent:
                dimensions_by_extent[extent] = dimension(f"n{len(dimensions_by_extent)}")
    known = {str(symbol) for symbol in dimensions_by_extent.values()}

    def renamed_value(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return tuple(map(renamed_value, value))
        if not is_symbolic(value):
            return value
        if value in dimensions_by_extent:
            return dimensions_by_extent[value]
        result = canonical(value.subs(dimensions_by_extent, simultaneous=True))
        if not dimensions(result) <= known:
            raise KeyError(str(value))
        return result

    tensors = (*graph.inputs, *sorted(graph.constants), *(node.output for node in graph.nodes))
    names = {tensor: f"t{index}" for index, tensor in enumerate(tensors)}
    try:
        nodes = tuple(
            replace(node, attributes={key: renamed_value(value) for key, value in node.attributes.items()})
            for node in graph.nodes
        )
        types = {
            tensor: TensorType(renamed_value(graph.types[tensor].shape), graph.types[tensor].dtype) for tensor in tensors
        }
    except KeyError:
        return None
    plain = replace(graph, nodes=nodes, types=types, guards={}, required=(), defaults={})
    return renamed(plain, names.__getitem__)
