"""Cost estimate of a kernel, from the bytes that it moves and the numbers that it computes (a roofline).

Only differences between plans count here. Every candidate is priced by the same rates, the greedy plan's kernels too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

import numpy as np

from haotuner.codegen.expressions import Apply, Expression, Fold, Load, Variable, dtype_of, free_variables, parts
from haotuner.codegen.loops.c_ordered import ordered_node
from haotuner.codegen.loops.loop_nest import elements_of, rows_before
from haotuner.codegen.loops.recompute import row_buffer_of
from haotuner.codegen.loops.strided_reads import reads_across
from haotuner.graph.extents import Extent, evaluate
from haotuner.graph.graph import Graph, Node
from haotuner.graph.types import numpy_dtype
from haotuner.ops.convolution import is_convolution
from haotuner.ops.formula import TRANSCENDENTAL
from haotuner.partition.products import Product
from haotuner.partition.program_forms import ProgramForm, ProgramSpace, prefers_program
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape

Kernel: TypeAlias = tuple[tuple[str, ...], frozenset[str]]  # its outputs, and the tensors that its primitives make


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Rates of a device, per us: bytes that are moved, results of arithmetic, of exp, erf and division, of products.

    ``step_us``: of a step, whatever it does: a call, of a GPU a launch behind another one. ``kept``: whether loops let a
    row's terms wait in the result's row (``kept.py``). ``output_us``: of each output beside a group's first. Of products'
    flops, what convolutions reach: ``one_tap_first`` of one tap with channels first, which with channels last are dense
    layers; ``many_taps_last`` of a channel a feature with channels last, where a window has more than ``FEW_TAPS``. Products
    of bytes compute ``of_bytes`` times as much, with channels first ``bytes_first`` of that. ``across``: of the bytes that
    are moved, what is moved where neighbours are read that lie apart.
    """

    reuses_row: bool
    output_us: float
    step_us: float
    bytes_moved: float
    simple: float
    hard: float
    flops: float
    one_tap_first: float = 1.0
    many_taps_last: float = 1.0
    of_bytes: float = 1.0
    bytes_first: float = 1.0
    across: float = 1.0

    def product_flops(self, op: Op) -> float:
        """Rate of a product's kernel, in flops per us."""
        extents = dict(op.static)
        taps = extents.get("r", 1) * extents.get("s", 1)
        if op.dtype == "int8":
            first = is_convolution(op.kind) and op.option("layout") not in ("nhwc", "nwc")
            return self.flops * self.of_bytes * (self.bytes_first if first else 1.0)
        if not is_convolution(op.kind):
            return self.flops
        if op.option("layout") not in ("nhwc", "nwc"):
            return self.flops * (self.one_tap_first if taps == 1 else 1.0)
        grouped = int(op.option("groups")) > 1
        return self.flops * (self.many_taps_last if grouped and taps > FEW_TAPS else 1.0)


FEW_TAPS = 9
MOST_PROGRAMS = 12  # of a model whose groups have no times: each takes a second or two to choose and to compile
LEAST_US = 2.0  # of a group, the mean over the requests, below which no program is made
CORE = Rates(
    reuses_row=True,
    output_us=0.2,
    step_us=0.2,
    bytes_moved=15e3,
    simple=12e3,
    hard=4e3,
    flops=60e3,
    one_tap_first=0.7,
    many_taps_last=0.5,
    of_bytes=5.0,
    bytes_first=0.35,
    across=0.5,
)  # one core: streams, vectors
GPU = Rates(
    reuses_row=False, output_us=0.0, step_us=3.0, bytes_moved=2e6, simple=1e7, hard=2e6, flops=2e7
)  # of a server: a launch weighs as much as some megabytes
HARD = TRANSCENDENTAL | {"div", "rsqrt", "sqrt", "reciprocal", "fmod", "mod"}


def kernel_of(graph: Graph) -> Kernel:
    """A group as a kernel."""
    return graph.outputs, frozenset(node.output for node in graph.nodes)


