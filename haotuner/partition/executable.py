"""A model as a pack holds it: its schedule (JSON and bytecode), its weights, and the C of its groups."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from haotuner.codegen.loops.c_loops import loops_of
from haotuner.codegen.loops.c_math import head_of
from haotuner.codegen.loops.cuda_loops import cuda_head_of, device_loops_of
from haotuner.codegen.loops.loop_nest import collapsed
from haotuner.errors import UsageError
from haotuner.graph.extents import Extent, text
from haotuner.graph.graph import Graph
from haotuner.graph.types import dtype_named
from haotuner.partition.cache_buffers import CAPACITY, CacheBuffers, cache_buffers
from haotuner.partition.dim_ranges import shape_constraints
from haotuner.partition.greedy_fusion import Alias, Loops, Specialization, Step
from haotuner.partition.index_bounds import IndexBound, index_bounds
from haotuner.partition.key_caches import Append
from haotuner.partition.products import Product, View
from haotuner.partition.program_forms import ProgramForm
from haotuner.partition.scaled_bytes import scaled_bytes
from haotuner.partition.segmented_model import SizeTable, default_of, segmented_document
from haotuner.partition.segments import Segment
from haotuner.spec.bytecode import SCALED, bytecode_of, group_name
from haotuner.spec.chunks import chunk_checksums

ALIGNED = 64  # bytes; a weight begins at a cache line


class Function(NamedTuple):
    """C of a group: its name and source, places of its loops' extents and of its outputs', and how many tensors it takes.

    ``size_count``: it reads no line of the size table from this one on.

    Of a device: CUDA C++, and how it is launched (``Group`` of ``c_loops.py``).
    """

    name: str
    source: str
    extents: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]  # of the outputs, which are the last tensors
    tensors: int
    points: int = 0
    lanes: int = 0  # 0: a function of the host
    sizes: tuple[int, ...] = ()
    size_count: int = 0
    program: ProgramForm | None = None  # what computes it; None: the source does

    @property
    def row(self) -> str:
        """Row of the library's table of groups."""
        run = "0" if self.lanes or self.program else self.name
        called, shared = ("0", 0xFFFFFFFF) if self.program is None else (f"&{self.name}_program", self.program.shared)
        tables = f"{self.name}_extents, {self.name}_ranks, {self.name}_shapes"
        counts = f"{self.size_count}, {len(self.extents)}, {self.tensors}, {len(self.shapes)}"
        return f'  {{{run}, "{self.name}", {counts}, {tables}, {called}, {shared}u}},'


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutableModel:
    """``document``: the schedule; ``weights``: one blob; ``functions``: C of its groups, in order."""

    name: str
    document: Mapping[str, Any]
    weights: bytes
    functions: tuple[Function, ...]

    @property
    def schedule(self) -> bytes:
        """The schedule's bytes; the same for the same content."""
        return (json.dumps(self.document, sort_keys=True, allow_nan=False) + "\n").encode()

    @property
    def bytecode(self) -> bytes | None:
        """The schedule as a library runs it; None where only Python does."""
        return bytecode_of(self.document, len(self.weights))


def normal(value: Any) -> Any:
    """An array of floats with 0 for its subnormal numbers, each of which takes some CPUs 100 cycles.

    A product of it changes by less than 2^-126 times the magnitudes that those numbers met.
    """
    array = np.asarray(value)
    if array.dtype != np.float32:
        return array
    return np.where(np.abs(array) < np.finfo(np.float32).tiny, np.float32(0), array)


