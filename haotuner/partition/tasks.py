"""The ops of a model that are tuned, each once, the traffic of each, and the check of what runs on a GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from haotuner.codegen.loops.c_recurrent import fits_block
from haotuner.errors import UsageError
from haotuner.graph.extents import Extent, dimensions, evaluate
from haotuner.graph.graph import Graph, bodies
from haotuner.graph.types import NUMPY_NAMES
from haotuner.partition.costs import CORE, GPU, Prices, kernel_of
from haotuner.partition.dim_ranges import requests, spans_of
from haotuner.partition.executable import ExecutableModel, executable_chain, executable_specializations
from haotuner.partition.form_choice import FormPlans, ways_of_forms
from haotuner.partition.greedy_fusion import Loops, Specialization, Step
from haotuner.partition.ilp_partition import IlpPartitioner, PartitionReport, together
from haotuner.partition.layout import LAYOUTS
from haotuner.partition.products import Product
from haotuner.partition.profiled_costs import ProfiledPrices
from haotuner.partition.program_forms import ProgramSpace
from haotuner.partition.rewrites import with_rewrites
from haotuner.partition.segmented_model import RANDOM
from haotuner.partition.segments import chained, cut, flattened
from haotuner.search.task_scheduler import Shared
from haotuner.spec.device import Device
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape, Span
from haotuner.spec.traffic import Arrivals

SHOWN = 8  # the others are counted


def check_draws(name: str, graph: Graph) -> None:
    """UsageError that names random numbers of types that a pack's library does not draw, as it must on a GPU."""
    every = (node for body in (graph, *(body.graph for body in bodies(graph))) for node in body.nodes)
    draws = [(node.output, NUMPY_NAMES[node.attributes["dtype"]]) for node in every if node.primitive == "random"]
    lost = [(out, dtype) for out, dtype in draws if dtype not in RANDOM]
    _refuse(name, [f"{out}: random numbers of {dtype}; those of {' and '.join(RANDOM)} are drawn" for out, dtype in lost])


def check_steps(name: str, steps: Sequence[Step]) -> None:
    """UsageError that names the steps which no kernel of a GPU computes: recurrent layers that are too wide for a block."""
    nodes = [
        (node, step.graph.types[node.output].dtype) for step in steps if isinstance(step, Loops) for node in step.graph.nodes
    ]
    lost = [node for node, dtype in nodes if node.primitive == "recurrent" and not fits_block(node.attributes, dtype)]
    steps_ = [(step.output, step.attributes["kind"], step.attributes["hidden"]) for step in lost]
    _refuse(name, [f"{out}: the gates of a layer ({kind}) of {hidden} states fit no block" for out, kind, hidden in steps_])


def _refuse(name: str, names: Sequence[str]) -> None:
    if not names:
        return
    more = [f"… and {len(names) - SHOWN} more"] if len(names) > SHOWN else []
    lines = "".join(f"\n  {name}" for name in [*names[:SHOWN], *more])
    raise UsageError(f"{name} cannot run on a GPU; tune it for the CPU: leave --device out{lines}")


PRICED = 6  # of them, at which groups are priced


