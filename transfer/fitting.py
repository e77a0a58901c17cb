"""Fitting: one model for one target device from all records, in the mode that the gauge trusts most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from haotuner.cost.forest import Forest, one_device
from haotuner.errors import UsageError
from haotuner.transfer.gauge import Verdict, judge
from haotuner.transfer.modes import Sample, fit_continued, fit_refitted
from haotuner.transfer.reading import Read
from haotuner.transfer.search import make_pool
from haotuner.transfer.sources import learn_sources
from haotuner.transfer.table import Table
from haotuner.transfer.transferred import Transferred
from haotuner.words.device import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A model, and how it came about."""

    model: Forest | Transferred
    verdict: Verdict
    family: str
    sources: tuple[str, ...]
    rows: int  # measured on the target itself
    note: str  # an announced fallback, or empty


def family_of(read: Read, family: str | None) -> str:
    """The family asked for, or the only one there is; UsageError otherwise."""
    known = read.families()
    if family is None and len(known) == 1:
        return known[0]
    if family not in known:
        asked = "several families" if family is None else f"no records of family {family!r}"
        raise UsageError(f"{asked}: the store has {', '.join(known)}; name one with --family")
    return family


def fit_model(read: Read, target: Device, *, family: str | None = None, seed: int = 0) -> Fitted:
    """Learn from every device's records of one family, the target's own as samples of its gauge.

    Without records of the target the model is zero-shot; without records of other devices it is a forest of the target's
    own rows, and the note says so.

    Raises:
        UsageError: no records of the family, or several families and none named.
    """
    name = family_of(read, family)
    tables = read.of(name)
    mine = [table for table in tables if table.device.id == target.id]
    others = [table for table in tables if table.device.id != target.id]
    if not others:
        own = Forest(seed=seed, settings=one_device(len(mine[0]))).fit(mine[0].frame, mine[0].labels)
        own.facts = _facts(target, name, mine, ())
        verdict = Verdict(mode="from-scratch", gauge=None, of_modes={})
        note = "no other device measured this family: a model of the target's own records alone"
        return Fitted(model=own, verdict=verdict, family=name, sources=(), rows=len(mine[0]), note=note)
    sources = learn_sources(others, target, seed=seed)
    if not mine:
        verdict = Verdict(mode="zero-shot", gauge=None, of_modes={})
        model: Forest | Transferred = Transferred(sources, seed=seed)
        note = f"no records of {target.id}: predictions rest on the other devices and its profile"
    else:
        table = mine[0]
        pool = make_pool(sources, others, table)
        sample = Sample(rows=table.every(), labels=table.labels)
        verdict = judge(pool, sample, seed)
        note = verdict.note
        if verdict.mode == "continue":
            model = fit_continued(pool, sample)
        elif verdict.mode == "refit":
            model = fit_refitted(pool, sample)
        elif verdict.mode == "from-scratch":
            model = Forest(seed=seed, settings=one_device(len(table))).fit(table.frame, table.labels)
        else:
            model = Transferred(sources, seed=seed)
            if verdict.mode == "residual":
                model.fit(table.frame, table.labels)
            elif verdict.mode == "copy":
                note = "copying ranks only kernels that a source measured; a model must rank any, so it is zero-shot"
    model.facts = _facts(target, name, mine, sources.ids)
    rows = len(mine[0]) if mine else 0
    return Fitted(model=model, verdict=verdict, family=name, sources=sources.ids, rows=rows, note=note)


def _facts(target: Device, family: str, mine: Sequence[Table], sources: Sequence[str]) -> dict[str, object]:
    rows = sum(len(table) for table in mine)
    return {"family": family, "target": target.id, "sources": list(sources), "target_rows": rows}
