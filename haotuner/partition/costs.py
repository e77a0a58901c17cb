"""Cost estimate of a kernel, from the bytes that it moves and the operations of its loops (a roofline).

Only differences between plans count here. Every candidate is priced by the same rates, the greedy plan's kernels too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, prod
from typing import TypeAlias

import numpy as np

from haotuner.codegen.access import softmax_sum
from haotuner.codegen.loops.c_ordered import ordered_node
from haotuner.graph.extents import Extent, evaluate
from haotuner.graph.graph import Graph, Node
from haotuner.graph.types import numpy_dtype
from haotuner.microkernels.cpu.conv import channels_last
from haotuner.microkernels.cpu.conv_direct import is_direct
from haotuner.ops.convolution import is_convolution, windows
from haotuner.ops.formula import TRANSCENDENTAL
from haotuner.partition.loop_counts import (
    BYTES,
    DIVIDED,
    DIVIDED_BY_SIZE,
    FUNCTION,
    INDEXED,
    QUOTIENT,
    QUOTIENTS,
    REDUCTION,
    ROW,
    SCALAR,
    SIMPLE,
    STRIDED,
    STRIDED_FAR,
    TURNED,
    LoopCounts,
    loop_counts,
)
from haotuner.partition.products import Product
from haotuner.partition.program_forms import ProgramForm, ProgramSpace, prefers_program
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape

LINE = 64  # bytes of a cache line
Kernel: TypeAlias = tuple[tuple[str, ...], frozenset[str]]  # its outputs, and the tensors that its primitives make


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Rates of a device, per us: bytes that are moved, results of arithmetic, of exp, erf and division, of products.

    ``step_us``: of a step, whatever it does: a call, of a GPU a launch behind another one. ``reuses_row``: whether loops let
    a row's terms wait in the result's row (``recompute.py``). ``output_us``: of each output beside a group's first.
    ``bytes_moved`` of the first ``cache_bytes`` of a step, which lie in cache; ``bytes_far`` of the rest. ``simple``,
    ``quotient`` and ``function``: results in vectors; ``loops_ns``: nanoseconds of all else that ``loop_counts.py`` counts.
    A strided load is far where more than ``again_bytes`` of lines are read before the same line is read again.

    Of products' flops, what convolutions reach: ``one_tap_first`` of one tap with channels first, which with channels last
    are dense layers; ``many_taps_last`` of a channel a feature with channels last, of windows of more than ``FEW_TAPS``.
    Depthwise with channels first: a tile waits as long as ``waiting_rows`` of its rows compute; sums of few rows are chains.
    With channels last, vectors hold features.
    Products of bytes compute ``of_bytes`` times as much, with channels first ``bytes_first`` of that.
    """

    reuses_row: bool
    output_us: float
    step_us: float
    bytes_moved: float
    bytes_far: float
    cache_bytes: float
    simple: float
    quotient: float
    function: float
    flops: float
    loops_ns: Mapping[str, float] = field(default_factory=dict)
    again_bytes: float = float("inf")
    one_tap_first: float = 1.0
    many_taps_last: float = 1.0
    waiting_rows: float = 0.0
    of_bytes: float = 1.0
    bytes_first: float = 1.0

    def moved_us(self, count: float) -> float:
        """Microseconds in which so many bytes are moved."""
        return min(count, self.cache_bytes) / self.bytes_moved + max(0.0, count - self.cache_bytes) / self.bytes_far

    def map_us(self, function: str) -> float:
        """Microseconds of a result in vectors."""
        return 1.0 / (
            self.function if function in TRANSCENDENTAL else self.quotient if function in QUOTIENTS else self.simple
        )

    def counted_ns(self, count_name: str) -> float:
        """Nanoseconds of one count of ``loop_counts.py``."""
        rate = {SIMPLE: self.simple, QUOTIENT: self.quotient, FUNCTION: self.function}.get(count_name)
        return self.loops_ns.get(count_name, 0.0) if rate is None else 1e3 / rate

    def loops_us(self, work: Mapping[str, float], outputs: int = 1) -> float:
        """Microseconds of a group: arithmetic and memory traffic overlap, as far as a device can."""
        loops_us = sum(count * self.counted_ns(count_name) for count_name, count in work.items()) / 1e3
        return self.step_us + self.output_us * (outputs - 1) + together_us(loops_us, self.moved_us(work[BYTES]))

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

    def tile_factor(self, op: Op, sizes: Mapping[str, int]) -> float:
        """Time over that in full tiles and vectors, of products and convolutions; 1 on other devices."""
        extents = dict(op.static) | dict(sizes)
        if self.waiting_rows == 0 or op.dtype == "int8":
            return 1.0
        if op.kind == "dense":  # a vector of few columns is computed whole: n of 1 takes what n of 16 takes
            return 1.0 / min(1.0, max(1, extents["n"]) / TILE_LANES)
        if not is_convolution(op.kind):
            return 1.0
        direct = is_direct(op)
        if channels_last(op):  # lanes are features
            if "h" not in extents:
                return 1.0
            features = extents["f"] // (1 if direct else int(op.option("groups")))
            return 1.0 / _lane_fill(features, TILE_LANES if direct or features < TILE_LANES else TAIL_LANES)
        sides = windows(op.kind, extents, op.all_options())
        rows, columns = (sides[axis].out(extents[axis]) if axis in extents else 1 for axis in ("h", "w"))
        if rows < 1 or columns < 1:
            return 1.0
        if not direct:  # a product of one row for each group, behind a copy of its image for each tap
            one_row = "transpose" not in op.kind and extents["c"] == int(op.option("groups")) > 1
            return ONE_ROW / _lane_fill(rows * columns, TILE_LANES) if one_row else 1.0
        tile_rows = rows / ceil(rows / TILE_ROWS)
        waiting = (1.0 + self.waiting_rows / tile_rows) / (1.0 + self.waiting_rows / TILE_ROWS)
        vector_fill = _lane_fill(columns, TILE_LANES)
        channel_fill = _lane_fill(extents["c"], TILE_LANES)  # of small images, lanes are channels
        if "h" not in extents:
            return waiting / vector_fill
        small = extents["h"] * extents["w"] <= SMALL_IMAGE and vector_fill < CHANNELS_PAY * channel_fill
        halved = sides["h"].stride == sides["w"].stride == 2 and sides["w"].dilation == 1 and sides["h"].taps in (3, 5)
        apart = GATHERED if sides["w"].stride > 1 and not halved else 1.0
        return 1.0 / channel_fill if small else apart * waiting / vector_fill