Laid = Callable[[IlpPartitioner], IlpPartitioner]  # of a plan that with images in their cheapest layout
Forms = Callable[[IlpPartitioner, IlpPartitioner, Laid], FormPlans]  # of a plan without and with a layout its other forms


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTask:
    """A model to tune: its graph, the spans of its dimensions, its steps and how a pack holds them."""

    graph: Graph
    spans: Mapping[str, Span]
    steps: tuple[Step, ...]  # for any sizes; products and what they carry are the same in all ways
    ways: tuple[tuple[Specialization, ...], ...]  # of its segments: plans by region of sizes
    written: ExecutableModel
    parts: tuple[ExecutableModel, ...]  # what is compiled: its segments, or itself
    report: PartitionReport  # how the plan was found
    prices: Prices  # of its groups, at some requests
    plans: tuple[IlpPartitioner, ...]  # of its segments
    turns: tuple[Extent, ...]  # how often a request runs each
    forms: tuple[FormPlans, ...]  # of its segments: plans in other forms
    file: Path
    shapes: str
    on_device: bool  # its groups are CUDA C++, its products those that a device has kernels for
    source_sha256: str = ""  # of its file; empty where that hash would not cover its weights
    subgraph: int | None = None  # number of the subgraph of its file; None: the whole file

    @property
    def executables(self) -> dict[str, ExecutableModel]:
        """By name what the pack holds of it: itself, and its segments where it has some."""
        return {model.name: model for model in (self.written, *self.parts)}

    @property
    def products(self) -> Iterator[tuple[Product, Extent]]:
        """The steps that tuned kernels compute, and how often a request runs each; of forms that may yet be taken, too."""
        for plan, own, forms, turns in zip(self.plans, self.ways, self.forms, self.turns, strict=True):
            every = [way.steps for way in reversed(own)]
            every += [] if forms.settled else [other.steps for other in (plan, *forms.plans) if forms.plans]
            seen = set[tuple[str, str]]()
            for step in (step for steps in every for step in steps if isinstance(step, Product)):
                if (step.op.name, step.output) not in seen:
                    seen.add((step.op.name, step.output))
                    yield step, turns

    @property
    def called(self) -> frozenset[str]:
        """Names of the ops that requests call, whatever forms may yet be taken."""
        steps = (step for ways in self.ways for way in ways for step in way.steps)
        return frozenset(step.op.name for step in steps if isinstance(step, Product))

    @property
    def uses(self) -> Counter[str]:
        """Number of steps that each op serves."""
        return Counter(step.op.name for step, _ in self.products)

    @property
    def open_forms(self) -> bool:
        """True if forms may yet be taken or left."""
        return any(forms.plans and not forms.settled for forms in self.forms)

    @property
    def form_count(self) -> int:
        """Number of its forms, its own among them."""
        return 1 + max(len(forms.plans) for forms in self.forms)

    def price(self, form: int, prices: Prices) -> None:
        """Change of the prices of one form's plans, 0 its own, and the plans by them; to be ``reassembled``."""
        plans = self.plans if form == 0 else [item.plans[form - 1] for item in self.forms if form <= len(item.plans)]
        for plan in plans:
            plan.price(prices)
            assert plan.steps is not None  # planned now, while there is time to measure

    def prices_of(self, way: Specialization, segment: int) -> Prices:
        """Prices of the plan whose steps a way of a segment has: names of tensors mean something in one graph alone."""
        others = self.forms[segment].plans
        return next((other.prices for other in others if other.graph is way.graph), self.plans[segment].prices)

    def in_form(self, number: int) -> ModelTask:
        """The model alone in a pack, one form at all requests: 0 its own, else of each segment that form, or its last."""
        forms = tuple(
            item.with_us(
                [
                    [1.0 + (at != min(number, len(item.plans)))] * len(self.prices.requests)
                    for at in range(len(item.plans) + 1)
                ],
                item.basis,
                settled=True,
            )
            for item in self.forms
        )
        return reassembled((replace(self, forms=forms),), 0)[0]

    def with_forms(self, us: Sequence[Sequence[float]], basis: str) -> ModelTask:
        """The model whose forms are chosen by times of whole requests, for good; to be ``reassembled``."""
        return replace(
            self, forms=tuple(item.with_us(us[: len(item.plans) + 1], basis, settled=True) for item in self.forms)
        )


