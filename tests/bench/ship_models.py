"""``python -m tests.bench.ship_models``: fits a model a device on ``tests/bench/records`` and writes ``transfer/models``.

Beside every model lies its provenance: device, ops, rows, date, feature version, hash, and how well it ranks ops it was not
fitted to. To be run again whenever the features change version.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from haotuner.cost.features import versions
from haotuner.cost.forest import Forest, Settings
from haotuner.cost.model import Scores
from haotuner.cost.model_file import Saved, write
from haotuner.cost.scores import best_at, pairwise_accuracy
from haotuner.spec.record import Trial
from haotuner.transfer.device_table import DeviceTable, Rows
from haotuner.transfer.models_shipped import folder
from haotuner.transfer.reading import read_records
from tests.bench.own_devices import OPS
from tests.bench.own_records import FOLDER, OwnRecords, all_records
from tests.bench.shipped_trees import SHIPPED_TREES

LEAST_ROWS_OF_A_TASK = 10  # fewer kernels are no ranking
# Lines of LightGBM's text that prediction does not need: two thirds of it.
UNUSED = ("split_gain", "leaf_weight", "leaf_count", "internal_value", "internal_weight", "internal_count")


def table_of(own: OwnRecords, selects: Callable[[Trial], bool] = lambda trial: trial.op.name in OPS) -> DeviceTable:
    """Features and labels of the trials wanted; column blocks, timed for plans only, are left out."""
    read = read_records((r for r in own.records() if selects(r.trial)), lambda _: own.device)
    (table,) = read.tables
    return table


def fit(table: DeviceTable, rows: Rows | None = None, seed: int = 0, settings: Settings = SHIPPED_TREES) -> Forest:
    """The model of some rows of a table (None: all)."""
    part = table if rows is None else table.take(rows)
    return Forest(seed=seed, settings=settings).fit(part.frame, part.labels)


def fit_without(own: OwnRecords, op: str, seed: int = 0) -> Forest:
    """The model of a device, fitted to all ops but one."""
    return fit(table_of(own, lambda trial: trial.op.name in OPS and trial.op.name != op), seed=seed)


def held_out(table: DeviceTable, folds: Scores, settings: Settings = SHIPPED_TREES) -> Scores:
    """What a model says of each row that was fitted to the other folds; ``folds`` of shape ``(rows,)``."""
    predicted = np.zeros(len(table))
    for fold in np.unique(folds):
        out = np.flatnonzero(folds == fold)
        predicted[out] = fit(table, np.flatnonzero(folds != fold), settings=settings).predict(table.frame.iloc[out])
    return predicted


def ops_of(table: DeviceTable) -> Scores:
    """A number for the op of each row."""
    names = [trial.op.name for trial in table.trials]
    return np.array([sorted(set(names)).index(name) for name in names], np.float64)


def tasks_of(table: DeviceTable) -> list[Rows]:
    """Rows of each task (op, shape, state) of at least ten kernels."""
    return [rows for rows in table.groups() if len(rows) >= LEAST_ROWS_OF_A_TASK]


def scored(table: DeviceTable, scores: Scores) -> dict[str, float]:
    """Means over tasks (op, shape, state) of at least ten kernels."""
    shares: dict[str, list[float]] = {"pairwise": [], "best@1": [], "best@10": []}
    for rows in tasks_of(table):
        shares["pairwise"].append(pairwise_accuracy(scores[rows], table.labels[rows]))
        shares["best@1"].append(best_at(scores[rows], np.exp(table.labels[rows]), 1))
        shares["best@10"].append(best_at(scores[rows], np.exp(table.labels[rows]), 10))
    return {**{name: round(float(np.mean(values)), 4) for name, values in shares.items()}, "tasks": len(shares["pairwise"])}


def slim(text: str) -> str:
    """LightGBM's text with what prediction needs and numbers of seven digits."""

    def short(match: re.Match[str]) -> str:
        return match[1] + " ".join(f"{float(value):.7g}" for value in match[2].split())

    slimmed = "\n".join(line for line in text.split("\n") if line.partition("=")[0] not in UNUSED)
    slimmed = re.sub(r"^(threshold=|leaf_value=)(.*)$", short, slimmed, flags=re.MULTILINE)
    head, *trees = re.split(r"(?=^Tree=\d+$)", slimmed, flags=re.MULTILINE)
    trees[-1] = trees[-1].partition("end of trees")[0]
    sizes = " ".join(str(len(tree)) for tree in trees)
    return re.sub(r"^tree_sizes=.*$", f"tree_sizes={sizes}", head, flags=re.MULTILINE) + "".join(trees) + "end of trees\n\n"


def ship_text(forest: Forest, folder: Path, name: str) -> tuple[Path, str]:
    """Write a model's text; where it lies, and its hash."""
    state, texts = forest.state()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.txt"
    write(path, Saved(kind="forest", state=state, texts=tuple(map(slim, texts)), columns=forest.uses))
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


def ship(own: OwnRecords, folder: Path) -> dict[str, Any]:
    """Fit and write the model of one device and its provenance, which is returned."""
    table = table_of(own)
    forest = fit(table)
    forest.facts = {"device": own.device.id, "date": own.date}
    path, sha = ship_text(forest, folder, own.device.id)
    named = {"id": own.device.id, "kind": own.device.kind, "name": own.device.name, "arch": own.device.arch}
    facts = {
        "model": path.name,
        "family": table.family,
        "device": {**named, **own.device.numbers()},
        "ops": sorted({trial.op.name for trial in table.trials}),
        "states": sorted({f"threads={trial.threads} {trial.weights}" for trial in table.trials}),
        "rows": len(table),
        "date": own.date,
        "columns": versions(forest.uses),
        "sha256": sha,
        "held_out_ops": scored(table, held_out(table, ops_of(table))),
        "analytic": scored(table, np.asarray(table.frame["expected_log"], np.float64)),
        "made_by": "python -m tests.bench.ship_models",
    }
    path.with_suffix(".json").write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return facts


def main() -> None:
    """Ship every device of the records."""
    for own in all_records(FOLDER):
        facts = ship(own, folder())
        print(facts["model"], facts["rows"], "rows", facts["held_out_ops"], "analytic", facts["analytic"])


if __name__ == "__main__":
    main()
