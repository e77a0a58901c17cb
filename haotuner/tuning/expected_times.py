"""Tables of expected times of whole models: measured on a new pack at a grid of sizes, predicted where nothing was timed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from math import prod
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from haotuner.pack.manifest import ModelContent
from haotuner.partition.cost_estimate import groups_us, products_us
from haotuner.partition.executable import ExecutableModel
from haotuner.partition.tasks import ModelTask
from haotuner.search.task import Tuned
from haotuner.spec.device import Device
from haotuner.spec.expected_times import ExpectedTable, grid_sizes, nodes_of
from haotuner.tuning.plan_facts import model_contents
from haotuner.verify.model_times import Times, times_apart

SECONDS = 3.0  # of calls for each model
HELD_OUT = 10  # requests between the nodes, by which the band is known
LEAST_BAND = 0.05  # what two calls of one request differ by on a quiet host
PREDICTED_LOW, PREDICTED_HIGH = 0.5, 2.0  # of predictions one in ten is off by 1.96 (docs/results/group-estimates.md)
MOST_BAND = 3.0  # more is the noise of a crowded host, and tells nothing of the pack
TYPICAL = 0.5  # quantile of a request's times: what a scheduler will see, not the one luckiest call

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TimedGrid:
    """Grid of one model, and requests between its nodes that its band is made of."""

    names: tuple[str, ...]
    sizes: tuple[tuple[int, ...], ...]
    held_out: tuple[dict[str, int], ...]

    @property
    def requests(self) -> list[dict[str, int]]:
        """All requests to time, those between the nodes first."""
        return [*self.held_out, *nodes_of(self.names, self.sizes)]


def grid_of(model: ModelTask) -> TimedGrid | None:
    """Requests of a model whose times a pack holds; None of one whose sizes depend on data, or have no range."""
    document = model.written.document
    names = tuple(document["dims"])
    if "chain" in document or any(name not in model.spans for name in names):
        return None
    spans = [model.spans[name] for name in names]
    draw, samples = Random(0), [span.sample(64) for span in spans]
    drawn = [dict(zip(names, map(draw.choice, samples), strict=True)) for _ in range(HELD_OUT)]
    varies = any(span.last > span.first for span in spans)
    return TimedGrid(names, grid_sizes(spans), tuple(drawn) if varies else ())


def contents_with_times(
    models: Sequence[ModelTask],
    tuned: Iterable[Tuned],
    device: Device,
    threads: Sequence[int],
    pack: Path | None,
    environment: Mapping[str, str],
) -> dict[str, ModelContent]:
    """Contents of the models and segments, by name; documents of whole models hold expected times.

    ``pack``: one of the same plans that can run here, which is timed; None: predictions alone.
    """
    tuned = list(tuned)
    grids = {model.written.name: own for model in models if (own := grid_of(model)) is not None}
    times: Times = {}
    if pack is not None and grids:
        requests = {name: own.requests for name, own in grids.items()}
        times = times_apart(pack, threads, requests, SECONDS * len(grids) * len(threads), environment)
    executables: dict[str, ExecutableModel] = {}
    for model in models:
        executables |= model.executables
        own = grids.get(model.written.name)
        if own is None:
            continue
        tables = [
            table_of(own, count, predicted(model, tuned, device, count, own), times.get(count, {}).get(model.written.name))
            for count in threads
        ]
        whole = model.executables[model.written.name]
        documents = [table.document for table in tables if table is not None]
        if documents:
            executables[whole.name] = replace(whole, document={**whole.document, "expected": documents})
    return model_contents(models, executables)


def predicted(model: ModelTask, tuned: Iterable[Tuned], device: Device, threads: int, grid: TimedGrid) -> Floats | None:
    """Microseconds at the nodes: each product by its plan there, groups by a curve through their prices; None if unknown."""
    nodes = nodes_of(grid.names, grid.sizes)
    products, _ = products_us(model, tuned, device, threads, nodes)
    priced = model.prices.requests
    groups = curve(grid.names, priced, np.array(groups_us(model)), nodes)
    us = np.array(products) + groups
    return us if np.isfinite(us).all() and (us > 0).all() else None


def table_of(
    grid: TimedGrid, threads: int, predicted_us: Floats | None, times: Sequence[Sequence[float]] | None
) -> ExpectedTable | None:
    """The table of one thread count; None where nothing is known. ``times``: of ``grid.requests``, in their order."""
    nodes = nodes_of(grid.names, grid.sizes)
    between = len(grid.held_out)
    measured = np.array([_typical(row) for row in times]) if times else np.full(between + len(nodes), np.nan)
    here = np.isfinite(measured[between:])
    if not here.any():
        if predicted_us is None:
            return None
        return ExpectedTable(threads, grid.sizes, tuple(predicted_us.tolist()), PREDICTED_LOW, PREDICTED_HIGH)
    timed = [node for node, known in zip(nodes, here, strict=True) if known]
    base = predicted_us if predicted_us is not None else curve(grid.names, timed, measured[between:][here], nodes)
    us = _filled(grid, base, measured[between:], here)
    low, high = _band(grid, us, measured[:between], times or ())
    return ExpectedTable(threads, grid.sizes, tuple(us.tolist()), low, high)


def _typical(times: Sequence[float]) -> float:
    return float(np.quantile(times, TYPICAL)) if times else float("nan")


def _filled(grid: TimedGrid, base: Floats, measured: Floats, here: NDArray[np.bool_]) -> Floats:
    """Measured times; elsewhere what is predicted, times the error of predictions at the nearest node that was timed."""
    logs = np.log(np.array([list(node.values()) for node in nodes_of(grid.names, grid.sizes)], float).reshape(len(here), -1))
    result = measured.copy()
    known = np.flatnonzero(here)
    for index in np.flatnonzero(~here):
        nearest = known[np.argmin(np.square(logs[known] - logs[index]).sum(axis=1))]
        result[index] = max(base[index], 1e-3) * measured[nearest] / max(base[nearest], 1e-3)
    return result


def _band(grid: TimedGrid, us: Floats, held_out: Floats, times: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Factors of the band: errors between the nodes, and how far a request's calls lie apart."""
    expected = between_nodes(grid, us, grid.held_out)
    known = np.isfinite(held_out)
    ratios = held_out[known] / expected[known]
    spread = [np.quantile(row, 0.9) / np.quantile(row, TYPICAL) for row in times if len(row) > 2]
    low, high = (np.quantile(ratios, share) if len(ratios) else 1.0 for share in (0.1, 0.9))
    return (
        float(max(1 / MOST_BAND, min(1 - LEAST_BAND, low))),
        float(min(MOST_BAND, max(1 + LEAST_BAND, high) * (np.median(spread) if spread else 1.0))),
    )