@dataclass(slots=True)
class _Writer:
    name: str
    graph: Graph
    first_group: int
    on_device: bool
    buffers: CacheBuffers | None = None
    sizes: SizeTable = field(default_factory=SizeTable)
    tensors: dict[str, dict[str, Any]] = field(default_factory=dict)
    weights: bytearray = field(default_factory=bytearray)
    weight_table: dict[str, dict[str, Any]] = field(default_factory=dict)
    by_content: dict[tuple[str, str, tuple[int, ...]], str] = field(default_factory=dict)
    functions: list[Function] = field(default_factory=list)
    known_groups: dict[tuple[Any, ...], int] = field(default_factory=dict)
    way: int = 0  # whose steps are written: tensors of the second way and on have names of their own

    def caches(self) -> dict[str, Any]:
        """The table of caches that may lie in buffers, and the line of the size table that is their capacity."""
        buffers = self.buffers
        if buffers is None:
            return {}
        capacity = self.sizes.capacity(CAPACITY, buffers.present)
        table = [[self.graph.inputs.index(s.past), self.graph.outputs.index(s.output), s.axis] for s in buffers.appends]
        return {"caches": {"capacity": capacity, "table": table}}

    def weight(self, value: Any, name: str) -> str:
        """The name under which an array lies in the blob; equal ones lie there once."""
        array = np.ascontiguousarray(value)
        content = (hashlib.sha256(array.tobytes()).hexdigest(), array.dtype.name, array.shape)
        if content not in self.by_content:
            # A graph of another way has such a name, too.
            while name in self.weight_table or self.way and name in self.tensors:
                name = f"{name}@{self.way}"
            self.weights += b"\0" * (-len(self.weights) % ALIGNED)
            dtype, shape = dtype_named(array.dtype), list(array.shape)
            self.weight_table[name] = {"dtype": dtype, "shape": shape, "offset": len(self.weights)}
            self.weights += array.tobytes()
            self.by_content[content] = name
        return self.by_content[content]

    def weight_of_product(self, value: Any, name: str) -> str:
        """Name of a product's weight in the blob; on a host as bytes and one number a row where it is made so."""
        plain = normal(value)
        bytes_of = None if self.on_device else scaled_bytes(plain)
        if bytes_of is None:
            return self.weight(plain, name)
        stored, scales = bytes_of
        weight_index = self.weight(
            np.frombuffer(stored.tobytes() + b"\0" * (-stored.size % 4) + scales.tobytes(), np.uint8), name
        )
        self.weight_table[weight_index] |= {"dtype": SCALED, "shape": list(stored.shape)}
        return weight_index

    def tensor(self, name: str) -> str:
        """The tensor's entry: in memory, or a weight. Returns its name in the schedule."""
        if name in self.graph.constants:
            return self.weight(self.graph.constants[name], name)
        called = name
        if self.way and name not in self.graph.inputs:
            called = f"{name}@{self.way}"
            while called in self.graph.types or called in self.weight_table:
                called += "'"
        if called not in self.tensors:
            kind = self.graph.types[name]
            self.tensors[called] = {"dtype": kind.dtype, "shape": self.sizes.indices(kind.shape)}
        return called

    def end(self, name: str) -> dict[str, Any]:
        """An input or output."""
        kind = self.graph.types[name]
        shape = self.sizes.indices(kind.shape)
        document = {"name": name, "tensor": self.tensor(name), "dtype": kind.dtype, "shape": shape}
        return document | default_of(self.graph, name)

    def view(self, view: View) -> dict[str, Any]:
        """A tensor, or a part of its rows, reshaped and reordered."""
        document = {"of": self.tensor(view.tensor), "shape": self.sizes.indices(view.shape), "order": list(view.order)}
        return document | ({"part": [view.first, view.width]} if view.width else {})

    def step(self, step: Step) -> dict[str, Any]:
        if isinstance(step, Alias):
            return {"do": "alias", "out": self.tensor(step.tensor), "of": self.tensor(step.of)}
        if isinstance(step, Loops):
            return self._loops(step)
        if isinstance(step, Append):
            document = {"do": "append", "past": self.tensor(step.past), "new": self.view(step.new)}
            return document | {"axis": step.axis, "out": self.tensor(step.output)}
        return self._product(step)

    def _loops(self, step: Loops) -> dict[str, Any]:
        graph = step.graph if self.buffers is None else self.buffers.pitched(step.graph)
        graph = graph if self.on_device else collapsed(graph)
        lines: list[int] = []

        def line(extent: Extent) -> int:
            lines.append(self.sizes.index(extent))
            return lines[-1]

        in_buffers = self.buffers is not None and self.buffers.reads(step.graph)
        form = None if in_buffers else step.form  # programs read tensors without gaps
        write = device_loops_of if self.on_device else loops_of
        group = write(graph, "GROUP", line) if form is None else form.group("GROUP", line)
        extents = tuple(self.sizes.indices(group.loops))
        count = len(graph.outputs)
        shapes = tuple(tuple(self.sizes.indices(step.graph.types[tensor].shape)) for tensor in group.tensors[-count:])
        key = group.source, extents, shapes, group.sizes
        group_index = self.known_groups.setdefault(key, self.first_group + len(self.functions))
        if group_index == self.first_group + len(self.functions):  # equal groups are one function
            name, lanes = group_name(group_index), group.lanes if self.on_device else 0
            source = group.source.replace("GROUP", name)
            self.functions.append(
                Function(
                    name,
                    source,
                    extents,
                    shapes,
                    len(group.tensors),
                    group.points,
                    lanes,
                    group.sizes,
                    max([-1, *lines, *extents, *sum(shapes, ())]) + 1,
                    form,
                )  # fmt: skip
            )
        document = {"do": "loops", "group": group_index, "tensors": [self.tensor(tensor) for tensor in group.tensors]}
        document |= {} if form is None else {"form": form.words}
        return document | ({"outputs": count} if count > 1 else {})

    def _product(self, step: Product) -> dict[str, Any]:
        document: dict[str, Any] = {"do": step.kind, "op": step.op.name, "out": self.tensor(step.output)}
        document["passed"] = {name: self.tensor(item) for name, item in step.passed.items()}
        if step.kind == "online":
            return document | {"views": {n: self.view(v) for n, v in step.views.items()}, "order": list(step.out_order)}
        if step.kind == "product":
            assert step.w is not None
            document |= {"x": self.view(step.x), "w": self.view(step.w), "order": list(step.out_order)}
            document["scale"] = float(step.constants["scale"]) if "scale" in step.constants else None
            return document
        document |= {"x": self.tensor(step.x.tensor), "weight": self.weight_of_product(step.weight, f"{step.output} weight")}
        document["constants"] = {name: self.weight(normal(v), f"{step.output} {name}") for name, v in step.constants.items()}
        if step.rows:
            document["rows"] = {name: self.tensor(row) for name, row in step.rows.items()}
        document["x_shape"], document["out_shape"] = self.sizes.indices(step.x_shape), self.sizes.indices(step.out_shape)
        return document


