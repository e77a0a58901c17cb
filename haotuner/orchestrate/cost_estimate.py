"""What a model's requests are expected to take: its products by their plans, its groups by their prices."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite

from haotuner.graph.extents import evaluate
from haotuner.orchestrate.greedy_fusion import Loops
from haotuner.orchestrate.tasks import ModelTask
from haotuner.search.call_times import calls_us
from haotuner.search.task import Tuned
from haotuner.words.device import Device
from haotuner.words.op import Op
from haotuner.words.shape import Shape


def predicted_us(model: ModelTask, tuned: Iterable[Tuned], device: Device, threads: int = 1) -> dict[str, dict[str, float]]:
    """Of some requests, by their sizes as ``batch=1;seq=37``: microseconds of ``products``, of ``groups``, and of all.

    ``timed``: of the products' those whose ops were timed; the others' are what a cost model says. A request of which some
    product has no expected time, as on a GPU that nobody measured, is left out.
    """
    sizes = model.prices.requests
    by_name = {one.task.op.name: one for one in tuned}
    products, groups, timed = ([0.0] * len(sizes) for _ in range(3))
    shapes: dict[str, list[tuple[int, int, Shape]]] = {}  # the request, how often, and the shape of each call
    for ways, turns in zip(model.ways, model.turns, strict=True):
        expected = [[model.prices.expected_us(one.graph) for one in way.steps if isinstance(one, Loops)] for way in ways]
        for place, one in enumerate(sizes):
            taken = next(at for at, way in enumerate(ways) if way.serves(one))
            groups[place] += evaluate(turns, one) * sum(us[place] for us in expected[taken])
    for step, turns in model.products:
        for place, one in enumerate(sizes):
            extents = {axis: evaluate(extent, one) for axis, extent in step.extents.items()}
            if min(extents.values(), default=1) > 0:
                shapes.setdefault(Op.parse(step.op).name, []).append((place, evaluate(turns, one), Shape.of(extents)))
    for name, found in shapes.items():
        every = calls_us(by_name[name], [shape for _, _, shape in found], device, threads)
        for (place, often, _), us in zip(found, every, strict=True):
            products[place] += often * us
            timed[place] += often * us if by_name[name].measured else 0.0
    return {
        ";".join(f"{name}={size}" for name, size in one.items()): {"products": p, "groups": g, "all": p + g, "timed": t}
        for one, p, g, t in zip(sizes, products, groups, timed, strict=True)
        if isfinite(p + g)
    }
