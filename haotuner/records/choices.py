"""Choice: the kernel that serves one shape of an op on a device, from a pack's plan or a store's timings."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from haotuner.cost.families import problem_of
from haotuner.spec.composition import Composition, is_composition
from haotuner.spec.demand import Problem
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.record import Record, Timed
from haotuner.spec.shape import Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One kernel for one shape. ``us``: measured, or predicted where nothing was; None where the source says neither."""

    device_id: str
    op: str  # name
    problem: Problem
    shape: Shape
    kernel: MicroKernel
    us: float | None


def fastest(records: Iterable[Record]) -> list[Choice]:
    """The fastest timed kernel of each op and shape on each device, ordered by op and shape.

    A composition of several kernels is no choice of one kernel and is passed over.
    """
    best: dict[tuple[str, str, Shape], tuple[float, Record]] = {}
    for record in records:
        if isinstance(record.outcome, Timed) and not is_composition(record.trial.kernel):
            key = (record.device_id, record.trial.op.name, record.trial.shape)
            us = record.outcome.median_us
            if key not in best or us < best[key][0]:
                best[key] = (us, record)
    ordered = sorted(best.items(), key=lambda item: (item[0][0], item[0][1], item[0][2].axes))
    return [
        Choice(
            device_id=device_id,
            op=name,
            problem=problem_of(record.trial.op),
            shape=shape,
            kernel=MicroKernel.parse(record.trial.kernel),
            us=us,
        )
        for (device_id, name, shape), (us, record) in ordered
    ]


def planned(device_id: str, op: Op, axis: str, plan: Mapping[str, Any], extents: Sequence[int]) -> tuple[list[Choice], int]:
    """Choices of a pack's plan along its only dynamic axis, and the number of extents that several kernels share.

    ``plan``: the facts of one thread count, whose cells name a composition for each range.
    """
    cells = plan["cells"]
    bounds, considered = cells["bounds"][axis], cells.get("considered") or []
    result: list[Choice] = []
    shared = 0
    for extent in extents:
        at = min(bisect_left(bounds, extent), len(bounds) - 1)
        composition = Composition.parse(cells["entries"][at])
        if len(composition.parts) != 1:
            shared += 1
            continue
        weighed = considered[at] if at < len(considered) else []
        us = next((float(item["us"]) for item in weighed if item["composition"] == composition.label), None)
        result.append(
            Choice(
                device_id=device_id,
                op=op.name,
                problem=op,
                shape=Shape.of({axis: extent}),
                kernel=composition.parts[0].micro_kernel,
                us=us,
            )
        )
    return result, shared