def executable_specializations(
    name: str, graph: Graph, ways: Sequence[Specialization], first_group: int = 0, *, on_device: bool = False
) -> ExecutableModel:
    """The model of these ways, of which the first that serves a request's sizes is gone; the last serves any.

    Ways may be of graphs of their own with the same inputs and outputs: they share weights, and no other tensor.
    """
    writer = _Writer(name, ways[0].graph or graph, first_group, on_device, cache_buffers(graph, ways))
    caches = writer.caches()
    values = [writer.step(step) for step in ways[0].steps]
    ends = [[writer.end(tensor) for tensor in names] for names in (graph.inputs, graph.outputs)]
    steps = [_way(writer, ways[0], values, 0)]
    for writer.way, way in enumerate(ways[1:], 1):
        first, writer.graph = len(values), way.graph or graph
        values += [writer.step(step) for step in way.steps]
        steps.append(_way(writer, way, values, first))
    lost = [str(end["name"]) for end in ends[1] if end["tensor"] not in writer.tensors]
    if lost:
        raise UsageError(f"outputs {', '.join(lost)} do not depend on any input")
    equal = [writer.sizes.indices(pair) for pair in shape_constraints(graph)]
    bounds = [] if on_device else index_bounds(graph)
    stored = [_indices(writer, bound) for bound in bounds]
    required = [[writer.sizes.index(requirement.extent), requirement.words] for requirement in graph.required]
    document = {
        "equal": equal, **caches, **({"required": required} if required else {}), **({"indices": stored} if stored else {}),
        "name": name, "dims": list(graph.dimensions), "sizes": writer.sizes.lines, "tensors": writer.tensors,
        "weights": writer.weight_table, "steps": values, "inputs": ends[0], "outputs": ends[1],
        "weights_crc32": chunk_checksums(writer.weights), **({"ways": steps} if len(ways) > 1 else {}),
    }  # fmt: skip
    return ExecutableModel(name=name, document=document, weights=bytes(writer.weights), functions=tuple(writer.functions))


def _indices(writer: _Writer, bound: IndexBound) -> list[Any]:
    """An input, the line of its first index, lines of each axis's extent and stride, the line of the rows, who asks."""
    axes = [writer.sizes.indices(axis) for axis in bound.view.axes]
    first, rows = writer.sizes.indices((bound.view.first, bound.extent))
    return [writer.graph.inputs.index(bound.input), first, axes, rows, bound.reader]


def _way(writer: _Writer, way: Specialization, steps: Sequence[object], first: int) -> dict[str, Any]:
    """Document of a specialization: its steps of the schedule, its outputs, and which requests it serves."""
    document = {"first": first, "end": len(steps), "outputs": [writer.tensor(tensor) for tensor in writer.graph.outputs]}
    if way.extent is None:
        return document | {"line": None, "most": 0, "where": "any sizes"}
    line = writer.sizes.index(way.extent)
    return document | {"line": line, "most": way.most, "where": f"{text(way.extent)} <= {way.most}"}


def executable_chain(
    name: str, graph: Graph, segments: Sequence[Segment], parts: Sequence[ExecutableModel]
) -> ExecutableModel:
    """A model of several segments, which are models of their own; ``functions``: those of all."""
    functions = tuple(function for part in parts for function in part.functions)
    document = segmented_document(name, graph, segments, iter([part.name for part in parts]))
    return ExecutableModel(name=name, document=document, weights=b"", functions=functions)


def device_source_of(models: Sequence[ExecutableModel]) -> str:
    """CUDA C++ of all groups; empty where they are functions of the host."""
    functions = [function for model in models for function in model.functions if function.lanes]
    sources = [function.source for function in functions]
    return "\n".join([cuda_head_of(sources), *sources]) + "\n" if functions else ""


def source_of(models: Sequence[ExecutableModel]) -> str:
    """C of all groups, in the table of loops.h. Chains bring no groups."""
    functions = [function for model in models if "chain" not in model.document for function in model.functions]
    lines = [head_of(function.source for function in functions), '#include "loops.h"']
    lines += ['#include "programs.h"'] if any(function.program for function in functions) else []
    lines += [function.source for function in functions if not function.lanes]
    for function in functions:
        ranks = tuple(len(shape) for shape in function.shapes)
        for word, places in (("extents", function.extents), ("ranks", ranks), ("shapes", sum(function.shapes, ()))):
            lines.append(f"static const int32_t {function.name}_{word}[] = {{{', '.join(map(str, places)) or '0'}}};")
    rows = [function.row for function in functions]
    lines += ["const ht_group ht_groups[] = {", *rows, "  {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},", "};"]
    lines.append(f"const int ht_group_count = {len(functions)};")
    return "\n".join(lines) + "\n"
