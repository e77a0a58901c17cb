"""Layouts of images, chosen by a binary program, as Korch decides which groups are kernels.

An image with channels last is another tensor of the graph; what turns one into the other is a candidate with a price. So is
each product, and each window between products, once in either layout, at the cost of its cheapest kernels: windows share
nothing but tensors in memory, so the optimum over layouts of their own optima is that over layouts and groups at once.
The graph with its turns is then planned as any other, where groups may take turns along.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from haotuner.graph.channels_last import How, LayoutCandidates, Place, convolved_images, images_of
from haotuner.graph.graph import Graph
from haotuner.partition.costs import Prices
from haotuner.partition.greedy_fusion import Loops
from haotuner.partition.ilp_partition import IlpPartitioner
from haotuner.partition.structural_hash import structural_hash
from haotuner.partition.window_ilp import Candidate, solve

LIMIT_S = 20.0  # for the program of a graph
Layout = bool  # whether channels are last


@dataclass(frozen=True, slots=True)
class Unit:
    """Unit of one layout: a product, or a window's primitives; ``outputs``: what of it lies in memory."""

    nodes: frozenset[str]
    outputs: tuple[str, ...]
    product: bool


class Layouts:
    """The layouts of a plan's images, by what kernels are expected to take. ``plan``: all channels first."""

    def __init__(self, plan: IlpPartitioner) -> None:
        self.plan, self.graph = plan, plan.graph
        self.prices = Prices(plan.prices.requests, plan.prices.rates)
        convolutions = [product for product in plan.products.values() if product.kind == "conv"]
        known = convolved_images(
            (convolution.x.tensor, convolution.output, convolution.weight.ndim - 2) for convolution in convolutions
        )
        self.oriented = LayoutCandidates(self.graph, images_of(self.graph, known))
        self._costs: dict[Hashable, float | None] = {}

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """The products and windows of the plan."""
        products = [Unit(frozenset(product.nodes), (product.output,), True) for product in self.plan.products.values()]
        return (*products, *(Unit(window.inside, tuple(window.outputs), False) for window in self.plan.windows))

    @cached_property
    def _index(self) -> dict[str, int]:
        return {name: index for index, unit in enumerate(self.units) for name in unit.nodes}

    @cached_property
    def candidates(self) -> dict[tuple[int, Layout], Candidate]:
        """The units in each layout that they can have, by their places."""
        both = [(index, last) for index in range(len(self.units)) for last in (False, True)]
        result = {at: self._candidate(*at) for at in both if self._may(at[0]) or not at[1]}
        return {at: candidate for at, candidate in result.items() if candidate is not None}

    @cached_property
    def chosen(self) -> dict[int, set[Layout]]:
        """Of each unit by its place the layouts that it is computed in; all channels first where no other plan is proved."""
        if not any(last for _, last in self.candidates):
            return {}
        unit_of = {candidate.nodes: at for at, candidate in self.candidates.items()}
        every = [
            *self.candidates.values(),
            *self.turns({name for candidate in self.candidates.values() for name in candidate.reads}),
        ]
        made = {name for unit in self.units for name in unit.outputs}
        result, _, proved = solve(every, [name for name in self.graph.outputs if name in made], LIMIT_S, kernels=False)
        taken: dict[int, set[Layout]] = {}
        for position, last in (unit_of[kernel.nodes] for kernel in result or () if proved and kernel.nodes in unit_of):
            taken.setdefault(position, set()).add(last)
        return taken

    def graph_of(self, layouts: Mapping[int, set[Layout]]) -> Graph:
        """The graph with units in these layouts, channels first where none is given; its inputs and outputs stay."""

        def how(image: Place) -> How:
            name, last = image
            if name not in self._index:
                return self._free(image)
            own = layouts.get(self._index[name]) or {False}
            for layout in sorted(own):
                way = self._way(name, layout)
                if way[1] == last:
                    return way[0]
            return "turn"

        outputs = [(name, False) for name in self.graph.outputs]
        result = self.oriented.written(outputs, how, inputs=self.graph.inputs)
        return replace(result, required=self.graph.required, defaults=self.graph.defaults)

    def planned(self, layouts: Mapping[int, set[Layout]]) -> IlpPartitioner:
        """The plan of ``graph_of``; that with all channels first where nothing else is given."""
        if not any(True in own for own in layouts.values()):
            return self.plan
        return self.plan.of(self.graph_of(layouts), self.plan.prices)

    def everywhere(self) -> dict[int, set[Layout]]:
        """Channels last in all units that can have it."""
        return {index: {True} for index in range(len(self.units)) if self._may(index)}

    def _may(self, index: int) -> bool:
        """True if some primitive of a unit can be on images with channels last."""
        return any(name in self.oriented.rules for name in self.units[index].nodes)

    def _way(self, name: str, last: Layout) -> tuple[How, bool]:
        """Way in which a unit in a layout makes a tensor, and whether the tensor has channels last."""
        rule = self.oriented.rules.get(name) if last else None
        return ("first", False) if rule is None else ("last", rule.last)

    def _free(self, image: Place) -> How:
        """Way of what no unit makes: inputs, and what products read through. Primitives are as they are wanted."""
        name, last = image
        if name not in self.plan.producers:
            return "turn" if last else "given"
        if not last:
            return "first"
        rule = self.oriented.rules.get(name)
        return "last" if rule is not None and rule.last else "turn"

    def _variant(self, unit: Unit, last: Layout) -> Graph:
        """The graph of a unit in a layout, its inputs as it wants them."""

        def how(image: Place) -> How:
            name, required = image
            if name in unit.nodes:
                way, lies = self._way(name, last)
                return way if lies == required else "turn"
            return "given" if name in self._index or name not in self.plan.producers else self._free(image)

        return self.oriented.written([(name, self._way(name, last)[1]) for name in unit.outputs], how)

    def _candidate(self, index: int, last: Layout) -> Candidate | None:
        """A unit in a layout; None where there is no such kernel."""
        unit = self.units[index]
        graph = self._variant(unit, last)
        us = self._us(unit, graph) if self._may(index) else 0.0
        if us is None:
            return None
        reads = frozenset(name for name in graph.inputs if name not in self.graph.inputs)
        outputs = (*graph.outputs, *map(_as_made, graph.outputs))
        return Candidate(outputs, frozenset({f"{index} {'last' if last else 'first'}"}), reads, us)

    def _us(self, unit: Unit, graph: Graph) -> float | None:
        """The cost of a unit's cheapest kernels; None of a product that no kernel computes."""
        made = {node.output: node for node in graph.nodes}
        key = structural_hash(graph, made, tuple(made), graph.outputs)
        if key not in self._costs:
            plan = self.plan.of(graph, self.prices, tuned=unit.product)
            groups = sum(self.prices.loops_us(step.graph) for step in plan.steps if isinstance(step, Loops))
            products = sum(self.prices.product_us(product, graph) for product in plan.products.values())
            self._costs[key] = groups + products if plan.products or not unit.product else None
        return self._costs[key]

    def _turn_us(self, image: Place) -> float:
        """The cost of a turn alone; images of one type are priced once."""
        stored = image[0] in self.graph.outputs and not image[1]  # an output is memory of its own
        key = self.oriented.images[image[0]], str(self.graph.types[image[0]]), image[1], stored
        if key not in self._costs:
            graph = self.oriented.written([image], lambda item: "turn" if item == image else "given")
            free = graph.nodes[0].primitive == "reshape"
            self._costs[key] = 0.0 if free and not stored else self.prices.loops_us(graph)
        return self._costs[key] or 0.0

    def turns(self, images: set[str]) -> Iterator[Candidate]:
        """Candidates that turn images that units make, or that come with a request, into those that are wanted.

        It reads the image as it was made, so that two turns cannot wait for each other.
        """
        made = [name for unit in self.units for name in unit.outputs]
        for name in (tensor for tensor in (*self.graph.inputs, *made) if tensor in self.oriented.images):
            for last in (False, True):
                called, read = self.oriented.called((name, last)), self.oriented.called((name, not last))
                if called not in images and not (name in self.graph.outputs and not last):
                    continue
                if name in self.graph.inputs and not last:
                    continue
                reads = frozenset[str]() if name in self.graph.inputs else frozenset({_as_made(read)})
                yield Candidate((called,), frozenset({f"turn {called}"}), reads, self._turn_us((name, last)))


def _as_made(tensor: str) -> str:
    """A name in the program: the tensor where a unit makes it, no turn."""
    return f"{tensor} as made"


def cheapest(plan: IlpPartitioner) -> IlpPartitioner:
    """The plan of the same graph in the cheapest layouts; itself where that is all channels first."""
    layouts = Layouts(plan)
    return layouts.planned(layouts.chosen) if layouts.oriented.images else plan


def all_last(plan: IlpPartitioner) -> IlpPartitioner:
    """The plan of the same graph with channels last wherever that goes."""
    layouts = Layouts(plan)
    return layouts.planned(layouts.everywhere())


# What makes of a plan with all channels first the plan that is served.
LAYOUTS: Mapping[str, Callable[[IlpPartitioner], IlpPartitioner]] = {
    "cheapest": cheapest,
    "first": lambda plan: plan,
    "last": all_last,
}
