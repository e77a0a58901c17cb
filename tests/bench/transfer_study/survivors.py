"""Survivors: the selection funnel on measured kernels of any family, to see whether it keeps the best of a device.

Laws and expectation read a kernel's demand and the device's profile only: nothing that was measured takes part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from haotuner.cost.machine import Machine, machine
from haotuner.cost.model import Scores
from haotuner.spec.demand import Demand
from haotuner.spec.device import Device
from haotuner.transfer.device_table import DeviceTable, Rows
from haotuner.transfer.reading import demands_of

Broken = NDArray[np.bool_]
MOST = 512  # kept, as of the dense family for CPUs


@dataclass(frozen=True, slots=True, kw_only=True)
class Survived:
    """What the funnel kept of the kernels measured for one task."""

    device: str
    family: str
    task: str
    measured: int
    refused: dict[str, int]  # by law, in the order they are asked
    kept: int
    best_kept: float  # throughput of the best survivor over that of the best of all


def survivors(table: DeviceTable, *, most: int = MOST) -> list[Survived]:
    """The funnel on every task of a table that has at least two kernels."""
    rows_ = []
    expected = np.asarray(table.frame["expected_log"], dtype=np.float64)
    broken = _laws(table)
    efficiency = np.exp(table.labels)
    for rows in table.groups():
        selected, refused = _funnel(rows, broken, expected, most)
        rows_.append(
            Survived(
                device=table.device.id,
                family=table.family,
                task=table.task_names[int(table.tasks[rows[0]])],
                measured=len(rows),
                refused=refused,
                kept=len(selected),
                best_kept=float(efficiency[selected].max() / efficiency[rows].max()) if len(selected) else 0.0,
            )
        )
    return rows_


def _funnel(rows: Rows, broken: Sequence[tuple[str, Broken]], expected: Scores, most: int) -> tuple[Rows, dict[str, int]]:
    left, refused = rows, {}
    for law, breaks in broken:
        refused[law] = int(breaks[left].sum())
        left = left[~breaks[left]]
    selected = left[np.argsort(-expected[left], kind="stable")][:most]
    refused["frontier"] = len(left) - len(selected)
    return selected, refused


def _laws(table: DeviceTable) -> list[tuple[str, Broken]]:
    """Which rows break which law of a GPU; a CPU's kernels have laws of their own in haotuner/search/select."""
    trials, demands = demands_of(table.device, table.family, list(table.trials))
    at = {trial: row for row, trial in enumerate(trials)}
    order = [at[trial] for trial in table.trials]
    parts = [_breaks(part, demand) for part, demand in demands]
    laws = [law for law, _ in parts[0]]
    return [(law, np.concatenate([dict(part)[law] for part in parts])[order]) for law in laws]


def _breaks(device: Device, demand: Demand) -> list[tuple[str, Broken]]:
    m: Machine = machine(device)
    tiles = demand.tiles
    block = tiles.waves * m.wave_threads
    return [
        ("threads", tiles.threads > m.threads_per_block),
        ("shared", tiles.shared_bytes > m.shared_per_block_bytes),
        ("registers", tiles.registers > m.registers_per_thread),
        ("registers of a block", block * np.minimum(tiles.registers, m.registers_per_thread) > m.registers_per_unit),
    ]
