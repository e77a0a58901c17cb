"""Derived forms of a model's products as candidates of its plan, beside the original of each.

A budget may end before all products are derived: those of which forms could save most come first. A form is a candidate
where it is expected to be shorter than the product alone and refuses no request that the model takes. Its numbers must be
the product's at sizes of a few elements, empty ones among them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from haotuner.derive.affine import at_most
from haotuner.derive.element_wise import with_functions
from haotuner.derive.form_prices import Array, PricesOfForms
from haotuner.derive.from_graph import part_of
from haotuner.derive.idle_lanes import IdleLanes
from haotuner.derive.model import Derivation, Form, NodeForms, Results, are_laid_out
from haotuner.derive.search import Limits, small_sizes
from haotuner.errors import HaotunerError, UsageError
from haotuner.graph.extents import dimension, dimensions, evaluate, is_symbolic, same, text
from haotuner.graph.graph import Graph, Node
from haotuner.graph.interpret import interpret
from haotuner.graph.rewrites import DERIVED, MERGED, Site, rewritten
from haotuner.graph.rewrites import sites as rewrite_sites
from haotuner.graph.types import TensorType
from haotuner.partition.costs import Prices
from haotuner.partition.dim_ranges import shape_constraints
from haotuner.partition.form_choice import EXPECTED, FormPlans
from haotuner.partition.greedy_fusion import Greedy
from haotuner.partition.ilp_partition import IlpPartitioner
from haotuner.partition.rewrites import Rewrites, meaning
from haotuner.partition.tasks import Laid

MOST_FORMS = 2  # of a product, the cheapest
MOST_PLANS = 2  # in derived forms: each is planned and its kernels are tuned
GAIN = 0.15  # share of its region that a form must be expected to save at a request, before its kernels are tuned
GAIN_EXPECTED = 0.4  # the same to be served by expectations alone: of 1.9x 1.1x was measured
PRICED = 3  # requests at which forms are ordered, both ends among them
PRODUCT_S = 8.0  # at most, for products that are equal
SEARCHING = 0.6  # of the time: plans in derived forms have the rest
SEED = 1
ADDS_ZEROS = "adds zeros"  # behind the rules of a form that may have NaN beside infinities
FULL = "products whose lanes are full"  # of which no form can save GAIN
EXPLORATIVE = 2  # steps; a third one takes ten times as long
MOST_COMPARED = 1 << 18  # elements of a product of fixed sizes; the pack's check looks at larger ones
TOLERANCE = 1e-4  # of the largest number: fp32 sums in another order


@dataclass(frozen=True, slots=True, eq=False)
class _Offer:
    """A form of a product: its site, and microseconds of its region at each request without and with it."""

    site: Site
    own_us: Array
    us: Array


@dataclass(slots=True)
class DerivedForms:
    """Derivation for plans: called with a plan, without and with a layout of images, its plans in derived forms.

    ``seconds``: for all graphs that it is called with, ``SEARCHING`` of it for search and a look at forms. Of a graph whose
    forms may pay one plan is made in any case, another one if it is expected to end in time.

    ``with_zeros``: forms that add zeros as factors take part.
    """

    seconds: float
    with_zeros: bool = True
    count: Counter[str] = field(default_factory=Counter)  # what became of products and of forms
    spent: float = 0.0  # seconds of these
    total: float = 0.0  # seconds with those of planning the forms that are chosen among
    results: Results = field(default_factory=Results)

    def __call__(self, plan: IlpPartitioner, laid_out: IlpPartitioner, laid: Laid) -> FormPlans:
        """Plans in derived forms with their expected times; none where none may pay."""
        begin = time.monotonic()
        until = begin + self.seconds - self.total
        result = FormPlans()
        sets = _sets(list(self.offers(plan)))
        if sets:
            others, last_s = list[IlpPartitioner](), 0.0
            for chosen in sets:
                begun = time.monotonic()
                if others and begun + last_s > until:
                    self.count["plans left out: the time is over"] += len(sets) - len(others)
                    sets = sets[: len(others)]
                    break
                prices = Prices(plan.prices.requests, plan.prices.rates, plan.prices.programs)
                others.append(laid(plan.of(rewritten(plan.graph, [offer.site for offer in chosen]), prices)))
                last_s = time.monotonic() - begun
            rules = tuple(tuple(map(_row, chosen)) for chosen in sets)
            regions = tuple(tuple(np.sum([offer.us for offer in chosen], axis=0).tolist()) for chosen in sets)
            result = FormPlans(tuple(others), rules, region_us=regions)
            us = result.less_sure(np.array([_each_us(item) for item in (laid_out, *others)]), GAIN_EXPECTED)
            result = result.with_us(us.tolist(), EXPECTED, settled=False)
        self.total += time.monotonic() - begin
        self.count["candidates"] += sum(map(len, result.rules))
        return result

    def __str__(self) -> str:
        states = sum(result.statistics.states for result in self.results.searches.values())
        pruned = sum((result.statistics.pruned for result in self.results.searches.values()), Counter[str]())
        used = f"{self.total:.1f} of {self.seconds:g} s"
        parts = [f"{number} {what}" for what, number in self.count.items() if what != "candidates"]
        parts += [f"{states} states", *(f"{number} {why}" for why, number in pruned.most_common())]
        return f"derivation: {self.count['candidates']} forms may pay, in {used} ({', '.join(parts)})"

    def offers(self, plan: IlpPartitioner) -> Iterator[_Offer]:
        """Forms with prices of their regions by greedy fusion's plans; a form may have a hundred primitives."""
        regions = Rewrites(plan)
        prices = PricesOfForms(plan.prices.requests, plan.prices.rates)
        known_us: dict[Hashable, Array] = {}

        def each_us(graph: Graph) -> Array:
            key = meaning(graph)
            if key not in known_us:
                known_us[key] = prices.plan_us(Greedy(graph, tuned=bool(plan.products), serves=plan.finder.serves))
            return known_us[key]

        for site in self.sites(plan):
            own = (frozenset(item.nodes) for item in plan.products.values() if not set(site.tensors).isdisjoint(item.nodes))
            region = regions.region(site.nodes.union(*own))
            yield _Offer(site, each_us(region), each_us(rewritten(region, [site])))

    def sites(self, plan: IlpPartitioner) -> Iterator[Site]:
        """Forms of products, and products of one tensor as one, but for dense layers, which rewrites of the plan merge."""
        derivation = Derivation(plan.graph, _some(plan.prices.requests), results=self.results)
        known = {(text(first), text(other)) for first, other in shape_constraints(plan.graph)}
        begin = time.monotonic() - self.spent

        def left() -> float:
            return SEARCHING * self.seconds - (time.monotonic() - begin)

        lanes = IdleLanes(plan, derivation)
        for tensor in lanes.products():
            if left() <= 0:
                self.count["products left out: the time is over"] += 1
                continue
            derivation.limits = Limits(EXPLORATIVE, seconds=min(PRODUCT_S, left()))
            yield from self._of(derivation, tensor, known, lanes)
        layers = (
            site.nodes for site in rewrite_sites(plan.graph) if site.rule == MERGED
        )  # the plan's rewrites decide these

        def may_pay(*tensors: str) -> bool:
            if left() > 0:
                return lanes.may_save(GAIN, *tensors)
            self.count["merges left out: the time is over"] += 1
            return False

        for forms in derivation.merged(frozenset[str]().union(*layers), may_pay):
            yield from self._merged(derivation.graph, forms, known)
        self.spent = time.monotonic() - begin

    def _merged(self, graph: Graph, forms: NodeForms, known: set[tuple[str, str]]) -> Iterator[Site]:
        """Several products as one, where all that it reads is there before the first of them."""
        at = {node.output: number for number, node in enumerate(graph.nodes)}
        first = min(at[tensor] for tensor in forms.tensors)
        for form in forms.others:
            large = not are_laid_out(graph, form.scopes)
            why = "with weights too large to lay out" if large else self._unfit(graph, forms.tensors, form, known)
            if not why and any(at.get(name, -1) > first for name in form.graph.inputs):
                why = "with operands that come later"
            self.count[f"merged products {why}".strip()] += 1
            if not why:
                parts = (part_of(graph, name, form.graph.inputs) for name in forms.tensors)
                nodes = frozenset(node.output for part in parts for node in part.nodes)
                site = Site(DERIVED + chain(form), forms.tensors[0], nodes, form.graph, forms.tensors[1:])
                yield with_functions(graph, site)

    def _unfit(self, graph: Graph, ends: Sequence[str], form: Form, known: set[tuple[str, str]]) -> str:
        return "with added zeros" if form.adds_zeros and not self.with_zeros else unfit(graph, ends, form, known)

    def _of(self, derivation: Derivation, tensor: str, known: set[tuple[str, str]], lanes: IdleLanes) -> Iterator[Site]:
        graph = derivation.graph
        try:
            if not lanes.may_save(GAIN, tensor):
                self.count[FULL] += 1
                return
            if not are_laid_out(graph, [derivation.expression(tensor)]):
                raise UsageError("weights too large to lay out")
            forms = derivation.forms_of(tensor, GAIN)
        except UsageError:
            self.count["products that stay as they are"] += 1
            return
        self.count["products"] += 1
        for form in forms.others[:MOST_FORMS]:
            why = self._unfit(graph, (tensor,), form, known)
            if why:
                self.count[f"forms {why}"] += 1
                continue
            self.count["forms"] += 1
            nodes = frozenset(node.output for node in part_of(graph, tensor, form.graph.inputs).nodes)
            yield Site(DERIVED + chain(form), tensor, nodes, form.graph)


