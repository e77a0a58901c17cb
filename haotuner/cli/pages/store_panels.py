"""Panels of record stores: the search over measurements, devices side by side, failures, the cost model against times."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from haotuner.cli.pages.figures import (
    COLOURS,
    EVERY,
    ROOF,
    TIMES,
    US,
    Figure,
    Page,
    Panel,
    Table,
    bars,
    figure,
    line,
    points,
    us_text,
)  # fmt: skip
from haotuner.cli.pages.sources import Sources, StoreSource
from haotuner.cli.transfer_input import known_device
from haotuner.errors import HaotunerError
from haotuner.microkernels.index import family_named
from haotuner.records.statistics import Best, Count, FailureClass
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape

MOST_OPS = 120  # of a store, those with the most records; imported ones have thousands
MOST_SHAPES = 200  # of an op in the page of devices, spread
CALIBRATED = 2000  # timings that the cost model is held against
FLAT = 1.02  # curves below all along stand on an axis of this height; Plotly gives them two powers of ten
LETTERS = 400  # of a log in a table; the whole text is in the store
NO_STORE = "no record store: name one, sqlite:///PACK.records.db, which haotuner tune writes"


def search_page(sources: Sources, *, calibrates: bool = True) -> Page:
    """The page of the search: what measurements brought, and how near predictions of the cost model were."""
    counts = {source.url: source.statistics.summary.counts for source in sources.stores}
    urls = ", ".join(counts)
    empty = {EVERY: NO_STORE if not counts else "the store has no record yet: haotuner tune --db URL"}
    curves = {name: curve for source in sources.stores for name, curve in _improvements(source, counts[source.url]).items()}
    timed = Table(("device", "operator", "timed", "failed", "first", "last"), _count_rows(counts))
    later = "not of a run that goes on: haotuner report makes it"
    calibrated, why = _calibration(sources) if calibrates else (None, later)
    return Page(
        title="Search",
        noun="operator",
        choices=list(curves),
        panels=(
            Panel(
                title="Best so far",
                about="How far the best times were behind the last ones, a geometric mean over shapes. A shape without a "
                "time yet counts with its first one.",
                source=urls,
                figures=curves,
                missing={} if curves else empty,
            ),
            Panel(
                title="Predicted and measured",
                about="Times of kernels that the cost model expects, against those of the records. On the line both agree.",
                source=f"{urls}; the model that ships for the device",
                figures={} if calibrated is None else {EVERY: calibrated},
                missing={EVERY: why} if why else {},
            ),
            Panel(
                title="Records",
                about="How many measurements there are.",
                source=urls,
                tables={EVERY: timed} if timed.rows else {},
                missing={} if timed.rows else empty,
            ),
        ),
    )


def _count_rows(counts: Mapping[str, Sequence[Count]]) -> list[tuple[str, ...]]:
    every = sorted((count for rows in counts.values() for count in rows), key=lambda count: -count.timed - count.failed)
    rows: list[tuple[str, ...]] = []
    for count in every[:MOST_OPS]:
        rows.append(
            (count.device, count.op, f"{count.timed:,}", f"{count.failed:,}", *map(_when, (count.first, count.last)))
        )
    more = len(every) - len(rows)
    return [*rows, (f"and {more:,} more", "", "", "", "", "")] if more else rows


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds)) if 0 < seconds < 1e11 else "-"


def _improvements(source: StoreSource, counts: Sequence[Count]) -> dict[str, Figure]:
    totals: dict[str, int] = {}
    for count in counts:
        totals[str(count.op)] = totals.get(str(count.op), 0) + count.timed + count.failed
    selected = sorted(totals, key=lambda op: -totals[op])[:MOST_OPS]
    lines: dict[str, list[Figure]] = {op: [] for op in selected}
    for (device, op), steps in source.statistics.summary.improvements.items():
        drawn = lines.get(str(op))
        if drawn is None:
            continue
        ends = [count.timed + count.failed for count in counts if (count.device, count.op) == (device, op)]
        steps = [*steps, (ends[0], steps[-1][1])] if ends else steps
        texts = [f"after {turn:,} measurements: {behind:.3f}x the best times" for turn, behind in steps]
        data = line(str(device), [turn for turn, _ in steps], [behind for _, behind in steps], texts,
                    COLOURS[len(drawn) % len(COLOURS)])  # fmt: skip
        data["line"]["shape"] = "hv"
        drawn.append(data)
    result = {op: figure(drawn, "measurements", "best so far over the best", x_type="linear", y_unit=TIMES)
              for op, drawn in lines.items() if drawn}  # fmt: skip
    for curves in result.values():
        if max(behind for curve in curves["data"] for behind in curve["y"]) < FLAT:
            curves["layout"]["yaxis"]["range"] = [math.log10(2 - FLAT), math.log10(FLAT)]
    return result


def device_page(sources: Sources) -> Page | None:
    """Devices side by side; None of one device alone."""
    best = [row for source in sources.stores for row in source.statistics.summary.best]
    devices = sorted({str(row.device) for row in best})
    if len(devices) < 2:
        return None
    by_op: dict[str, list[Best]] = {}
    for row in best:
        by_op.setdefault(f"{row.op}, threads: {row.threads}, {row.cache}", []).append(row)
    shared = {name: rows for name, rows in by_op.items() if len({row.device for row in rows}) > 1}
    selected = sorted(shared, key=lambda name: -sum(row.timings for row in shared[name]))[:MOST_OPS]
    return Page(
        title="Devices",
        noun="operator",
        choices=selected,
        panels=(
            Panel(
                title="Devices side by side",
                about="The least time of each shape on each device.",
                source=", ".join(source.url for source in sources.stores),
                figures={name: _device_figure(shared[name], devices) for name in selected},
                missing={}
                if selected
                else {EVERY: "no op was timed on two devices: haotuner records import, or tune there"},
            ),
        ),
    )


def _device_figure(rows: Sequence[Best], devices: Sequence[str]) -> Figure:
    data, titles = [], set()
    for index, device in enumerate(devices):
        own = []
        for row in rows:
            shape = shape_of(row.shape)
            if str(row.device) == device and shape is not None:
                title, x = position(str(row.op), shape)
                titles.add(title)
                own.append((x, row.us, f"{shape}: {us_text(row.us)}\n{row.kernel}"))
        own.sort()
        step = -(-len(own) // MOST_SHAPES)
        own = own[:: max(1, step)]
        if own:
            xs, us, texts = zip(*own, strict=True)
            data.append(points(device, xs, us, texts, COLOURS[index % len(COLOURS)], joined=True))
    return figure(data, " or ".join(sorted(titles)), "least time of a call", y_unit=US)


def shape_of(text: str) -> Shape | None:
    """The shape of a row's JSON; None where somebody else wrote something else."""
    try:
        return Shape.of({str(axis): int(extent) for axis, extent in json.loads(text).items()})
    except (AttributeError, TypeError, ValueError):
        return None


