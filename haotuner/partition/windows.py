"""Windows: what a model is cut into between tensors that lie in memory, each a binary program with its candidates.

Primitives that are tied by a tensor which need not lie in memory are one window. Kernels of several outputs tie more.
Windows whose tensors reach each other by loops alone are one then, too: kernels that may wait for each other meet there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from haotuner.codegen.loops.recompute import recomputed_reductions
from haotuner.graph.graph import Graph
from haotuner.graph.types import numpy_dtype
from haotuner.partition.costs import Prices
from haotuner.partition.greedy_fusion import Greedy
from haotuner.partition.multi_output_fusion import MultiOutputFusion, Ways, joined
from haotuner.partition.structural_hash import structural_hash
from haotuner.partition.window_ilp import Candidate

MOST_CANDIDATES = 600  # of a window; more are left out, and the window is then not called optimal
MOST_NODES = 32  # of a candidate, without those that pass on one element each (``_passing``)


@dataclass(slots=True)
class Window:
    """``nodes`` in the graph's order; ``whole``: no candidate was left out; ``outputs``: what of it lies in memory."""

    nodes: list[str] = field(default_factory=list)
    inside: frozenset[str] = frozenset()
    candidates: list[Candidate] = field(default_factory=list)
    whole: bool = True
    outputs: list[str] = field(default_factory=list)
    base: dict[str, Graph] = field(default_factory=dict)  # greedy fusion's groups
    meaning: Hashable = None  # the same of windows that differ in names alone


