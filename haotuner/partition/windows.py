"""Windows: what a model is cut into between tensors that lie in memory, each a binary program with its candidates.

Primitives that are tied by a tensor which need not lie in memory are one window. Kernels of several outputs tie more.
Windows whose tensors reach each other by loops alone are one then, too: kernels that may wait for each other meet there.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from haotuner.codegen.loops.recompute import recomputed_reductions
from haotuner.graph.types import numpy_dtype
from haotuner.partition.candidate_search import EAGER, MOST_NODES, CandidateSearch, ColumnGeneration
from haotuner.partition.convex_sets import ConvexSets, Floors
from haotuner.partition.costs import Kernel, Prices
from haotuner.partition.greedy_fusion import FREE, Greedy
from haotuner.partition.multi_output_fusion import MultiOutputFusion, Ways, joined
from haotuner.partition.structural_hash import structural_hash
from haotuner.partition.window_ilp import WINDOW_S, Candidate

LARGE = 24  # primitives of a window up to which it is never cut
MANY_SETS = 1_000  # of a window, from which on it is cut


@dataclass(slots=True)
class Window:
    """``nodes`` in the graph's order; ``whole``: no candidate was left out; ``outputs``: what of it lies in memory.

    ``searches``: of a large window, what finds further candidates where its program asks for them.
    """

    nodes: list[str] = field(default_factory=list)
    inside: frozenset[str] = frozenset()
    candidates: list[Candidate] = field(default_factory=list)
    whole: bool = True
    outputs: list[str] = field(default_factory=list)
    greedy: frozenset[Kernel] = frozenset()  # candidates that greedy fusion's plan has
    searches: tuple[CandidateSearch, ...] = ()
    meaning: Hashable = None  # the same of windows that differ in names alone

    @property
    def greedy_plan(self) -> list[Candidate]:
        """Greedy fusion's kernels and aliases: some plan, whatever is found."""
        return [candidate for candidate in self.candidates if candidate.key in self.greedy]


