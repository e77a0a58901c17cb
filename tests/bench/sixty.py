"""Sixty sizes a kind that nothing was tuned for, against the best peer at each, and writes docs/results/sixty.md.

    python -m tests.bench.sixty [KIND ...] [--threads 1,2] [--budget 20s] [--seconds-per-row 0.5] [--seed 1] [--cold]

A kind is a few ops; each is tuned once for its whole range, and raced at sizes drawn from it by the seed, log-uniform,
weights hot or, with ``--cold``, out of cache, as a server's layers find them.
Every library computes with its results checked; the page has means, the share of sizes lost, and the worst ones. Run it on a
quiet machine; kinds that are not named stay as they are in the page.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from haotuner.bench.compare import contest_of, facts_of, finish
from haotuner.hw_profiles.find import find_device
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape, ShapeRange
from haotuner.spec.workloads import workload_shapes
from tests.bench.cpu_dense import haotuner, machine
from tests.bench.operators import with_section

PEERS = ("torch", "onednn", "openvino", "onnxruntime")
SIZES = 60  # of a kind, shared by its ops
BLOCK_S = 0.02  # five rounds of it for each contender at the least
LOST, FAR = 0.95, 0.85  # a size is lost, or far behind, where its whole 95 % interval lies under these
WORST = 6  # sizes that the page names
_ROWS, _WIDE, _NARROW, _LINE = "m=1..512", "b=1..8;h=14..112;w=h", "b=1..8;h=7..28;w=h", "b=1..2;w=200..4000"
KINDS: dict[str, tuple[tuple[str, str], ...]] = {
    "epilogues": (
        ("dense:n=3072,k=768,epilogue=bias+gelu", _ROWS), ("dense:n=768,k=3072,epilogue=bias+residual", _ROWS),
        ("dense:n=1000,k=600,epilogue=bias+relu", _ROWS), ("dense:n=512,k=512,epilogue=bias+silu", _ROWS),
    ),
    "batched": (
        ("batch_matmul:k=64,layout=nt", "b=1..96;m=1..512;n=m"), ("batch_matmul:n=64", "b=1..96;m=1..512;k=m"),
        ("batch_matmul:k=80,layout=nt", "b=1..48;m=1..256;n=1..512"),
        ("batch_matmul:n=96,layout=tn", "b=1..24;m=1..256;k=16..256"),
    ),
    "conv2d": (
        ("conv2d:c=3,f=64,r=7,s=7,stride=2,pad=3,epilogue=bias+relu", "b=1..8;h=64..256;w=32..256"),
        ("conv2d:c=64,f=64,r=3,s=3,pad=1,epilogue=bias+relu", _WIDE),
        ("conv2d:c=256,f=64,r=1,s=1,epilogue=bias+relu", _WIDE),
        ("conv2d:c=128,f=128,r=3,s=3,stride=2,pad=1,epilogue=bias+relu", _WIDE),
        ("conv2d:c=512,f=512,r=3,s=3,pad=1,epilogue=bias+relu", _NARROW),
        ("conv2d:c=96,f=160,r=1,s=1,layout=nhwc,epilogue=bias+hardswish", _NARROW),
    ),
    "depthwise": (
        ("conv2d:c=72,f=72,r=5,s=5,stride=2,pad=2,groups=72,epilogue=bias+relu", _WIDE),
        ("conv2d:c=184,f=184,r=3,s=3,pad=1,groups=184,epilogue=bias+hardswish", _NARROW),
        ("conv2d:c=96,f=96,r=5,s=5,pad=2,groups=96,layout=nhwc,epilogue=bias+hardswish", _NARROW),
    ),
    "conv1d": (
        ("conv1d:c=192,f=384,s=5,pad=2,epilogue=bias", _LINE),
        ("conv1d:c=32,f=32,s=11,pad=25,dilation=5,epilogue=bias", _LINE),
        ("conv1d:c=96,f=96,s=3,pad=3,dilation=3,layout=nwc,epilogue=bias+relu", _LINE),
    ),
    "transposed": (
        ("conv_transpose2d:c=64,f=64,r=4,s=4,stride=2,pad=1,epilogue=bias", "b=1..4;h=8..56;w=h"),
        ("conv_transpose2d:c=24,f=24,r=2,s=2,stride=2,epilogue=bias+relu", "b=1..4;h=16..160;w=16..160"),
        ("conv_transpose1d:c=128,f=64,s=16,stride=8,pad=4,epilogue=bias", "b=1..2;w=50..1000"),
        ("conv_transpose1d:c=64,f=32,s=4,stride=2,pad=1,epilogue=bias", "b=1..2;w=400..8000"),
    ),
    "bf16": (
        ("dense:n=1024,k=768,dtype=bf16,epilogue=bias+gelu", _ROWS),
        ("batch_matmul:k=64,layout=nt,dtype=bf16", "b=1..48;m=1..256;n=m"),
        ("conv2d:c=64,f=64,r=3,s=3,pad=1,dtype=bf16,layout=nhwc,epilogue=bias+relu", _NARROW),
        ("conv2d:c=256,f=64,r=1,s=1,dtype=bf16,layout=nhwc,epilogue=bias+relu", _NARROW),
        ("conv2d:c=72,f=72,r=3,s=3,pad=1,groups=72,dtype=bf16,layout=nhwc,epilogue=bias+relu", _NARROW),
    ),
    "int8": (
        ("dense:n=1024,k=768,dtype=int8,out=uint8,epilogue=scale+bias+relu", _ROWS),
        ("dense:n=768,k=768,dtype=int8,out=fp32,epilogue=scale+bias", _ROWS),
        ("conv2d:c=64,f=64,r=3,s=3,pad=1,dtype=int8,layout=nhwc,out=uint8,epilogue=scale+bias+relu", _NARROW),
        ("conv2d:c=256,f=64,r=1,s=1,dtype=int8,layout=nhwc,out=uint8,epilogue=scale+bias+relu", _NARROW),
    ),
}  # fmt: skip
KINDS |= {net: tuple(workload_shapes(net).items()) for net in ("resnet50", "mobilenet_v3")}  # every layer, odd resolutions
HEAD = """# Sixty sizes a kind

