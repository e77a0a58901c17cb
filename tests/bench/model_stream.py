"""A model under a stream of requests, beside peers; appends a table to a page.

    python -m tests.bench.model_stream PACK NAME FILE.onnx [--torch FILE.pt2] [--page FILE]

Requests are single sentences of lengths as in GLUE, or those of ``--shapes``. Each contender answers each once, in the order
of the stream, one running, the others stopped; who is first changes from request to request. torch compiles for every size
while it loads; the others see most sizes for the first time.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from haotuner.bench.contender import OURS
from haotuner.bench.models import MODEL_PEERS, contenders, dims_of, requests_of
from haotuner.bench.processes import ExclusiveRunner
from haotuner.runtime.pack import load
from tests.bench.encoder import lengths

BATCH = "batch"
RESAMPLED = 1000  # streams drawn for the interval of a ratio


def main() -> None:
    """Race and write."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("pack", type=Path)
    words.add_argument("name")
    words.add_argument("file", type=Path)
    words.add_argument("--torch", type=Path, help="the same model as torch.export.save wrote it")
    words.add_argument("--shapes", help="ranges or a trace [default: sentences, for a model of batch and tokens]")
    words.add_argument("--requests", type=int, default=1000)
    words.add_argument("--threads", type=int, default=1)
    words.add_argument("--page", type=Path)
    args = words.parse_args()
    files = [item for item in (args.file, args.torch) if item is not None]
    with load(args.pack, threads=args.threads) as pack:
        model = pack.model(args.name)
        requests = _requests(args, dims_of(model))
        with contenders(
            model, files, requests, MODEL_PEERS, threads=args.threads, environment=dict(os.environ), watch=print
        ) as (racing, _):
            times = streamed(racing, len(requests))
    text = "\n".join(table(args.name, times, len({tuple(item.items()) for item in requests}), args.threads)) + "\n"
    print(text)
    if args.page:
        with args.page.open("a", encoding="utf-8") as page:
            page.write(text)


def streamed(racing: Mapping[str, Any], count: int) -> dict[str, list[float]]:
    """Milliseconds of each request, by each contender that answered all."""
    turns, times = ExclusiveRunner(racing, print), dict[str, list[float]]()
    for index in range(count):
        for name, answer in turns.round(index, {"do": "answer", "place": index, "calls": 1, "seconds": 0.0}).items():
            times.setdefault(name, []).append(answer["us"][0] / 1e3)
    return {name: some for name, some in times.items() if len(some) == count}


def table(model: str, times: Mapping[str, Sequence[float]], sizes: int, threads: int) -> list[str]:
    """Markdown: a row a contender, and the ratio of each peer's time to ours with its 95 % interval."""
    count = len(times[OURS])
    lines = [f"\n## {model}: a stream of {count} requests of {sizes} sizes, threads: {threads}\n"]
    lines += ["| contender | p50 ms | p99 ms | requests/s | time over ours, paired (95 %) |", "|---|---|---|---|---|"]
    for name, some in times.items():
        low, mean, high = ratio(some, times[OURS])
        beside = "-" if name == OURS else f"{mean:.2f} ({low:.2f} to {high:.2f})"
        rate = 1e3 * count / sum(some)
        lines.append(f"| {name} | {statistics.median(some):.1f} | {np.quantile(some, 0.99):.1f} | {rate:.1f} | {beside} |")
    return lines


def ratio(peer: Sequence[float], ours: Sequence[float]) -> tuple[float, float, float]:
    """Geometric mean of a peer's time over ours, request by request, between the ends of its 95 % interval (bootstrap)."""
    logs = np.log(np.asarray(peer) / np.asarray(ours))
    draws = np.random.default_rng(0).choice(logs, (RESAMPLED, len(logs))).mean(1)
    low, high = np.quantile(draws, (0.025, 0.975))
    return math.exp(low), math.exp(logs.mean()), math.exp(high)


def _requests(args: argparse.Namespace, dims: Sequence[str]) -> list[dict[str, int]]:
    """The stream: rows of a trace, draws of ranges, or sentences, one a request."""
    if args.shapes is None:
        return [{name: 1 if name == BATCH else tokens for name in dims} for tokens in lengths(args.requests)]
    drawn = requests_of(args.shapes, dims)
    draw = np.random.default_rng(0)
    return drawn if len(drawn) >= args.requests else [drawn[at] for at in draw.choice(len(drawn), args.requests)]


if __name__ == "__main__":
    main()