def model_task(
    name: str,
    graph: Graph,
    shapes: str,
    file: Path,
    first_group: int = 0,
    measure_s: float = 0.0,
    serves: Callable[[Op], bool] | None = None,
    layout: str = "cheapest",
    device: Device | None = None,
    rewrites: Callable[[IlpPartitioner], IlpPartitioner] = with_rewrites,
    forms: Forms | None = None,
) -> ModelTask:
    """The model of a graph, in the cheapest groups. UsageError for shapes that do not fit it, or what no kernel computes.

    ``first_group``: how many groups the models before it in the same pack have. ``measure_s``: seconds in which kernels are
    timed on this host wherever a plan wants them; 0: prices are expectations. ``serves``: of a device, whether it has
    kernels for an op; None: the model runs on CPUs. ``layout``: a key of ``LAYOUTS``, where images have their channels.
    ``device``: the CPU whose programs compute groups where less is expected of them; None: no program does. ``rewrites``:
    of a plan that of the same graph in its cheapest forms. ``forms``: of a plan others of the same outputs; None: none.
    """
    if serves is not None:
        check_draws(name, graph)
    spans = spans_of(graph, shapes)
    at = requests(spans, PRICED)
    programs = None if device is None or serves is not None else ProgramSpace(device, at)
    if measure_s and serves is None:
        prices: Prices = ProfiledPrices(at, measure_s, programs=programs)
    else:
        prices = Prices(at, CORE if serves is None else GPU, programs)
    kinds: dict[Hashable, Any] = {}
    without_layout = [
        rewrites(IlpPartitioner(segment.graph, prices, serves=serves, kinds=kinds))
        for segment in flattened(cut(graph))
        if segment.graph is not None
    ]
    plans = tuple(map(LAYOUTS[layout], without_layout))
    if not plans:
        raise UsageError(f"{name} computes nothing but places or numbers that data decide; there is nothing to tune")
    if serves is not None:
        check_steps(name, [step for plan in plans for step in plan.steps])
    if serves is not None and not any(isinstance(step, Product) for plan in plans for step in plan.steps):
        raise UsageError(f"{name} has no matrix product or convolution; such models run on CPUs alone, leave --device out")
    others = tuple(
        FormPlans() if forms is None else forms(*pair, LAYOUTS[layout]) for pair in zip(without_layout, plans, strict=True)
    )
    return _assembled(name, graph, spans, plans, others, file, shapes, first_group, on_device=serves is not None)


def reassembled(models: Sequence[ModelTask], index: int) -> tuple[ModelTask, ...]:
    """The models of one pack, one of which has other plans or forms than before; errors as of ``model_task``.

    Products and what they carry stay, and so do the ops. Groups of the models behind it may get other numbers.
    """
    result: list[ModelTask] = list(models[:index])
    for model in models[index:]:
        first = sum(len(before.written.functions) for before in result)
        result.append(
            replace(
                _assembled(
                    model.written.name,
                    model.graph,
                    model.spans,
                    model.plans,
                    model.forms,
                    model.file,
                    model.shapes,
                    first,
                    on_device=model.on_device,
                ),
                source_sha256=model.source_sha256,
                subgraph=model.subgraph,
            )
        )
    return tuple(result)


def _assembled(
    name: str,
    graph: Graph,
    spans: Mapping[str, Span],
    plans: Sequence[IlpPartitioner],
    forms: Sequence[FormPlans],
    file: Path,
    shapes: str,
    first_group: int,
    *,
    on_device: bool,
) -> ModelTask:
    """The model of these plans, one for each segment that runs anything."""
    planned = [_programmed(plan, own) for plan, own in zip(plans, forms, strict=True)]
    ways = tuple(own for own, _ in planned)
    segments, parts, left = cut(graph), list[ExecutableModel](), iter(zip(plans, ways, strict=True))
    for index, segment in enumerate(flattened(segments)):
        if segment.graph is not None:
            called = f"{name}.{index}" if chained(segments) else name
            groups = first_group + sum(len(part.functions) for part in parts)
            plan, own = next(left)
            parts.append(executable_specializations(called, plan.graph, own, groups, on_device=on_device))
    return ModelTask(
        graph=graph, spans=spans, steps=tuple(step for own in ways for step in own[-1].steps), parts=tuple(parts), ways=ways,
        written=executable_chain(name, graph, segments, parts) if chained(segments) else parts[0],
        report=together([report for _, report in planned]), prices=plans[0].prices, file=file, shapes=shapes,
        plans=tuple(plans),
        on_device=on_device, forms=tuple(forms),
        turns=tuple(segment.turns for segment in flattened(segments) if segment.graph is not None),
    )  # fmt: skip