class Prices:
    """Prices at some requests; the mean of them is a kernel's."""

    def __init__(
        self, requests: Sequence[Mapping[str, int]], rates: Rates = CORE, programs: ProgramSpace | None = None
    ) -> None:
        """``programs``: of the searched space, which compute groups where less is expected of them; None: none does."""
        self.requests, self.rates, self.programs = requests, rates, programs
        self.count = 0  # kernels whose price is a time
        self.are_times = False  # whether prices are times, where they are known
        self._extents: dict[Extent, tuple[int, ...]] = {}

    def loops_us(self, graph: Graph) -> float:
        """Microseconds of a group, the mean over the requests."""
        return float(np.mean(self.each_us(graph)))

    def usual_us(self, graph: Graph) -> tuple[float, ...]:
        """Expected time of a group at each request, in us, whatever is known of it."""
        return tuple(Prices.each_us(self, graph))

    def each_of(self, kernel: Kernel, usual_us: Sequence[float]) -> Sequence[float]:
        """The price at each request of a kernel of which ``usual_us`` is expected."""
        return usual_us

    def price_of(self, kernel: Kernel, usual_us: Sequence[float]) -> float:
        """The mean of that."""
        return float(np.mean(self.each_of(kernel, usual_us)))

    def least_us(self, usual_us: float) -> float:
        """The least price of a kernel without a time of which so much is expected."""
        return usual_us

    def mean_bytes(self, graph: Graph, tensor: str) -> float:
        """Bytes of a tensor, the mean over the requests."""
        return float(np.mean([self._bytes(graph, tensor, index) for index in range(len(self.requests))]))

    def computed_us(self, graph: Graph, node: Node) -> float:
        """Arithmetic of a primitive, once an element, the mean over the requests; 0 where there may be none."""
        if node.primitive not in ("map", "reduce") or graph.types[node.output].dtype == "int64":
            return 0.0
        tensor = node.output if node.primitive == "map" else node.inputs[0]
        rate = self.rates.hard if node.attributes.get("function") in HARD else self.rates.simple
        return self.mean_bytes(graph, tensor) / numpy_dtype(graph.types[tensor].dtype).itemsize / rate

    def measure(self, graphs: Sequence[Graph]) -> bool:
        """Time kernels that a plan wants, where prices are times; False: nothing is known now that was not before."""
        return False

    def more(self) -> bool:
        """True if kernels can still be timed."""
        return False

    def settle(self, graphs: Sequence[Graph]) -> bool:
        """Nothing more will be timed, a plan wants these: whether prices are others now."""
        return False

    def knows(self, kernel: Kernel) -> bool:
        """True if a kernel's price is a time."""
        return False

    def forms_of(self, graphs: Sequence[Graph]) -> dict[Kernel, ProgramForm]:
        """Programs of groups that a plan wants, by kernel; plain loops compute the others.

        Of groups without a time the ``MOST_PROGRAMS`` different programs of those that are expected to take longest.
        """
        result: dict[Kernel, ProgramForm] = {}
        if self.programs is None:
            return result
        usual = {kernel_of(graph): (float(np.mean(Prices.each_us(self, graph))), graph) for graph in graphs}
        for kernel, (us, graph) in sorted(usual.items(), key=lambda item: -item[1][0]):
            if us >= LEAST_US and prefers_program(graph) and len({form.kernel for form in result.values()}) < MOST_PROGRAMS:
                form = self.programs.best(graph)
                result |= {} if form is None else {kernel: form}
        return result

    def expected_us(self, graph: Graph) -> list[float]:
        """Expected time of a group at each request, in us: a time, where prices are times."""
        return self.each_us(graph)

    def each_us(self, graph: Graph) -> list[float]:
        """Microseconds of a group at each request."""
        ordered = ordered_node(graph)
        if ordered is not None:  # no plan has another kernel of it
            names = (*ordered.inputs, ordered.output)
            moved = [sum(self._bytes(graph, tensor, index) for tensor in names) for index in range(len(self.requests))]
            return [
                self.rates.step_us + max(moved_bytes / self.rates.bytes_moved, self._recurrent_us(graph, ordered, index))
                for index, moved_bytes in enumerate(moved)
            ]
        elements = (rows_before(graph) if self.rates.reuses_row and len(graph.outputs) > 1 else None) or elements_of(graph)
        variables, values = elements.variables, elements.values
        row = row_buffer_of(graph, variables, elements.value) if self.rates.reuses_row and len(graph.outputs) == 1 else None
        values = values if row is None else (row.value,)
        extents: dict[str, Extent] = {
            variable.name: extent for variable, extent in zip(variables, graph.types[graph.outputs[0]].shape, strict=True)
        }
        result = list({id(part): part for value in values for part in parts(value)}.values())  # each object once
        for part in result:
            if isinstance(part, Fold):
                extents |= {variable.name: extent for variable, extent in part.axes}
        counted = _counted(result, graph, variables)
        return [self._loop_us(graph, counted, extents, index) for index in range(len(self.requests))]

    def _recurrent_us(self, graph: Graph, node: Node, index: int) -> float:
        """A recurrent layer's products and activations, a token after the other; 0 of other primitives."""
        if node.primitive != "recurrent":
            return 0.0
        gates = prod(self._size(extent, index) for extent in graph.types[node.inputs[0]].shape)  # of all tokens
        return 2.0 * gates * int(node.attributes["hidden"]) / self.rates.flops + gates / self.rates.hard

    def product_us(self, product: Product, graph: Graph) -> float:
        """Microseconds of a tuned kernel, the mean over the requests: of its operands' bytes, or of what it computes."""
        op, times_us = product.op, []
        for index in range(len(self.requests)):
            moved = sum(self._bytes(graph, name, index) for name in {*product.reads, product.output})
            sizes = {axis: self._size(extent, index) for axis, extent in product.extents.items()}
            flops = max(0.0, float(op.flops(Shape.of(sizes))))  # a window larger than its image leaves nothing
            powers = flops / (4 * dict(op.static)["d"]) if product.kind == "online" else 0.0
            rates = self.rates
            times_us.append(
                rates.step_us + max(moved / rates.bytes_moved, flops / rates.product_flops(op) + powers / rates.hard)
            )
        return float(np.mean(times_us))

    def _loop_us(self, graph: Graph, counted: _Counted, extents: Mapping[str, Extent], index: int) -> float:
        points = {name: self._size(extent, index) for name, extent in extents.items()}
        moved = sum(self._bytes(graph, tensor, index) for tensor in graph.outputs)
        for tensor, loads in counted.loads.items():
            if tensor not in graph.outputs:  # of a large table a gather touches few rows
                reach = sum(prod(points[name] for name in free) * size for free, size in loads)
                slower = self.rates.across if tensor in counted.across else 1.0
                moved += min(self._bytes(graph, tensor, index), reach) / slower
        simple, hard = (float(sum(prod(points[name] for name in free) for free in every)) for every in counted.results)
        fixed = self.rates.step_us + self.rates.output_us * (len(graph.outputs) - 1)
        return fixed + max(moved / self.rates.bytes_moved, simple / self.rates.simple + hard / self.rates.hard)

    def _bytes(self, graph: Graph, tensor: str, index: int) -> float:
        kind = graph.types[tensor]
        return prod(self._size(extent, index) for extent in kind.shape) * numpy_dtype(kind.dtype).itemsize

    def _size(self, extent: Extent, index: int) -> int:
        if isinstance(extent, int):
            return extent
        if extent not in self._extents:
            # Requests that make an extent negative are refused when they are served.
            self._extents[extent] = tuple(max(0, evaluate(extent, sizes)) for sizes in self.requests)
        return self._extents[extent][index]


