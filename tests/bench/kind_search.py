"""Does the order of candidates earn its place, kind by kind? ``python -m tests.bench.kind_search [OP …] [--out FILE]``.

Of each op the candidates that selection keeps and some random ones that it does not are timed at a few shapes, hot, on one
thread. Then the table is asked: how much slower is the best of the first 1, 4, 8, 16 than the best of all, at the geometric
mean over the shapes, in the order of the analysis, in that of the shipped model where there is one, and at random (the
median of many orders)? All orders read the same times, the least sample of three rounds. Writes
docs/results/kinds-search.md.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from haotuner.backends.index import backend_for
from haotuner.cost.model import CostModel
from haotuner.host.cache_folder import cache_folder
from haotuner.hw_profiles.find import find_device
from haotuner.measure.device_measurer import DeviceMeasurer
from haotuner.records import open_store
from haotuner.search.grid_search import expectation, predicted_us
from haotuner.search.select.funnel import select
from haotuner.search.task import Task
from haotuner.spec.composition import SERIAL, Composition
from haotuner.spec.device import Device
from haotuner.spec.family import Family
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.record import Record, Timed, Trial
from haotuner.spec.shape import Shape
from haotuner.spec.traffic import Traffic
from haotuner.tuning.initial_model import start_of

_IMAGES = ({"b": 1, "h": 14, "w": 14}, {"b": 2, "h": 20, "w": 31}, {"b": 1, "h": 45, "w": 45})
_ROWS = ({"m": 96}, {"m": 192}, {"m": 288})  # whole tiles of 1, 2, 3, 4, 6, 8, 12, 16, 24 and 32 rows cover them
OPS = (
    ("conv2d:c=32,f=48,r=3,s=3,pad=1", _IMAGES),
    ("conv2d:c=96,f=32,r=1,s=1,layout=nhwc", _IMAGES),
    ("conv2d:c=32,f=48,r=3,s=3,pad=1,dtype=bf16,layout=nhwc", _IMAGES),
    ("conv2d:c=48,f=40,r=3,s=3,pad=1,dtype=int8,layout=nhwc", _IMAGES),
    ("dense:n=700,k=300,dtype=int8", _ROWS),
    ("dense:n=700,k=300,dtype=bf16", _ROWS),
    ("batch_matmul:k=48,layout=nt", ({"b": 4, "m": 9, "n": 9}, {"b": 8, "m": 60, "n": 60}, {"b": 4, "m": 200, "n": 200})),
)
RANDOM, ORDERS = 24, 401  # further points of the space; random orders
ROUNDS = 3  # over all kernels, one after the other: a slow minute of the host meets no kernel in all of them
FIRST = (1, 4, 8, 16)
HEAD = """# Does the order of candidates earn its place, kind by kind?

Made by `python -m tests.bench.kind_search` on `{device}`, {date}, weights hot, one thread. *Loss*: the best of the first so
many candidates against the best of all that were timed, geometric mean over three shapes. *Analytic*: the roofline alone.
*Model*: the shipped one of the family; - where none is near. *Random*: the median of {orders} orders. A time is the least
sample of {rounds} rounds over all kernels: those that selection keeps, and {random} others. Dense layers: whole tiles.

| op | family | timed | order | first | first 4 | first 8 | first 16 |
|---|---|---|---|---|---|---|---|
"""


def main() -> None:
    """Time and write."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("ops", nargs="*", default=[op for op, _ in OPS])
    words.add_argument("--random", type=int, default=RANDOM, help="kernels beside those that selection keeps")
    words.add_argument("--most", type=int, default=10**6, help="of these at most so many, drawn: where there is less time")
    words.add_argument("--out", type=Path, default=Path("docs/results/kinds-search.md"))
    words.add_argument("--db", default="", help="a store that keeps the records, for kind_models")
    args = words.parse_args()
    device = find_device("cpu", cache_dir=cache_folder(os.environ))
    rows: list[str] = []
    for text in args.ops:
        op, shapes = Op.parse(text), dict(OPS)[text]
        traffic = Traffic.of([(Shape.of(shape), 1.0) for shape in shapes])
        for family in backend_for(device).searched(op, device):
            rows += rows_of(op, family, device, traffic, args.db, args.random, args.most)
            date = datetime.now(UTC).date().isoformat()
            args.out.write_text(
                HEAD.format(device=device.id, date=date, orders=ORDERS, rounds=ROUNDS, random=args.random)
                + "\n".join(rows)
                + "\n"
            )


