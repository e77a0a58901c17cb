"""Held-out shapes: how a cost model ranks every micro-kernel that can run a shape it was not fitted to, on the same device.

``python -m tests.bench.held_out --measure 10 --db sqlite:///held.db`` measures this host as three devices in that many
rounds (about 4 min each, alone on the machine) and writes what it found to ``tests/bench/records/held_out``; without
``--measure`` the page ``docs/results/held-out.md`` is made from those files alone.

A task is a shape (m, n, k); in it compete all kernels of the op that cover m with whole row tiles, an eighth of m more or
less. (The records of ``own_devices`` are of probes, 1 and 2 tiles of each kernel: most of their tasks hold kernels of one
height only.) A label is of the medians over every other round. A round is a process of
its own: where data lie changes cold times.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from haotuner.cost.forest import ONE_DEVICE, Settings
from haotuner.cost.model import Scores
from haotuner.host.cache_folder import cache_folder
from haotuner.hw_profiles.find import find_device
from haotuner.measure.device_measurer import DeviceMeasurer
from haotuner.records import open_store
from haotuner.records.codec import trial_of
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.record import Record, Trial
from haotuner.spec.shape import Shape
from haotuner.transfer.device_table import DeviceTable
from tests.bench.own_devices import ISAS, OPS, kernels_of
from tests.bench.own_records import FOLDER, OwnRecords, all_records, comparable
from tests.bench.ship_models import held_out, ops_of, scored, table_of
from tests.bench.transfer_use import markdown, short

HELD = FOLDER / "held_out"
# Log-uniform, as all traffic here; beyond, the time of a kernel is a line in m
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
FOLDS = 5
HEAD = ["device", "ranked by", "pairwise", "best@1", "best@10", "tasks"]
KEPT, BY_CHANCE = 40, 56  # kernels of an op that selection kept, and legal ones that it did not: a third of own_devices'


TEXT = f"""A task is a shape (m, n, k) of {len(OPS)} ops and {len(ROWS)} m; in it compete all kernels, of some
{KEPT + BY_CHANCE} an op, that cover m with whole row tiles, an eighth more or less. Weights cold, one thread. A label is
log(throughput / roofline) by the two medians over every other round, each round a process of its own.

