"""Panels of a run that goes on: what is measured now, progress by op, gain so far, workers."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from haotuner.cli.pages.figures import COLOURS, EVERY, Page, Panel, Table, bars, figure
from haotuner.cli.pages.sources import Sources
from haotuner.cli.run_status import RunStatus
from haotuner.records.statistics import Claim

RECENT_S = 15.0  # a worker that wrote nothing for longer is said to be silent


def now_page(sources: Sources, status: RunStatus | None, name: str) -> Page:
    """The page of a run. ``status``: what its process says of itself; None where only its records are known."""
    now = time.time()
    counts = [count for store in sources.stores for count in store.statistics.summary.counts]
    claims = [claim for store in sources.stores for claim in store.statistics.claims()]
    gains = {key: steps[0][1] / steps[-1][1] for store in sources.stores
             for key, steps in store.statistics.summary.improvements.items() if steps}  # fmt: skip
    urls = ", ".join(store.url for store in sources.stores)
    source = f"{urls or 'no record store yet'}{'' if status is None else '; the status that tune writes beside its pack'}"
    several = len({count.device for count in counts}) > 1
    ops = [f"{count.op} on {count.device}" if several else str(count.op) for count in counts]
    progress = []
    for count in counts:
        gain = gains.get((count.device, count.op))
        numbers = (f"{count.timed:,}", f"{count.failed:,}", "-" if gain is None else f"{gain:.2f}x")
        progress.append((str(count.op), str(count.device), *numbers, _ago(count.last, now)))
    data = [
        bars("timed", [count.timed for count in counts], ops, [f"{count.timed:,} timed" for count in counts], COLOURS[0]),
        bars(
            "failed", [count.failed for count in counts], ops, [f"{count.failed:,} failed" for count in counts], COLOURS[3]
        ),
    ]
    nothing = f"nothing is recorded yet of {name}; this page refreshes itself"
    return Page(
        title="Now",
        panels=(
            Panel(
                title="The run",
                about="What the run is at.",
                source=source,
                tables={EVERY: Table(("what", "value"), _run_rows(status, claims, now, ended=bool(sources.packs)))},
            ),
            Panel(
                title="Progress by operator",
                about="Gain: the best times against the first one of each shape, a geometric mean.",
                source=source,
                figures={EVERY: figure(data, "measurements", "", x_type="linear", y_type="category", rows=len(ops),
                                       barmode="stack")} if ops else {},
                tables={EVERY: Table(("operator", "device", "timed", "failed", "gain", "last"), progress)} if ops else {},
                missing={} if ops else {EVERY: nothing},
            ),
            Panel(
                title="Workers",
                about="Processes that measure, by the trials that they have claimed.",
                source=source,
                tables={EVERY: Table(("process", "state", "measures"), _workers(claims))} if claims else {},
                missing={} if claims else {EVERY: "no trial is claimed: nothing is measured at this moment"},
            ),
        ),
    )  # fmt: skip


def _run_rows(status: RunStatus | None, claims: Sequence[Claim], now: float, *, ended: bool) -> list[tuple[str, str]]:
    """Rows of the state of a run; ``ended``: whether a pack lies there."""
    measured = ("measured now", "; ".join(_trial(claim.trial) for claim in claims) or "nothing")
    if status is None and ended and not claims:
        return [("state", "ended: its pack lies there")]
    if status is None:
        return [
            ("state", "running" if any(claim.alive for claim in claims) else "no process measures"),
            measured,
            ("time left", "not known: no run of `haotuner tune` writes its status here"),
        ]
    if not status.alive:
        return [("state", "ended: its process is gone; tune with --resume goes on"), ("was at", status.stage), measured]
    silent = now - status.written
    state = "running" if silent < RECENT_S else f"running, silent for {silent:.0f} s: it compiles or checks"
    left = status.left(now)
    budget = f"at most {left:.0f} s of {status.budget_s:.0f} s to measure"
    return [
        ("state", state),
        ("since", f"{now - status.began:.0f} s"),
        ("stage", status.stage),
        measured,
        ("time left", budget if status.measures else f"{budget}, which do not run down now"),
        ("so far", status.seen),
    ]


def _workers(claims: Sequence[Claim]) -> list[tuple[str, str, str]]:
    rows: dict[str, list[Claim]] = {}
    for claim in claims:
        rows.setdefault(str(claim.owner), []).append(claim)
    result = []
    for owner, own in rows.items():
        host, _, rest = owner.partition("/")
        state = "gone" if not own[0].alive else "its lease is over" if all(c.expired for c in own) else "measures"
        process = f"process {rest.partition('/')[0]} on {host[:8]}"
        result.append((process, state, "; ".join(_trial(claim.trial) for claim in own)))
    return result


def _trial(key: str) -> str:
    """The words of a trial's key: op, shape, threads, kernel."""
    try:
        op, kernel, shape, threads, *_ = json.loads(key)
        sizes = ";".join(f"{axis}={extent}" for axis, extent in shape.items())
        return f"{op} {sizes}, threads: {threads}, {kernel}"
    except (AttributeError, TypeError, ValueError):
        return str(key)


def _ago(when: float, now: float) -> str:
    seconds = max(0.0, now - when)
    return f"{seconds:.0f} s ago" if seconds < 120 else f"{seconds / 60:.0f} min ago" if seconds < 7200 else "hours ago"