def position(op: str, shape: Shape) -> tuple[str, float]:
    """Title of an axis, and where a shape lies on it: its extent, or with several axes the work of a call."""
    if len(shape.axes) == 1:
        return shape.axes[0]
    try:
        return "MFLOP of a call", Op.parse(op).flops(shape) / 1e6
    except (HaotunerError, KeyError, ValueError):
        product = 1.0
        for _, extent in shape.axes:
            product *= extent
        return "product of the extents", product


def failure_page(sources: Sources) -> Page:
    """Failures by class, with what was seen."""
    failures = [failure for source in sources.stores for failure in source.statistics.summary.failures]
    urls = ", ".join(source.url for source in sources.stores)
    logs = [(f"{seen.stage}: {seen.reason}", text[-LETTERS:], op, str(shape_of(shape) or shape), kernel, seen.device)
            for seen in failures for op, kernel, shape, text in seen.logs]  # fmt: skip
    none = NO_STORE if not sources.stores else ""
    return Page(
        title="Failures",
        panels=(
            Panel(
                title="Failures by class",
                about="Where measurements stopped, and why. A kernel that failed is left out of the search.",
                source=urls,
                figures={EVERY: _failure_figure(failures)} if failures else {},
                missing={} if failures else {EVERY: none or "nothing failed in these records"},
            ),
            Panel(
                title="Logs",
                about="The latest texts of each class.",
                source=urls,
                tables={EVERY: Table(("class", "text", "operator", "shape", "kernel", "device"), logs)} if logs else {},
                missing={} if logs else {EVERY: none or "nothing failed in these records"},
            ),
        ),
    )  # fmt: skip


