"""Facts of a plan that a manifest keeps for people: expected and measured microseconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from haotuner.plan.table import CellTable, Considered, PlanTable
from haotuner.spec.composition import Composition

PREDICTED_DIGITS = 4


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
