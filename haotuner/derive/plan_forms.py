"""Derived forms of a model's products as candidates of its plan, beside the original of each.

The longest products come first, so that a budget that ends leaves the short ones. A form is a candidate
where it is expected to be shorter than the product alone and refuses no request that the model takes. Its numbers must be
the product's at sizes of a few elements, empty ones among them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from haotuner.derive.expression import tensors
from haotuner.derive.form_prices import PricesOfForms
from haotuner.derive.from_graph import expression_of, part_of
from haotuner.derive.model import MOST_WEIGHT, Derivation, Form, NodeForms
from haotuner.derive.search import Limits, SearchResult
from haotuner.errors import HaotunerError, UsageError
from haotuner.graph.extents import dimension, evaluate, same, text
from haotuner.graph.graph import Graph
from haotuner.graph.interpret import interpret
from haotuner.graph.rewrites import DERIVED, Site
from haotuner.graph.types import TensorType
from haotuner.partition.dim_ranges import shape_constraints
from haotuner.partition.ilp_partition import IlpPartitioner
from haotuner.partition.rewrites import GAIN, with_rewrites

MOST_FORMS = 2  # of a product, the cheapest
PRICED = 3  # requests at which forms are ordered, both ends among them
PRODUCT_S = 6.0  # of search, at most, for products that are equal
SMALL = (1, 2, 0)  # sizes of all dimensions, at which a form is compared with its product, where the product allows them
EXPLORATIVE = 2  # steps; a third one takes ten times as long
MOST_COMPARED = 1 << 18  # elements of a product of fixed sizes; the pack's check looks at larger ones
TOLERANCE = 1e-4  # of the largest number: fp32 sums in another order


@dataclass(slots=True)
class DerivedForms:
    """Derivation for plans: called with a plan, the plan of the same graph in its cheapest forms, derived ones among them.

    ``seconds``: of search and of looking at forms, for all graphs that it is called with.
    """

    seconds: float
    count: Counter[str] = field(default_factory=Counter)  # what became of products and of forms
    spent: float = 0.0  # seconds of these
    total: float = 0.0  # seconds with those of planning the forms that are chosen among
    derived: dict[int, SearchResult] = field(default_factory=dict)
    ranked: dict[Hashable, Any] = field(default_factory=dict)

    def __call__(self, plan: IlpPartitioner) -> IlpPartitioner:
        """The plan of the same graph in its cheapest forms; itself where none pays."""
        begin = time.monotonic()
        result = with_rewrites(plan, PricesOfForms(plan.prices.requests, plan.prices.rates), self.sites(plan))
        self.total += time.monotonic() - begin
        self.count["chosen"] += sum(item["rule"].startswith(DERIVED) for item in result.rewrites)
        return result

    def __str__(self) -> str:
        states = sum(result.statistics.states for result in self.derived.values())
        pruned = sum((result.statistics.pruned for result in self.derived.values()), Counter[str]())
        parts = [f"{number} {what}" for what, number in self.count.items() if what != "chosen"]
        parts += [f"{states} states", *(f"{number} {why}" for why, number in pruned.most_common())]
        return f"derivation: {self.count['chosen']} forms chosen in {self.total:.1f} s ({', '.join(parts)})"

    def sites(self, plan: IlpPartitioner) -> Iterator[Site]:
        """Forms that may pay. What their reader does with one counts for the budget, too."""
        derivation = Derivation(
            plan.graph, _some(plan.prices.requests), Limits(EXPLORATIVE, seconds=PRODUCT_S), self.derived, self.ranked
        )
        known = {(text(first), text(other)) for first, other in shape_constraints(plan.graph)}
        prices = PricesOfForms(plan.prices.requests, plan.prices.rates)
        us = {node: prices.product_us(product, plan.graph) for product in plan.products.values() for node in product.nodes}
        for tensor in sorted(derivation.products(), key=lambda name: -us.get(name, 0.0)):
            left = self.seconds - self.spent
            if left <= 0:
                self.count["products left out: the time is over"] += 1
                continue
            begin = time.monotonic()
            derivation.limits = Limits(EXPLORATIVE, seconds=min(PRODUCT_S, left))
            yield from self._of(derivation, tensor, known)
            self.spent += time.monotonic() - begin

    def _of(self, derivation: Derivation, tensor: str, known: set[tuple[str, str]]) -> Iterator[Site]:
        graph = derivation.graph
        try:
            read = tensors(expression_of(graph, tensor)).values()
            if any(graph.constants[item.name].size > MOST_WEIGHT for item in read if item.constant):
                raise UsageError("weights too large to lay out")
            forms = derivation.forms_of(tensor)
        except UsageError:
            self.count["products that stay as they are"] += 1
            return
        self.count["products"] += 1
        for form in _cheaper(forms):
            why = unfit(graph, tensor, form, known)
            if why:
                self.count[f"forms {why}"] += 1
                continue
            self.count["forms"] += 1
            nodes = frozenset(node.output for node in part_of(graph, tensor, form.graph.inputs).nodes)
            yield Site(DERIVED + chain(form), tensor, nodes, form.graph)


def _some(requests: Sequence[Mapping[str, int]]) -> list[Mapping[str, int]]:
    return list(requests[:PRICED])


def _cheaper(forms: NodeForms) -> list[Form]:
    least = sum(forms.original.us) * (1 - GAIN)
    return [form for form in forms.others if sum(form.us) < least][:MOST_FORMS]


def chain(form: Form) -> str:
    """Rules that led to a form, in their order."""
    rules: list[str] = []
    for rule, _ in form.steps:
        name, _, count = rules[-1].partition(" x ") if rules else ("", "", "")
        if name == rule:
            rules[-1] = f"{rule} x {int(count or 1) + 1}"
        else:
            rules.append(rule)
    return ", ".join(rules)


def unfit(graph: Graph, tensor: str, form: Form, known: set[tuple[str, str]]) -> str:
    """Reason why a form is not served: conditions on requests beside the ``known`` ones, or other numbers; empty: none."""
    shape, other = graph.types[tensor].shape, form.graph.types[form.graph.outputs[0]].shape
    if len(shape) != len(other) or not all(same(extent, mine) for extent, mine in zip(shape, other, strict=True)):
        return "of another shape"
    if any((text(first), text(second)) not in known for first, second in shape_constraints(form.graph)):
        return "with conditions on requests"
    part = part_of(graph, tensor, form.graph.inputs)
    fixed = [extent for extent in shape if isinstance(extent, int)]
    if prod(fixed) > MOST_COMPARED:
        return ""
    tried = SMALL if part.dimensions else SMALL[:1]
    return "" if all(_agree(part, form.graph, size) for size in tried) else "with other numbers"


def _agree(part: Graph, form: Graph, size: int) -> bool:
    """True if both compute the same with all dimensions of a size, or the product cannot be computed there."""
    dims = sorted(set(part.dimensions) | set(form.dimensions))
    sizes = dict.fromkeys(dims, size)
    draw = np.random.default_rng(size)
    try:
        inputs: dict[str, Any] = {
            name: draw.normal(size=[evaluate(extent, sizes) for extent in part.types[name].shape]).astype(np.float32)
            for name in part.inputs
        }
        inputs |= {f"size of {name}": np.zeros(size) for name in dims}
        (expected,) = interpret(_sized(part, dims), inputs).values()
    except (HaotunerError, ValueError, IndexError):
        return True
    try:
        (answer,) = interpret(_sized(form, dims), inputs).values()
    except (HaotunerError, ValueError, IndexError):
        return False
    far = np.abs(answer - expected).max(initial=0.0) if answer.shape == expected.shape else np.inf
    return bool(far <= TOLERANCE * max(1.0, np.abs(expected).max(initial=0.0)))


def _sized(graph: Graph, dims: Sequence[str]) -> Graph:
    """The graph with an input for each dimension: what a tensor inside of a model reads may have none by its name."""
    more = {f"size of {name}": TensorType((dimension(name),), "fp64") for name in dims}
    return replace(graph, inputs=(*graph.inputs, *more), types={**graph.types, **more})
