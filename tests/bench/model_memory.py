"""What a hundred sizes leave behind, what a new one costs, how long loading takes, what a pack weighs beside its weights.

``python -m tests.bench.model_memory --of PACK MODEL SHAPES [GIVEN] [--of …] [--keep] [--page FILE]``: each model in its own
process. The largest request runs twice; then sizes of the range that were not seen, each once new and three times again, in
CPU time of one thread. ``--keep``: the caller holds an answer until it has the next. ``GIVEN``: inputs by value, as
``input_lengths=phonemes;scales=0,1,0``. ``--page`` appends the rows of a table.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from haotuner.bench.model_child import feeds_of
from haotuner.bench.models import dims_of, parse_inputs
from haotuner.runtime.model import Chain
from haotuner.runtime.pack import load
from haotuner.spec.shape import ShapeRange

SIZES, AGAIN, LOADS = 100, 3, 5


def resident_mb() -> float:
    """What the process holds now."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096 / 1e6


def measured(pack_path: str, name: str, shapes: str, input_text: str = "", *, keep: bool) -> dict[str, Any]:
    """The figures of one model, in this process."""
    spans = {dim: dict(ShapeRange.parse(f"e={extent_text}").spans)["e"] for dim, _, extent_text in
             (part.partition("=") for part in shapes.split(";"))}  # fmt: skip
    begin, cpu = time.perf_counter(), time.process_time()
    with load(pack_path, threads=1) as pack:
        model: Any = pack.model(name)
        loaded = (time.perf_counter() - begin) * 1e3, (time.process_time() - cpu) * 1e3
        inputs = [{"name": end.name, "dtype": end.dtype.name, "shape": list(end.shape)} for end in model.inputs]
        fixed = parse_inputs(input_text, [end.name for end in model.inputs], dims_of(model))
        seed = {"seed": 0} if isinstance(model, Chain) else {}
        answers: list[Any] = []

        def call(sizes: Mapping[str, int]) -> float:
            feeds = feeds_of(inputs, sizes, 0, fixed)
            begin = time.thread_time()
            answer = model.run(feeds, **seed)
            seconds = time.thread_time() - begin
            if keep:
                answers[:] = [answer]
            return seconds

        draw, largest = random.Random(0), {dim: spans[dim].last for dim in dims_of(model)}
        drawn = dict.fromkeys(tuple(draw.choice(spans[dim].sample(400)) for dim in largest) for _ in range(4 * SIZES))
        for _ in range(2):
            call(largest)
        before, ratios = resident_mb(), []
        for sizes in [dict(zip(largest, extents, strict=True)) for extents in drawn][:SIZES]:
            first = call(sizes)
            ratios.append(first / min(call(sizes) for _ in range(AGAIN)))
        after, arena = resident_mb(), model.stats()
    return {
        "count": len(ratios), "before": before, "after": after, "arena": arena["arena_bytes"] / 1e6,
        "new": statistics.median(ratios), "load_ms": loaded[0], "load_cpu_ms": loaded[1],
    }  # fmt: skip


def row(of: Sequence[str], keep: bool) -> str:
    """A line of the table, each load in a new process."""
    every = [json.loads(_apart([*of], keep, loads_only=number > 0)) for number in range(LOADS)]
    first, (wall, cpu) = every[0], (min(run[key] for run in every) for key in ("load_ms", "load_cpu_ms"))
    pack = Path(of[0])
    weights = sum(path.stat().st_size for path in (pack / "models").glob("*.weights"))
    whole = sum(path.stat().st_size for path in pack.rglob("*") if path.is_file())
    return (
        f"| {of[1]} | {of[2]} | {'kept' if keep else 'dropped'} | {first['count']} | {first['before']:.1f} / "
        f"{first['after']:.1f} | {first['after'] / first['before']:.3f} | {first['arena']:.1f} | {first['new']:.3f} | "
        f"{wall:.0f} / {cpu:.0f} | {(whole - weights) / 1e6:.1f} |"
    )


def _apart(of: list[str], keep: bool, *, loads_only: bool) -> str:
    command = [sys.executable, "-m", "tests.bench.model_memory", "--child", json.dumps([of, keep, loads_only])]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _child(of: list[str], keep: bool, loads_only: bool) -> dict[str, Any]:
    if not loads_only:
        return measured(*of, keep=keep)
    begin, cpu = time.perf_counter(), time.process_time()
    with load(of[0], threads=1) as pack:
        pack.model(of[1])
        return {"load_ms": (time.perf_counter() - begin) * 1e3, "load_cpu_ms": (time.process_time() - cpu) * 1e3}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row a model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--of", nargs="+", action="append", default=[], metavar="PACK MODEL SHAPES [GIVEN]")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--page", type=Path)
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.child:
        print(json.dumps(_child(*args.child)))
        return 0
    for of in args.of:
        line = row(of, args.keep)
        print(line, flush=True)
        if args.page:
            with args.page.open("a", encoding="utf-8") as page:
                page.write(line + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
