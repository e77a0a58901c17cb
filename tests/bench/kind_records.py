"""``python -m tests.bench.kind_records --db STORE``: times kernels of every kind of product on seeded ops, for kind_models.

Ops and shapes are drawn, a few of each kind, none of them an op that ``kind_search`` judges. Of each op the candidates that
selection keeps and some random ones are timed hot, on one thread, until the time asked for is over: a further round of ops
goes on where the last one ended, and what the store has is not measured again. ``--device cpu:avx2`` measures another
instruction set of the host; ``--write`` puts the times into ``tests/bench/records/kinds``, where ``shared_cpu`` reads them.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator

import numpy as np

from haotuner.backends.index import backend_for
from haotuner.host.cache_folder import cache_folder
from haotuner.hw_profiles.find import find_device
from haotuner.records import open_store
from haotuner.search.grid_search import expectation
from haotuner.search.select.funnel import select
from haotuner.search.task import Task
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from haotuner.spec.traffic import Traffic
from haotuner.tuning.initial_model import start_of
from tests.bench.kind_search import OPS, times
from tests.bench.own_records import KINDS, OwnRecords

Drawn = tuple[str, list[dict[str, int]]]
SHAPES = 4
MORE = 12  # random points beside those that selection keeps
ROWS = ((1, 2, 4, 6), (12, 24, 36), (48, 60, 72, 120), (168, 240, 360))  # that whole tiles of many heights cover
TYPES = ("", ",dtype=bf16", ",dtype=int8")


def _power(draw: np.random.Generator, least: int, most: int, step: int = 1) -> int:
    """Log-uniform, a multiple of ``step``."""
    return max(step, round(float(np.exp(draw.uniform(np.log(least), np.log(most)))) / step) * step)


def _images(draw: np.random.Generator, channels: int) -> list[dict[str, int]]:
    most = max(10, min(64, int((1 << 19) / channels) ** 0.5))  # two million bytes of fp32, so that a trial stays short
    return [{"b": int(draw.integers(1, 4)), "h": _power(draw, 7, most), "w": _power(draw, 7, most)} for _ in range(SHAPES)]


def _conv(draw: np.random.Generator, kind: str) -> Drawn:
    c, f, taps = _power(draw, 8, 256, 4), _power(draw, 8, 256, 4), int(draw.choice([1, 3, 3, 5]))
    layout = "" if draw.random() < 0.5 and kind != ",dtype=int8" else ",layout=nhwc"
    pad = f",pad={taps // 2}" if taps > 1 else ""
    stride = ",stride=2" if draw.random() < 0.25 else ""
    return f"conv2d:c={c},f={f},r={taps},s={taps}{pad}{stride}{kind}{layout}", _images(draw, max(c, f))


def _first(draw: np.random.Generator, kind: str) -> Drawn:
    """Channels first, where three families compete, up to as many channels as nets end in."""
    c, f, taps = _power(draw, 16, 1024, 16), _power(draw, 16, 1024, 16), int(draw.choice([1, 1, 3, 3, 5]))
    pad = f",pad={taps // 2}" if taps > 1 else ""
    stride = ",stride=2" if draw.random() < 0.3 else ""
    return f"conv2d:c={c},f={f},r={taps},s={taps}{pad}{stride}{kind}", _images(draw, max(c, f))


def _depthwise(draw: np.random.Generator, kind: str) -> Drawn:
    c, taps = _power(draw, 16, 512, 8), int(draw.choice([3, 5]))
    layout = "" if draw.random() < 0.5 else ",layout=nhwc"
    return f"conv2d:c={c},f={c},r={taps},s={taps},pad={taps // 2},groups={c}{kind}{layout}", _images(draw, c)


def _batch_matmul(draw: np.random.Generator, kind: str) -> Drawn:
    layout = str(draw.choice(["nn", "nt"]))
    sizes = [{"b": int(draw.integers(1, 16)), "m": _power(draw, 4, 300), "n": _power(draw, 8, 300)} for _ in range(SHAPES)]
    return f"batch_matmul:k={_power(draw, 16, 256, 8)},layout={layout}{kind}", sizes


def _dense(draw: np.random.Generator, kind: str) -> Drawn:
    n, k = _power(draw, 64, 2048, 16), _power(draw, 64, 2048, 16)
    return f"dense:n={n},k={k}{kind}", [{"m": int(draw.choice(rows))} for rows in ROWS]


PLAIN = (_first, _conv, _batch_matmul, _depthwise)  # dense fp32 has models of its own
TYPED = (_conv, _batch_matmul, _dense)  # depthwise is measured in fp32


def drawn(seed: int, types: tuple[str, ...] = ("fp32", "bf16", "int8")) -> Iterator[Drawn]:
    """Rounds without an end: in each an op of every kind and of these types."""
    draw, judged = np.random.default_rng(seed), {Op.parse(text).name for text, _ in OPS}
    while True:
        for kind in (dtype for dtype in TYPES if (dtype.removeprefix(",dtype=") or "fp32") in types):
            makers = TYPED if kind else PLAIN
            for sample in (maker(draw, kind) for maker in makers):
                if Op.parse(sample[0]).name not in judged:
                    yield sample


def main() -> None:
    """Measure until the time is over."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--db", required=True, help="a store, such as sqlite:////tmp/kinds.db")
    words.add_argument("--minutes", type=float, default=15.0)
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--types", default="fp32,bf16,int8", help="of ops, to measure some alone")
    words.add_argument("--kernels", type=int, default=10**6, help="of an op at most so many, drawn: more ops in the time")
    words.add_argument("--only", default="", help="kinds of ops, as in dense,batch_matmul; by default all")
    words.add_argument("--device", default="cpu", help="cpu, cpu:avx2, cpu:sse")
    words.add_argument(
        "--write", action="store_true", help="measure nothing: write what the store has of the device as text"
    )
    args = words.parse_args()
    device, end = find_device(args.device, cache_dir=cache_folder(os.environ)), time.monotonic() + 60 * args.minutes
    if args.write:
        records = [record for record in open_store(args.db).records() if record.device_id == device.id]
        print(OwnRecords.of_repeats(device, records).write(KINDS))
        return
    for text, sizes in drawn(args.seed, tuple(args.types.split(","))):
        if time.monotonic() > end:
            return
        op = Op.parse(text)
        if args.only and op.kind not in args.only.split(","):
            continue
        traffic = Traffic.of([(Shape.of(size), 1.0) for size in sizes])
        for family in backend_for(device).searched(op, device):
            task = Task(op=op, traffic=traffic, threads=(1,), cache="hot", budget_s=60.0)
            score = expectation(task, family, device, start_of(None, device, family.name).model)
            survivors = [candidate.kernel for candidate in select(op, family, device, traffic, score).candidates]
            rest = [candidate.kernel for candidate in select(op, family, device, traffic, score, most=10**6).candidates]
            rest = [kernel for kernel in rest if kernel not in survivors]
            more = np.random.default_rng(args.seed).permutation(len(rest))[:MORE]
            kernels = [*survivors, *(rest[at] for at in more)]
            if len(kernels) > args.kernels:
                places = np.random.default_rng(args.seed).choice(len(kernels), args.kernels, replace=False)
                kernels = [kernels[at] for at in sorted(places)]
            begun = time.monotonic()
            us = times(op, device, kernels, traffic, args.db)
            print(f"{op.name} {family.name}: {us.size} timed in {time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main()
