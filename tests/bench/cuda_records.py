"""Expectation and record of CUDA kernels, and what a model of two ops knows of a third.

``python -m tests.bench.cuda_records`` reads ``tests/bench/records/cuda`` and writes its sections of
``docs/results/cuda-h200.md``; any machine gives the same figures. ``--db sqlite:///FILE``, once for each store of a device,
writes what was timed there to that folder first. A task is an op and a number of rows; in it compete all kernels that were
timed at it, alone or with their sum over k in parts.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd

from haotuner.cost.expected import adding_us, in_parts_of
from haotuner.cost.families import demand
from haotuner.cost.features import NAMES, RING_FEATURES, features
from haotuner.cost.forest import Forest, Settings
from haotuner.cost.model import Scores
from haotuner.cost.roofline import expected_us, roofline_us
from haotuner.cost.scores import best_at
from haotuner.hw_profiles.find import find_device
from haotuner.microkernels.index import family_named
from haotuner.records import open_store
from haotuner.spec.composition import Composition, sum_parts
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.bench.own_records import FOLDER, OwnRecords
from tests.bench.sections import section_written
from tests.bench.transfer_use import markdown

RECORDS = FOLDER / "cuda"
FEWEST = 6  # kernels of a task that is judged
NEAR = 0.97  # of the best time of a task: a search may end there
BANDS = ((1, 8), (9, 32), (33, 128), (129, 512), (513, 10**6))
COLUMNS = (*NAMES, *(feature.name for feature in RING_FEATURES))
EXPECTED = """Expected over measured: kernels alone by rows, and those with their sum over k in parts; weights cold.
Made by `python -m tests.bench.cuda_records`."""
RANKED = f"""Means over the numbers of rows at which {FEWEST} kernels or more were timed. Best: the least time of
all over that of the first choices. Trials: kernels timed in the order of the ranking until one is within {1 - NEAR:.0%} of
the best. *Learned*: a forest of the other ops' records, no row of this op; the records are what searches chose to time."""


def table(own: OwnRecords, device: Device) -> pd.DataFrame:
    """One row a record of a single region: op, family, m, parts, us, what the roofline expects, label, and the features."""
    rows = []
    for trial, us in own.us.items():
        parts = Composition.parse(trial.kernel).parts
        if len(parts) == 1 and trial.weights == "cold":
            kernel = MicroKernel.parse(parts[0].kernel)
            rows.append((trial.op.name, kernel.family, sum_parts(trial.split), kernel, trial.shape["m"], us))
    frame = pd.DataFrame(rows, columns=["op", "family", "parts", "kernel", "m", "us"])
    groups = [_priced(group, device) for _, group in frame.groupby(["op", "family", "parts"])]
    return pd.concat(groups, ignore_index=True)


def _priced(group: pd.DataFrame, device: Device) -> pd.DataFrame:
    """A family's rows of one op, in as many parts each."""
    op, family, parts = Op.parse(group["op"].iloc[0]), family_named(group["family"].iloc[0]), int(group["parts"].iloc[0])
    shapes, problem = [Shape.of(m=m) for m in group["m"]], in_parts_of(op, parts)
    pairs = list(zip(group["kernel"], shapes, strict=True))
    adding = np.array([adding_us(op, device, shape, parts) for shape in shapes])
    roof = np.asarray(roofline_us(device, problem, shapes), np.float64)
    us = group["us"].to_numpy()
    priced = group.assign(
        expected=expected_us(device, demand(device, family, problem, pairs)) + adding,
        roof=roof,
        adding=adding,
        label=np.log(roof / np.maximum(us - adding, 0.2 * us)),  # as the search's surface has it
    )
    frame = features(device, family, problem, pairs, weights="cold")
    return pd.concat([priced.reset_index(drop=True), frame.reset_index(drop=True)], axis=1)