def rows_of(op: Op, family: Family, device: Device, traffic: Traffic, db: str, count: int, most: int) -> list[str]:
    """A row an order."""
    task = Task(op=op, traffic=traffic, threads=(1,), cache="hot", budget_s=60.0)
    model = start_of(None, device, family.name).model
    score = expectation(task, family, device, model)
    every = [c.kernel for c in select(op, family, device, traffic, score, most=10**6).candidates]
    survivors = [c.kernel for c in select(op, family, device, traffic, score).candidates]
    rest = [kernel for kernel in every if kernel not in survivors]
    more = np.random.default_rng(0).permutation(len(rest))[:count]
    kernels = survivors + [rest[at] for at in more]
    if len(kernels) > most:
        kernels = [kernels[at] for at in sorted(np.random.default_rng(0).choice(len(kernels), most, replace=False))]
    us = times(op, device, kernels, traffic, db)
    sound = np.isfinite(us.max(axis=1)).tolist()
    kernels, us = [kernel for kernel, right in zip(kernels, sound, strict=True) if right], us[sound]
    scored: list[tuple[str, NDArray[np.float64] | None]] = []
    for name, scorer in (("analytic", None), ("model", model)):
        if name == "model" and scorer is None:
            scored.append(("model", None))
            continue
        scored.append((name, losses(us, order_of(task, family, device, scorer, kernels))))
    draw = np.random.default_rng(1)
    every_order = np.array([losses(us, draw.permutation(len(kernels))) for _ in range(ORDERS)])
    scored.append(("random", np.median(every_order, axis=0)))
    return [
        f"| {op.name} | {family.name} | {len(kernels)} | {name} | "
        + " | ".join("-" if loss is None else f"{share:.1%}" for share in (loss if loss is not None else FIRST))
        + " |"
        for name, loss in scored
    ]


def order_of(
    task: Task, family: Family, device: Device, model: CostModel | None, kernels: list[MicroKernel]
) -> NDArray[np.int64]:
    """Places of the kernels, best expectation first."""
    expected = predicted_us(task, family, device, model, kernels, task.traffic.shapes())
    return np.argsort(np.log(expected).mean(axis=1), kind="stable")


def losses(us: NDArray[np.float64], order: NDArray[np.int64]) -> NDArray[np.float64]:
    """Of the first so many of an order: each shape by the best of them."""
    best = us.min(axis=0)
    return np.array([np.exp(np.log(us[order[:count]].min(axis=0) / best).mean()) - 1 for count in FIRST])


def times(op: Op, device: Device, kernels: list[MicroKernel], traffic: Traffic, db: str) -> NDArray[np.float64]:
    """Microseconds, (kernels, shapes); infinite where a kernel failed."""
    with tempfile.TemporaryDirectory() as folder:
        lab = DeviceMeasurer(device, open_store(db or f"sqlite:///{folder}/records.db"), environment=dict(os.environ))
        lab.start()
        try:
            lab.prepare([kernel.name for kernel in kernels])
            rounds = [
                [[_us(record) for record in lab.measure(_trials(op, kernel, traffic, repeat))] for kernel in kernels]
                for repeat in range(ROUNDS)
            ]
            return np.asarray(np.min(rounds, axis=0), np.float64)
        finally:
            lab.close()


def _trials(op: Op, kernel: MicroKernel, traffic: Traffic, repeat: int = 0) -> list[Trial]:
    composition = Composition.of(kernel.name, share=SERIAL)
    return [Trial.of(op, composition, shape, cache="hot", repeat=repeat) for shape in traffic.shapes()]


def _us(record: Record) -> float:
    return min(record.outcome.samples_us) if isinstance(record.outcome, Timed) else np.inf


if __name__ == "__main__":
    main()