class Windows:
    """The windows of a greedy plan's graph; ``kinds``: candidates by what windows mean, which segments of a model share."""

    def __init__(self, plan: Greedy, prices: Prices, kinds: dict[Hashable, Window]) -> None:
        self.plan, self.prices, self.kinds = plan, prices, kinds
        self.required: set[str] = plan.required()
        self.live = self._live()
        self._cut_large()
        self.alias = {name: of for name in self.live if (of := plan.alias(plan.producers[name], self.required)) is not None}
        self.ways = Ways.of(plan.graph, {*plan.fixed, *plan.inside})

    @cached_property
    def windows(self) -> list[Window]:
        """All of them, with their candidates."""
        apart = [self._opened(nodes) for nodes in self._tied_by_need()]
        return [window for parts in self._near(apart) for window in self._together(parts)]

    def _live(self) -> list[str]:
        """Primitives outside of products that some tensor in memory needs, in the graph's order."""
        plan, needed = self.plan, set[str]()
        for node in reversed(plan.graph.nodes):
            if node.output in plan.fixed or node.output in plan.inside:
                continue
            if node.output in self.required or node.output in needed:
                needed.add(node.output)
                needed.update(tensor for tensor in node.inputs if tensor in plan.producers and tensor not in self.required)
        return [name for name in plan.order if name in needed and name not in plan.fixed and name not in plan.inside]

    def _tied_by_need(self) -> list[list[str]]:
        """Primitives that are tied together by tensors that need not lie in memory, in the graph's order."""
        every = [[name for name in part if name not in self.alias] for part in self._tied(self.live, self.required)]
        return sorted((group for group in every if group), key=lambda item: self.plan.order[item[0]])

    def _tied(self, names: Sequence[str], stored: Collection[str]) -> list[list[str]]:
        """These primitives in parts that are tied by tensors not in ``stored``, each in the graph's order."""
        own = set(names)
        ties = (
            [name, *(tensor for tensor in self.plan.producers[name].inputs if tensor in own and tensor not in stored)]
            for name in names
        )
        return [self._ordered(part) for part in joined(ties)]

    def _cut_large(self) -> None:
        """Cut large windows at tensors through which every path between two parts leads and that greedy fusion stores.

        They lie in memory in every plan, then: each of several kernels would else compute all that leads to them again.
        """
        waiting = [part for part in self._tied(self.live, self.required) if self._large(part)]
        stored = self.plan.chosen[0] if waiting else set()
        while waiting:
            names = waiting.pop()
            pieces = {
                name: self._tied(names, self.required | {name})
                for name in names
                if name in stored and name not in self.required and len(self.plan.finder.readers.get(name, [])) > 1
            }
            best = min(pieces, key=lambda name: max(map(len, pieces[name])), default=None)
            if best is not None and len(pieces[best]) > 1:
                self.required.add(best)
                waiting += [part for part in pieces[best] if self._large(part)]

    def _large(self, names: Sequence[str]) -> bool:
        """True if there are too many sets of these primitives to look at each."""
        if len(names) <= LARGE:
            return False
        return ConvexSets(names, self.plan.producers, self.required, self._passing).more_than(MANY_SETS, MOST_NODES)

    def _ordered(self, names: Iterable[str]) -> list[str]:
        return sorted(names, key=self.plan.order.__getitem__)

    def _opened(self, nodes: list[str]) -> Window:
        """A window of these primitives with its candidates of one output, as those of the first that means the same."""
        window = Window(nodes, frozenset(nodes), meaning=self._meaning(nodes))
        window.outputs = [name for name in nodes if name in self.required]
        twin = self.kinds.setdefault(window.meaning, window)
        if twin is window:
            self._candidates(window)
            return window
        own = [candidate for candidate in twin.candidates if candidate.nodes <= twin.inside]
        window.candidates = self.renamed(own, twin.nodes, nodes)
        if twin.searches:
            window.searches = (self._search(window, window.candidates),)
            window.searches[0].open()
        self._add_greedy(window)
        return window

    def _meaning(self, nodes: Sequence[str]) -> Hashable:
        """As ``structural_hash.py``, with what a window reads by another name, and how many products lie between."""
        node_index = {name: index for index, name in enumerate(nodes)}
        first = min(self.ways.products[name] for name in nodes)
        ties = tuple(
            (
                self.ways.products[name] - first,
                tuple(node_index.get(self._lies_in(tensor)) for tensor in self.plan.producers[name].inputs),
            )
            for name in nodes
        )
        return structural_hash(self.plan.graph, self.plan.producers, nodes, self.required), ties

    def _lies_in(self, tensor: str) -> str:
        """The tensor whose memory it is."""
        while tensor in self.alias:
            tensor = self.alias[tensor]
        return tensor

    def _reads(self, inputs: Iterable[str], inside: Collection[str]) -> frozenset[str]:
        """Tensors that kernels of the window make and a kernel reads."""
        return frozenset(tensor for tensor in map(self._lies_in, inputs) if tensor in inside)

    def renamed(self, candidates: Iterable[Candidate], before: Sequence[str], now: Sequence[str]) -> list[Candidate]:
        """Candidates of a window that means the same, by this one's names."""
        names, result = dict(zip(before, now, strict=True)), []
        for candidate in candidates:
            outputs = tuple(names[name] for name in candidate.outputs)
            nodes, reads = (frozenset(map(names.__getitem__, own)) for own in (candidate.nodes, candidate.reads))
            own = replace(candidate, outputs=outputs, nodes=nodes, reads=reads)
            result.append(replace(own, us=own.price(self.prices)))
        return result

    def _near(self, windows: Sequence[Window]) -> list[list[Window]]:
        """Windows that kernels of several outputs may tie: behind as many products, they share what lies in memory."""
        window_of = {name: str(index) for index, window in enumerate(windows) for name in window.nodes}
        ties: list[list[str]] = [[str(index)] for index in range(len(windows))]
        readers: dict[tuple[str, int], list[str]] = {}
        for name, position in window_of.items():
            own = self.ways.products[name]
            for tensor in {self._lies_in(tensor) for tensor in self.plan.producers[name].inputs}:
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
            own.candidates, own.whole = several.unions([
                candidate for part in parts for candidate in part.candidates
                if not candidate.alias and candidate.nodes <= part.inside
            ])  # fmt: skip
        else:
            own.candidates, own.whole = self.renamed(twin.candidates, twin.nodes, nodes), twin.whole
        result: list[Window] = []
        for index, some in enumerate(self._apart(parts, own.candidates)):
            selected = [parts[at] for at in some]
            inside = frozenset[str]().union(*(part.inside for part in selected))
            unions = [candidate for candidate in own.candidates if candidate.nodes <= inside]
            alone = len(selected) == 1 and not unions  # it means what it meant, wherever it lies
            window = Window(self._ordered(inside), inside, meaning=selected[0].meaning if alone else (own.meaning, index))
            every = [*(candidate for part in selected for candidate in part.candidates), *unions]
            window.candidates = [candidate if alone else self.within(window, candidate) for candidate in every]
            window.whole = own.whole and all(part.whole for part in selected)
            window.greedy = frozenset[Kernel]().union(*(part.greedy for part in selected))
            window.searches = tuple(search for part in selected for search in part.searches)
            window.outputs = [name for name in window.nodes if name in self.required]
            result.append(window)
        return result

    def within(self, window: Window, candidate: Candidate) -> Candidate:
        """A candidate with all that it reads of a window, at today's price."""
        inputs = (
            self.plan.producers[candidate.output].inputs if candidate.alias else self.plan.subgraph(*candidate.key).inputs
        )
        return replace(candidate, reads=self._reads(inputs, window.inside), us=candidate.price(self.prices))

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
        """Tensors that no better plan has in memory: of sizes alone, or inside of a chain of steps of one tensor.

        The only reader's result, no wider, may lie in memory in its place: as much is written, no more is read, and who
        reads the result computes less. A chain's first tensor stays: in a row of it the terms of its sums may wait.
        """
        live, types, readers = set(self.live), self.plan.graph.types, self.plan.finder.readers

        def narrower(tensor: str, other: str) -> bool:
            return numpy_dtype(types[tensor].dtype).itemsize <= numpy_dtype(types[other].dtype).itemsize

        alone = {name: readers[name][0].output for name in self.live if len(readers.get(name, [])) == 1}
        return frozenset(
            name
            for name, reader in alone.items()
            if name not in self.required and reader in live
            and (name in self._of_sizes or (self._of_one(name) and self._of_one(reader) and narrower(reader, name)))
        )  # fmt: skip

    @cached_property
    def _of_sizes(self) -> frozenset[str]:
        """Tensors that are made of sizes and places alone: who reads one computes it, and then reads nothing."""
        result = set[str]()
        for name in self.live:
            node = self.plan.producers[name]
            if node.primitive in FREE and result.issuperset(node.inputs):
                result.add(name)
        return frozenset(result)

    def _of_one(self, name: str) -> bool:
        """True if each element is made of one of one tensor, and of numbers."""
        node, types = self.plan.producers[name], self.plan.graph.types
        tensors = [tensor for tensor in node.inputs if self.plan.finder.follow.number(tensor) is None]
        return node.primitive in ("map", "cast") and len(tensors) == 1 and types[tensors[0]].shape == types[name].shape

    def _candidates(self, window: Window) -> None:
        """Candidates of one output: all of a small window; of a large one those that its program asks for."""
        search = self._search(window, ())
        every = search.all_of(EAGER)
        aliases = self._aliases(window)
        known = {alias.key for alias in aliases}  # what a kernel would copy
        singles = search.open() if every is None else every
        window.candidates = [*(candidate for candidate in singles if candidate.key not in known), *aliases]
        self._add_greedy(window)
        if every is None:
            window.searches = (search,)
            self.column_generation(window, WINDOW_S).relaxed()

    def column_generation(self, window: Window, limit_s: float) -> ColumnGeneration:
        """The program of a large window, which finds its candidates."""
        return ColumnGeneration(
            window.searches,
            window.candidates,
            window.outputs,
            limit_s,
            self.prices.least_us,
            lambda candidate: self.within(window, candidate),
        )

    def _search(self, window: Window, candidates: Iterable[Candidate]) -> CandidateSearch:
        """The search in a window of one part; ``candidates``: those that are known."""
        sets = ConvexSets(window.nodes, self.plan.producers, self.required, self._passing)
        result = CandidateSearch(
            sets,
            Floors.of(sets, self.plan.graph, self.plan.producers, self.prices),
            lambda name, nodes: self._priced(window, name, nodes),
        )
        for candidate in candidates:
            if not candidate.alias:
                of = sets.index[candidate.output], sets.mask(candidate.nodes)
                result.candidates[of] = candidate
                result.joined.add(of)
        return result

    def _priced(self, window: Window, name: str, nodes: frozenset[str]) -> tuple[Candidate | None, str | None]:
        """The kernel of a set; None, and what it would compute again and again, of a set that repeats a reduction."""
        graph = self.plan.subgraph((name,), nodes)
        repeated = recomputed_reductions(graph)
        if repeated is not None:
            return None, repeated
        usual = self.prices.usual_us(graph)
        us = self.prices.price_of(((name,), nodes), usual)
        return Candidate((name,), nodes, self._reads(graph.inputs, window.inside), us, usual), None

    def _aliases(self, window: Window) -> list[Candidate]:
        """Reshapes of what a kernel may store: in memory they are that, and cost nothing; an output is memory of its own."""
        free = (0.0,) * len(self.prices.requests)
        return [
            Candidate((name,), frozenset({name}), frozenset({of}), 0.0, free, alias=True)
            for name in window.nodes
            if (of := self.plan.alias(self.plan.producers[name], window.inside)) is not None and of in window.inside
        ]

    def _add_greedy(self, window: Window) -> None:
        """Add greedy fusion's plan: what of it is no candidate yet, such as a group that is not convex."""
        stored, groups = self.plan.chosen
        known = {candidate.key for candidate in window.candidates}
        greedy: list[Kernel] = []
        for name in window.nodes:
            if name not in groups:
                greedy += [((name,), frozenset({name}))] if name in stored else []
                continue
            group = groups[name]
            greedy.append(((name,), frozenset(node.output for node in group.nodes)))
            if greedy[-1] not in known:
                usual, reads = self.prices.usual_us(group), self._reads(group.inputs, window.inside)
                us = self.prices.price_of(greedy[-1], usual)
                window.candidates.append(Candidate(*greedy[-1], reads, us, usual))
        window.greedy = frozenset(greedy)