@dataclass(frozen=True, slots=True)
class _Counted:
    """Reads and results of elements, each by the loop variables that it hangs on: as often as these have values.

    ``loads``: by tensor, with bytes of an element; ``across``: tensors that no load reads as they lie; ``results``: of
    simple arithmetic, and of dear functions.
    """

    loads: Mapping[str, Sequence[tuple[tuple[str, ...], int]]]
    across: frozenset[str]
    results: tuple[Sequence[tuple[str, ...]], Sequence[tuple[str, ...]]]


def _counted(result: Sequence[Expression], graph: Graph, variables: Sequence[Variable]) -> _Counted:
    loads: dict[str, list[tuple[tuple[str, ...], int]]] = {}
    along = set[str]()  # tensors that are read as they lie
    simple, hard = list[tuple[str, ...]](), list[tuple[str, ...]]()
    for part in result:
        if isinstance(part, Load):
            size = numpy_dtype(part.dtype).itemsize
            loads.setdefault(part.tensor, []).append((tuple(free_variables(part)), size))
            if not reads_across(part, graph, variables):
                along.add(part.tensor)
        elif isinstance(part, Fold):
            simple.append((*free_variables(part), *(variable.name for variable, _ in part.axes)))
        elif isinstance(part, Apply) and dtype_of(part) != "int64":
            (hard if part.function in HARD else simple).append(tuple(free_variables(part)))
    return _Counted(loads, frozenset(loads.keys() - along), (simple, hard))
