"""The picture of the front page, drawn from a results page: ``python -m tests.bench.length_picture``.

It reads the table of steady times of one model in ``docs/results/models.md`` and writes ``docs/images/length.svg``: for each
request the time of every peer over ours, beside the number of tokens. Nothing is measured here.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "results" / "models.md"
PICTURE = ROOT / "docs" / "images" / "length.svg"
SECTION = "bert_base, batch=1..4;seq=1..128, threads: 1"
NAMES = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "torch": "torch.compile"}
COLOURS = {"onnxruntime": "#1f6fb4", "openvino": "#c9741a", "torch": "#7a7a7a"}

Ratios = dict[str, list[tuple[int, float]]]


def ratios(text: str, section: str) -> Ratios:
    """Steady time of each peer over ours by number of tokens, of one section of the page; a size raced twice is averaged.

    Raises:
        ValueError: the page has no such section, or the section no table.
    """
    _, heading, rest = text.partition(f"\n## {section}\n")
    if not heading:
        raise ValueError(f"no section {section!r} in the page; its headings are the lines that begin with '## '")
    rows = [line.strip("| ").split("|") for line in rest.partition("\n## ")[0].splitlines() if line.startswith("|")]
    if len(rows) < 3:
        raise ValueError(f"the section {section!r} has no table of sizes")
    columns = [cell.strip() for cell in rows[0]]
    peers = [(at, cell.split()[0]) for at, cell in enumerate(columns) if "steady" in cell and "/" in cell]
    by_tokens: dict[str, dict[int, list[float]]] = {peer: defaultdict(list) for _, peer in peers}
    for row in rows[2:]:
        batch, length = (int(number) for number in re.findall(r"\d+", row[0]))
        ours = float(row[columns.index("steady, ms")])
        for at, peer in peers:
            by_tokens[peer][batch * length].append(float(row[at].split("/")[1]) / ours)
    return {peer: [(tokens, fmean(values)) for tokens, values in sorted(rows.items())] for peer, rows in by_tokens.items()}


def draw(lines: Ratios, path: Path) -> None:
    """Writes the picture; the same ratios give the same bytes."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "haotuner", "font.family": "sans-serif"})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.2, 3.4), layout="constrained")
    for peer, points in lines.items():
        tokens, times = zip(*points, strict=True)
        axes.plot(tokens, times, marker="o", markersize=4, linewidth=1.6, color=COLOURS[peer], label=NAMES[peer])
    axes.axhline(1.0, color="black", linewidth=2.2)
    axes.text(1.0, 0.97, "haotuner = 1", va="top", fontsize=9)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    tokens_shown, times_shown = [1, 2, 4, 8, 16, 32, 64, 128, 256], [1, 1.25, 1.5, 2, 3, 4]
    axes.set_xticks(tokens_shown, [str(tick) for tick in tokens_shown])
    axes.set_yticks(times_shown, [f"{tick:g}" for tick in times_shown])
    axes.minorticks_off()
    axes.set_ylim(0.85, None)
    axes.set_xlabel("tokens in the request (batch × length)")
    axes.set_ylabel("time of the other ÷ haotuner's")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, facecolor="white", metadata={"Date": None})
    pyplot.close(figure)
    lines_of_text = [line.rstrip() for line in path.read_text(encoding="utf-8").splitlines()]
    path.write_text("\n".join([*lines_of_text, ""]), encoding="utf-8")


def main() -> None:
    """Draws the picture from the page, or to another place with ``--out``."""
    reader = argparse.ArgumentParser(
        prog="python -m tests.bench.length_picture", description="Draws the front page's picture."
    )
    reader.add_argument("--section", default=SECTION)
    reader.add_argument("--out", type=Path, default=PICTURE)
    options = reader.parse_args()
    draw(ratios(PAGE.read_text(encoding="utf-8"), options.section), options.out)


if __name__ == "__main__":
    main()
