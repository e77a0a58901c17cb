"""PNG of time over m: one panel an op, one line a contender."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from haotuner.errors import EnvironmentMissing, UsageError
from haotuner.host.extras import how_to_get

PANEL_INCHES = (6.0, 4.2)
DPI = 110


def check_plot(path: Path) -> None:
    """Before an hour is spent racing: can this file be drawn and written? EnvironmentMissing or UsageError if not."""
    if path.suffix.lower() != ".png":
        raise UsageError(f"--plot {path}: plots are PNG files; name one that ends in .png")
    if not path.parent.is_dir():
        raise UsageError(f"--plot {path}: there is no folder {path.parent}; make it first")
    _pyplot()


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw the rows of a document; contended rows are drawn hollow."""
    panels = sorted({(row["op"], row["weights"], row["threads"]) for row in result["rows"]})
    pyplot = _pyplot()
    width, height = PANEL_INCHES
    columns = min(2, len(panels))
    lines = -(-len(panels) // columns)
    figure, axes = pyplot.subplots(lines, columns, figsize=(width * columns, height * lines), squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, panel in zip(axes.flat, panels, strict=False):
        rows = [row for row in result["rows"] if (row["op"], row["weights"], row["threads"]) == panel]
        rows.sort(key=lambda row: row["shape"]["m"])
        names = ["ours", *dict.fromkeys(name for row in rows for name in row["peers_us"])]
        for name in names:
            _line(axis, rows, name)
        axis.set(xscale="log", yscale="log", xlabel="m", ylabel="microseconds a call")
        axis.set_title(f"{panel[0]}, {panel[1]} weights, {panel[2]} thread{'s' * (panel[2] > 1)}")
        axis.grid(visible=True, which="both", alpha=0.25)
    axes.flat[0].legend(fontsize="small")
    figure.tight_layout()
    try:
        figure.savefig(path, dpi=DPI)
    except OSError as error:
        raise UsageError(f"--plot {path}: cannot write it ({error.strerror}); name another file") from error
    finally:
        pyplot.close(figure)


def _line(axis: Any, rows: list[dict[str, Any]], name: str) -> None:
    points = [
        (row["shape"]["m"], us, row["contended"])
        for row in rows
        if (us := row["ours_us"] if name == "ours" else row["peers_us"].get(name)) is not None
    ]
    if not points:
        return
    ours = name == "ours"
    (drawn,) = axis.plot([p[0] for p in points], [p[1] for p in points], label=name, linewidth=2.2 if ours else 1.2,
                         color="black" if ours else None, zorder=3 if ours else 2)  # fmt: skip
    for contended, face in ((True, "white"), (False, drawn.get_color())):
        some = [p for p in points if p[2] is contended]
        axis.plot([p[0] for p in some], [p[1] for p in some], linestyle="", marker="o", markersize=4,
                  markerfacecolor=face, markeredgecolor=drawn.get_color(), zorder=drawn.get_zorder())  # fmt: skip


def _pyplot() -> Any:
    try:
        matplotlib = importlib.import_module("matplotlib")
    except ImportError as error:
        raise EnvironmentMissing(f"--plot needs matplotlib; {how_to_get('bench')}, or leave --plot out") from error
    matplotlib.use("Agg")  # writes files, needs no display
    return importlib.import_module("matplotlib.pyplot")
