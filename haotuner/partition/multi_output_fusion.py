"""Candidates of several outputs: one nest of loops for what several kernels would read, or compute, each for itself.

They are unions of candidates that share a primitive or what they read, or of which one makes what the other reads. Left out
is

- what another plan is never worse than: a union that is expected to take as long as its parts, and one with an output that
  nobody else reads;
- what is not convex, or needs loops that one nest does not have (``loop_nest.py``), or loses a core's loops that are faster
  than plain ones: blocks of a row's sums, turned squares, rows whose middle asks nothing of pads, woven rows, pieces;
- outputs behind unlike numbers of products. So along a way from kernel to kernel this number never falls, products raise it,
  and no circle of kernels leads through a product: windows whose tensors reach each other by loops alone hold every circle.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from haotuner.codegen.loops.c_ordered import ORDERED
from haotuner.codegen.loops.concat_loops import interleaved_parts, pieces
from haotuner.codegen.loops.loop_nest import elements_of, lies_beside
from haotuner.codegen.loops.loop_partition import interior_of
from haotuner.codegen.loops.recompute import recomputed_reductions
from haotuner.codegen.loops.strided_reads import strided_folds, strided_loads, wide
from haotuner.graph.graph import Graph
from haotuner.partition.costs import Kernel, Prices
from haotuner.partition.greedy_fusion import looks_up_bytes
from haotuner.partition.window_ilp import Candidate

MOST_OUTPUTS = 4
MOST_UNIONS = 400  # of a window's candidates that are looked at; where there are more the window is not called optimal
MOST_NODES = 32  # of a candidate


@dataclass(frozen=True, slots=True)
class Ways:
    """Of each primitive, as bits by their order: what leads to it and what it leads to; how many products lie before it."""

    order: Mapping[str, int]
    before: Sequence[int]
    behind: Sequence[int]
    products: Mapping[str, int]

    @staticmethod
    def of(graph: Graph, barriers: Collection[str]) -> Ways:
        """``barriers``: tensors of products, and what is inside of them."""
        order = {node.output: index for index, node in enumerate(graph.nodes)}
        before, behind, products = [0] * len(order), [0] * len(order), dict[str, int]()
        for index, node in enumerate(graph.nodes):
            made = [order[tensor] for tensor in node.inputs if tensor in order]
            for tensor in made:
                before[index] |= before[tensor] | 1 << tensor
            own = node.output in barriers or node.primitive in ORDERED
            products[node.output] = max((products[tensor] for tensor in node.inputs if tensor in order), default=0) + own
        for position in reversed(range(len(order))):
            for read in graph.nodes[position].inputs:
                if read in order:
                    behind[order[read]] |= behind[position] | 1 << position
        return Ways(order, before, behind, products)

    def convex(self, nodes: Iterable[str]) -> bool:
        """True if no way leads out of the set and back into it."""
        own = [self.order[name] for name in nodes]
        stored, after, ahead = 0, 0, 0
        for position in own:
            stored |= 1 << position
            after |= self.behind[position]
            ahead |= self.before[position]
        return not after & ahead & ~stored


@dataclass(frozen=True, slots=True)
class MultiOutputFusion:
    """Context of unions. ``required``: tensors in memory; ``readers``: who reads each tensor of the window."""

    graph: Graph
    ways: Ways
    prices: Prices
    required: Collection[str]
    readers: Mapping[str, Collection[str]]
    subgraph: Callable[[Sequence[str], Iterable[str]], Graph]

    def unions(self, singles: Sequence[Candidate]) -> tuple[list[Candidate], bool]:
        """The candidates of several outputs that these of one make, and whether none was left out for their number."""
        useful = [candidate for candidate in singles if self._worth_storing(candidate.output)]
        result, seen = list[Candidate](), set[Kernel]()
        parts = [(candidate, self._reads(candidate)) for candidate in useful]
        waiting = list(parts)
        while waiting:
            candidate, reads = waiting.pop(0)
            for other, own in parts:
                key = tuple(sorted((*candidate.outputs, other.output))), candidate.nodes | other.nodes
                if key in seen or len(key[1]) > MOST_NODES or not self._may(candidate, reads, other, own):
                    continue
                seen.add(key)
                if len(seen) > MOST_UNIONS:
                    return result, False
                made = self._union(*key)
                if made is not None and np.mean(made.usual_us) < np.mean(candidate.usual_us) + np.mean(other.usual_us):
                    result.append(made)
                    if len(made.outputs) < MOST_OUTPUTS:
                        waiting.append((made, self._reads(made)))
        return result, True

    def _worth_storing(self, tensor: str) -> bool:
        """True if a tensor may be worth memory beside another one."""
        return tensor in self.required or len(self.readers.get(tensor, ())) > 1

    def _reads(self, candidate: Candidate) -> frozenset[str]:
        return frozenset(self.subgraph(candidate.outputs, candidate.nodes).inputs)

    def _may(self, candidate: Candidate, reads: frozenset[str], other: Candidate, own: frozenset[str]) -> bool:
        """True if two may be joined, before loops are written."""
        if other.output in candidate.outputs or self.ways.products[candidate.output] != self.ways.products[other.output]:
            return False
        if not (candidate.nodes & other.nodes or reads & own or other.output in reads or own & set(candidate.outputs)):
            return False
        shapes = sorted(
            (self.graph.types[name].shape for name in (candidate.output, other.output)), key=_width, reverse=True
        )
        return lies_beside(shapes[1], shapes[0]) is not None and self.ways.convex(candidate.nodes | other.nodes)

    def _union(self, outputs: tuple[str, ...], nodes: frozenset[str]) -> Candidate | None:
        """The candidate, its reads left open; None where it is none."""
        for name in outputs:  # each is read elsewhere
            if name not in self.required and not set(self.readers.get(name, ())) - nodes:
                return None
        first, *others = sorted(outputs, key=lambda item: (-_width(self.graph.types[item].shape), -self.ways.order[item]))
        graph = self.subgraph((first, *sorted(others, key=self.ways.order.__getitem__)), nodes)
        if not plain(graph, cores=self.prices.rates.reuses_row) or recomputed_reductions(graph) is not None:
            return None
        usual = self.prices.usual_us(graph)
        us = self.prices.price_of((graph.outputs, nodes), usual)
        return Candidate(graph.outputs, nodes, frozenset(), us, usual)


def _width(shape: Sequence[object]) -> int:
    """Axes that are more than one point: rows have fewer than what lies along them."""
    return sum(extent != 1 for extent in shape)


def plain(graph: Graph, *, cores: bool = True) -> bool:
    """True if one nest writes all outputs of a graph, and, on ``cores``, none of them has faster loops of its own."""
    if any(node.primitive in ORDERED or looks_up_bytes(graph, node) for node in graph.nodes):
        return False
    shape = graph.types[graph.outputs[0]].shape
    if any(lies_beside(graph.types[tensor].shape, shape) is None for tensor in graph.outputs[1:]):
        return False
    result = elements_of(graph)
    for value in result.values if cores else ():
        if wide(shape[-1]) and strided_folds(value, result.variables):
            return False
        if len(graph.outputs) > 1 and strided_loads(graph, result.variables, value) is not None:
            return False
        last = result.variables[-1]
        if (
            interior_of(value, last, shape[-1]) is not None
            or interleaved_parts(value, last) is not None
            or pieces(value, last, shape[-1])
        ):
            return False
    return True


def joined(parts: Iterable[Iterable[str]]) -> Iterator[frozenset[str]]:
    """The union of all that have something in common, directly or through others."""
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent.setdefault(name, name) != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    for part in map(list, parts):
        for tensor in part[:1]:
            root(tensor)
        for tensor_, other in pairwise(part):
            parent[root(tensor_)] = root(other)
    result: dict[str, set[str]] = {}
    for name in list(parent):
        result.setdefault(root(name), set()).add(name)
    yield from map(frozenset, result.values())
