"""Rewrites of primitives as candidates: each region of a plan in each of its forms, the cheapest by price.

A region is the part of a plan that rewrites may change: products and windows, with the windows that read a product's
result. Its forms have the same outputs and other kernels. Tensors between regions are in memory in every form. So the best
of the optima of all forms' binary programs is the optimum of a program with the kernels of all forms.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, combinations
from typing import Any

from haotuner.graph.graph import Graph, Node
from haotuner.graph.rewrites import BEHIND, COLUMN, MERGED, Site, columns_of, rewritten, sites
from haotuner.partition.costs import Prices
from haotuner.partition.ilp_partition import IlpPartitioner
from haotuner.partition.multi_output_fusion import joined
from haotuner.partition.structural_hash import structural_hash
from haotuner.partition.window_ilp import total_us
from haotuner.partition.windows import Window

MOST_SITES = 4  # of a region, of which every set is looked at; of more each alone, one after the other
NEAR = 1e-6  # of a region's price, below which two are the same
GAIN = 0.02  # of a region's expected price: a form that is expected to save less is not taken, for expectations err
VECTOR = 16  # columns of a product that its kernels compute together


class Rewrites:
    """The cheapest forms of a plan's regions.

    ``prices``: None for prices that are expected at the plan's requests; ``gain``: share that a form must save.
    """

    def __init__(self, plan: IlpPartitioner, prices: Prices | None = None, gain: float = NEAR) -> None:
        self.plan, self.graph, self.gain = plan, plan.graph, gain
        self.prices = Prices(plan.prices.requests, plan.prices.rates) if prices is None else prices
        self._costs: dict[Hashable, float] = {}
        self._kinds: dict[Hashable, Window] = {}  # windows at these prices
        self.report: list[dict[str, Any]] = []

    def offered(self) -> Iterator[Site]:
        """Sites whose other form may pay: it is cheaper by itself, or divides a smaller tensor without one more vector."""
        for site in sites(self.graph):
            if site.rule == MERGED:
                if self._saves_calls(site):
                    yield site
                continue
            node, moved = self.plan.producers[site.tensor], site.nodes - {site.tensor} or site.nodes
            if any(name in product.nodes for product in self.plan.products.values() for name in moved):
                continue  # a kernel of its own computes it with what lies around it
            if site.rule in BEHIND:
                if site.rule == COLUMN and self._new_vector(node):
                    continue
                less = [self.prices.mean_bytes(self.graph, tensor) for tensor in (site.tensor, node.inputs[0])]
                if less[0] < less[1]:
                    yield site
                continue
            region = self.region(frozenset({site.tensor}))
            if self.us(rewritten(region, [site])) < self.us(region):
                yield site

    def _saves_calls(self, site: Site) -> bool:
        """True if calls and reads that one product saves may be a share of ``gain``; a device reads no part of a row."""
        own = [product for product in self.plan.products.values() if site.nodes.intersection(product.nodes)]
        if self.plan.finder.serves is not None or any(product.kind != "dense" for product in own) or len(own) < 2:
            return False
        read_us = self.prices.rates.moved_us(self.prices.mean_bytes(self.graph, own[0].x.tensor))
        saved = (len(own) - 1) * (self.prices.rates.step_us + read_us)
        return saved > self.gain * sum(self.prices.product_us(product, self.graph) for product in own)

    def _new_vector(self, node: Node) -> bool:
        """True if one more column of a product may be a vector more."""
        columns = columns_of(self.graph, node)
        width = None if columns is None else self.graph.types[node.output].shape[columns[1]]
        return not isinstance(width, int) or width % VECTOR == 0

    def regions(self, offered: Sequence[Site]) -> list[tuple[frozenset[str], list[Site]]]:
        """Primitives of each region, by their outputs, and its sites."""
        units = [frozenset(step.nodes) for step in self.plan.fixed.values()]
        units += [window.inside for window in self.plan.windows]
        at = {name: index for index, unit in enumerate(units) for name in unit}
        touched = []
        passed: dict[str, set[str]] = {}  # by the site's tensor, primitives of no unit that its readers see through
        for site in offered:
            moved = site.nodes if site.rule == MERGED else {site.tensor}
            ends = {*moved, *(item.output for item in self.plan.products.values() if moved.intersection(item.nodes))}
            moves = site.rule in (*BEHIND, MERGED)
            readers = [reader for end in ends for reader in self.plan.finder.readers.get(end, []) if moves]
            names = [*site.nodes, *(reader.output for reader in readers)]
            if site.rule == MERGED:
                passed[site.tensor] = self._seen_through(names, at)
                names += [reader.output for name in passed[site.tensor] for reader in self.plan.finder.readers.get(name, [])]
            touched.append({str(at[name]) for name in names if name in at})
        result = []
        for part in sorted(sorted(map(int, part)) for part in joined(touched)):
            nodes = frozenset[str]().union(*(units[index] for index in part))
            own = [site for site in offered if site.tensor in nodes]
            result.append((nodes.union(*(passed.get(site.tensor, ()) for site in own)), own))
        return result

    def _seen_through(self, names: Iterable[str], at: Collection[str]) -> set[str]:
        """Those of some primitives, and of what reads them, that no unit has: kernels behind them take views."""
        result, waiting = set[str](), list(names)
        while waiting:
            name = waiting.pop()
            if name not in at and name not in result:
                result.add(name)
                waiting += [reader.output for reader in self.plan.finder.readers.get(name, [])]
        return result

    def cheapest(self) -> list[Site]:
        """The sites of the cheapest forms; ``report`` receives the prices of each region."""
        chosen: list[Site] = []
        offered = list(self.offered())
        for nodes, region_sites in self.regions(offered) if offered else ():
            graph = self.region(nodes)
            before = self.us(graph)
            us, best = min(self._forms(graph, region_sites), key=lambda form: (form[0], len(form[1])))
            if us < before * (1 - self.gain):
                chosen += best
                self.report += [{"rule": site.rule, "tensor": site.tensor, "us": us, "without_us": before} for site in best]
        return chosen

    def _forms(self, graph: Graph, region_sites: Sequence[Site]) -> Iterator[tuple[float, list[Site]]]:
        """Forms of a region: every set of up to ``MOST_SITES`` sites, else sites that pay one after the other."""
        yield self.us(graph), []
        if len(region_sites) <= MOST_SITES:
            counts = range(1, len(region_sites) + 1)
            for subset in chain.from_iterable(combinations(region_sites, count) for count in counts):
                if len({site.tensor for site in subset}) == len(subset):
                    yield self.us(rewritten(graph, subset)), list(subset)
            return
        accepted: list[Site] = []
        least = self.us(graph)
        for site in region_sites:
            if all(site.tensor != other.tensor for other in accepted):
                us = self.us(rewritten(graph, [*accepted, site]))
                if us < least * (1 - NEAR):
                    accepted, least = [*accepted, site], us
                    yield us, list(accepted)

    def region(self, nodes: Collection[str]) -> Graph:
        """The graph of some primitives; its outputs are the tensors that others read; constants stay constants."""
        outside = {tensor for node in self.graph.nodes if node.output not in nodes for tensor in node.inputs}
        outputs = [name for name in self.plan.order if name in nodes and (name in outside or name in self.graph.outputs)]
        graph = self.plan.subgraph(outputs, nodes)
        known = {name: self.graph.constants[name] for name in graph.inputs if name in self.graph.constants}
        inputs = tuple(name for name in graph.inputs if name not in known)
        return replace(graph, inputs=inputs, constants={**graph.constants, **known}, required=(), defaults={})

    def us(self, graph: Graph) -> float:
        """The price of a graph's cheapest plan."""
        key = meaning(graph)
        if key not in self._costs:
            serves, tuned = self.plan.finder.serves, bool(self.plan.products)
            plan = IlpPartitioner(graph, self.prices, tuned=tuned, serves=serves, kinds=self._kinds)
            products = sum(self.prices.product_us(product, graph) for product in plan.products.values())
            self._costs[key] = products + sum(total_us(kernels) for kernels in plan.solved)
        return self._costs[key]


def meaning(graph: Graph) -> Hashable:
    """Key of a region, equal for regions that differ in names and in numbers of constants alone."""
    producers = {node.output: node for node in graph.nodes}
    known = tuple(str(graph.types[name]) for name in sorted(graph.constants))
    return structural_hash(graph, producers, tuple(producers), graph.outputs), known


def with_rewrites(plan: IlpPartitioner) -> IlpPartitioner:
    """The plan of the same graph in the cheapest forms; itself where no rewrite pays."""
    forms = Rewrites(plan, gain=GAIN)
    chosen = forms.cheapest()
    if not chosen:
        return plan
    result = plan.of(rewritten(plan.graph, chosen), plan.prices)
    result.rewrites = forms.report
    return result
