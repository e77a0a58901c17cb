"""Fit of one model for one target device from records of other devices: of one family, or shared by all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np

from haotuner.cost.forest import Forest, one_device
from haotuner.cost.machine import machine
from haotuner.errors import UsageError
from haotuner.microkernels.imported.solvers import FAMILY as SOLVERS
from haotuner.microkernels.index import FAMILIES
from haotuner.spec.device import Device, is_standin
from haotuner.transfer.device_table import DeviceTable
from haotuner.transfer.reading import DeviceTables
from haotuner.transfer.saved_model import Transferred
from haotuner.transfer.shared_model import (
    GAIN,
    SHARED,
    HeldOutTable,
    chosen_share,
    facts_of,
    first_picks,
    fit_shared,
    held_out,
    runs_on_gpus,
    verdicts,
)
from haotuner.transfer.sources import learn_sources, opposite_orders

OWN_WEIGHT = 0.9  # of the target's own records beside its neighbours', where there are enough
_device_of = attrgetter("device.id")  # of a table
FEWEST_OWN_ROWS = 64  # of the target itself, from which it is a source of its own: fewer are noise to a forest


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedModel:
    """A model, and how it came about."""

    model: Forest | Transferred
    mode: str  # zero-shot, own records, shared
    family: str
    sources: tuple[str, ...]
    rows: int  # measured on the target itself
    note: str  # an announced fallback, or its ranking of held-out devices; or empty


def fit_model(
    read: DeviceTables,
    target: Device,
    *,
    family: str | None = None,
    winners: Sequence[DeviceTable] = (),
    seed: int = 0,
    tell: Callable[[str], None] = lambda _: None,
) -> FittedModel:
    """Learn from every device's records of one family; for a GPU without ``family``, one model of all families.

    A device is a source for itself, at distance 0. Records of fewer than ``FEWEST_OWN_ROWS`` kernels of the target are left
    to ``tune``, which learns from them as it measures. ``winners``: tables of known winners, which only a model of all
    families can learn from. ``tell`` receives the progress of long steps.

    Raises:
        UsageError: no records of the family, several families on CPUs and none named, a target that is a stand-in for
            tests, or one on which no such kernel runs, winners for a CPU or beside a family.
    """
    if is_standin(target.id):
        raise UsageError(
            f"{target.id} is a stand-in for tests: no model is fitted for it; name a device of this host or a profile"
        )
    known = read.families()
    ours = {item.name for item in FAMILIES}
    if winners and (family is not None or not runs_on_gpus(target)):
        raise UsageError("winners are learned by the model of all families of GPUs alone; leave out --family or --winners")
    there = {table.family for table in read.tables if runs_on_gpus(table.device) == runs_on_gpus(target)}
    if family is None and (winners or len(there) > 1 or (there and not ours & there)):
        return _shared(read, winners, target, seed, tell)
    name = _family_of(known, family)
    tables = read.of(name)
    if all(machine(table.device).waves_hide_latency != machine(target).waves_hide_latency for table in tables):
        raise _other_kind(name, tables, target)
    own_tables = [table for table in tables if table.device.id == target.id]
    others = [table for table in tables if table.device.id != target.id]
    rows = sum(len(table) for table in own_tables)
    if not others:
        forest = Forest(seed=seed, settings=one_device(rows)).fit(own_tables[0].frame, own_tables[0].labels)
        forest.facts = _facts(target, name, rows, ())
        note = "no other device measured this family: a model of the target's own records alone"
        return FittedModel(model=forest, mode="own records", family=name, sources=(), rows=rows, note=note)
    enough = rows >= FEWEST_OWN_ROWS
    sources = learn_sources([*others, *own_tables] if enough else others, target, seed=seed)
    if enough:  # a device's own measurements outweigh those of its neighbours
        priors = np.where(sources.distances == 0, OWN_WEIGHT, (1.0 - OWN_WEIGHT) * sources.priors)
        sources = replace(sources, priors=priors / priors.sum(), joint_share=0.0)
    model = Transferred(sources, seed=seed)
    model.facts = _facts(target, name, rows if enough else 0, sources.ids)
    note = ""
    if not own_tables:
        note = f"no records of {target.id}: predictions rest on the other devices and its profile"
    elif not enough:
        note = (
            f"{rows} own rows are too few for a forest of their own ({FEWEST_OWN_ROWS}): predictions rest on the other "
            "devices; haotuner tune learns from what it measures"
        )
    note = "; ".join(filter(None, [note, *opposite_orders(tables)]))
    mode = "own records" if enough else "zero-shot"
    return FittedModel(model=model, mode=mode, family=name, sources=sources.ids, rows=rows, note=note)


def _family_of(known: Sequence[str], family: str | None) -> str:
    """The family asked for, or the only one there is; UsageError otherwise."""
    if family is None and len(known) == 1:
        return known[0]
    if family is None or family not in known:
        requested = "several families" if family is None else f"no records of family {family!r}"
        raise UsageError(f"{requested}: the store has {', '.join(known)}; name one with --family")
    return family


def _shared(
    read: DeviceTables, winners: Sequence[DeviceTable], target: Device, seed: int, tell: Callable[[str], None]
) -> FittedModel:
    """One model of every family of the store's GPUs, or of its CPUs, judged on each of them held out."""
    tables = [table for table in read.tables if runs_on_gpus(table.device) == runs_on_gpus(target)]
    if not tables and not winners:
        raise _other_kind("the store's kernels", read.tables, target)
    learned, left_out, lines = chosen_sources(tables, winners, tell)
    family_verdicts, share = verdicts(left_out, lambda item: item.table.family), chosen_share(left_out)
    model = fit_shared(learned, share=share, seed=seed)
    model.facts = {**facts_of(learned, family_verdicts, share), "target": target.id}
    judged = [
        f"{name} {item.model:.3f} against {item.roofline:.3f}" + ("" if item.beats else ", so that it is not used there")
        for name, item in family_verdicts.items()
    ]
    note = "only one device: how well it ranks others is not known"
    if judged:
        note = "best throughput by first picks on devices held out, against the roofline's: " + "; ".join(judged)
    timed = [table for table in learned if table.timed]
    return FittedModel(
        model=model,
        mode="shared",
        family=SHARED,
        sources=tuple(sorted({table.device.id for table in timed})),
        rows=sum(len(table) for table in timed if table.device.id == target.id),
        note="; ".join([note, *lines, *opposite_orders(timed)]),
    )


