"""Shared model: one forest of the roofline's errors, for kernels of any family on any GPU, and one on any CPU.

It reads only features that every product-like family has: work, waves and fill, occupancy, traffic and instruction mix of a
step, spills, shape of the tile. Nothing in it names a family or a device. The label is log(roofline's time / measured time)
less its mean over the task: the level is the roofline's, the forest ranks kernels of a task. A share of that correction is
applied, chosen on held-out tables. The model is used for families that it ranks better than the roofline on held-out
devices, and for no others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from haotuner.cost.features import NAMES
from haotuner.cost.forest import Forest, Settings
from haotuner.cost.model import Scores
from haotuner.cost.scores import best_at
from haotuner.hw_profiles.typical import typical
from haotuner.microkernels.index import FAMILIES
from haotuner.spec.device import Device
from haotuner.transfer.device_table import DeviceTable, Rows

GPUS, CPUS = "gpus", "cpus"  # what a shared model is of; in its facts, and the name of the file that ships
SHARED = "shared"  # stands for the family in the facts of such a model
# Left out: numbers of the device alone, by which a forest of nine devices tells them apart and learns nothing for a tenth;
# switches whose bits mean something else in every family; on GPUs what only CPUs have.
_LEFT_OUT = {"flags"}
_OF_CPUS = {"streams", "ahead_lines_log2", "fetched", "exposed_share"}
_DEVICE_COLUMNS = {
    "units_log2",
    "balance_log2",
    "pipes",
    "wave_width",
    "l1_per_pipe_log2",
    "l2_per_unit_log2",
    "threads_limit_log2",
}
CPU_COLUMNS = tuple(name for name in NAMES if name not in _LEFT_OUT | _DEVICE_COLUMNS)
COLUMNS = tuple(name for name in CPU_COLUMNS if name not in _OF_CPUS)
TREES = Settings(
    trees=80, leaves=15, learning_rate=0.06, rows_per_leaf=40, feature_share=0.5, l2=5.0, slope=1.0, columns=COLUMNS
)
# Records of CPUs are few: with these first picks on instruction sets held out had 0.960 of the best, with ``TREES`` 0.954.
CPU_TREES = replace(TREES, columns=CPU_COLUMNS, rows_per_leaf=10, learning_rate=0.1, trees=150)
SHARES = (0.25, 0.5, 0.75, 1.0)  # of the forest's correction that may be applied
SHARE = 0.5  # where there is no other device to choose it on
ROWS = 2_500  # of one family on one device: exhaustive sets have 18,000, our searches a hundred
FEWEST = 6  # kernels of a task that is judged
WINNER = 20.0  # weight of a known winner over that of a rival, of which there are many and which say less
SEEDS = 2  # forests of a fold, averaged
GAIN = 0.002  # of the best throughput, by which first picks must beat the roofline's for the model to be used


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """First picks on tasks that were left out, as shares of the best throughput; means over ``tasks``."""

    roofline: float
    model: float
    worst_roofline: float
    worst_model: float
    roofline_10: float  # the best of the first ten
    model_10: float
    spread: float  # standard deviation of log(predicted / measured) within a task
    tasks: int

    @property
    def beats(self) -> bool:
        """True where the model's first picks beat the roofline's."""
        return self.model >= self.roofline + GAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutTable:
    """One held-out table with the forest's full correction of its rows, and the throughput of its first picks."""

    table: DeviceTable
    correction: Scores
    picks: Mapping[float, Scores]  # by share of the correction: first picks and the best of ten, ``(tasks, 2)``

    @staticmethod
    def of(table: DeviceTable, correction: Scores) -> HeldOutTable:
        """With the first picks by each share; 0 is the roofline alone."""
        tasks, prior, rate = judged_tasks(table), _prior(table), np.exp(table.labels)
        picks = {
            share: np.array(
                [[best_at(prior[rows] + share * correction[rows], rate[rows], k) for k in (1, 10)] for rows in tasks],
                dtype=np.float64,
            )
            for share in (0.0, *SHARES)
        }
        return HeldOutTable(table=table, correction=correction, picks=picks)


def fit_shared(tables: Sequence[DeviceTable], *, share: float = SHARE, seed: int = 0) -> Forest:
    """The model of all rows of the tables, ``ROWS`` of each at most; rows near the best of their task weigh most."""
    rng = np.random.default_rng(seed)
    trees = TREES if runs_on_gpus(tables[0].device) else CPU_TREES
    frames, labels, weights = [], [], []
    for table in tables:
        rows = np.sort(rng.permutation(len(table))[:ROWS])
        prior = _prior(table)
        part = prior + share * _centred(table.labels - prior, table)
        mass = np.exp(table.labels - _best(table)) / np.sqrt(len(table))
        if not table.timed:
            mass[table.labels == _best(table)] *= WINNER
        frames.append(table.frame.iloc[rows][list(trees.columns)])
        labels.append(part[rows])
        weights.append(mass[rows])
    mass = np.concatenate(weights)
    forest = Forest(seed=seed, settings=trees)
    forest.fit(pd.concat(frames, ignore_index=True), np.concatenate(labels), mass / mass.mean())
    forest.line = (0.0, 1.0)  # the level is the roofline's
    return forest


