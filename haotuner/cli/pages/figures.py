"""Panels and pages as values, and figures in the JSON form that Plotly draws: nothing of Plotly is imported for them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from haotuner.cli.output import safe

Figure = dict[str, Any]
Numbers = Sequence[float | None]

# Middle tones, to be read on white and on black; the first is for what is ours.
COLOURS = ("#3b82c4", "#d97a26", "#3a9d5d", "#cf4f52", "#8a63c9", "#2a9d9d", "#d0679d", "#98922e", "#a0694b", "#7f8894")
ROOF = "#7f8894"
HOVER = "%{text}<extra>%{fullData.name}</extra>"  # names and texts are data: Plotly puts them in, and they are escaped
US, TIMES = "µs", "x"  # units of axes: ticks are 500 µs, 1 ms, 2 s; 1.5x
DIGITS = 4  # of a number in the page
EVERY = ""  # choice of a panel that is the same for all choices of its page


@dataclass(frozen=True, slots=True)
class Table:
    """A table of texts."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def document(self) -> dict[str, Any]:
        """The JSON form."""
        return {"head": list(self.head), "rows": [list(row) for row in self.rows]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A question, and figures or tables that answer it, by choice (an op, a model; ``EVERY``).

    ``source``: where the data are from; ``missing``: by choice what is not there, and the command that makes it.
    """

    title: str
    about: str
    source: str
    figures: Mapping[str, Figure] = field(default_factory=dict)
    tables: Mapping[str, Table] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """The JSON form."""
        tables = {choice: table.document() for choice, table in self.tables.items()}
        texts = {"title": self.title, "about": self.about, "source": self.source, "missing": dict(self.missing)}
        return {**texts, "figures": dict(self.figures), "tables": tables}


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Panels under one tab. ``choices``: of an op or a model, whose panels are shown one at a time; ``noun``: of what."""

    title: str
    panels: Sequence[Panel]
    choices: Sequence[str] = ()
    noun: str = ""

    def document(self) -> dict[str, Any]:
        """The JSON form."""
        panels = [panel.document() for panel in self.panels]
        return {"title": self.title, "noun": self.noun, "choices": list(self.choices), "panels": panels}


def cleaned(value: Any) -> Any:
    """JSON without control characters in texts, without NaN and infinities, numbers with ``DIGITS`` digits."""
    if isinstance(value, str):
        return safe(value)
    if isinstance(value, bool) or value is None or isinstance(value, int):
        return value
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {safe(str(key)): cleaned(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [cleaned(item) for item in value]
    return safe(str(value))  # bytes of a store of others


def line(name: str, x: Numbers, y: Numbers, texts: Sequence[str], colour: str, *, dash: str = "solid") -> Figure:
    """A line through points; ``texts`` are shown beside the pointer."""
    stroke = {"color": colour, "width": 2.5 if dash == "solid" else 1.5, "dash": dash}
    return {"type": "scatter", "mode": "lines", "name": name, "x": list(x), "y": list(y), "text": list(texts),
            "hovertemplate": HOVER, "line": stroke}  # fmt: skip


def points(
    name: str, x: Numbers, y: Numbers, texts: Sequence[str], colour: str, *, symbol: str = "circle", joined: bool = False
) -> Figure:
    """Points, joined by a thin line where they follow one another."""
    return {"type": "scatter", "mode": "lines+markers" if joined else "markers", "name": name, "x": list(x), "y": list(y),
            "text": list(texts), "hovertemplate": HOVER, "line": {"color": colour, "width": 1.2},
            "marker": {"color": colour, "size": 7, "symbol": symbol}}  # fmt: skip


def bars(name: str, values: Numbers, labels: Sequence[str], texts: Sequence[str], colour: str | Sequence[str]) -> Figure:
    """Horizontal bars, the first at the top."""
    return {"type": "bar", "orientation": "h", "name": name, "x": list(values), "y": list(labels), "text": list(texts),
            "hovertemplate": HOVER, "textposition": "none", "marker": {"color": colour}}  # fmt: skip


def figure(
    data: Sequence[Figure],
    x: str,
    y: str,
    *,
    x_type: str = "log",
    y_type: str = "log",
    x_unit: str = "",
    y_unit: str = "",
    rows: int = 0,
    **layout: Any,
) -> Figure:
    """A figure with titled axes. Units: ``US`` or ``TIMES``, for the ticks; ``rows``: bars, for which it is high enough."""
    height = {"height": 120 + 24 * rows} if rows else {}
    across: Figure = {"title": {"text": x}, "type": x_type, "unit": x_unit}
    up: Figure = {"title": {"text": y}, "type": y_type, "unit": y_unit}
    if rows:
        up |= {"autorange": "reversed", "automargin": True}
    return {"data": list(data), "layout": {"xaxis": across, "yaxis": up, **height, **layout}}


def us_text(us: float) -> str:
    """Microseconds for people."""
    return f"{us:.3g} {US}" if us < 1e3 else f"{us / 1e3:.4g} ms" if us < 1e6 else f"{us / 1e6:.4g} s"


def labels_of(kernels: Sequence[str]) -> dict[str, str]:
    """The parameters in which each of these kernels differs from another; full names stand beside the pointer."""
    words = {kernel: (kernel.partition("__")[2] or kernel).split("_") for kernel in kernels}
    shared = set.intersection(*map(set, words.values())) if len(words) > 1 else set()
    return {kernel: " ".join(word for word in own if word not in shared) or kernel for kernel, own in words.items()}
