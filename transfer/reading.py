"""Device tables from records, with everything that is wrong with the records said."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from haotuner.cost.expected import LEAST_SHARE, adding_us, in_parts_of
from haotuner.cost.families import DEMANDS, demand, problem_of
from haotuner.cost.features import frame as frame_of
from haotuner.cost.machine import machine
from haotuner.cost.model import odd_values
from haotuner.cost.roofline import arithmetic_us, least_us
from haotuner.cost.series import contradiction, in_time, slow_readings, step_of_programs
from haotuner.errors import UnknownDevice, UsageError
from haotuner.hw_profiles.typical import typical
from haotuner.microkernels.imported.solvers import FAMILY as SOLVERS
from haotuner.spec.composition import is_composition, sum_parts
from haotuner.spec.demand import Demand, Problem
from haotuner.spec.device import Device, is_standin
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.record import OpName, Record, Timed, Trial
from haotuner.spec.shape import Shape
from haotuner.spec.units import SAME, gap_of
from haotuner.transfer.device_table import DeviceTable, program_keys

# Beyond any boost clock and any cache that hides the operands: the times are in another unit.
FASTEST = 20.0  # best share of the roofline in a device's records; where operands are hot, of arithmetic
SLOWEST, SLOWEST_LONG, LONG_US = 1e-6, 2e-3, 100.0  # one thread's; a thousandth of good ones, if no launch hides it
_AGAIN = "import them into a new store with the right unit or --device"


@dataclass(frozen=True, slots=True)
class _FamilyName:
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialGroup:
    """Trials that features are computed of together."""

    part: Device  # what of the device their threads run on; a GPU is used whole
    family: _FamilyName
    op: Op | OpName
    cache: str  # whether weights are cold or hot in the caches
    trials: Sequence[Trial]
    pairs: Sequence[tuple[MicroKernel, Shape]]

    def problem(self) -> Problem:
        """Problem that is computed; KeyError or ValueError if the op's name does not say."""
        return problem_of(self.op)


@dataclass(slots=True)
class DeviceTables:
    """Tables of some records, by family and device, and what was left out and why."""

    tables: list[DeviceTable] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    def of(self, family: str) -> list[DeviceTable]:
        """The tables of one family, by device id."""
        return sorted((t for t in self.tables if t.family == family), key=lambda t: t.device.id)

    def why_not(self, device: str) -> str:
        """Text on what was left out of a device's records, to end a message that misses them; empty if nothing was."""
        reasons = [reason for reason in self.left_out if f"on {device}" in reason or f"device {device}:" in reason]
        return f"; left out: {'; '.join(reasons)}" if reasons else ""

    def families(self) -> tuple[str, ...]:
        """Families found, sorted."""
        return tuple(sorted({table.family for table in self.tables}))


def read_records(records: Iterable[Record], find_device: Callable[[str], Device]) -> DeviceTables:
    """Tables of all single-kernel records whose family has a cost model.

    A trial measured several times counts once, with the median of its medians. Failed trials, compositions, unknown
    families and devices, and stand-ins for tests are left out and counted, so are a family's records on a device where they
    cannot be right: times that are not all microseconds, parameters or extents of another schema.

    Raises:
        UsageError: no usable record; says why.
    """
    read = DeviceTables()
    known = {name for name, _ in DEMANDS}
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        if not isinstance(record.outcome, Timed):
            read.left_out["failed"] += 1
            continue
        family = record.trial.kernel.partition("__")[0]
        if is_composition(record.trial.kernel):
            read.left_out["compositions of several kernels"] += 1
        elif family not in known:
            read.left_out[f"family {family} has no cost model"] += 1
        else:
            groups.setdefault((family, record.device_id), []).append(record)
    for (family, device_id), group in sorted(groups.items()):
        trials = len({record.trial for record in group})
        if is_standin(device_id):
            read.left_out[f"device {device_id}: a stand-in for tests, whose times are invented"] += trials
            continue
        try:
            device = find_device(device_id)
        except UnknownDevice as error:
            read.left_out[f"device {device_id}: {error}"] += trials
            continue
        try:
            read.tables.append(_table(device, family, group, read.left_out))
        except UsageError as error:  # the store is never rewritten: one wrong import must not take the other devices away
            read.left_out[str(error)] += trials
    if not read.tables:
        why = "; ".join(f"{count} {reason}" for reason, count in read.left_out.most_common(3)) or "the store is empty"
        raise UsageError(
            f"no measured kernels to learn from: {why}; import some with: haotuner records import FILE --db URL"
        )
    return read