def _lane_fill(count: int, lanes: int) -> float:
    """Share of the lanes of whole vectors that ``count`` elements fill."""
    return count / (lanes * ceil(count / lanes)) if count else 1.0


FEW_TAPS = 9
TILE_ROWS = 8  # of depthwise kernels with channels first: ROWS of microkernels/cpu/conv_direct.py
GATHERED = 8.0  # such a tile of elements apart, which are read one by one: 7x7 and 3x3, strides of 1 by 2 to 4, on Zen 4
ONE_ROW = 10.0  # depthwise with channels first by windows that is_direct refuses: 28 times of drawn layers on Zen 4
TILE_LANES = 16  # columns of such a tile, and features with channels last, of the widest vectors
# Features behind whole vectors: a program of half a vector computes those that end the tiles. 24 times of eight drawn layers
# on Emerald Rapids, channels last over first: 2.2 below 16 features, 1.2 at 20, 1.0 from 24 on.
TAIL_LANES = 8
SMALL_IMAGE, CHANNELS_PAY = 512, 0.75  # pixels, and share of the fill: ht_direct_is_small of conv_direct.c
MOST_PROGRAMS = 12  # of a model whose groups have no times: each takes a second or two to choose and to compile
LEAST_US = 2.0  # of a group, the mean over the requests, below which no program is made
CORE = Rates(
    reuses_row=True,
    output_us=0.2,
    step_us=0.2,
    bytes_moved=54e3,
    bytes_far=19e3,
    cache_bytes=1.5e6,
    simple=37e3,
    quotient=10e3,
    function=1.5e3,
    flops=60e3,
    loops_ns={
        SCALAR[SIMPLE]: 0.05, SCALAR[QUOTIENT]: 0.3, SCALAR[FUNCTION]: 1.0, INDEXED: 0.29, DIVIDED: 0.67,
        DIVIDED_BY_SIZE: 2.3, TURNED: 0.34, ROW: 0.28, REDUCTION: 3.4,
        STRIDED: 0.5, STRIDED_FAR: 0.9,
    },
    again_bytes=1.3e5,
    one_tap_first=0.7,
    many_taps_last=0.5,
    waiting_rows=6.0,
    of_bytes=5.0,
    bytes_first=0.35,
)  # fmt: skip  # one core: fitted to 2,765 times of groups of eight models, see docs/design/model-planning.md
GPU = Rates(
    reuses_row=False, output_us=0.0, step_us=3.0, bytes_moved=2e6, bytes_far=2e6, cache_bytes=0.0, simple=1e7, quotient=2e6,
    function=2e6, flops=2e7, loops_ns={SCALAR[SIMPLE]: 1e-4, SCALAR[QUOTIENT]: 5e-4, SCALAR[FUNCTION]: 5e-4},
)  # fmt: skip  # of a server: a launch weighs as much as some megabytes
OVERLAP = 4.0  # norm of the bytes' and the loops' time