def chosen_sources(
    tables: Sequence[DeviceTable], winners: Sequence[DeviceTable], tell: Callable[[str], None]
) -> tuple[list[DeviceTable], list[HeldOutTable], list[str]]:
    """Tables to learn from, the held-out tables by models of them, and words on what was tried.

    Times of kernels are always learned from; those of solvers, and winners, if first picks on held-out devices gain by it.
    """
    learned = [table for table in tables if table.family != SOLVERS]
    more = {
        "times of MIOpen's solvers": [table for table in tables if table.family == SOLVERS],
        "CLBlast's winners": list(winners),
    }
    if not learned:  # nothing else to judge by, and the user named these
        learned = [table for group in more.values() for table in group]
        return learned, held_out(learned, _device_of, tell), []
    left_out, lines = held_out(learned, _device_of, tell), []
    for name, group in more.items():
        if not group:
            continue
        tried = held_out(learned, _device_of, tell, learned=[*learned, *group])
        roofline, better = first_picks(tried)
        before = first_picks(left_out)[1] if left_out else roofline
        used = better >= before + GAIN
        count = len({table.device.id for table in group})
        lines.append(
            f"{name} on {count} devices are {'used' if used else 'left out'}: first picks {better:.3f} with them, "
            f"{before:.3f} without"
        )
        if used:
            learned, left_out = [*learned, *group], tried
    return learned, left_out, lines


def _other_kind(name: str, tables: Sequence[DeviceTable], target: Device) -> UsageError:
    measured = ", ".join(sorted({table.device.id for table in tables})[:4])
    return UsageError(
        f"{name} was measured on {measured}: its kernels do not run on {target.id}, which is another kind of machine; "
        "name a target of their kind, or another --family or --db"
    )


def _facts(target: Device, family: str, rows: int, sources: Sequence[str]) -> dict[str, object]:
    return {"family": family, "target": target.id, "sources": list(sources), "target_rows": rows}
