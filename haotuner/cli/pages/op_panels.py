"""Panels of the ops of a pack: time over shape, kernels over shape, the selection's funnel, regret."""

from __future__ import annotations

import math
import operator
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from haotuner.cli.pages.figures import (
    COLOURS,
    ROOF,
    US,
    Figure,
    Page,
    Panel,
    Table,
    bars,
    figure,
    labels_of,
    line,
    points,
    us_text,
)  # fmt: skip
from haotuner.cli.pages.sources import RACE, PackSource, Sources
from haotuner.cost.roofline import roofline_us
from haotuner.errors import HaotunerError
from haotuner.pack.op import PackOp
from haotuner.spec.composition import Composition
from haotuner.spec.device import Device
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape, ShapeRange, Span
from haotuner.verify.pack_groups import meaning_of

CURVE_SHAPES = 160  # of a curve over a range, spread in log scale
MOST_CHOICES = 240  # ops times thread counts of a page
KERNELS_SHOWN = len(COLOURS) - 1  # with a colour of their own; the rest share grey
PALE = 0.35  # opacity of a point that counts for nothing
BAR_STARTS = 0.7  # where bars on a log axis begin, so that one kernel has a bar
MAP_CELLS = 120  # of an axis of a map: as many as can be told apart
NO_RACE = "no race of this op: haotuner bench {pack} --json > bench.json, then name bench.json here, too"


@dataclass(frozen=True)
class OpPlan:
    """Plan of one op for one thread count, as the facts of a pack have it. ``op``: None where its kind is not known here.

    ``label``: of the pack or its level, where there are several.
    """

    source: PackSource
    entry: PackOp
    threads: int
    op: Op | None
    label: str = ""

    @property
    def choice(self) -> str:
        """Text of the choice in a page."""
        return f"{self.entry.name}, threads: {self.threads}{f', {self.label}' if self.label else ''}"

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        """Facts of the plan."""
        plan: Mapping[str, Any] = self.entry.facts.get("plans", {}).get(str(self.threads), {})
        return plan

    @property
    def axes(self) -> list[str]:
        """The dynamic axes."""
        return [axis.name for axis in self.entry.dynamic]

    @property
    def by_rows(self) -> bool:
        """True of a plan that has an entry for each number of rows."""
        return "cells" not in self.facts

    @cached_property
    def measured(self) -> dict[Shape, dict[str, float]]:
        """Microseconds by shape and label of the composition, as timed while tuning."""
        return _by_shape(self.facts.get("measured_us", {}), self.axes)

    @cached_property
    def expected(self) -> dict[Shape, dict[str, float]]:
        """Expected microseconds by shape and label, of what was not timed; of a plan by rows without a label."""
        if not self.by_rows:
            return _by_shape(self.facts.get("expected_us", {}), self.axes) | self._weighed
        times = self.facts.get("predicted_us", [])
        if not times:
            return {}
        heights = Span(first=min(self.entry.first_m, len(times)), last=len(times)).sample(CURVE_SHAPES)
        return {Shape.of(m=m): {"": float(times[m - 1])} for m in heights}

    @property
    def _weighed(self) -> dict[Shape, dict[str, float]]:
        """Times of cells that were weighed one by one, at the largest shape of each."""
        cells = self.facts["cells"]
        if "considered" not in cells or len(cells["bounds"]) != 1:
            return {}
        ((axis, ends),) = cells["bounds"].items()
        return {
            Shape.of({axis: end}): {row["composition"]: row["us"] for row in reversed(considered)}
            for end, considered in zip(ends, cells["considered"], strict=False)
        }

    def served(self, shape: Shape) -> Composition | None:
        """Composition that serves a shape; None where only the library of a pack for another host says it."""
        if self.by_rows:
            if self.source.serve is None:
                return None
            with suppress(HaotunerError):
                return self.source.serve(self.entry.name, shape["m"], self.threads)
            return None
        return Composition.parse(self.facts["cells"]["entries"][self.cell(shape)])

    def cell(self, shape: Shape) -> int:
        """Index of the cell that serves a shape."""
        bounds, index = self.facts["cells"]["bounds"], 0
        for axis in self.axes:
            index = index * len(bounds[axis]) + min(bisect_left(bounds[axis], shape[axis]), len(bounds[axis]) - 1)
        return index

    def time(self, shape: Shape) -> float | None:
        """Microseconds of what serves a shape: as timed, else as expected."""
        served = self.served(shape)
        timed, guessed = self.measured.get(shape, {}), self.expected.get(shape, {})
        known = None if served is None else timed.get(served.label, guessed.get(served.label))
        return known if known is not None else guessed.get("")

    def x(self, shape: Shape) -> float:
        """Position of a shape: its extent, or with several axes the work of a call."""
        if len(self.axes) == 1:
            return shape[self.axes[0]]
        return math.prod(extent for _, extent in shape.axes) if self.op is None else self.op.flops(shape) / 1e6

    @property
    def x_title(self) -> str:
        """Meaning of ``x``."""
        if len(self.axes) == 1:
            return self.axes[0]
        return "product of the extents" if self.op is None else "MFLOP of a call"

    def roofline(self, shapes: Sequence[Shape]) -> list[float]:
        """Least microseconds by the device's peaks; empty where the pack or this process does not know enough."""
        if self.op is None or not shapes:
            return []
        try:
            device = Device(**self.source.manifest.document["device"])
            if not self.source.manifest.on_device:  # a call on another device has all of it
                device = device.with_units(min(self.threads, device.compute_units))
            return list(map(float, roofline_us(device, self.op, shapes)))
        except (ArithmeticError, KeyError, TypeError, ValueError, HaotunerError):
            return []


