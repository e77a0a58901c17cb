"""Plots for terminals, in letters: a figure of a report drawn by plotext."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from haotuner.cli.output import safe
from haotuner.errors import EnvironmentMissing, UsageError
from haotuner.host.extras import how_to_get

LETTERS, LINES = 100, 18  # at most; a narrower terminal has fewer letters
TICKS = 7
MARKERS = ("x", "o", "+", "*", "#", "%", "@")
WITHOUT = f"plots in the terminal are drawn by plotext, which is not installed; run: {how_to_get('report')}"


def has_plotext() -> bool:
    """True if plots can be drawn."""
    return find_spec("plotext") is not None


def figure_text(figure: Mapping[str, Any], title: str) -> str:
    """A figure of lines and points over logarithmic axes, without colours. EnvironmentMissing without plotext."""
    if not has_plotext():
        raise EnvironmentMissing(WITHOUT)
    import plotext

    width = min(LETTERS, shutil.get_terminal_size((LETTERS, LINES)).columns)
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plotsize(width, LINES)
    markers = iter(MARKERS * (1 + len(figure["data"]) // len(MARKERS)))
    every: tuple[list[float], list[float]] = ([], [])
    for trace in reversed(figure["data"]):  # what is ours comes last and stays on top
        rows = [(x, y) for x, y in zip(trace["x"], trace["y"], strict=True) if x and y and x > 0 and y > 0]
        if not rows:
            continue
        x, y = (list(values) for values in zip(*rows, strict=True))
        every[0].extend(x)
        every[1].extend(y)
        name = safe(trace["name"])
        if trace["mode"] == "lines":
            dashed = trace["line"]["dash"] != "solid"
            plotext.plot(x, y, label=name, marker="-" if dashed else "braille")
        else:
            plotext.scatter(x, y, label=name, marker=next(markers))
    plotext.title(safe(title))
    across, up = (figure["layout"][axis]["title"]["text"] for axis in ("xaxis", "yaxis"))
    unit = figure["layout"]["yaxis"]["unit"]
    plotext.xlabel(f"{across} across, {up} up{f', in {unit}' if unit else ''}")
    for scale, ticks, values in ((plotext.xscale, plotext.xticks, every[0]), (plotext.yscale, plotext.yticks, every[1])):
        if values and min(values) < max(values):
            scale("log")
            marks = _ticks(min(values), max(values))
            ticks(marks, [f"{mark:g}" for mark in marks])
    return str(plotext.uncolorize(plotext.build())).rstrip()


def _ticks(low: float, high: float) -> list[float]:
    """Powers of two or ten between two values, a few of them."""
    for base in (2, 4, 10, 100):
        first, last = math.ceil(math.log(low, base) - 1e-9), math.floor(math.log(high, base) + 1e-9)
        if last - first < TICKS:
            return [float(base) ** power for power in range(first, last + 1)] or [low, high]
    return [low, high]


def pack_plots(pack: Path, op: str, races: Sequence[Mapping[str, Any]] = (), *, most: int = 1) -> list[str]:
    """Plots of an op of a pack, one a thread count; of its first op where none is named. UsageError: no such op."""
    from haotuner.cli.options import facts_of
    from haotuner.cli.pages.op_panels import plans_of, time_figure
    from haotuner.cli.pages.sources import opened

    with opened([str(pack)]) as sources, facts_of(pack):
        plans = [plan for plan in plans_of(sources) if op in ("", plan.entry.name)]
        if not plans:
            names = ", ".join(entry.name for source in sources.packs for entry in source.manifest.ops)
            raise UsageError(f"{pack} has no op {op}; it has {names or 'none'}")
        drawn = [(plan.choice, time_figure(plan, races)) for plan in plans[:most]]
    return [figure_text(plot, choice) for choice, plot in drawn if plot is not None]