def between_nodes(grid: TimedGrid, us: Floats, requests: Sequence[Mapping[str, int]]) -> Floats:
    """Expected times of requests inside the grid, linear between its nodes, as the library computes them."""
    from scipy.interpolate import RegularGridInterpolator

    varying = [index for index, sizes in enumerate(grid.sizes) if len(sizes) > 1]
    if not varying or not requests:
        return np.full(len(requests), us[0])
    values = us.reshape([len(grid.sizes[index]) for index in varying])
    points = np.array([[request[grid.names[index]] for index in varying] for request in requests], float)
    first, last = ([grid.sizes[index][end] for index in varying] for end in (0, -1))
    curve_ = RegularGridInterpolator([grid.sizes[index] for index in varying], values)
    return np.asarray(curve_(np.clip(points, first, last)), np.float64)


def curve(
    names: Sequence[str], requests: Sequence[Mapping[str, int]], us: Floats, at: Sequence[Mapping[str, int]]
) -> Floats:
    """Times at other requests: the sum, with factors that are not negative, of products of up to three sizes.

    Work of a step is such a product: of the batch and the square of a length, for attention. Errors count relative.
    """
    from scipy.optimize import nnls

    if not (us > 0).any():
        return np.zeros(len(at))
    terms = [term for count in range(4) for term in combinations_with_replacement(names, count)]

    def rows(items: Sequence[Mapping[str, int]]) -> Any:
        return np.array([[float(prod(item.get(name, 1) for name in term)) for term in terms] for item in items])

    design, weights = rows(requests), 1 / np.maximum(us, 1e-9)
    scale = design.max(axis=0)
    factors, _ = nnls(design / scale * weights[:, None], us * weights)
    return np.asarray(rows(at) / scale @ factors, np.float64)