def _failure_figure(failures: Sequence[FailureClass]) -> Figure:
    classes = list(dict.fromkeys(f"{failure.stage}: {failure.reason}" for failure in failures))
    data = []
    for index, device in enumerate(dict.fromkeys(failure.device for failure in failures)):
        own = {f"{f.stage}: {f.reason}": f.failures for f in failures if f.device == device}
        values = [own.get(name) for name in classes]
        texts = [f"{own.get(name, 0):,} on {device}" for name in classes]
        data.append(bars(str(device), values, classes, texts, COLOURS[index % len(COLOURS)]))
    return figure(data, "failures", "", x_type="linear", y_type="category", rows=len(classes), barmode="stack")


def _calibration(sources: Sources) -> tuple[Figure | None, str]:
    """Predicted against measured times of kernels, by family; without data the reason."""
    groups: dict[tuple[str, str, str], list[tuple[MicroKernel, Shape, float]]] = {}
    for source in sources.stores:
        for device in {count.device for count in source.statistics.summary.counts}:
            for op, kernel, text, cache, us in source.statistics.timings(device, CALIBRATED):
                shape = shape_of(text)
                name = str(kernel).partition("*")[0]
                if shape is not None and "+" not in str(kernel):
                    try:
                        groups.setdefault((str(device), str(op), str(cache)), []).append(
                            (MicroKernel.parse(name), shape, us)
                        )
                    except ValueError:
                        continue
    devices = {source.manifest.device_id: Device(**source.manifest.document["device"]) for source in sources.packs}
    times: dict[str, list[tuple[float, float, str]]] = {}
    for (device, op, cache), rows in groups.items():
        for family in {kernel.family for kernel, _, _ in rows}:
            own = [row for row in rows if row[0].family == family]
            for (parsed, shape, us), predicted in zip(
                own, _predicted(devices, device, op, cache, family, own), strict=False
            ):
                text = f"{op} {shape}\n{parsed}\npredicted {us_text(predicted)}, measured {us_text(us)}"
                times.setdefault(f"{family} on {device}", []).append((us, predicted, text))
    if not times:
        why = "no kernel of a known family was timed on one thread" if sources.stores else NO_STORE
        if groups:
            names = ", ".join(sorted({device for device, *_ in groups}))
            why = f"nothing predicts times of {names} on this host: name a pack of the device, too"
        return None, f"{why}; the model is held against records of haotuner tune"
    data = []
    for index, (name, own_times) in enumerate(sorted(times.items())):
        measured, expected, texts = zip(*own_times, strict=True)
        data.append({**points(name, measured, expected, texts, COLOURS[index % len(COLOURS)]), "opacity": 0.6})
    every = [us for rows_ in times.values() for us, _, _ in rows_]
    ends = [min(every), max(every)]
    data.append(line("both agree", ends, ends, ["", ""], ROOF, dash="dash"))
    return figure(data, "measured", "predicted", x_unit=US, y_unit=US), ""


def _predicted(
    devices: Mapping[str, Device], device: str, op: str, cache: str, family: str, rows: Sequence[tuple[Any, Shape, float]]
) -> list[float]:
    """Microseconds that the model which tuning starts from expects; none of what this process does not know."""
    from haotuner.cost.features import features
    from haotuner.cost.model import Analytic
    from haotuner.cost.roofline import roofline_us
    from haotuner.tuning.initial_model import start_of

    try:
        own = devices.get(device) or known_device(device)
        model = start_of(None, own, family).model or Analytic()
        problem, one_unit = Op.parse(op), own.with_units(1)
        pairs = [(kernel, shape) for kernel, shape, _ in rows]
        frame = features(one_unit, family_named(family), problem, pairs, weights=cache)
        roof = roofline_us(one_unit, problem, [shape for _, shape in pairs])
        return [float(us) for us in np.asarray(roof) / np.exp(model.predict(frame))]
    except (ArithmeticError, KeyError, TypeError, ValueError, HaotunerError):  # a device, an op, a family of others
        return []