def _by_shape(times: Mapping[str, Mapping[str, float]], axes: Sequence[str]) -> dict[Shape, dict[str, float]]:
    """Times by shape; a plan by rows names a shape by its number of rows alone."""
    result = {}
    for text, labels in times.items():
        shape = ShapeRange.parse(f"{axes[0]}={text}" if re.fullmatch("[0-9]+", text) else text)
        result[Shape.of({axis: span.first for axis, span in shape.spans})] = dict(labels)
    return result


def plans_of(sources: Sources) -> list[OpPlan]:
    """Every plan of the packs."""
    return [plan for source in sources.packs for plan in _plans(source, sources.label_of(source))][:MOST_CHOICES]


def _plans(source: PackSource, label: str) -> Iterator[OpPlan]:
    for entry in source.manifest.ops:
        op = None
        with suppress(HaotunerError, ValueError):
            op = meaning_of(entry)
        for threads in entry.threads:
            yield OpPlan(source, entry, threads, op, label)


def overview(sources: Sources) -> Table:
    """A line for each op."""
    rows = []
    for source in sources.packs:
        for entry in source.manifest.ops:
            facts = entry.facts
            tuned = ";".join(
                f"{axis.name}={axis.first}{f'..{axis.last}' * (axis.last > axis.first)}" for axis in entry.dynamic
            )
            regrets = (facts.get("regret_mean"), facts.get("regret_max"))
            timed = f"{facts.get('measured', '-')} of {facts.get('candidates', '-')}"
            lost = ["-" if regret is None else f"{regret:.1%}" for regret in regrets]
            rows.append((source.level or source.path.name, entry.name, tuned, ", ".join(map(str, entry.threads)),
                         str(len(entry.kernels)), timed, *lost))  # fmt: skip
    return Table(("pack", "op", "tuned for", "threads", "kernels", "measured", "regret, mean", "regret, most"), rows)


