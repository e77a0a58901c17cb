"""Whole models beside ONNX Runtime and OpenVINO: ``python -m tests.bench.models PACK NAME FILE.onnx SHAPES [--page FILE]``.

Appends a table of one model to a page: requests as traffic brings them, most sizes new; each contender is alone in its
process.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from haotuner.bench.models import MODEL_PEERS, race, requests_of
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
    parser.add_argument("--page", type=Path)
    asked = parser.parse_args()
    with load(asked.pack, threads=asked.threads) as pack:
        model = pack.model(asked.name)
        requests = requests_of(asked.shapes, model.dims)
        found = race(
            model, asked.file, requests, MODEL_PEERS, threads=asked.threads, seconds=asked.seconds,
            environment=dict(os.environ),
        )  # fmt: skip
    peers = [peer for peer in MODEL_PEERS if peer not in found["missing"]]
    lines = [f"\n## {asked.name}, {asked.shapes}, threads: {asked.threads}\n"]
    lines.append(f"| size | new, ms | steady, ms | {' | '.join(f'{peer} new / steady' for peer in peers)} | vs best |")
    lines.append("|---" * (4 + len(peers)) + "|")
    for row in sorted(found["rows"], key=lambda one: list(one["shape"].values())):
        best = min((one["steady_us"] for one in row["peers"].values()), default=float("nan"))
        times = [f"{row['peers'][p]['first_us'] / 1e3:.1f} / {row['peers'][p]['steady_us'] / 1e3:.1f}" for p in peers]
        size = " x ".join(map(str, row["shape"].values()))
        lines.append(
            f"| {size} | {row['first_us'] / 1e3:.1f} | {row['steady_us'] / 1e3:.1f} | {' | '.join(times)} | "
            f"{best / row['steady_us']:.2f} |"
        )
    told = found["summary"]
    if told["geomean_vs_best"] is not None:
        stream = ", ".join(f"{peer} {ratio:.2f}" for peer, ratio in told["stream_vs"].items())
        mean = f"{told['geomean_vs_best']:.2f}"
        lines.append(f"\nSteady against the best peer, geometric mean: **{mean}**. All new sizes once: {stream}.")
    for word, scale, key in (("Load, ms", 1, "load_ms"), ("Peak memory, MB", 1e6, "peak_bytes")):
        lines.append(f"{word}: " + ", ".join(f"{who} {value / scale:,.0f}" for who, value in told[key].items()) + ".")
    text = "\n".join(lines) + "\n"
    print(text)
    if asked.page:
        with asked.page.open("a", encoding="utf-8") as page:
            page.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
