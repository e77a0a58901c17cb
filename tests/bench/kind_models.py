"""``python -m tests.bench.kind_models STORE…``: fits and ships a model a family beside dense fp32, on records of this host.

The records are those of ``python -m tests.bench.kind_records --db STORE``, or what tuning leaves behind. Beside every model
lies its provenance, with how well it ranks the kernels of each op when fitted to the other ops. One that ranks them worse
than the analysis alone does not ship.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from haotuner.cost.features import versions
from haotuner.host.cache_folder import cache_folder
from haotuner.hw_profiles.find import find_device
from haotuner.records import open_store
from haotuner.spec.record import Record, Timed, Trial
from haotuner.transfer.device_table import DeviceTable
from haotuner.transfer.models_shipped import folder, near
from haotuner.transfer.reading import read_records
from haotuner.transfer.saved_model import load_model
from tests.bench.ship_models import fit, held_out, ops_of, scored, ship_text, tasks_of

LEAST_ROWS, LEAST_OPS = 40, 3  # fewer teach nothing that the analytic order does not know
DENSE = "cpu_dense_fp32"  # has models of its own, by ``ship_models``


def records_of(stores: Sequence[str]) -> list[Record]:
    """Records of some stores: of each trial the least sample alone, whichever time it was repeated.

    On a host that others use most samples of a few milliseconds hold a wait, so that medians of the same kernel differ by
    twice; what the least of many differs by is a few percent.
    """
    every = (record for url in stores for record in open_store(url).records())
    by_trial: dict[Trial, Record] = {}
    for record in every:
        if isinstance(record.outcome, Timed):
            trial, us = replace(record.trial, repeat=0), min(record.outcome.samples_us)
            known = by_trial[trial].outcome if trial in by_trial else None
            if not isinstance(known, Timed) or us < known.median_us:
                by_trial[trial] = replace(record, trial=trial, outcome=Timed(samples_us=(us,)))
    return list(by_trial.values())


def judged(table: DeviceTable) -> tuple[dict[str, float], dict[str, float]]:
    """How well a model of the other ops ranks each op's kernels, and how well the analysis does."""
    return (
        scored(table, held_out(table, ops_of(table))),
        scored(table, np.asarray(table.frame["expected_log"], np.float64)),
    )


def ship(table: DeviceTable, date: str, folder: Path) -> dict[str, Any]:
    """Fit and write the model of one family and its provenance, which is returned; not where analysis ranks better."""
    learnt, analytic = judged(table)
    if learnt["best@1"] < analytic["best@1"]:
        return {"family": table.family, "held_out_ops": learnt, "analytic": analytic}
    forest = fit(table)
    forest.facts = {"device": table.device.id, "date": date}
    path, sha = ship_text(forest, folder, f"{table.device.id}-{table.family}")
    device = table.device
    named = {"id": device.id, "kind": device.kind, "name": device.name, "arch": device.arch}
    facts = {
        "model": path.name,
        "family": table.family,
        "device": {**named, **device.numbers()},
        "ops": sorted({trial.op.name for trial in table.trials}),
        "states": sorted({f"threads={trial.threads} {trial.weights}" for trial in table.trials}),
        "rows": len(table),
        "date": date,
        "columns": versions(forest.uses),
        "sha256": sha,
        "held_out_ops": learnt,
        "analytic": analytic,
        "made_by": "python -m tests.bench.kind_models",
    }
    path.with_suffix(".json").write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return facts


def main() -> None:
    """Ship every family of which the stores hold enough."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("stores", nargs="+")
    words.add_argument("--out", type=Path, default=folder())
    words.add_argument("--judge", action="store_true", help="ship nothing: say how what ships ranks these kernels")
    args = words.parse_args()
    records = records_of(args.stores)
    date = datetime.fromtimestamp(max(record.when for record in records), UTC).date().isoformat()
    read = read_records(records, lambda name: find_device(name, cache_dir=cache_folder(os.environ)))
    for table in read.tables:
        if table.family == DENSE or len(table) < LEAST_ROWS or len(set(ops_of(table))) < LEAST_OPS or not tasks_of(table):
            print(table.family, len(table), "rows: too few")
            continue
        if args.judge:
            analytic = np.asarray(table.frame["expected_log"], np.float64)
            print(table.family, "analytic", scored(table, analytic))
            for model in near(table.device, table.family).models:
                print(
                    f"  {model.name} ({model.distance:.1f} away)", scored(table, load_model(model.path).predict(table.frame))
                )
            continue
        facts = ship(table, date, args.out)
        what = f"{facts['model']} {facts['rows']} rows" if "model" in facts else f"{facts['family']} not shipped:"
        print(what, facts["held_out_ops"], "analytic", facts["analytic"])


if __name__ == "__main__":
    main()
