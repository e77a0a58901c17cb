"""Tables from records, with everything that is wrong with the records said."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from haotuner.cost.demand import Demand, Problem
from haotuner.cost.families import DEMANDS, demand
from haotuner.cost.features import frame as frame_of
from haotuner.cost.problem import problem_of
from haotuner.cost.roofline import least_us
from haotuner.device import Device
from haotuner.errors import HaotunerError, UnknownDevice, UsageError
from haotuner.kernel import MicroKernel
from haotuner.record import Record, Timed, Trial
from haotuner.shape import Shape
from haotuner.transfer.table import Table

# Beyond any boost clock and any cache that hides the operands: the times are in another unit.
FASTEST = 20.0  # best efficiency of a device's records; hot operands of tiny products reach a few times the roofline
SLOWEST = 1e-6  # even a kernel of one thread on a GPU of 10^4 lanes stays above it


@dataclass(frozen=True, slots=True)
class _Family:
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Trials that features are computed of together."""

    part: Device  # what of the device their threads run on
    family: _Family
    op: str
    weights: str
    trials: Sequence[Trial]
    pairs: Sequence[tuple[MicroKernel, Shape]]

    def problem(self) -> Problem:
        """What is computed; KeyError or ValueError if the op's name does not say."""
        return problem_of(self.op)


@dataclass(slots=True)
class Read:
    """What became of some records: tables by family and device, and what was left out and why."""

    tables: list[Table] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    def of(self, family: str) -> list[Table]:
        """The tables of one family, by device id."""
        return sorted((t for t in self.tables if t.family == family), key=lambda t: t.device.id)

    def families(self) -> tuple[str, ...]:
        """Families found, sorted."""
        return tuple(sorted({table.family for table in self.tables}))


def read_records(records: Iterable[Record], find_device: Callable[[str], Device]) -> Read:
    """Tables of all single-kernel records whose family has a cost model.

    A trial measured several times counts once, with the median of its medians. Failed trials, compositions and unknown
    families are left out and counted.

    Raises:
        UsageError: no usable record, or times that cannot be microseconds on that device.
    """
    read = Read()
    known = {name for name, _ in DEMANDS}
    groups: dict[tuple[str, str], dict[Trial, list[float]]] = {}
    for record in records:
        if not isinstance(record.outcome, Timed):
            read.left_out["failed"] += 1
            continue
        family = record.trial.kernel.partition("__")[0]
        if "*" in record.trial.kernel or "+" in record.trial.kernel:
            read.left_out["compositions of several kernels"] += 1
        elif family not in known:
            read.left_out[f"family {family} has no cost model"] += 1
        else:
            times = groups.setdefault((family, record.device_id), {})
            times.setdefault(record.trial, []).append(record.outcome.median_us)
    for (family, device_id), times in sorted(groups.items()):
        try:
            device = find_device(device_id)
        except UnknownDevice as error:
            read.left_out[f"device {device_id}: {error}"] += len(times)
            continue
        ordered = sorted(times, key=Trial.key)  # seeds count rows, which are to be the same however they were imported
        read.tables.append(_table(device, family, {trial: statistics.median(times[trial]) for trial in ordered}))
    if not read.tables:
        why = "; ".join(f"{count} {reason}" for reason, count in read.left_out.most_common(3)) or "the store is empty"
        raise UsageError(
            f"no measured kernels to learn from: {why}; import some with: haotuner records import FILE --db URL"
        )
    return read


def _table(device: Device, family: str, times: dict[Trial, float]) -> Table:
    trials, demands = demands_of(device, family, list(times))
    frame = pd.concat([frame_of(part, wanted) for part, wanted in demands], ignore_index=True)
    least = np.concatenate([least_us(part, wanted) for part, wanted in demands])
    labels = np.log(least / np.array([times[trial] for trial in trials]))
    _sane(device, family, float(np.exp(labels.max())))
    names = [f"{t.op} {t.shape} threads={t.threads} weights={t.weights}" for t in trials]
    known = {name: code for code, name in enumerate(sorted(set(names)))}
    return Table(
        device=device,
        family=family,
        frame=frame,
        labels=labels,
        trials=tuple(trials),
        tasks=np.array([known[name] for name in names], dtype=np.int64),
        task_names=tuple(known),
    )


def retold(table: Table, device: Device) -> Table:
    """The same measurements with the features of another device: what a wrong profile would say."""
    trials, demands = demands_of(device, table.family, list(table.trials))
    frame = pd.concat([frame_of(part, wanted) for part, wanted in demands], ignore_index=True)
    at = {trial: row for row, trial in enumerate(trials)}
    return replace(table, device=device, frame=frame.iloc[[at[trial] for trial in table.trials]].reset_index(drop=True))


def demands_of(device: Device, family: str, trials: list[Trial]) -> tuple[list[Trial], list[tuple[Device, Demand]]]:
    """Trials in groups of one op, thread count and state of weights, and each group's demand on its part of the device."""
    groups = groups_of(device, family, trials)
    demands = []
    for group in groups:
        try:
            wanted = demand(group.part, group.family, group.problem(), group.pairs, weights=group.weights)
        except (KeyError, ValueError) as error:  # parameters or extents that this family does not have
            raise UsageError(f"records of another schema: {family} of {group.op} on {device.id}: {error.args[0]}") from error
        demands.append((group.part, wanted))
    return [trial for group in groups for trial in group.trials], demands


def groups_of(device: Device, family: str, trials: Sequence[Trial]) -> list[Group]:
    """Trials by op, thread count and state of weights, in that order."""
    groups: dict[tuple[str, int, str], list[Trial]] = {}
    for trial in trials:
        groups.setdefault((trial.op, trial.threads, trial.weights), []).append(trial)
    return [
        Group(
            part=device if device.kind != "cpu" else device.with_units(min(threads, device.compute_units)),
            family=_Family(family),
            op=op,
            weights=weights,
            trials=group,
            pairs=[(_kernel(trial), trial.shape) for trial in group],
        )
        for (op, threads, weights), group in sorted(groups.items())
    ]


def _kernel(trial: Trial) -> MicroKernel:
    try:
        return MicroKernel.parse(trial.kernel)
    except ValueError as error:
        raise UsageError(f"a record of another schema: {error}") from error


def _sane(device: Device, family: str, best: float) -> None:
    if not SLOWEST < best < FASTEST:
        relation = "above" if best >= FASTEST else "below"
        raise UsageError(
            f"records of {family} on {device.id}: the best is {best:.3g} times the roofline, {relation} anything possible; "
            f"are the times microseconds, and of this device? Import them again with the right unit or --device"
        )


def table_of(read: Read, family: str, target: str) -> tuple[Table, list[Table]]:
    """The target's table of a family and those of all other devices.

    Raises:
        HaotunerError: the target measured nothing of the family.
    """
    tables = read.of(family)
    mine = [table for table in tables if table.device.id == target]
    if not mine:
        found = ", ".join(table.device.id for table in tables)
        raise HaotunerError(f"no records of {family} on {target}; found {found}")
    return mine[0], [table for table in tables if table.device.id != target]