class Windows:
    """The windows of a greedy plan's graph; ``kinds``: candidates by what windows mean, which segments of a model share."""

    def __init__(self, plan: Greedy, prices: Prices, kinds: dict[Hashable, Window]) -> None:
        self.plan, self.prices, self.kinds = plan, prices, kinds
        self.required: set[str] = plan.required()
        self.live = self._live()
        self.alias = {name: of for name in self.live if (of := plan.alias(plan.made[name], self.required)) is not None}
        self.ways = Ways.of(plan.graph, {*plan.products, *plan.inside})

    @cached_property
    def found(self) -> list[Window]:
        """All of them, with their candidates."""
        apart = [self._opened(nodes) for nodes in self._tied_by_need()]
        return [window for parts in self._near(apart) for window in self._together(parts)]

    def _live(self) -> list[str]:
        """Primitives outside of products that some tensor in memory needs, in the graph's order."""
        plan, needed = self.plan, set[str]()
        for node in reversed(plan.graph.nodes):
            if node.output in plan.products or node.output in plan.inside:
                continue
            if node.output in self.required or node.output in needed:
                needed.add(node.output)
                needed.update(tensor for tensor in node.inputs if tensor in plan.made and tensor not in self.required)
        return [name for name in plan.order if name in needed and name not in plan.products and name not in plan.inside]

    def _tied_by_need(self) -> list[list[str]]:
        """Primitives that are tied together by tensors that need not lie in memory, in the graph's order."""
        live = set(self.live)
        ties = [
            [name, *(tensor for tensor in self.plan.made[name].inputs if tensor in live and tensor not in self.required)]
            for name in self.live
        ]
        every = [[name for name in self._ordered(part) if name not in self.alias] for part in joined(ties)]
        return sorted((group for group in every if group), key=lambda item: self.plan.order[item[0]])

    def _ordered(self, names: Iterable[str]) -> list[str]:
        return sorted(names, key=self.plan.order.__getitem__)

    def _opened(self, nodes: list[str]) -> Window:
        """A window of these primitives with its candidates of one output, as those of the first that means the same."""
        window = Window(nodes, frozenset(nodes), meaning=self._meaning(nodes))
        twin = self.kinds.setdefault(window.meaning, window)
        if twin is window:
            window.candidates, window.whole = self._candidates(window)
        else:
            window.candidates, window.whole = self._renamed(twin.candidates, twin.nodes, nodes), twin.whole
        window.outputs = [name for name in nodes if name in self.required]
        return window

    def _meaning(self, nodes: Sequence[str]) -> Hashable:
        """As ``structural_hash.py``, with what a window reads by another name, and how many products lie between."""
        node_index = {name: index for index, name in enumerate(nodes)}
        first = min(self.ways.products[name] for name in nodes)
        ties = tuple(
            (
                self.ways.products[name] - first,
                tuple(node_index.get(self._lies_in(tensor)) for tensor in self.plan.made[name].inputs),
            )
            for name in nodes
        )
        return structural_hash(self.plan.graph, self.plan.made, nodes, self.required), ties

    def _lies_in(self, tensor: str) -> str:
        """The tensor whose memory it is."""
        while tensor in self.alias:
            tensor = self.alias[tensor]
        return tensor

    def _reads(self, inputs: Iterable[str], inside: Collection[str]) -> frozenset[str]:
        """Tensors that kernels of the window make and a kernel reads."""
        return frozenset(tensor for tensor in map(self._lies_in, inputs) if tensor in inside)

    def _renamed(self, candidates: Iterable[Candidate], before: Sequence[str], now: Sequence[str]) -> list[Candidate]:
        """Candidates of a window that means the same, by this one's names."""
        names, result = dict(zip(before, now, strict=True)), []
        for candidate in candidates:
            outputs = tuple(names[name] for name in candidate.outputs)
            nodes, reads = (frozenset(map(names.__getitem__, own)) for own in (candidate.nodes, candidate.reads))
            us = self.prices.price_of((outputs, nodes), candidate.usual_us)
            result.append(Candidate(outputs, nodes, reads, us, candidate.usual_us))
        return result

    def _near(self, windows: Sequence[Window]) -> list[list[Window]]:
        """Windows that kernels of several outputs may tie: behind as many products, they share what lies in memory."""
        window_of = {name: str(index) for index, window in enumerate(windows) for name in window.nodes}
        ties: list[list[str]] = [[str(index)] for index in range(len(windows))]
        readers: dict[tuple[str, int], list[str]] = {}
        for name, position in window_of.items():
            own = self.ways.products[name]
            for tensor in {self._lies_in(tensor) for tensor in self.plan.made[name].inputs}:
                if tensor in window_of and self.ways.products[tensor] == own:
                    ties.append([position, window_of[tensor]])
                if tensor not in self.plan.graph.constants:
                    readers.setdefault((tensor, own), []).append(position)
        parts = [sorted(map(int, part)) for part in joined([*ties, *readers.values()])]
        return [[windows[position] for position in part] for part in sorted(parts)]

    def _together(self, parts: Sequence[Window]) -> list[Window]:
        """The windows that kernels of several outputs make of these, with such kernels."""
        nodes = self._ordered(name for part in parts for name in part.nodes)
        own = Window(nodes, frozenset(nodes), meaning=("several", self._meaning(nodes)))
        twin = self.kinds.setdefault(own.meaning, own)
        if twin is own:
            several = MultiOutputFusion(
                self.plan.graph, self.ways, self.prices, self.required, self._readers(nodes), self.plan.subgraph
            )
            own.candidates, own.whole = several.unions([candidate for part in parts for candidate in part.candidates])
        else:
            own.candidates, own.whole = self._renamed(twin.candidates, twin.nodes, nodes), twin.whole
        result: list[Window] = []
        for index, some in enumerate(self._apart(parts, own.candidates)):
            selected = [parts[at] for at in some]
            inside = frozenset[str]().union(*(part.inside for part in selected))
            unions = [candidate for candidate in own.candidates if candidate.nodes <= inside]
            alone = len(selected) == 1 and not unions  # it means what it meant, wherever it lies
            window = Window(self._ordered(inside), inside, meaning=selected[0].meaning if alone else (own.meaning, index))
            every = [*(candidate for part in selected for candidate in part.candidates), *unions]
            reads = [self._reads(self.plan.subgraph(*candidate.key).inputs, inside) for candidate in every]
            window.candidates = [replace(candidate, reads=some) for candidate, some in zip(every, reads, strict=True)]
            window.whole = own.whole and all(part.whole for part in selected)
            window.outputs = [name for name in window.nodes if name in self.required]
            result.append(window)
        return result

    def _readers(self, nodes: Iterable[str]) -> Mapping[str, Collection[str]]:
        return {name: [reader.output for reader in self.plan.finder.readers.get(name, [])] for name in nodes}

    def _apart(self, parts: Sequence[Window], unions: Sequence[Candidate]) -> list[list[int]]:
        """Places of windows that are one program: tied by a kernel, or each before the other by loops alone."""
        at = {name: str(index) for index, part in enumerate(parts) for name in part.nodes}
        tied = [sorted(part) for part in joined([*([str(index)] for index in range(len(parts))),
                                                 *({at[name] for name in union.nodes} for union in unions)])]  # fmt: skip
        masks = [
            sum(1 << self.plan.order[name] for candidate in part for name in parts[int(candidate)].nodes) for part in tied
        ]
        ahead = [0] * len(tied)
        for index, part in enumerate(tied):
            for name in (name for candidate in part for name in parts[int(candidate)].nodes):
                ahead[index] |= self._reached[name]
        circles = [] if not unions else [
            [first, second] for i, (first, *_) in enumerate(tied) for j, (second, *_) in enumerate(tied[:i])
            if ahead[i] & masks[j] and ahead[j] & masks[i]
        ]  # fmt: skip
        return sorted(sorted(map(int, part)) for part in joined([*tied, *circles]))

    @cached_property
    def _reached(self) -> dict[str, int]:
        """Primitives that each one of the windows leads to by loops alone, as bits by the graph's order."""
        result: dict[str, int] = {}
        live = set(self.live)
        for name in reversed(self.live):
            result[name] = 0
            for reader in self.plan.finder.readers.get(name, []):
                if reader.output in live and self.ways.products[reader.output] == self.ways.products[name]:
                    result[name] |= result[reader.output] | 1 << self.plan.order[reader.output]
        return result

    @cached_property
    def _passing(self) -> frozenset[str]:
        """Tensors that no better plan has in memory: inside of a chain of steps of one tensor, each element by itself.

        The only reader's result, no wider, may lie in memory in its place: as much is written, no more is read, and who
        reads the result computes less. A chain's first tensor stays: in a row of it the terms of its sums may wait.
        """
        live, types, readers = set(self.live), self.plan.graph.types, self.plan.finder.readers
        alone = {name: readers[name][0].output for name in self.live if len(readers.get(name, [])) == 1}
        return frozenset(
            name
            for name, reader in alone.items()
            if name not in self.required and reader in live and self._of_one(name) and self._of_one(reader)
            and numpy_dtype(types[reader].dtype).itemsize <= numpy_dtype(types[name].dtype).itemsize
        )  # fmt: skip

    def _of_one(self, name: str) -> bool:
        """True if each element is made of one of one tensor, and of numbers."""
        node, types = self.plan.made[name], self.plan.graph.types
        tensors = [tensor for tensor in node.inputs if self.plan.finder.follow.number(tensor) is None]
        return node.primitive in ("map", "cast") and len(tensors) == 1 and types[tensors[0]].shape == types[name].shape

    def _with_passing(self, nodes: frozenset[str], inside: Collection[str]) -> frozenset[str]:
        """With what none but the set reads on its way to it."""
        result, waiting = set(nodes), list(nodes)
        while waiting:
            more = [
                tensor for tensor in self.plan.made[waiting.pop()].inputs if tensor in self._passing and tensor in inside
            ]
            waiting += [tensor for tensor in more if tensor not in result]
            result.update(more)
        return frozenset(result)

    def _candidates(self, window: Window) -> tuple[list[Candidate], bool]:
        """All convex sets with one output, from the output upwards; whether none was left out."""
        inside, result, whole = set(window.nodes), list[Candidate](), True
        for name in window.nodes:
            if name in self._passing:
                continue
            first = self._with_passing(frozenset({name}), inside)
            seen, waiting = {first}, [first]
            while waiting:
                nodes = waiting.pop(0)
                graph = self.plan.subgraph((name,), nodes)
                if recomputed_reductions(graph) is None:
                    usual = self.prices.usual_us(graph)
                    us = self.prices.price_of(((name,), nodes), usual)
                    result.append(Candidate((name,), nodes, self._reads(graph.inputs, inside), us, usual))
                    if len(result) >= MOST_CANDIDATES:
                        return result, False
                for more in self._grown_by_one(nodes, inside):
                    if more not in seen:
                        if len(more - self._passing) > MOST_NODES:
                            whole = False
                            continue
                        seen.add(more)
                        waiting.append(more)
        return result, whole

    def _grown_by_one(self, nodes: frozenset[str], inside: set[str]) -> Iterable[frozenset[str]]:
        """The set with one more primitive that it reads, and whatever lies on a way from that one into the set."""
        for name in self._ordered(nodes):
            for tensor in self.plan.made[name].inputs:
                if tensor in inside and tensor not in nodes and tensor not in self.required:
                    yield self._with_passing(self._convex(nodes | {tensor}, inside), inside)

    def _convex(self, nodes: frozenset[str], inside: set[str]) -> frozenset[str]:
        """With all primitives between two of the set; only those that lie between its first and its last are looked at."""
        order, made, readers = self.plan.order, self.plan.made, self.plan.finder.readers
        places = [order[name] for name in nodes]
        first, last = min(places), max(places)

        def reached(near: Callable[[str], Iterable[str]]) -> set[str]:
            result, waiting = set(nodes), list(nodes)
            while waiting:
                more = {node for node in near(waiting.pop()) if node in inside and first < order[node] < last} - result
                result |= more
                waiting += more
            return result

        above = reached(lambda name: (reader.output for reader in readers.get(name, ())))
        return frozenset(nodes | (above & reached(lambda name: made[name].inputs)))