def _programmed(plan: IlpPartitioner, forms: FormPlans) -> tuple[tuple[Specialization, ...], PartitionReport]:
    """The ways of a segment, each group in its cheapest form by the prices of the plan that it is of; their report."""
    (ways, report), result = ways_of_forms(plan, forms), list[Specialization]()
    prices = {id(other.graph): other.prices for other in forms.plans}
    for graph, part in groupby(ways, key=lambda way: way.graph):
        result += with_forms(list(part), prices.get(id(graph), plan.prices))
    return tuple(result), report


def with_forms(ways: Sequence[Specialization], prices: Prices) -> tuple[Specialization, ...]:
    """The ways with each group in its cheapest form by some prices."""
    forms = prices.forms_of([step.graph for way in ways for step in way.steps if isinstance(step, Loops)])

    def formed(step: Step) -> Step:
        return replace(step, form=forms.get(kernel_of(step.graph))) if isinstance(step, Loops) else step

    return tuple(replace(way, steps=tuple(map(formed, way.steps))) for way in ways)


def calls_of(model: ModelTask) -> dict[str, dict[Shape, float]]:
    """For every op how often a request calls it at each shape, the mean over the requests.

    Calls without a result are none: a window that is larger than its image has no kernel. UsageError if all are such, but
    not of models with branches: a side that no request of the range can take is tuned for the least that it computes.
    """
    rows: dict[str, dict[Shape, float]] = {}
    every = requests(model.spans)
    for sizes in every:
        for step, turns in model.products:
            extents = {axis: evaluate(extent, sizes) for axis, extent in step.extents.items()}
            if min(extents.values(), default=1) < 1 or _empty(model, step.output, sizes):
                continue
            of_op, shape = rows.setdefault(step.op.name, {}), Shape.of(extents)
            of_op[shape] = of_op.get(shape, 0.0) + evaluate(turns, sizes) / len(every)
    lacking = sorted(model.uses.keys() - rows.keys())
    if lacking and model.graph.guards:
        for step, _ in model.products:
            if step.op.name in lacking:
                least = {axis: max(1, evaluate(extent, every[0])) for axis, extent in step.extents.items()}
                rows.setdefault(step.op.name, {})[Shape.of(least)] = 1.0 / len(every)
    elif lacking:
        raise UsageError(
            f"{model.file.name}: no request of {model.shapes} gives {lacking[0]} anything to compute; windows are larger "
            "than their images, or an axis is empty: ask for larger sizes"
        )
    return rows


def _empty(model: ModelTask, tensor: str, sizes: Mapping[str, int]) -> bool:
    plans = [*model.plans, *(plan for forms in model.forms for plan in forms.plans)]
    shape = next((plan.graph.types[tensor].shape for plan in plans if tensor in plan.graph.types), ())
    return any(dimensions(extent) <= sizes.keys() and evaluate(extent, sizes) < 1 for extent in shape)


def arrivals_of_models(models: Sequence[ModelTask], text: str) -> Arrivals:
    """For every op the shapes that the requests of all models bring it, as often as their steps run."""
    rows: dict[str, dict[Shape, float]] = {}
    for model in models:
        for name, calls in calls_of(model).items():
            of_op = rows.setdefault(name, {})
            for shape, often in calls.items():
                of_op[shape] = of_op.get(shape, 0.0) + often
    return Arrivals(text, None, rows)


def shared_tasks(models: Sequence[ModelTask], ops: Sequence[Op]) -> list[Shared]:
    """The ops as tasks of a budget: how often each model calls them, and the operations of a call."""
    of_models = [calls_of(model) for model in models]
    result = []
    for op in ops:
        calls = [of_model.get(op.name, {}) for of_model in of_models]
        often = [sum(call.values()) for call in calls]
        flops = sum(count * op.flops(shape) for call in calls for shape, count in call.items())
        result.append(Shared(op.kind, flops / max(sum(often), 1e-9), tuple(often), op.name))
    return result


def ops_of(models: Sequence[ModelTask]) -> tuple[Op, ...]:
    """The ops of all products, each once, those that most steps use first."""
    count: Counter[str] = Counter()
    ops: dict[str, Op] = {}
    for model in models:
        count += model.uses
        ops |= {step.op.name: step.op for step, _ in model.products}
    return tuple(ops[name] for name, _ in count.most_common())