*Shapes held out*: a fifth of the tasks at a time, a model for this device alone (what `haotuner transfer fit` makes of one
device's records), fitted to the rest of the table; *as it ships*: smaller, without the columns that mislead on other
devices; *ops held out*: all shapes of an op at a time, as it ships. *Half of the rounds, against the other half*: how well
every other round orders what the rest measured. Pairwise accuracy is over all pairs, near ties included.
Means over tasks."""


def covering(mr: int, m: int) -> int | None:
    """Rows of the whole tiles nearest to m; None if they are more than an eighth of it away."""
    rows = max(1, round(m / mr)) * mr
    return rows if 8 * abs(rows - m) <= m else None


def trials_of(op: Op, device: Device) -> list[Trial]:
    """Every kernel at every shape that it can run, weights cold, one thread."""
    kernels = [MicroKernel.parse(name) for name in kernels_of(op, device, kept=KEPT, by_chance=BY_CHANCE)]
    at = ((kernel.name, covering(kernel["mr"], m)) for kernel in kernels for m in ROWS)
    return [trial_of(op=op.name, kernel=name, shape=Shape.of(m=rows)) for name, rows in at if rows]


def measure(rounds: int, db: str, out: Path, isas: Sequence[str] = ISAS) -> None:
    """All devices in every round, in another order of trials each; files are written after each round."""
    store = open_store(db)
    devices = [find_device(isa, cache_dir=cache_folder(os.environ)) for isa in isas]
    labs = [DeviceMeasurer(device, store, environment=dict(os.environ), what="held-out shapes") for device in devices]
    try:
        for again in range(rounds):
            for lab in labs:
                if again == 0:
                    lab.start()
                lab.anew(f"held-out shapes, round {again + 1}")
                begin, rng = time.monotonic(), np.random.default_rng(again)
                for op in map(Op.parse, OPS):
                    trials = trials_of(op, lab.device)
                    lab.measure([trials[at] for at in rng.permutation(len(trials)).tolist()])
                print(f"{lab.device.id} round {again + 1}: {time.monotonic() - begin:.0f} s", flush=True)
                halves(lab.device, comparable(store, lab.fingerprint)).write(out)
    finally:
        for lab in labs:
            lab.close()
        store.close()


def halves(device: Device, records: Iterable[Record]) -> OwnRecords:
    """Two figures a trial: the medians over every other round, from the first and from the second on (one: the only one)."""
    every = OwnRecords.of(device, records, most=None)
    result = {}
    for trial, us in every.rounds.items():
        parts = (us[0::2], us[1::2])
        result[trial] = tuple(float(np.median(part)) for part in parts if part)
    return OwnRecords(device=device, date=every.date, rounds=result)


def asked(rows: int) -> int:
    """The shape of ``ROWS`` that so many rows cover."""
    return next(m for m in ROWS if 8 * abs(rows - m) <= m)


def table_of_held(own: OwnRecords) -> DeviceTable:
    """Features, labels (both halves' geometric mean) and tasks (op, m) of one device."""
    table = table_of(replace(own, rounds={trial: (float(np.exp(np.mean(np.log(us)))),) for trial, us in own.rounds.items()}))
    names = tuple(f"{trial.op.name} m={asked(trial.shape['m'])}" for trial in table.trials)
    known, tasks = np.unique(names, return_inverse=True)
    return replace(table, tasks=np.asarray(tasks, np.int64), task_names=tuple(known.tolist()))


def half(own: OwnRecords, table: DeviceTable, which: int) -> Scores:
    """The labels as one half of the rounds alone has them; ``which`` is 0 or -1."""
    logs = [np.log(own.rounds[trial]) for trial in table.trials]
    return np.asarray([label + log.mean() - log[which] for label, log in zip(table.labels, logs, strict=True)], np.float64)


def shape_folds(table: DeviceTable) -> Scores:
    """One of ``FOLDS`` for every task, by chance."""
    fold = np.random.default_rng(0).permutation(len(table.task_names)) % FOLDS
    return np.asarray(fold[table.tasks], np.float64)


def page(owns: Sequence[OwnRecords], alone: Settings = ONE_DEVICE) -> Iterator[str]:
    """The tables: by device and kind of model (``alone``: of the first), then by rows."""
    rows, by = [HEAD], [["device", "ranked by", *map(str, ROWS)]]
    for own in owns:
        table = table_of_held(own)
        folds = shape_folds(table)
        second = replace(table, labels=half(own, table, -1))
        for name, scores, truth in (
            ("shapes held out", held_out(table, folds, alone), table),
            ("shapes held out, as it ships", held_out(table, folds), table),
            ("ops held out", held_out(table, ops_of(table)), table),
            ("analytic", np.asarray(table.frame["expected_log"], np.float64), table),
            ("half of the rounds, against the other half", half(own, table, 0), second),
        ):
            accuracies = scored(truth, scores)
            rows.append(
                [short(own.device), name, *(f"{accuracies[key]:.3f}" for key in HEAD[2:5]), f"{accuracies['tasks']:.0f}"]
            )
            by.append([short(own.device), name, *(f"{figure:.3f}" for figure in by_rows(truth, scores))])
    yield from (*markdown(rows), "", "## Pairwise accuracy by rows m", "", *markdown(by), "")


def by_rows(table: DeviceTable, scores: Scores) -> list[float]:
    """Mean pairwise accuracy of the tasks of each of ``ROWS``."""
    of = np.array([asked(trial.shape["m"]) for trial in table.trials])
    parts = (np.flatnonzero(of == m) for m in ROWS)
    return [scored(table.take(part), scores[part])["pairwise"] for part in parts]


def main() -> None:
    """Measure if asked to, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", type=int, default=0, metavar="ROUNDS")
    parser.add_argument("--db", default="sqlite:///held.records.db")
    parser.add_argument("--records", type=Path, default=HELD)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    asked_for = parser.parse_args()
    if asked_for.measure:
        measure(asked_for.measure, asked_for.db, asked_for.records)
    owns = all_records(asked_for.records)
    dates = ", ".join(sorted({own.date for own in owns}))
    provenance = f"Made by `python -m tests.bench.held_out`; measured on {dates}."
    text = ["# Held-out shapes of the same device", "", provenance, "", TEXT, "", *page(owns)]
    asked_for.out.mkdir(parents=True, exist_ok=True)
    (asked_for.out / "held-out.md").write_text("\n".join(text), encoding="utf-8")


if __name__ == "__main__":
    main()