def op_page(sources: Sources, plans: Sequence[OpPlan]) -> Page:
    """The page of ops, one shown at a time."""
    races = {plan.choice: races_of(plan, sources.rows(RACE, plan.source.manifest.device_id)) for plan in plans}
    times = {plan.choice: time_figure(plan, races[plan.choice]) for plan in plans}
    unraced = {plan.choice: NO_RACE.format(pack=plan.source.path) for plan in plans if not races[plan.choice]}
    unknown = {plan.choice: _unserved(plan) for plan in plans if plan.by_rows and plan.source.serve is None}
    maps = {plan.choice: kernel_map(plan) for plan in plans if plan.choice not in unknown}
    funnels = {plan.choice: panel_figure for plan in plans if (panel_figure := funnel_figure(plan)) is not None}
    lost = {
        plan.choice: panel_figure for plan in plans if (panel_figure := regret_figure(plan, races[plan.choice])) is not None
    }
    untimed = "nothing was compared with what serves: haotuner tune with a longer --budget and --resume"
    manifest = "the pack's manifest"
    raced = sources.files(RACE)
    return Page(
        title="Operators",
        noun="operator",
        choices=[plan.choice for plan in plans],
        panels=(
            Panel(
                title="Time over shape",
                about="Time of one call. Dashed: the least that the device's measured peaks allow. Pale points were raced "
                "beside other programs.",
                source=f"expected and timed: {manifest}; roofline: its device{f'; peers: {raced}' if raced else ''}",
                figures={choice: panel_figure for choice, panel_figure in times.items() if panel_figure is not None},
                missing={choice: "the pack has no time of this op: tune without --zero-measure"
                         for choice, panel_figure in times.items() if panel_figure is None} | unraced,
            ),
            Panel(
                title="Kernels over shape",
                about="Which kernel computes which part of a call.",
                source="plan tables of the pack's library, or cells of its manifest",
                figures=maps,
                missing=unknown,
            ),
            Panel(
                title="Selection",
                about="From all points of the families to the kernels of the pack; each law refuses some.",
                source=manifest,
                figures=funnels,
                missing={plan.choice: "the manifest does not say: tune again" for plan in plans
                         if plan.choice not in funnels},
            ),
            Panel(
                title="Regret by shape",
                about="Loss of what serves a shape against the best that was timed there.",
                source=f"{manifest}{f', {raced}' if raced else ''}",
                figures=lost,
                missing={plan.choice: untimed for plan in plans if plan.choice not in lost},
            ),
        ),
    )  # fmt: skip


def _unserved(plan: OpPlan) -> str:
    return f"only the pack's library says it, and was not loaded ({plan.source.why_not_served}); run report on such a device"


