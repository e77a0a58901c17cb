"""Panels of the first page: how operators and models compare with other libraries, what is shown, the pack's operators."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from haotuner.cli.output import counted
from haotuner.cli.pages.figures import COLOURS, EVERY, ROOF, TIMES, Figure, Page, Panel, Table, bars, figure
from haotuner.cli.pages.op_panels import overview
from haotuner.cli.pages.sources import HOW, MODEL_RACE, RACE, Sources

NO_RACE = "no race: haotuner bench {pack} --json > bench.json, then name bench.json here, too"


def first_page(sources: Sources) -> Page:
    """The first page of a report."""
    facts = [(label, text) for source in sources.packs for label, text in _pack_facts(source.name, source.manifest)]
    for store in sources.stores:
        sessions, shown = store.statistics.store.sessions(), store.statistics.session
        facts.append(("records", f"{store.url}, {f'session {shown}' if shown else counted(len(sessions), 'session')}"))
    facts += [(kind, file) for kind, file, _ in sources.documents]
    facts += [("not read", note) for note in sources.notes]
    ops = overview(sources)
    raced = speed_figure(sources)
    unraced = NO_RACE.format(pack=sources.packs[0].path if sources.packs else "PACK")
    speed = Panel(
        title="Against other libraries",
        about="Time of the other library over ours, a geometric mean over raced shapes. Right of the line ours is faster.",
        source=", ".join(files for kind in (RACE, MODEL_RACE) if (files := sources.files(kind))) or "bench --json",
        figures={EVERY: raced} if raced is not None else {},
        missing={} if raced is not None else {EVERY: unraced},
    )
    return Page(
        title="Overview",
        panels=(
            *((speed,) if sources.packs or raced is not None else ()),
            Panel(
                title="Operators of the pack",
                about="Measured: kernels that were timed, of those that selection left. Regret: loss against the best.",
                source="the pack's manifest",
                tables={EVERY: ops} if ops.rows else {},
                missing={} if ops.rows else {EVERY: "no pack was named: haotuner report PACK"},
            ),
            Panel(
                title="Sources",
                about="What this page was made of.",
                source="the sources themselves",
                tables={EVERY: Table(("what", "value"), facts)} if facts else {},
                missing={} if facts else {EVERY: f"a report of nothing; {HOW}"},
            ),
        ),
    )


def _ratios(sources: Sources) -> Iterator[tuple[str, str, float, bool]]:
    """Of each raced call what was raced, the peer, its time over ours, and whether other programs ran beside it."""
    for row in sources.rows(RACE):
        for peer, us in row["peers_us"].items():
            if us and row["ours_us"]:
                yield f"{row['op']}, threads: {row['threads']}", peer, us / row["ours_us"], bool(row.get("contended"))
    for row in sources.rows(MODEL_RACE):
        for peer, times in row["peers"].items():
            if times["steady_us"] and row["steady_us"]:
                ratio = times["steady_us"] / row["steady_us"]
                yield f"{row['model']}, threads: {row['threads']}", peer, ratio, bool(row.get("contended"))


def speed_figure(sources: Sources) -> Figure | None:
    """Geometric means of races; None without one. Contended rows count where there is no other."""
    by_peer: dict[str, dict[str, dict[bool, list[float]]]] = {}
    for label, peer, ratio, contended in _ratios(sources):
        by_peer.setdefault(peer, {}).setdefault(label, {}).setdefault(contended, []).append(math.log(ratio))
    labels = list(dict.fromkeys(label for own in by_peer.values() for label in own))
    data = []
    for index, (peer, own) in enumerate(by_peer.items()):
        rows = {label: (values.get(False, values.get(True, [])), False not in values) for label, values in own.items()}
        means = {label: math.exp(math.fsum(logs) / len(logs)) for label, (logs, _) in rows.items()}
        texts = [f"{label}: {mean:.2f}x, over {counted(len(rows[label][0]), 'shape')}"
                 f"{', raced beside other programs' * rows[label][1]}" for label, mean in means.items()]  # fmt: skip
        data.append(bars(peer, list(means.values()), list(means), texts, COLOURS[(index + 1) % len(COLOURS)]))
    if not data:
        return None
    equal = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": 1, "x1": 1, "line": {"color": ROOF, "dash": "dash"}}
    return figure(data, "times as fast", "", x_type="linear", y_type="category", x_unit=TIMES,
                  rows=(1 + len(data)) * len(labels), shapes=[equal])  # fmt: skip


def _pack_facts(name: str, manifest: Any) -> list[tuple[str, str]]:
    tuning, device = manifest.tuning, manifest.document["device"]
    facts = [
        ("pack", name),
        ("device", f"{device.get('name', '')} ({manifest.device_id}), built for {manifest.arch}"),
        ("tuned", f"{tuning['shapes']}, weights {tuning['weights']}, {tuning['seconds']:.0f} s, ended: {tuning['stopped']}"),
        ("built by", f"haotuner {manifest.document.get('haotuner', '?')}"),
    ]
    start = tuning.get("started_from", {})
    if isinstance(start, Mapping) and start:
        facts.append(("cost model", _start_text(start)))
    if manifest.unverified:
        facts.append(("unverified", "nothing was measured on the device: plans and times are predictions"))
    return facts


def _start_text(start: Mapping[str, Any]) -> str:
    """The model that tuning started from, as the pack's maker noted it."""
    if not start.get("model"):
        return f"none: {start.get('why', 'the pack does not say why')}"
    far = f", {start['distance']:.1f} doublings of resources away" if start.get("distance") else ""
    others: Sequence[str] = start.get("with", ())
    return f"{start['model']}{far}{'; with ' * bool(others)}{', '.join(others)}"