def held_out(
    tables: Sequence[DeviceTable],
    key: Callable[[DeviceTable], str],
    tell: Callable[[str], None] = lambda _: None,
    *,
    learned: Sequence[DeviceTable] | None = None,
) -> list[HeldOutTable]:
    """Corrections of each table that can be judged, by models of all tables of other keys.

    ``learned``: the tables that models learn from; None: those that are judged.
    """
    result = []
    for name in sorted({key(table) for table in tables if judged_tasks(table)}):
        sources = [table for table in (tables if learned is None else learned) if key(table) != name]
        if not sources:
            continue
        forests = [fit_shared(sources, share=1.0, seed=seed) for seed in range(SEEDS)]
        for table in tables:
            if key(table) == name and judged_tasks(table):
                predictions = np.mean([forest.predict(table.frame) for forest in forests], axis=0)
                result.append(HeldOutTable.of(table, predictions - _prior(table)))
        tell(f"shared model: {name} held out")
    return result


def chosen_share(left_out: Iterable[HeldOutTable], without: DeviceTable | None = None) -> float:
    """The share whose first picks are best in the mean of tables; those of one family and of one device may be left out."""
    others = [
        item
        for item in left_out
        if without is None or (item.table.family != without.family and item.table.device.id != without.device.id)
    ]
    if not others:
        return SHARE
    means = [np.mean([item.picks[share][:, 0].mean() for item in others]) for share in SHARES]
    return SHARES[int(np.argmax(means))]


def first_picks(left_out: Sequence[HeldOutTable]) -> tuple[float, float]:
    """Mean best throughput of first picks over families, NaN where none was held out: the roofline's, and those of a start.

    A start is the model where it beats the roofline, and else the roofline. Families that ``tune`` builds count alone, if
    any was held out.
    """
    by_family = verdicts(left_out, lambda item: item.table.family)
    ours = {item.name for item in FAMILIES}
    judged = [v for name, v in by_family.items() if name in ours] or list(by_family.values())
    if not judged:
        return float("nan"), float("nan")
    return float(np.mean([v.roofline for v in judged])), float(np.mean([v.model if v.beats else v.roofline for v in judged]))


def verdicts(left_out: Sequence[HeldOutTable], name: Callable[[HeldOutTable], str]) -> dict[str, Verdict]:
    """By name. The share is chosen for each table on other families of other devices, so that none judges its own."""
    groups: dict[str, list[tuple[HeldOutTable, float]]] = {}
    for item in left_out:
        groups.setdefault(name(item), []).append((item, chosen_share(left_out, item.table)))
    return {group: _verdict(items) for group, items in sorted(groups.items())}


def judged_tasks(table: DeviceTable) -> list[Rows]:
    """Rows of each task that has enough kernels to be judged."""
    return [rows for rows in table.groups() if len(rows) >= FEWEST] if table.timed else []


def runs_on_gpus(device: Device) -> bool:
    """True of devices whose units hide latency behind other waves, False of CPUs; either has a model of its own."""
    return typical(device).waves_hide_latency


def facts_of(tables: Sequence[DeviceTable], family_verdicts: Mapping[str, Verdict], share: float) -> dict[str, object]:
    """Provenance that travels with the model: rows by device and family, winners' devices, share, verdicts by family."""
    sources: dict[str, dict[str, int]] = {}
    for table in tables:
        if table.timed:
            sources.setdefault(table.device.id, {})[table.family] = len(table)
    return {
        "machine": GPUS if runs_on_gpus(tables[0].device) else CPUS,
        "winners": len({table.device.id for table in tables if not table.timed}),
        "family": SHARED,
        "sources": sources,
        "share": share,
        "verdicts": {
            name: {key: round(float(value), 4) for key, value in asdict(item).items()}
            for name, item in family_verdicts.items()
        },
    }


def shipped_file(machine: str = GPUS) -> Path:
    """The file of the model of GPUs or of CPUs that ships; its facts are in its header."""
    return Path(str(files("haotuner.transfer").joinpath("models"))) / SHARED / f"{machine}.txt"


def machine_of(device: Device) -> str:
    """Which of the shared models is for a device."""
    return GPUS if runs_on_gpus(device) else CPUS


def verdict_on(facts: Mapping[str, Any], family: str, device: Device | None = None) -> Verdict | None:
    """Verdict of a model's facts on a family; None where no device with such kernels was held out.

    Of a CPU of another host than the sources' that with whole hosts held out, where the facts have one.
    """
    hosts = {source.rpartition("-")[0] for source in facts.get("sources", ())}
    elsewhere = device is not None and device.id.rpartition("-")[0] not in hosts and "elsewhere" in facts
    known = facts.get("elsewhere" if elsewhere else "verdicts")
    item = known.get(family) if isinstance(known, Mapping) else None
    return Verdict(**{**item, "tasks": int(item["tasks"])}) if isinstance(item, Mapping) else None


def _prior(table: DeviceTable) -> Scores:
    return np.asarray(table.frame["expected_log"], dtype=np.float64)


def _best(table: DeviceTable) -> Scores:
    best = pd.Series(table.labels).groupby(table.tasks).transform("max")
    return np.asarray(best, dtype=np.float64)


def _centred(values: Scores, table: DeviceTable) -> Scores:
    return np.asarray(values - pd.Series(values).groupby(table.tasks).transform("mean"), dtype=np.float64)


def _verdict(items: Sequence[tuple[HeldOutTable, float]]) -> Verdict:
    """Of tables; each task counts alike."""
    without = np.concatenate([item.picks[0.0] for item, _ in items])
    learned = np.concatenate([item.picks[share] for item, share in items])
    errors = np.concatenate(
        [_centred(item.table.labels - _prior(item.table) - share * item.correction, item.table) for item, share in items]
    )
    return Verdict(
        roofline=float(without[:, 0].mean()),
        model=float(learned[:, 0].mean()),
        worst_roofline=float(without[:, 0].min()),
        worst_model=float(learned[:, 0].min()),
        roofline_10=float(without[:, 1].mean()),
        model_10=float(learned[:, 1].mean()),
        spread=float(errors.std()),
        tasks=len(learned),
    )