Made by `python -m tests.bench.sixty`, each kind by the command it names: sizes drawn by a seed from the tuned range, weights
hot where a title does not say cold.
Ratios are a peer's time over ours: more than 1 means that we are faster; *best* is the best peer at each size. *lost* and
*far*: sizes whose whole 95 % interval lies under 0.95 and 0.85. A peer that is wrong, or cannot compute an op, is left out.
"""


def main() -> None:
    """Tune, race, write."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("kinds", nargs="*", default=list(KINDS), metavar="KIND", help=", ".join(KINDS))
    words.add_argument("--threads", default="1,2")
    words.add_argument("--budget", default="20s")
    words.add_argument("--seconds-per-row", default="0.5")
    words.add_argument("--seed", type=int, default=1)
    words.add_argument("--cold", action="store_true", help="weights come from memory at each call")
    words.add_argument("--page", type=Path, default=Path("docs/results/sixty.md"))
    args = words.parse_args()
    for kind in args.kinds:
        rows: list[Any] = []
        command = f"python -m tests.bench.sixty {kind} --threads {args.threads} --budget {args.budget}"
        command += f" --seconds-per-row {args.seconds_per_row} --seed {args.seed}" + " --cold" * args.cold
        with tempfile.TemporaryDirectory() as folder:
            for index, (spec, shapes) in enumerate(KINDS[kind]):
                pack = Path(folder) / str(index)
                tuned = haotuner(
                    "tune", "--op", spec, "--shapes", shapes, "--out", str(pack), "--threads", args.threads,
                    "--budget", args.budget, "--peers", "none", "-q",
                )  # fmt: skip
                rows += raced(pack, Op.parse(spec), ShapeRange.parse(shapes), -(-SIZES // len(KINDS[kind])), args)
        page = args.page.read_text(encoding="utf-8") if args.page.exists() else HEAD
        title = f"{kind}, weights cold" if args.cold else kind
        text = [f"## {title}", "", f"`{command}`", "", machine(tuned), "", *section(rows)]
        args.page.write_text(with_section(page, title, "\n".join(text)), encoding="utf-8")


def raced(pack: Path, op: Op, shapes: ShapeRange, count: int, args: argparse.Namespace) -> list[Any]:
    """The rows of one op at so many drawn sizes."""
    contest = contest_of(
        pack, environment=dict(os.environ), ops=[op], shapes=drawn(op, shapes, count, args.seed), against=PEERS,
        device=find_device("cpu", measure=False), threads=tuple(int(count) for count in args.threads.split(",")),
        weights=("cold" if args.cold else "hot",), block_s=BLOCK_S,
        seconds_per_row=float(args.seconds_per_row), noise_floor=False,
    )  # fmt: skip
    rows: list[Any] = finish(contest, facts_of(pack, None), _told)["rows"]
    return rows


def _told(row: Any, done: int, rows: int) -> None:
    print(f"{done} of {rows}: {row['best']}", file=sys.stderr, flush=True)


def drawn(op: Op, shapes: ShapeRange, count: int, seed: int) -> list[Shape]:
    """Sizes of an op, log-uniform in its ranges; each once."""
    draw, shapes_ = np.random.default_rng([seed, *op.name.encode()]), dict[Shape, None]()
    for _ in range(100 * count):  # a narrow range may hold fewer
        logs = {axis: draw.uniform(math.log(span.first), math.log(span.last)) for axis, span in shapes.spans}
        own = {axis: round(math.exp(value)) for axis, value in logs.items()}
        own |= {axis: own[to] for axis, to in shapes.tied}
        shapes_[Shape.of(own)] = None
        if len(shapes_) == count:
            break
    return list(shapes_)


def section(rows: Sequence[Any]) -> list[str]:
    """Means by thread count, over all ops and by op, then the worst sizes."""
    lines = [f"| op | threads | sizes | best | {' | '.join(PEERS)} | lost | far |", "|" + "---|" * (6 + len(PEERS))]
    ops = list(dict.fromkeys(row["op"] for row in rows))
    for threads in dict.fromkeys(row["threads"] for row in rows):
        for op in (None, *ops):
            some = [row for row in rows if row["threads"] == threads and row["best"] and op in (None, row["op"])]
            means = [_mean([row["ratios"][peer]["ratio"] for row in some if peer in row["ratios"]]) for peer in PEERS]
            tops = [row["best"]["high"] for row in some if row["best"]["high"] is not None]
            lost = [sum(top < bar for top in tops) for bar in (LOST, FAR)]
            best = _mean([row["best"]["ratio"] for row in some])
            name = "**all**" if op is None else op
            lines.append(f"| {name} | {threads} | {len(some)} | {best} | {' | '.join(means)} | {lost[0]} | {lost[1]} |")
    worst = sorted((row for row in rows if row["best"]), key=lambda row: row["best"]["ratio"])[:WORST]
    text = [
        f"{row['op']} {' '.join(f'{axis}={size}' for axis, size in row['shape'].items())} on {row['threads']}: "
        f"{row['best']['ratio']:.2f} ({row['best']['peer']})"
        for row in worst
    ]
    contended = sum(bool(row["contended"]) for row in rows)
    evicted = sum(bool(row["evicted_bytes"]) for row in rows)
    read = f" Other memory was read between rounds of too few copies in {evicted} of them." if evicted else ""
    return [*lines, "", f"Worst: {'; '.join(text)}. Contended: {contended} of {len(rows)} rows.{read}"]


def _mean(ratios: Sequence[float]) -> str:
    return f"{math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f}" if ratios else "-"


if __name__ == "__main__":
    main()