def races_of(plan: OpPlan, races: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Rows of races of this op with so many threads, by its axes alone."""
    return [row for row in races if (row["op"], row["threads"]) == (plan.entry.name, plan.threads)
            and sorted(row["shape"]) == sorted(plan.axes)]  # fmt: skip


def time_figure(plan: OpPlan, races: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Times over shape; None where the pack has none."""
    shapes = sorted({*plan.expected, *plan.measured}, key=lambda shape: (plan.x(shape), shape.axes))
    rows = sorted(races_of(plan, races), key=lambda row: plan.x(Shape.of(row["shape"])))
    if not shapes and not rows:
        return None
    data, known = [], [(shape, us) for shape in shapes if (us := plan.time(shape)) is not None]
    if known:
        drawn = line if len(plan.axes) == 1 else points
        data.append(drawn("plan, as expected", [plan.x(s) for s, _ in known], [us for _, us in known],
                          [f"{s}: {us_text(us)}" for s, us in known], COLOURS[0]))  # fmt: skip
    timed = [(shape, *min((us, label) for label, us in plan.measured[shape].items())) for shape in shapes
             if plan.measured.get(shape)]  # fmt: skip
    if timed:
        data.append(points("best timed while tuning", [plan.x(s) for s, *_ in timed], [us for _, us, _ in timed],
                           [f"{s}: {us_text(us)}\n{label}" for s, us, label in timed], COLOURS[2]))  # fmt: skip
    names = ["ours, raced", *dict.fromkeys(name for row in rows for name in row["peers_us"])]
    for index, name in enumerate(names if rows else ()):
        ran = [(row, us) for row in rows if (us := row["peers_us"].get(name) if index else row["ours_us"])]
        texts = [f"{Shape.of(row['shape'])}, {row['weights']}: {us_text(us)}{', contended' if row.get('contended') else ''}"
                 for row, us in ran]  # fmt: skip
        x = [plan.x(Shape.of(row["shape"])) for row, _ in ran]
        colour = COLOURS[1] if not index else COLOURS[3 + (index - 1) % (len(COLOURS) - 4)]
        symbol = "diamond" if index == 0 else "square-open"
        data.append(points(name, x, [us for _, us in ran], texts, colour, symbol=symbol, joined=True))
        data[-1]["marker"]["opacity"] = [PALE if row.get("contended") else 1 for row, _ in ran]
    every = sorted({*shapes, *(Shape.of(row["shape"]) for row in rows)}, key=plan.x)
    if roof := plan.roofline(every):
        texts = [f"{s}: at least {us_text(us)}" for s, us in zip(every, roof, strict=True)]
        data.append(line("roofline", [plan.x(s) for s in every], roof, texts, ROOF, dash="dash"))
    return figure(data, plan.x_title, "time of a call", y_unit=US)


def kernel_map(plan: OpPlan) -> Figure:
    """Kernels over one axis as shares of a call, over two as a map of cells."""
    if len(plan.axes) == 1:
        return _shares(plan)
    bounds: Mapping[str, Sequence[int]] = plan.facts["cells"]["bounds"]
    across, up = sorted(sorted(bounds, key=lambda axis: -len(bounds[axis]))[:2], key=plan.axes.index, reverse=True)
    fixed = {axis: ends[-1] for axis, ends in bounds.items() if axis not in (across, up)}
    xs, ys = (_spread(bounds[axis]) for axis in (across, up))
    served = [[plan.served(Shape.of({**fixed, across: x, up: y})) for x in xs] for y in ys]
    names = list(dict.fromkeys(part.kernel for row in served for call in row if call is not None for part in call.parts))
    index = {name: min(at, KERNELS_SHOWN) for at, name in enumerate(names)}
    count = min(len(names), KERNELS_SHOWN + 1)
    z = [[index[call.parts[0].kernel] if call is not None else None for call in row] for row in served]
    texts = [[f"up to {across}={x}, {up}={y}\n{call.label if call else ''}" for x, call in zip(xs, row, strict=True)]
             for y, row in zip(ys, served, strict=True)]  # fmt: skip
    scale = [[at / count + edge / count, COLOURS[at]] for at in range(count) for edge in (0, 1)]
    heat = {"type": "heatmap", "x": list(map(str, xs)), "y": list(map(str, ys)), "z": z, "text": texts, "zmin": -0.5,
            "zmax": count - 0.5, "colorscale": scale, "showscale": False, "name": "kernel",
            "hovertemplate": "%{text}<extra></extra>", "xgap": 1, "ygap": 1}  # fmt: skip
    labels = labels_of(names)
    legend = [points(labels[name], [None], [None], [""], COLOURS[at]) for at, name in enumerate(names[:KERNELS_SHOWN])]
    more = [points(f"{len(names) - KERNELS_SHOWN} more", [None], [None], [""], ROOF)] if len(names) > KERNELS_SHOWN else []
    where = "".join(f", {axis}={extent}" for axis, extent in fixed.items())
    return figure([heat, *legend, *more], f"{across}, up to{where}", f"{up}, up to", x_type="category", y_type="category")


def _spread(ends: Sequence[int]) -> list[int]:
    if len(ends) <= MAP_CELLS:
        return list(ends)
    return [ends[round(at * (len(ends) - 1) / (MAP_CELLS - 1))] for at in range(MAP_CELLS)]


def _shares(plan: OpPlan) -> Figure:
    (axis,) = plan.axes
    own = plan.entry.axis(axis)
    if plan.by_rows:
        extents: Sequence[int] = Span(first=own.first, last=own.last).sample(CURVE_SHAPES)
    else:
        extents = sorted({own.first, *(end for end in plan.facts["cells"]["bounds"][axis] if end >= own.first)})
    rows = {name: tile.get(axis, 1) for name, tile in zip(plan.entry.kernels, plan.entry.tiles, strict=True)}
    shares: dict[str, list[float]] = {}
    texts = []
    for at, extent in enumerate(extents):
        call = plan.served(Shape.of({axis: extent}))
        texts.append(f"{axis}={extent}: {call.label if call else 'not known'}")
        parts = call.parts if call else ()
        work = [rows.get(part.kernel, 1) * part.tiles if part.tiles and len(parts) > 1 else extent for part in parts]
        for part, tall in zip(parts, work, strict=True):
            shares.setdefault(part.kernel, [0.0] * len(extents))[at] += 100 * tall / max(1, sum(work))
    ends = [extents[0], *extents, extents[-1]]
    widths = [math.log(after / before) for before, after in zip(ends, ends[2:], strict=False)]  # as the log axis has them
    ordered = sorted(shares, key=lambda name: -sum(map(operator.mul, widths, shares[name])))
    labels = labels_of(ordered)
    drawn = [(labels[name], shares[name]) for name in ordered[:KERNELS_SHOWN]]
    if more := ordered[KERNELS_SHOWN:]:
        drawn.append(
            (f"{len(more)} more", [math.fsum(column) for column in zip(*(shares[name] for name in more), strict=True)])
        )
    data = [{**line(name, extents, values, texts, colour), "stackgroup": "kernels", "fillcolor": colour,
             "line": {"color": colour, "width": 0.5, "shape": "hvh"}}
            for (name, values), colour in zip(drawn, COLOURS, strict=False)]  # fmt: skip
    return figure(data, axis, "share of the call, %", y_type="linear")


_STAGE = re.compile(r"([\d,]+) ([a-z ]+)")


def funnel_figure(plan: OpPlan) -> Figure | None:
    """Stages of selection, and what laws refused between them; None where the manifest does not say."""
    facts = plan.entry.facts
    stages = [(words.strip(), int(count.replace(",", ""))) for count, words in _STAGE.findall(str(facts.get("funnel", "")))]
    if not stages:
        return None
    refused = facts.get("refused", {})
    laws = [(f"refused: {law}", count) for law, count in sorted(refused.items(), key=lambda item: -item[1]) if count]
    behind = [("measured", facts.get("measured", 0)), ("in the pack", len(plan.entry.kernels))]
    rows = [*stages[:1], *laws, *stages[1:], *behind]
    colours = [COLOURS[1] if name.startswith("refused") else COLOURS[0] for name, _ in rows]
    texts = [f"{count:,} {name}" for name, count in rows]
    drawn = bars("kernels", [count or None for _, count in rows], [name for name, _ in rows], texts, colours)
    result = figure([drawn], "kernels", "", y_type="category", rows=len(rows), showlegend=False)
    result["layout"]["xaxis"]["range"] = [math.log10(BAR_STARTS), math.log10(2 * max(count for _, count in rows))]
    return result


def regret_figure(plan: OpPlan, races: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Loss by shape; None where nothing was compared."""
    rows = []
    for shape, times in plan.measured.items():
        served = plan.served(shape)
        if served is not None and len(times) > 1 and served.label in times:
            rows.append((shape, 100 * (times[served.label] / min(times.values()) - 1), len(times)))
    data = []
    if rows:
        rows.sort(key=lambda row: plan.x(row[0]))
        data.append(points("while tuning", [plan.x(s) for s, *_ in rows], [lost for _, lost, _ in rows],
                           [f"{s}: {lost:.1f} % behind the best of {n}" for s, lost, n in rows], COLOURS[0]))  # fmt: skip
    raced = [(Shape.of(row["shape"]), 100 * row["regret"]) for row in races_of(plan, races)
             if row.get("regret") is not None]  # fmt: skip
    if raced:
        data.append(points("as raced", [plan.x(s) for s, _ in raced], [lost for _, lost in raced],
                           [f"{s}: {lost:.1f} %" for s, lost in raced], COLOURS[1], symbol="diamond"))  # fmt: skip
    result = figure(data, plan.x_title, "regret, %", y_type="linear")
    result["layout"]["yaxis"]["rangemode"] = "nonnegative"
    return result if data else None
