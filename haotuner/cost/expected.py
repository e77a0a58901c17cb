"""Expectation over traffic by the cost model: what selection ranks micro-kernels by, sums in parts included.

The sum over k in parts, as cost models see it: more columns of less depth, and adding the parts up.

So many times the columns with a part of the depth ask a device for the same blocks and bytes as the sum in so many parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from haotuner.cost.families import demand
from haotuner.cost.features import features
from haotuner.cost.model import CostModel, ensemble_predictions
from haotuner.cost.roofline import expected_us, roofline_us
from haotuner.ops.dtypes import DTYPE_BYTES
from haotuner.plan.grids import Grid
from haotuner.spec.demand import Expectation
from haotuner.spec.device import Device
from haotuner.spec.family import Family
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from haotuner.spec.traffic import Traffic

Floats = NDArray[np.float64]
LAUNCH_US = 1.5  # from the end of a kernel to the first block of the next one on its stream (H100: 1 to 2)
LEAST_SHARE = 0.2  # of a time that is the kernel's own, whatever adding up is thought to take
PARTIAL_BYTES = 4  # sums of parts are kept in fp32


def in_parts_of(op: Op, parts: int) -> Op:
    """A product that asks for what ``op`` with its sum in so many parts asks for: more columns, less depth."""
    if parts == 1:
        return op
    static = dict(op.static)
    changed = {"n": static["n"] * parts, "k": -(-static["k"] // parts)}
    return replace(op, static=tuple((axis, changed.get(axis, extent)) for axis, extent in op.static))


def adding_us(op: Op, device: Device, shape: Shape, parts: int) -> float:
    """Time to add up the parts of a sum behind the kernel, in us; 0 for one part."""
    if parts == 1:
        return 0.0
    elements = shape[op.dynamic[0]] * op["n"]
    moved = elements * (2 * parts * PARTIAL_BYTES + DTYPE_BYTES[op.dtype])  # parts are written and read again
    return LAUNCH_US + moved / ((device.memory_gbps or 1000.0) * 1e3)


# What a sum in parts must save beyond adding them up before selection counts on it: with less, NVIDIA's heuristics for an
# H200 find narrower tiles as good or better (docs/decisions/132).
DOUBT_US = 4.0
ROWS = 20_000  # of a demand at a time: some tens of MB


def least_expected_us(
    op: Op, device: Device, kernels_by_family: Mapping[Family, Sequence[MicroKernel]], rows: Sequence[int]
) -> Floats:
    """Analytic microseconds of the best kernel at each number of rows, weights cold, ``(rows,)``."""
    shapes, best = [Shape.of({op.dynamic[0]: m}) for m in rows], np.full(len(rows), np.inf)
    for family, kernels in kernels_by_family.items():
        step = max(1, ROWS // len(shapes))
        for at in range(0, len(kernels), step):
            part = kernels[at : at + step]
            us = expected_us(device, demand(device, family, op, [(kernel, shape) for kernel in part for shape in shapes]))
            best = np.minimum(best, us.reshape(len(part), -1).min(axis=0))
    return best


def over_traffic(
    op: Op,
    family: Family,
    device: Device,
    traffic: Traffic,
    model: CostModel | None = None,
    *,
    weights: str = "cold",
    parts: Sequence[int] = (1,),
) -> Expectation:
    """The share of the roofline that is expected of each kernel, its mean over the traffic by the traffic's weights.

    ``model``: None ranks by the analytic time alone. ``weights`` is ``cold`` or ``hot``. The device runs as a whole.
    ``parts``: into how many the sum over k may be split; each shape is priced by the best of those whose blocks still run in
    one round, adding the parts up included. A model that rests on several opinions gives the expectation by itself and by
    each of them, so that a kernel is kept which one alone ranks first.
    """
    shapes = traffic.shapes()
    shares = np.array([weight for _, weight in traffic], np.float64)
    roof = np.asarray(roofline_us(device, op, shapes), np.float64)

    def priced(problem: Op, pairs: Sequence[tuple[MicroKernel, Shape]]) -> NDArray[np.float64]:
        """Microseconds of each pair by each opinion, ``(opinions, pairs)``."""
        if model is None:
            return expected_us(device, demand(device, family, problem, pairs, weights=weights))[np.newaxis]
        least = np.asarray(roofline_us(device, problem, [shape for _, shape in pairs]), np.float64)
        return np.asarray(
            least / np.exp(ensemble_predictions(model, features(device, family, problem, pairs, weights=weights))),
            np.float64,
        )

    def some(kernels: Sequence[MicroKernel]) -> NDArray[np.float64]:
        us = priced(op, [(kernel, shape) for kernel in kernels for shape in shapes])
        us = us.reshape(len(us), len(kernels), -1)
        grids = [Grid.of(kernel, family, op, device) for kernel in kernels] if max(parts) > 1 else []
        for count in (count for count in parts if count > 1):
            short = [(row, column) for row, grid in enumerate(grids) for column, shape in enumerate(shapes)
                     if grid.short(grid.tiles(shape[op.dynamic[0]]), count)]  # fmt: skip
            if short:
                split = priced(in_parts_of(op, count), [(kernels[row], shapes[column]) for row, column in short])
                adding = [DOUBT_US + adding_us(op, device, shapes[column], count) for _, column in short]
                rows, columns = (list(places) for places in zip(*short, strict=True))
                us[:, rows, columns] = np.minimum(us[:, rows, columns], split + np.array(adding))
        return np.asarray((roof / us) @ shares, np.float64)

    def score(kernels: Sequence[MicroKernel]) -> NDArray[np.float64]:
        step = max(1, ROWS // len(shapes))
        result = np.concatenate([some(kernels[at : at + step]) for at in range(0, len(kernels), step)], axis=1)
        return result[..., np.newaxis] if len(result) > 1 else np.asarray(result[0], np.float64)

    return score
