"""Cost estimate of a model's requests: its products by their plans, its groups by their prices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite

from haotuner.graph.extents import evaluate
from haotuner.partition.greedy_fusion import Loops
from haotuner.partition.products import Product
from haotuner.partition.tasks import ModelTask
from haotuner.search.cost_extrapolation import calls_us
from haotuner.search.task import Tuned
from haotuner.spec.device import Device
from haotuner.spec.shape import Shape


def groups_us(model: ModelTask) -> list[float]:
    """Microseconds of a model's groups at each request of its prices: measured, or expected."""
    result = [0.0] * len(model.prices.requests)
    for segment, (ways, turns) in enumerate(zip(model.ways, model.turns, strict=True)):
        expected = [
            [model.prices_of(way, segment).expected_us(step.graph) for step in way.steps if isinstance(step, Loops)]
            for way in ways
        ]
        for index, request in enumerate(model.prices.requests):
            taken = next(at for at, way in enumerate(ways) if way.serves(request))
            result[index] += evaluate(turns, request) * sum(us[index] for us in expected[taken])
    return result


def predicted_us(model: ModelTask, tuned: Iterable[Tuned], device: Device, threads: int = 1) -> dict[str, dict[str, float]]:
    """Of some requests, by their sizes as ``batch=1;seq=37``: microseconds of ``products``, of ``groups``, and of all.

    ``timed``: of the products' those whose ops were timed; the others' are what a cost model says. A request of which some
    product has no expected time, as on a GPU that nobody measured, is left out.
    """
    sizes = model.prices.requests
    groups = groups_us(model)
    products, timed = products_us(model, tuned, device, threads, sizes)
    return {
        ";".join(f"{name}={size}" for name, size in request.items()): {"products": p, "groups": g, "all": p + g, "timed": t}
        for request, p, g, t in zip(sizes, products, groups, timed, strict=True)
        if isfinite(p + g)
    }


def products_us(
    model: ModelTask, tuned: Iterable[Tuned], device: Device, threads: int, sizes: Sequence[Mapping[str, int]]
) -> tuple[list[float], list[float]]:
    """Microseconds of a model's products at each request, each call by its plan there, and those of ops that were timed."""
    by_name = {tuned_op.task.op.name: tuned_op for tuned_op in tuned}
    products, timed = ([0.0] * len(sizes) for _ in range(2))
    shapes: dict[str, list[tuple[int, int, Shape]]] = {}  # the request, how often, and the shape of each call
    for ways, turns in zip(model.ways, model.turns, strict=True):
        for position, request_ in enumerate(sizes):
            way = next(way for way in ways if way.serves(request_))
            for step in (step for step in way.steps if isinstance(step, Product)):
                extents = {axis: evaluate(extent, request_) for axis, extent in step.extents.items()}
                if min(extents.values(), default=1) > 0:
                    shapes.setdefault(step.op.name, []).append((position, evaluate(turns, request_), Shape.of(extents)))
    for name, shape in shapes.items():
        every = calls_us(by_name[name], [shape for _, _, shape in shape], device, threads)
        for (offset, often, _), us in zip(shape, every, strict=True):
            products[offset] += often * us
            timed[offset] += often * us if by_name[name].measured else 0.0
    return products, timed