def _each_us(plan: IlpPartitioner) -> Array:
    """Expected microseconds of a plan at each request."""
    return PricesOfForms(plan.prices.requests, plan.prices.rates).plan_us(plan)


def _row(offer: _Offer) -> dict[str, Any]:
    us, without = float(offer.us.mean()), float(offer.own_us.mean())
    return {"rule": offer.site.rule, "tensor": ", ".join(offer.site.tensors), "us": us, "without_us": without}


def _sets(offers: Sequence[_Offer]) -> list[tuple[_Offer, ...]]:
    """Sets of forms that may be taken together: those that pay at a request; the sets that save most of all requests'."""
    saved: dict[tuple[_Offer, ...], float] = {}
    for at in range(len(offers[0].us) if offers else 0):
        chosen, tensors = list[_Offer](), set[str]()
        for offer in sorted(offers, key=lambda item: item.us[at] - item.own_us[at]):
            if offer.us[at] < offer.own_us[at] * (1 - GAIN) and tensors.isdisjoint(offer.site.tensors):
                chosen.append(offer)
                tensors.update(offer.site.tensors)
        chosen.sort(key=lambda item: item.site.tensor)
        if chosen:
            share = sum(float(offer.own_us[at] - offer.us[at]) for offer in chosen) / sum(
                float(o.own_us[at]) for o in chosen
            )
            saved[tuple(chosen)] = saved.get(tuple(chosen), 0.0) + share
    return sorted(saved, key=lambda chosen: -saved[chosen])[:MOST_PLANS]


