"""Fit of one model for one target device from all records, in the mode that its own records prove best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from haotuner.cost.forest import Forest, one_device
from haotuner.cost.machine import machine
from haotuner.errors import UsageError
from haotuner.spec.device import Device, is_standin
from haotuner.transfer.calibrate import calibrated
from haotuner.transfer.device_table import DeviceTable
from haotuner.transfer.modes import ModeChoice, Sample, choose_mode, fit_continued, fit_refitted, make_pool
from haotuner.transfer.reading import DeviceTables
from haotuner.transfer.saved_model import Transferred
from haotuner.transfer.sources import learn_sources


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedModel:
    """A model, and how it came about."""

    model: Forest | Transferred
    choice: ModeChoice
    family: str
    sources: tuple[str, ...]
    rows: int  # measured on the target itself
    note: str  # an announced fallback, or empty


def family_of(read: DeviceTables, family: str | None) -> str:
    """The family asked for, or the only one there is; UsageError otherwise."""
    known = read.families()
    if family is None and len(known) == 1:
        return known[0]
    if family not in known:
        requested = "several families" if family is None else f"no records of family {family!r}"
        raise UsageError(f"{requested}: the store has {', '.join(known)}; name one with --family")
    return family


def fit_model(
    read: DeviceTables,
    target: Device,
    *,
    family: str | None = None,
    seed: int = 0,
    tell: Callable[[str], None] = lambda _: None,
) -> FittedModel:
    """Learn from every device's records of one family, the target's own as the samples that choose the mode.

    Without records of the target the model is zero-shot; without records of other devices it is a forest of the target's
    own rows, and the note says so. ``tell`` is told of what takes long.

    Raises:
        UsageError: no records of the family, several families and none named, a target that is a stand-in for tests, or
            one on which no such kernel runs.
    """
    if is_standin(target.id):
        raise UsageError(
            f"{target.id} is a stand-in for tests: no model is fitted for it; name a device of this host or a profile"
        )
    name = family_of(read, family)
    tables = read.of(name)
    mine = [table for table in tables if table.device.id == target.id]
    others = [table for table in tables if table.device.id != target.id]
    if all(machine(table.device).waves_hide_latency != machine(target).waves_hide_latency for table in tables):
        measured = ", ".join(sorted({table.device.id for table in tables})[:4])
        raise UsageError(
            f"{name} was measured on {measured}: its kernels do not run on {target.id}, which is another kind of machine; "
            "name a target of their kind, or another --family or --db"
        )
    if not others:
        own = Forest(seed=seed, settings=one_device(len(mine[0]))).fit(mine[0].frame, mine[0].labels)
        own.facts = _facts(target, name, mine, ())
        choice = ModeChoice(mode="from-scratch", accuracy=None, accuracies={})
        note = "no other device measured this family: a model of the target's own records alone"
        return FittedModel(model=own, choice=choice, family=name, sources=(), rows=len(mine[0]), note=note)
    sources = learn_sources(others, target, seed=seed)
    chosen: dict[str, object] = {}
    if not mine:
        # nobody has told yet who is right: a search shares its first kernels as the folds found best
        chosen = {"shares": asdict(calibrated(read, target.id, "device", tell).shares)} if len(others) > 1 else {}
        choice = ModeChoice(mode="zero-shot", accuracy=None, accuracies={})
        model: Forest | Transferred = Transferred(sources, seed=seed)
        note = f"no records of {target.id}: predictions rest on the other devices and its profile"
    else:
        table = mine[0]
        pool = make_pool(sources, others, table)
        sample = Sample(rows=table.every(), labels=table.labels)
        choice = choose_mode(pool, sample, seed)
        note = choice.note
        if choice.mode == "continue":
            model = fit_continued(pool, sample)
        elif choice.mode == "refit":
            model = fit_refitted(pool, sample)
        elif choice.mode == "from-scratch":
            model = Forest(seed=seed, settings=one_device(len(table))).fit(table.frame, table.labels)
        else:
            model = Transferred(sources, seed=seed)
            if choice.mode == "residual":
                model.fit(table.frame, table.labels)
            elif choice.mode == "copy":
                note = "copying ranks only kernels that a source measured; a model must rank any, so it is zero-shot"
    model.facts = _facts(target, name, mine, sources.ids) | chosen
    rows = len(mine[0]) if mine else 0
    return FittedModel(model=model, choice=choice, family=name, sources=sources.ids, rows=rows, note=note)


def _facts(target: Device, family: str, mine: Sequence[DeviceTable], sources: Sequence[str]) -> dict[str, object]:
    rows = sum(len(table) for table in mine)
    return {"family": family, "target": target.id, "sources": list(sources), "target_rows": rows}
