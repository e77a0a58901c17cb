"""Forms of a whole graph: plans of the same outputs by other primitives, and which of them serves which requests.

Every plan has a time at each request: expected at first, then by its tuned kernels, then measured. Requests are cut into
intervals of one measure, each with the plan that loses least there. So a model may switch its form by size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from haotuner.partition.greedy_fusion import Loops, Specialization
from haotuner.partition.ilp_partition import IlpPartitioner, PartitionReport
from haotuner.partition.products import Product
from haotuner.partition.specializations import best_cut, in_intervals, ways_of, where

MOST_INTERVALS = 4  # of a model that switches its form
WORST = 0.05  # loss of a request against its best form, which one more interval must avoid
EXPECTED, TUNED, MEASURED = "expected", "of its kernels", "measured"  # what times are


@dataclass(frozen=True, slots=True)
class FormPlans:
    """Plans of a graph in other forms. ``rules``: of each, rows of a report; ``us``: the model's own form, then theirs.

    ``region_us``: of each, what is expected of what it computes otherwise, at each request.
    ``basis``: what the times are; ``settled``: what no request takes is tuned no more.
    """

    plans: tuple[IlpPartitioner, ...] = ()
    rules: tuple[Sequence[dict[str, Any]], ...] = ()
    us: tuple[tuple[float, ...], ...] = ()
    region_us: tuple[tuple[float, ...], ...] = ()
    basis: str = EXPECTED
    settled: bool = field(default=False)

    def less_sure(self, us: NDArray[np.float64], share: float) -> NDArray[np.float64]:
        """Times in which what a form computes otherwise counts as if it had to save such a share; of all forms."""
        margins = np.array(self.region_us) * (share / (1 - share))
        return np.concatenate([us[:1], us[1:] + margins])

    def with_us(self, us: Sequence[Sequence[float]], basis: str, *, settled: bool) -> FormPlans:
        """Copy with other times."""
        return replace(self, us=tuple(map(tuple, us)), basis=basis, settled=settled)


def ways_of_forms(plan: IlpPartitioner, forms: FormPlans) -> tuple[tuple[Specialization, ...], PartitionReport]:
    """The ways of a graph that may have other forms, the one for any sizes last, and the report of their plans."""
    if not forms.plans:
        return ways_of(plan), plan.report
    every, requests, us = (plan, *forms.plans), plan.prices.requests, np.array(forms.us)
    cut = best_cut(plan.graph, requests, us, MOST_INTERVALS, WORST) if len(requests) > 1 else None
    chosen = (int(us.mean(axis=1).argmin()),) if cut is None else cut.plans
    rewrites = [*plan.rewrites, *_rows(forms, chosen)]
    if cut is None or len(chosen) == 1:
        only = every[chosen[0]]
        only.report.ways = []  # of a choice before
        result = tuple(_of(way, only, plan) for way in ways_of(only))
        return result, replace(only.report, rewrites=rewrites)
    result = in_intervals(cut, requests, [_of(Specialization(every[at].steps), every[at], plan) for at in chosen])
    ways = [
        {
            "where": where(cut, index, requests),
            "requests": [dict(requests[at]) for at in members],
            "us": float(us[cut.plans[index], members].sum()),
            "one_plan_us": float(us[0, members].sum()),
            "own_kernels": _own(every[cut.plans[index]], plan),
            "form": "a derived" if cut.plans[index] else "the model's own",
            "times": forms.basis,
        }
        for index, members in enumerate(cut.members)
    ]
    regions = [region for at in sorted(set(chosen)) for region in every[at].report.regions]
    distinct = {tuple(region["outputs"]): region for region in reversed(regions)}
    return result, replace(plan.report, ways=ways, rewrites=rewrites, regions=list(reversed(distinct.values())))


def _of(way: Specialization, own: IlpPartitioner, plan: IlpPartitioner) -> Specialization:
    return way if own is plan else replace(way, graph=own.graph)


def _rows(forms: FormPlans, chosen: Sequence[int]) -> list[dict[str, Any]]:
    """Rows of the rules of forms that are taken, each once."""
    result: dict[tuple[str, str], dict[str, Any]] = {}
    for at in sorted({position for position in chosen if position}):
        for row in forms.rules[at - 1]:
            result.setdefault((row["rule"], row["tensor"]), dict(row))
    return list(result.values())


def _own(other: IlpPartitioner, plan: IlpPartitioner) -> int:
    """Number of kernels that the model's own plan has not."""
    kernels = [{_name(step) for step in item.steps if isinstance(step, (Loops, Product))} for item in (other, plan)]
    return len(kernels[0] - kernels[1])


def _name(step: Loops | Product) -> tuple[object, ...]:
    if isinstance(step, Product):
        return step.op.name, step.output
    return step.graph.outputs, frozenset((node.output, node.primitive) for node in step.graph.nodes)