def _some(requests: Sequence[Mapping[str, int]]) -> list[Mapping[str, int]]:
    return list(requests[:PRICED])


def chain(form: Form) -> str:
    """Rules that led to a form, in their order, and behind them whether it adds zeros."""
    rules: list[str] = []
    for rule, _ in form.steps:
        name, _, count = rules[-1].partition(" x ") if rules else ("", "", "")
        if name == rule:
            rules[-1] = f"{rule} x {int(count or 1) + 1}"
        else:
            rules.append(rule)
    return ", ".join([*rules, *([ADDS_ZEROS] if form.adds_zeros else [])])


def unfit(graph: Graph, ends: Sequence[str], form: Form, known: set[tuple[str, str]]) -> str:
    """Reason why a form is not served: conditions on requests beside the ``known`` ones, or other numbers; empty: none.

    ``ends``: the tensors of the graph that are its outputs.
    """
    for tensor, output in zip(ends, form.graph.outputs, strict=True):
        shape, other = graph.types[tensor].shape, form.graph.types[output].shape
        if len(shape) != len(other) or not all(same(extent, mine) for extent, mine in zip(shape, other, strict=True)):
            return "of another shape"
    if any(_refuses(form.graph, node, known) for node in form.graph.nodes):
        return "with conditions on requests"
    for tensor, output in zip(ends, form.graph.outputs, strict=True):
        part = part_of(graph, tensor, form.graph.inputs)
        fixed = [extent for extent in graph.types[tensor].shape if isinstance(extent, int)]
        own = replace(form.graph, outputs=(output,))
        if prod(fixed) > MOST_COMPARED:
            continue
        try:
            tried = _sizes_tried(part, own)
        except UsageError:
            return "too large to compare"
        if not all(_agree(part, own, sizes) for sizes in tried):
            return "with other numbers"
    return ""