def _table(device: Device, family: str, group: Sequence[Record], left_out: Counter[str]) -> DeviceTable:
    where = f"records of {family} on {device.id}"
    group = in_time(group) or group
    slow, why = slow_readings([record.facts for record in group])
    if slow.any():
        left_out[f"{where}: {why}; measure these again"] += int(slow.sum())
        group = [record for record, item in zip(group, slow.tolist(), strict=True) if not item]
    times = _times(group)
    _check_agreement(where, times)
    _check_sessions(where, group, alone=typical(device).waves_hide_latency)
    with np.errstate(divide="ignore", invalid="ignore"):  # rows whose features are no numbers go below
        # seeds count rows, which are to be the same however they were imported
        trials, demands = demands_of(device, family, sorted(times, key=Trial.key))
        frame = pd.concat([frame_of(part, required) for part, required in demands], ignore_index=True)
        least = np.concatenate([least_us(part, required) for part, required in demands])
        arithmetic = np.concatenate([arithmetic_us(required.work, machine(part)) for part, required in demands])
    if family == SOLVERS:  # algorithms of one problem do different work: a share is of the most, the definition's
        work = pd.Series(least).groupby([f"{trial.op.name} {trial.shape}" for trial in trials]).transform("max").to_numpy()
        frame["expected_log"] += np.log(work / least)
        least = work
    sound = ~odd_values(frame).any(axis=1) & np.isfinite(least) & (least > 0)
    if not sound.all():
        left_out[f"{family} on {device.id}: features that are no numbers (a parameter or extent of 0?)"] += int(
            (~sound).sum()
        )
        if not sound.any():
            raise UsageError(f"records of another schema: {family} on {device.id} has no row with features that are numbers")
    series = in_time(group)
    if (step := step_of_programs(series, trials, program_keys(frame))) is not None:
        left_out[f"{where}: {step.words()} These are left out; measure them again"] += step.rows - step.first
        times = _times(series[: step.first])
        sound &= np.array([trial in times for trial in trials])
    frame, least, arithmetic = frame[sound].reset_index(drop=True), least[sound], arithmetic[sound]
    trials = [trial for trial, item in zip(trials, sound.tolist(), strict=True) if item]
    us = np.array([_kernel_us(trial, statistics.median(times[trial]), device) for trial in trials])
    labels = np.log(least / us)
    # What lies in caches comes faster than memory brings it: there arithmetic alone bounds a time.
    bounds = np.where([trial.weights == "hot" for trial in trials], np.minimum(arithmetic, least), least)
    # Sums in other numbers of parts ask for other work, so that shares of their rooflines are no times of each other.
    parts = [f" parts={count}" if (count := _parts(t)) > 1 else "" for t in trials]
    names = [f"{t.op} {t.shape} threads={t.threads} weights={t.weights}{p}" for t, p in zip(trials, parts, strict=True)]
    known = {name: code for code, name in enumerate(sorted(set(names)))}
    table = DeviceTable(
        device=device,
        family=family,
        frame=frame,
        labels=labels,
        trials=tuple(trials),
        tasks=np.array([known[name] for name in names], dtype=np.int64),
        task_names=tuple(known),
    )
    _check_times(table, float((bounds / us).max()), SLOWEST_LONG if (least >= LONG_US).all() else SLOWEST)
    return table


def _times(group: Sequence[Record]) -> dict[Trial, list[float]]:
    """Medians in microseconds of each trial, those of its repeats among them."""
    result: dict[Trial, list[float]] = {}
    for record in group:
        if isinstance(record.outcome, Timed):
            result.setdefault(record.trial, []).append(record.outcome.median_us)
    return result


def _kernel_us(trial: Trial, us: float, device: Device) -> float:
    """Microseconds of the kernel itself, without the launch that adds the parts of its sum up."""
    parts = _parts(trial)
    if parts == 1 or not isinstance(trial.op, Op):
        return us
    return max(us - adding_us(trial.op, device, trial.shape, parts), LEAST_SHARE * us)


