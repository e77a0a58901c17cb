"""Shapes held out on one device: the nearest measured shape's kernels, as a table of tuned shapes has them, or a forest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from haotuner.cost.families import problem_of
from haotuner.cost.forest import Forest
from haotuner.errors import UsageError
from haotuner.transfer.device_table import DeviceTable, Rows

FOLDS = 5
FEWEST = 10  # shapes of a table: with fewer a fold holds one or two
TABLE, LEARNED, ANALYTIC = "nearest shape's table", "learned", "analytic"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """Rows that compete, where they lie, and what a table's entry must share with them."""

    rows: Rows
    shape: str  # op and shape: held out as one, whatever threads and state of the weights
    state: str
    place: NDArray[np.float64]  # log2 of all extents


def evaluate_held_out(
    tables: Sequence[DeviceTable], *, seed: int = 0, tell: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Share of the best throughput of the one kernel each way chooses for held-out shapes, by family and device.

    Every choice is among the kernels measured at the shape. A family on a device with fewer than ``FEWEST`` shapes is left
    out.

    Raises:
        UsageError: none has so many.
    """
    result: dict[str, Any] = {}
    for table in tables:
        tasks = _tasks(table)
        shapes = sorted({task.shape for task in tasks})
        if len(shapes) < FEWEST:
            continue
        folds = dict(zip(shapes, np.random.default_rng([seed, 6]).permutation(len(shapes)) % FOLDS, strict=True))
        shares: dict[str, list[float]] = {name: [] for name in (TABLE, LEARNED, ANALYTIC)}
        for fold in range(FOLDS):
            known = [task for task in tasks if folds[task.shape] != fold]
            learned = np.concatenate([task.rows for task in known])
            forest = Forest(seed=seed).fit(table.frame.iloc[learned], table.labels[learned])
            for task in (task for task in tasks if folds[task.shape] == fold):
                frame = table.frame.iloc[task.rows]
                shares[LEARNED].append(_share(table, task, int(np.argmax(forest.predict(frame)))))
                shares[ANALYTIC].append(_share(table, task, int(np.argmax(frame["expected_log"].to_numpy()))))
                shares[TABLE].append(_share(table, task, _by_table(table, task, known)))
        name = f"{table.family} on {table.device.id}"
        result[name] = {
            "shapes": len(shapes),
            "tasks": len(shares[TABLE]),
            "rankings": {way: _summary(np.array(values)) for way, values in shares.items()},
        }
        tell(f"held-out shapes of {name}: {result[name]['rankings'][LEARNED]['mean']:.3f}")
    if not result:
        raise UsageError(f"no family has {FEWEST} shapes with two kernels each on one device; measure more shapes")
    return {"folds": FOLDS, "tables": result}


def _tasks(table: DeviceTable) -> list[_Task]:
    result = []
    for rows in table.groups():
        trial = table.trials[int(rows[0])]
        problem = problem_of(trial.op)
        extents = problem.extents(trial.shape)
        position = np.log2([max(float(extents[axis]), 1.0) for axis in problem.axes])
        state = f"{' '.join(problem.axes)} {problem.dtype} {trial.threads} {trial.weights}"
        result.append(_Task(rows=rows, shape=f"{trial.op.name} {trial.shape}", state=state, place=position))
    return result


def _by_table(table: DeviceTable, task: _Task, known: Sequence[_Task]) -> int:
    """Place of the kernel that was best at the nearest shape; of the next nearest where none of its kernels is to be had."""
    at = {table.trials[row].kernel: index for index, row in enumerate(task.rows.tolist())}
    alike = [other for other in known if other.state == task.state]
    for other in sorted(alike, key=lambda other: float(np.abs(other.place - task.place).sum())):
        for row in other.rows[np.argsort(-table.labels[other.rows])].tolist():
            if table.trials[row].kernel in at:
                return at[table.trials[row].kernel]
    return 0


def _share(table: DeviceTable, task: _Task, chosen: int) -> float:
    labels = table.labels[task.rows]
    return float(np.exp(labels[chosen] - labels.max()))


def _summary(shares: NDArray[np.float64]) -> dict[str, float]:
    return {"mean": float(shares.mean()), "p10": float(np.quantile(shares, 0.1)), "least": float(shares.min())}