def _sizes_tried(part: Graph, form: Graph) -> list[dict[str, int]]:
    """Sizes at which a form is compared with its product: of 1, some with elements in every tensor, and of these each 0."""
    dims = sorted({*part.dimensions, *form.dimensions})
    if not dims:
        return [{}]
    tensors = [*part.inputs, *(node.output for node in part.nodes)]
    counts = [extent for tensor in tensors for extent in part.types[tensor].shape if is_symbolic(extent)]
    some = small_sizes(dict.fromkeys(dims, 2), counts)
    return [dict.fromkeys(dims, 1), some, *({**some, name: 0} for name in dims)]


def _refuses(graph: Graph, node: Node, known: set[tuple[str, str]]) -> bool:
    """True if a primitive may ask more of a request than the ``known`` conditions.

    Shown conditions of one dimension are none. A slice of an empty tensor reads nothing, wherever its bounds are.
    """
    for first, other in shape_constraints(replace(graph, nodes=(node,))):
        dims = dimensions(first) | dimensions(other)
        if (text(first), text(other)) in known:
            continue
        if len(dims) != 1 or not (at_most(first, other) and at_most(other, first)):
            return True
        zero = dict.fromkeys(dims, 0)
        shape = [extent for extent in graph.types[node.output].shape if dimensions(extent) <= dims]
        empty = node.primitive == "slice" and any(evaluate(extent, zero) <= 0 for extent in shape)
        if evaluate(first, zero) != evaluate(other, zero) and not empty:
            return True
    return False


def _agree(part: Graph, form: Graph, sizes: Mapping[str, int]) -> bool:
    """True if both compute the same at sizes of all dimensions, or the product cannot be computed there."""
    draw = np.random.default_rng(SEED)
    try:
        inputs: dict[str, Any] = {
            name: draw.normal(size=[evaluate(extent, sizes) for extent in part.types[name].shape]).astype(np.float32)
            for name in part.inputs
        }
        inputs |= {f"size of {name}": np.zeros(size) for name, size in sizes.items()}
        (expected,) = interpret(_sized(part, sizes), inputs).values()
    except (HaotunerError, ValueError, IndexError):
        return True
    try:
        (answer,) = interpret(_sized(form, sizes), inputs).values()
    except (HaotunerError, ValueError, IndexError):
        return False
    far = np.abs(answer - expected).max(initial=0.0) if answer.shape == expected.shape else np.inf
    return bool(far <= TOLERANCE * max(1.0, np.abs(expected).max(initial=0.0)))


def _sized(graph: Graph, dims: Iterable[str]) -> Graph:
    """The graph with an input for each dimension: what a tensor inside of a model reads may have none by its name."""
    more = {f"size of {name}": TensorType((dimension(name),), "fp64") for name in dims}
    return replace(graph, inputs=(*graph.inputs, *more), types={**graph.types, **more})
