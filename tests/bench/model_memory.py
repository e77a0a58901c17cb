"""What a hundred sizes leave behind, and what a new one costs: ``python -m tests.bench.model_memory PACK MODEL SHAPES``.

The largest request runs twice; then sizes of the range that were not seen, each once new and three times again, in CPU time
of one thread. ``--keep``: the caller holds an answer until it has the next. ``--page`` appends a row.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import haotuner
from haotuner.bench.model_child import feeds_of
from haotuner.bench.models import dims_of
from haotuner.words.shape import ShapeRange

SIZES, AGAIN = 100, 3


def resident_mb() -> float:
    """What the process holds now."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096 / 1e6


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pack", type=Path)
    parser.add_argument("model")
    parser.add_argument("shapes", help="batch=1..8;seq=1..128")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--page", type=Path)
    asked = parser.parse_args(arguments)
    spans = {name: dict(ShapeRange.parse(f"e={said}").spans)["e"] for name, _, said in
             (part.partition("=") for part in asked.shapes.split(";"))}  # fmt: skip
    with haotuner.load(asked.pack, threads=1) as pack:
        model: Any = pack.model(asked.model)
        inputs = [{"name": end.name, "dtype": end.dtype.name, "shape": list(end.shape)} for end in model.inputs]
        kept: list[Any] = []

        def call(sizes: Mapping[str, int]) -> float:
            feeds = feeds_of(inputs, sizes, 0, {})
            begin = time.thread_time()
            answer = model.run(feeds)
            taken = time.thread_time() - begin
            if asked.keep:
                kept[:] = [answer]
            return taken

        draw, largest = random.Random(0), {name: spans[name].last for name in dims_of(model)}
        drawn = dict.fromkeys(tuple(draw.choice(spans[name].sample(400)) for name in largest) for _ in range(4 * SIZES))
        for _ in range(2):
            call(largest)
        before, ratios = resident_mb(), []
        for sizes in [dict(zip(largest, one, strict=True)) for one in drawn][:SIZES]:
            first = call(sizes)
            ratios.append(first / min(call(sizes) for _ in range(AGAIN)))
        after, held = resident_mb(), model.stats()
    how = "kept" if asked.keep else "dropped"
    row = (
        f"| {asked.model} | {asked.shapes} | {how} | {len(ratios)} | {before:.1f} / {after:.1f} | "
        f"{after / before:.3f} | {held['arena_bytes'] / 1e6:.1f} | {statistics.median(ratios):.3f} |"
    )
    print(row)
    if asked.page:
        with asked.page.open("a", encoding="utf-8") as page:
            page.write(row + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
