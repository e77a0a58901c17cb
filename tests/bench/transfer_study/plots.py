"""PNG of the best latency against the number of measurements: one panel a device, one line a mode."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from haotuner.errors import EnvironmentMissing, UsageError
from tests.bench.transfer_study.started_mode import GUIDED

PANEL_INCHES = (4.6, 3.6)
DPI = 100
WORST = 3.0  # times the best latency at which the axis ends; slower first guesses leave the panel at the top
# One colour and line a mode on every page; the names of modes are those of ``modes.MODES``.
_LINES: Mapping[str, tuple[str, str, float]] = {
    "chosen": ("black", "-", 2.4),
    "residual": ("tab:blue", "-", 1.3),
    "zero-shot": ("tab:orange", "--", 1.3),
    "copy": ("tab:red", "--", 1.3),
    "from-scratch": ("tab:gray", "-.", 1.8),
    GUIDED: ("tab:purple", "-.", 1.1),
}


def draw(by_device: Mapping[str, Mapping[str, Any]], title: str, path: Path) -> None:
    """Draw one family under one split; ``by_device`` has the report of each target, as ``survey`` gives it.

    Raises:
        EnvironmentMissing: matplotlib is not installed.
        UsageError: the file cannot be written.
    """
    pyplot = pyplot_or_say()
    columns = min(3, len(by_device))
    lines = -(-len(by_device) // columns)
    width, height = PANEL_INCHES
    figure, axes = pyplot.subplots(lines, columns, figsize=(width * columns, height * lines), squeeze=False, sharey=True)
    for axis in axes.flat[len(by_device) :]:
        axis.set_visible(False)
    for axis, (device, report) in zip(axes.flat, by_device.items(), strict=False):
        for mode, (colour, dash, thick) in reversed(list(_LINES.items())):  # the chosen one is drawn last, on top
            if mode in report["latency"]:
                points = sorted((int(n), value) for n, value in report["latency"][mode].items())
                axis.plot(*zip(*points, strict=True), color=colour, linestyle=dash, linewidth=thick, label=mode)
        axis.axhline(1 / 0.97, color="black", linewidth=0.6, alpha=0.5)
        axis.set_xscale("log", base=2)
        axis.set(title=device, xlabel="measurements", ylim=(0.97, WORST))
        axis.set_xticks([1, 4, 16, 64, 256], labels=["1", "4", "16", "64", "256"])
        axis.grid(visible=True, alpha=0.25)
    for line in axes:
        line[0].set_ylabel("latency of the best found / best")
    handles, names = axes.flat[0].get_legend_handles_labels()
    axes.flat[0].legend(handles[::-1], names[::-1], fontsize="small")
    figure.suptitle(title)
    figure.tight_layout()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=DPI)
    except OSError as error:
        raise UsageError(f"cannot write {path} ({error.strerror}); name another place with --out") from error
    finally:
        pyplot.close(figure)


def pyplot_or_say() -> Any:
    """Matplotlib's pyplot without a display; EnvironmentMissing says how to get it."""
    try:
        matplotlib = importlib.import_module("matplotlib")
    except ImportError as error:
        raise EnvironmentMissing("the plots need matplotlib; get it with: pip install 'haotuner[bench]'") from error
    matplotlib.use("Agg")
    return importlib.import_module("matplotlib.pyplot")


def plots_beside(page: Path) -> Path:
    """The folder for a page's plots: its name less the suffix, or with ``-plots`` where it has none.

    Raises:
        UsageError: a file of that name is there.
    """
    folder = page.with_suffix("") if page.suffix else page.with_name(f"{page.name}-plots")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--out {page}: its plots go into the folder {folder}, which is a file; name another page")
    return folder
