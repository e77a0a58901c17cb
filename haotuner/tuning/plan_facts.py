"""Facts that a manifest and a report keep for people: of plans expected and measured microseconds, of ops what was timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from haotuner.backends.backend import Choice
from haotuner.measure.measurer import Measurer
from haotuner.pack.manifest import ModelContent
from haotuner.plan.table import CellTable, Considered, PlanTable
from haotuner.spec.composition import Composition
from haotuner.spec.device import Device
from haotuner.tuning.strategies import Tuned

if TYPE_CHECKING:
    from haotuner.partition.executable import ExecutableModel
    from haotuner.partition.tasks import ModelTask

PREDICTED_DIGITS = 4


def choice_of(tuned: Tuned) -> Choice:
    """The kernels and plans of an op, as its backend packs them."""
    shapes = tuned.task.traffic.shapes()
    ranges = {axis: [shape[axis] for shape in shapes] for axis in tuned.task.op.dynamic}
    return Choice(
        op=tuned.task.op,
        family=tuned.family,
        kernels=tuned.kernels,
        tables=tuned.tables,
        ranges={axis: (min(extents), max(extents)) for axis, extents in ranges.items()},
    )


def row_of(tuned: Tuned, lab: Measurer) -> dict[str, Any]:
    """Row of a report on an op."""
    # A regret is a loss against times: without any there is none to tell.
    cover = 1 + tuned.regret if tuned.measured else None
    timed = [table for table in tuned.tables if table.measured] if cover else []
    return {
        "name": tuned.task.op.name,
        "kernels": [kernel.name for kernel in tuned.kernels],
        "candidates": len(tuned.funnel.candidates),
        "funnel": tuned.funnel.line(),
        "refused": tuned.funnel.refused,
        "measured": tuned.measured,
        "timings": tuned.timings,
        "seconds": round(tuned.seconds, 3),
        "stopped": tuned.stopped,
        "regret_cover": None if cover is None else cover - 1,
        "regret_mean": cover * (1 + sum(t.regret_mean for t in timed) / len(timed)) - 1 if cover and timed else None,
        "regret_max": cover * (1 + max(t.regret_max for t in timed)) - 1 if cover and timed else None,
        "packed_ratio": lab.backend.packed_ratio(choice_of(tuned), lab.device),
        "model": {score: tuned.model.get(score) for score in ("pairwise", "best@1", "best@10")},  # None: too few to tell
    }


def plan_facts(table: PlanTable) -> dict[str, Any]:
    """Facts of a plan for people: expected and measured microseconds."""
    if isinstance(table, CellTable):
        return {
            "cells": {
                "bounds": {axis: list(bounds) for axis, bounds in table.bounds.items()},
                "entries": [entry.label for entry in table.entries],
                **(
                    {"considered": [[_considered(composition) for composition in cell] for cell in table.considered]}
                    if table.considered
                    else {}
                ),
            },
            "measured_us": _compared_times(table, guessed=False),
            **({"expected_us": _compared_times(table, guessed=True)} if table.guessed else {}),
        }
    return {
        "predicted_us": [float(f"{entry.us:.{PREDICTED_DIGITS}g}") for entry in table.entries],
        "measured_us": {str(m): _rounded(item) for m, item in table.measured.items()},
        "curves": {
            way: [{"kernel": c.kernel, "lead_us": list(map(list, c.lead_us)), "follow_us": c.follow_us} for c in curves]
            for way, curves in table.curves.items()
        },
    }


def model_facts(model: ModelTask, tuned: Sequence[Tuned], device: Device, threads: Sequence[int]) -> dict[str, Any]:
    """Facts of how a model's groups were chosen, and what its requests are expected to take, for `haotuner explain`."""
    from haotuner.partition.cost_estimate import predicted_us
    from haotuner.partition.greedy_fusion import Loops

    report = model.report
    groups = [step for ways in model.ways for way in ways for step in way.steps if isinstance(step, Loops)]
    forms = {step.output: step.form.words for step in groups if step.form is not None}
    return {
        "status": report.status,
        "measured": report.measured,
        "us": {"bound": report.bound_us, "chosen": report.chosen_us, "greedy": report.greedy_us},
        "requests": len(model.prices.requests),
        "predicted_us": {str(count): predicted_us(model, tuned, device, count) for count in threads},
        "regions": [_formed(region, forms) for region in report.regions if region["chosen"]],
        **({"ways": report.ways} if report.ways else {}),
        **({"rewrites": report.rewrites} if report.rewrites else {}),
    }


def _formed(region: Mapping[str, Any], forms: Mapping[str, str]) -> dict[str, Any]:
    """A region whose chosen kernels say their form."""
    chosen = [{**group_, "form": forms.get(group_["output"], "plain loops")} for group_ in region["chosen"]]
    return {**region, "chosen": chosen}


def ranges_of(models: Sequence[ModelTask]) -> dict[str, dict[str, list[int]]]:
    """Of each model and segment the first and last size that every dimension was tuned for; branches are none."""
    return {
        part.name: {
            name: [model.spans[name].first, model.spans[name].last] for name in part.document["dims"] if name in model.spans
        }
        for model in models
        for part in model.executables.values()
    }


def _considered(considered: Considered) -> dict[str, Any]:
    us = float(f"{considered.us:.{PREDICTED_DIGITS}g}")
    return {
        "way": considered.way,
        "composition": considered.composition.label,
        "us": us,
        "from": "measured" if considered.measured else "predicted",
    }


def _compared_times(table: CellTable, *, guessed: bool) -> dict[str, dict[str, float]]:
    """Compared times, in us, by shape: those that were timed, or those that were only expected."""
    selected = {
        shape: {composition: us for composition, us in item.items() if ((shape, composition) in table.guessed) == guessed}
        for shape, item in table.measured.items()
    }
    return {str(shape): _rounded(item) for shape, item in selected.items() if item}


def _rounded(times: Mapping[Composition, float]) -> dict[str, float]:
    return {composition.label: round(us, 3) for composition, us in times.items()}


def model_contents(
    models: Sequence[ModelTask], executables: Mapping[str, ExecutableModel] = MappingProxyType({})
) -> dict[str, ModelContent]:
    """Contents of models and of segments of their chains, by name. ``executables``: others in place of the models' own."""
    sources = {model.written.name: (model.source_sha256, model.subgraph is not None) for model in models}
    every = {name: each for model in models for name, each in model.executables.items()} | dict(executables)
    return {
        name: ModelContent(each.schedule, each.bytecode, each.weights, *sources.get(name, ()))
        for name, each in every.items()
    }