def together_us(us: float, other_us: float) -> float:
    """Length of two times in the norm of ``OVERLAP``."""
    return float((us**OVERLAP + other_us**OVERLAP) ** (1 / OVERLAP))


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
        self.by_bounds = False  # whether what has no time counts with a bound under what is expected of it
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
        """Least arithmetic of a primitive, once an element, the mean over the requests; 0 where there may be none."""
        if node.primitive not in ("map", "reduce") or graph.types[node.output].dtype == "int64":
            return 0.0
        tensor = node.output if node.primitive == "map" else node.inputs[0]
        count = self.mean_bytes(graph, tensor) / numpy_dtype(graph.types[tensor].dtype).itemsize
        function = str(node.attributes.get("function"))
        inverts = function == "div" and softmax_sum(graph, node)  # once a row: the elements are products
        return count * self.rates.map_us("mul" if inverts else function)

    def measure(self, graphs: Sequence[Graph]) -> bool:
        """Time kernels that a plan wants, where prices are times; False: nothing is known now that was not before."""
        return False

    def more(self) -> bool:
        """True if kernels can still be timed."""
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
        expected = {kernel_of(graph): (float(np.mean(Prices.each_us(self, graph))), graph) for graph in graphs}
        for kernel, (us, graph) in sorted(expected.items(), key=lambda item: -item[1][0]):
            if us >= LEAST_US and prefers_program(graph) and len({form.kernels for form in result.values()}) < MOST_PROGRAMS:
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
                self.rates.step_us + max(self.rates.moved_us(moved_bytes), self._recurrent_us(graph, ordered, index))
                for index, moved_bytes in enumerate(moved)
            ]
        return [self.rates.loops_us(work, len(graph.outputs)) for work in self.work_of(graph)]

    def _recurrent_us(self, graph: Graph, node: Node, index: int) -> float:
        """A recurrent layer's products and activations, a token after the other; 0 of other primitives."""
        if node.primitive != "recurrent":
            return 0.0
        gates = prod(self._size(extent, index) for extent in graph.types[node.inputs[0]].shape)  # of all tokens
        return 2.0 * gates * int(node.attributes["hidden"]) / self.rates.flops + gates / self.rates.function

    def product_us(self, product: Product, graph: Graph) -> float:
        """Microseconds of a tuned kernel, the mean over the requests."""
        return float(np.mean(self.each_product_us(product, graph)))

    def each_product_us(self, product: Product, graph: Graph) -> list[float]:
        """Microseconds of a tuned kernel at each request: of its operands' bytes, or of what it computes."""
        op, times_us = product.op, []
        for index in range(len(self.requests)):
            moved = sum(self._bytes(graph, name, index) for name in {*product.reads, product.output})
            sizes = {axis: self._size(extent, index) for axis, extent in product.extents.items()}
            flops = max(0.0, float(op.flops(Shape.of(sizes))))  # a window larger than its image leaves nothing
            powers = flops / (4 * dict(op.static)["d"]) if product.kind == "online" else 0.0
            rates = self.rates
            computed_us = flops / rates.product_flops(op) * rates.tile_factor(op, sizes)
            times_us.append(rates.step_us + max(rates.moved_us(moved), computed_us + powers / rates.function))
        return times_us

    def work_of(self, graph: Graph) -> list[dict[str, float]]:
        """Counts of a group's loops at each request, by the names of ``loop_counts.py``, and its bytes."""
        counts = loop_counts(graph, reuses_row=self.rates.reuses_row)
        return [self._work(graph, counts, index) for index in range(len(self.requests))]

    def _work(self, graph: Graph, counts: LoopCounts, index: int) -> dict[str, float]:
        points = {name: self._size(extent, index) for name, extent in counts.extents.items()}
        moved = sum(self._bytes(graph, tensor, index) for tensor in graph.outputs)
        for tensor, loads in counts.loads.items():
            if tensor not in graph.outputs:  # of a large table a gather touches few rows
                reach = sum(prod(points[name] for name in loops) * size for loops, size in loads)
                moved += min(self._bytes(graph, tensor, index), reach)
        work = {BYTES: moved}
        for (count_name, loops), count in counts.counts.items():
            work[count_name] = work.get(count_name, 0.0) + count * prod(points[name] for name in loops)
        for loops, revisit_loops in counts.strided:
            is_far = LINE * prod(points[name] for name in revisit_loops) > self.rates.again_bytes
            count_name = STRIDED_FAR if is_far else STRIDED
            work[count_name] = work.get(count_name, 0.0) + prod(points[name] for name in loops)
        return work

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