def learned(frame: pd.DataFrame, op: str) -> Scores:
    """Microseconds of an op's rows, by a forest of all other ops' rows."""
    mine = frame["op"] == op
    forest = Forest(settings=Settings(columns=COLUMNS)).fit(frame.loc[~mine, list(COLUMNS)], frame.loc[~mine, "label"])
    predicted = forest.predict(frame.loc[mine, list(COLUMNS)])
    rows = frame[mine]
    return np.asarray(rows["roof"] / np.exp(predicted) + rows["adding"], np.float64)


def ranked(rows: pd.DataFrame, scores: Scores) -> list[str]:
    """Rank correlation, best@1, its worst, best@3 and @10, trials to be near: means over tasks."""
    lines = []
    for _, task in rows.assign(said=scores).groupby("m"):
        if len(task) >= FEWEST:
            rate, score = 1.0 / task["us"].to_numpy(), -task["said"].to_numpy()
            near = next(k for k in range(1, len(task) + 1) if best_at(score, rate, k) >= NEAR)
            lines.append(
                (task["said"].corr(task["us"], method="spearman"), *(best_at(score, rate, k) for k in (1, 3, 10)), near)
            )
    means = np.mean(lines, axis=0)
    worst = min(row[1] for row in lines)
    return [f"{means[0]:.2f}", f"{means[1]:.3f}", f"{worst:.3f}", f"{means[2]:.3f}", f"{means[3]:.3f}", f"{means[4]:.1f}",
            str(len(lines))]  # fmt: skip


def ratios(frame: pd.DataFrame) -> Iterator[list[str]]:
    """Expected over measured, by op, family and rows."""
    for (op, family), group in frame.groupby(["op", "family"]):
        for first, last in BANDS:
            yield from _ratio(group[(group["parts"] == 1) & group["m"].between(first, last)], f"{op}", family, f"{first} on")
        yield from _ratio(group[group["parts"] > 1], f"{op}", family, "in parts")


def _ratio(rows: pd.DataFrame, *named: str) -> Iterator[list[str]]:
    if len(rows):
        ratio = (rows["expected"] / rows["us"]).to_numpy()
        low, middle, high = np.quantile(ratio, (0.1, 0.5, 0.9))
        deviation = float(np.log(ratio).std())
        yield [*named, str(len(rows)), f"{middle:.2f}", f"{low:.2f}", f"{high:.2f}", f"{deviation:.2f}"]


def gathered(stores: Sequence[str], folder: Path) -> Path:
    """What the stores of one device hold, as its file."""
    opened = [open_store(url) for url in stores]
    records = list(chain.from_iterable(store.records() for store in opened))
    for store in opened:
        store.close()
    (device,) = {record.device_id for record in records}
    return OwnRecords.of(find_device(device, measure=False), records, most=1).write(folder)


def main() -> None:
    """Gather, compare, write."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--db", action="append", default=[])
    words.add_argument("--records", type=Path, default=RECORDS)
    words.add_argument("--out", type=Path, default=Path("docs/results"))
    args = words.parse_args()
    if args.db:
        gathered(args.db, args.records)
    for path in sorted(args.records.glob("*.json")):
        own = OwnRecords.read(path)
        device = find_device(own.device.id, measure=False)
        frame, page = table(own, device), args.out / f"cuda-{device.id}.md"
        if not page.exists():
            page.write_text(f"# CUDA kernels on {own.device.name}\n", encoding="utf-8")
        head = ["op", "family", "rows", "times", "median", "10 %", "90 %", "deviation of the log"]
        section_written(page, "Expected and measured", "\n".join([EXPECTED, "", *markdown([head, *ratios(frame)])]))
        lines = [["op", "ranked by", "rank correlation", "best@1", "worst", "best@3", "best@10", "trials", "tasks"]]
        for op, rows in frame.groupby("op"):
            lines += [
                [op, "roofline", *ranked(rows, rows["expected"].to_numpy())],
                [op, "learned", *ranked(rows, learned(frame, op))],
            ]
        section_written(page, "Ranking, and a model of the other ops", "\n".join([RANKED, "", *markdown(lines)]))


if __name__ == "__main__":
    main()