def demands_of(device: Device, family: str, trials: list[Trial]) -> tuple[list[Trial], list[tuple[Device, Demand]]]:
    """Trials in groups of one op, thread count and state of weights, and each group's demand on its part of the device."""
    groups = groups_of(device, family, trials)
    demands = []
    for group in groups:
        try:
            required = demand(group.part, group.family, group.problem(), group.pairs, weights=group.cache)
        except (KeyError, ValueError) as error:  # parameters or extents that this family does not have
            raise UsageError(
                f"records of another schema: {family} of {group.op.name} on {device.id}: {_missing_parameter(error)}"
            ) from error
        demands.append((group.part, required))
    return [trial for group in groups for trial in group.trials], demands


def _missing_parameter(error: Exception) -> str:
    """Text on what a family's demand function misses: parameters say so themselves, an extent is told by its bare name."""
    text = str(error.args[0])
    return text if " " in text else f"the op has no extent {text!r}"


def groups_of(device: Device, family: str, trials: Sequence[Trial]) -> list[TrialGroup]:
    """Trials by op, thread count and state of weights, in that order."""
    groups: dict[tuple[str, int, str, int], list[Trial]] = {}  # by the op's name, for their order
    for trial in trials:
        groups.setdefault((trial.op.name, trial.threads, trial.weights, _parts(trial)), []).append(trial)
    return [
        TrialGroup(
            part=device if typical(device).waves_hide_latency else device.with_units(min(threads, device.compute_units)),
            family=_FamilyName(family),
            op=in_parts_of(group[0].op, parts) if isinstance(group[0].op, Op) else group[0].op,
            cache=cache,
            trials=group,
            pairs=[(_kernel(trial), trial.shape) for trial in group],
        )
        for (_, threads, cache, parts), group in sorted(groups.items())
    ]


def _parts(trial: Trial) -> int:
    """Parts into which a GPU's launch cuts the sum over k; 1 of every other op."""
    return sum_parts(trial.split) if isinstance(trial.op, Op) and {"n", "k"} <= {axis for axis, _ in trial.op.static} else 1


def _kernel(trial: Trial) -> MicroKernel:
    try:
        return trial.composition.kernels[0]
    except ValueError as error:
        raise UsageError(f"a record of another schema: {error}") from error


def _check_agreement(where: str, times: Mapping[Trial, Sequence[float]]) -> None:
    """UsageError where times of one trial are too far apart to be times of one kernel in one unit."""
    for trial, time_us in times.items():
        if max(time_us) > SAME * min(time_us):
            raise UsageError(
                f"{where} in mixed units: {trial.kernel} took {min(time_us):.4g} and {max(time_us):.4g} us; {_AGAIN}"
            )


def _check_sessions(where: str, group: Sequence[Record], *, alone: bool) -> None:
    """UsageError where two sessions that timed the same trials cannot be of one device."""
    sessions: dict[str, list[Record]] = {}
    for record in group:
        sessions.setdefault(record.session, []).append(record)
    if (why := contradiction({name: _times(records) for name, records in sessions.items()}, alone=alone)) is not None:
        raise UsageError(f"{where}: {why}; {_AGAIN}")


def _check_times(table: DeviceTable, best: float, slowest: float) -> None:
    """UsageError where times cannot be microseconds on that device, all or some; ``best``, ``slowest`` of the roofline."""
    where = f"records of {table.family} on {table.device.id}"
    if not slowest < best < FASTEST:
        relation = "above" if best >= FASTEST else "below"
        raise UsageError(
            f"{where}: the best is {best:.3g} times the roofline, {relation} anything possible; are the times microseconds, "
            f"and of this device? If not, {_AGAIN}"
        )
    for rows in table.groups():
        times = np.sort(np.exp(-table.labels[rows])).tolist()  # of one task, so shares of the roofline are times
        gap = gap_of(times)
        if gap is not None and not gap.accident:
            raise UsageError(
                f"{where}: {gap.count - gap.fast} kernels of {gap.count} are {gap.factor:.0f} times slower than the next, "
                f"up to {times[-1] / times[0]:.0f} times slower than the best; mixed units? If not all are microseconds, "
                f"{_AGAIN}"
            )
