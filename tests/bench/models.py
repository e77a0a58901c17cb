"""Whole models beside peers: ``python -m tests.bench.models PACK NAME FILE.onnx SHAPES [--torch FILE.pt2] [--page FILE]``.

Appends a table of one model to a page: requests as traffic brings them, most sizes new; each contender is alone in its
process. ONNX Runtime and OpenVINO read the ONNX file; torch races where the model is had as a program of torch.export, too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from haotuner.bench.models import MODEL_PEERS, dims_of, parse_inputs, race, requests_of
from haotuner.runtime.pack import load


def main() -> int:
    """Race and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pack", type=Path)
    parser.add_argument("name")
    parser.add_argument("file", type=Path)
    parser.add_argument("shapes")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument(
        "--tuned", type=Path, help="what `haotuner tune --json` said: raced at its requests, predicted times told"
    )
    parser.add_argument("--given", default="", help="inputs whose elements matter: scales=0,1,0;lengths=seq")
    parser.add_argument("--torch", type=Path, help="the same model as torch.export.save wrote it")
    parser.add_argument("--page", type=Path)
    args = parser.parse_args()
    files = [item for item in (args.file, args.torch) if item is not None]
    with load(args.pack, threads=args.threads) as pack:
        model = pack.model(args.name)
        predicted = _predicted(args.tuned, args.name, args.threads)
        requests = [dict(sizes) for sizes in predicted] or requests_of(args.shapes, dims_of(model))
        document = race(
            model, files, requests, MODEL_PEERS, threads=args.threads, seconds=args.seconds,
            environment=dict(os.environ),
            input_values=parse_inputs(args.given, [end.name for end in model.inputs], dims_of(model)),
        )  # fmt: skip
    peers = [peer for peer in MODEL_PEERS if peer not in document["missing"]]
    lines = [f"\n## {args.name}, {args.shapes}, threads: {args.threads}\n"]
    lines.append(f"| size | new, ms | steady, ms | {' | '.join(f'{peer} new / steady' for peer in peers)} | vs best |")
    lines.append("|---" * (4 + len(peers)) + "|")
    for row in sorted(document["rows"], key=lambda item: list(item["shape"].values())):
        best = min((item["ratio"] for item in row["peers"].values()), default=float("nan"))
        times = [f"{row['peers'][p]['first_us'] / 1e3:.1f} / {row['peers'][p]['steady_us'] / 1e3:.1f}" for p in peers]
        size = " x ".join(map(str, row["shape"].values()))
        lines.append(
            f"| {size} | {row['first_us'] / 1e3:.1f} | {row['steady_us'] / 1e3:.1f} | {' | '.join(times)} | {best:.2f} |"
        )
    lines += _beside(predicted, document["rows"])
    summary = document["summary"]
    if summary["geomean_vs_best"] is not None:
        stream = ", ".join(f"{peer} {ratio:.2f}" for peer, ratio in summary["stream_vs"].items())
        mean = f"{summary['geomean_vs_best']:.2f}"
        lines.append(f"\nSteady against the best peer, geometric mean: **{mean}**. All new sizes once: {stream}.")
    for word, scale, key in (("Load, ms", 1, "load_ms"), ("Peak memory, MB", 1e6, "peak_bytes")):
        lines.append(f"{word}: " + ", ".join(f"{who} {value / scale:,.0f}" for who, value in summary[key].items()) + ".")
    lines += [_absent(peer, args.torch) for peer in document["missing"]]
    text = "\n".join(lines) + "\n"
    print(text)
    if args.page:
        with args.page.open("a", encoding="utf-8") as page:
            page.write(text)
    return 0


def _absent(peer: str, program: Path | None) -> str:
    """Why a peer has no column."""
    return f"{peer}: {'no torch module of this model' if peer == 'torch' and program is None else 'left out, it failed'}."


Sizes = tuple[tuple[str, int], ...]


def _predicted(tuned: Path | None, name: str, threads: int) -> dict[Sizes, dict[str, float]]:
    """What tuning expected of each of its requests, by their sizes; nothing without its JSON."""
    if tuned is None:
        return {}
    (model,) = [entry for entry in json.loads(tuned.read_text())["models"] if entry["name"] == name]
    return {
        tuple((part.split("=")[0], int(part.split("=")[1])) for part in shape_text.split(";")): us
        for shape_text, us in model["predicted_us"][str(threads)].items()
    }


def _beside(predicted: Mapping[Sizes, Mapping[str, float]], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Predicted times beside those of the race."""
    measured = {tuple(row["shape"].items()): row["steady_us"] for row in rows}
    lines = ["", "| size | predicted ms: products + groups | measured ms | predicted / measured |", "|---|---|---|---|"]
    ratios = []
    for sizes, us in predicted.items():
        ratios.append(us["all"] / measured[sizes])
        size = " x ".join(str(extent) for _, extent in sizes)
        parts = f"{us['products'] / 1e3:.1f} + {us['groups'] / 1e3:.1f}"
        lines.append(f"| {size} | {parts} | {measured[sizes] / 1e3:.1f} | {ratios[-1]:.2f} |")
    return [*lines, f"\nPredicted over measured, median: **{statistics.median(ratios):.2f}**."] if ratios else []


if __name__ == "__main__":
    sys.exit(main())
