"""Search policies on equal measurements: ``python -m tests.bench.policies [--record OP …] [--seeds 40] [--page FILE]``.

``--record`` times every point of an op's space that is not expected to be hopeless, hot, one thread, at the shapes below,
and keeps the table (``tests/bench/records/generated``); some minutes an op. Then every policy searches each table, with many
seeds: what it asks for is looked up, so that policies differ in nothing but their choices. Points are judged by the mean
logarithm of their time over the table's best at each shape.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from haotuner.codegen.space import Point, Space
from haotuner.cost.families import demand
from haotuner.cost.roofline import expected_us
from haotuner.hw_profiles.find import find_device
from haotuner.measure.device_measurer import DeviceMeasurer
from haotuner.microkernels.cpu.generated import CpuGenerated
from haotuner.microkernels.index import families_for
from haotuner.records import open_store
from haotuner.search.policies.evolution import Evolution
from haotuner.search.policies.index import POLICIES
from haotuner.search.policies.policy import Maker
from haotuner.search.policies.template import ONE_ROW
from haotuner.spec.composition import SERIAL, Composition
from haotuner.spec.device import Device
from haotuner.spec.op import Op
from haotuner.spec.record import Timed, Trial
from haotuner.spec.shape import Shape
from tests.bench.policies_bytes import section
from tests.bench.policies_tune import RECORD
from tests.bench.policies_tune import section as tuned

HOME = Path(__file__).with_name("records") / "generated"
SHAPES = tuple(Shape.of(m=m, n=n) for m, n in ((1, 9), (1558, 8), (310, 62), (236, 2083), (40, 9986)))
CHUNK = 96  # points built before they are timed
HOPELESS = 3.0  # times the best expectation, at every shape
BATCH, MOST = 8, 160  # points a round; measurements of a search
NEAR = (1.10, 1.05, 1.02)  # times the best of a table
MISSES = (
    "## What each misses",
    "",
    "- `template` fixes one row at a time and masked ends. Where programs of four rows are the best, as for layer_norm, it "
    "never finds them, however long it looks.",
    "- `beam` judges a program half-way with the first choice of all that is open. Rows and ends are decided last, so what "
    "needs them is dropped before, and comes back only when the beam is widened.",
    "- `random` knows nothing and misses nothing.",
    "- `evolution` starts from what programs are expected to take, as `beam` does. Crossover pays where there are several "
    "nodes to take decisions from (two reductions and the output, layer_norm); with one reduction (rms_norm) it makes no "
    "difference that these seeds show.",
    "",
    "## What falls short",
    "",
    "Evolution is to need at most half of random's measurements to within 5 % of the best. It misses this on small spaces: "
    "random is there after some ten of 40 to 81 points, and expectations put the best programs behind as many others. "
    "Tried on four ops that have no table here, 2026-12-01: ties broken by chance, points of a round kept apart, a third or "
    "half of the first rounds by chance. None was better there, so none was taken.",
)


class Mutation(Evolution):
    """The same without crossover, as Ansor's code has it: for comparison."""

    crosses = False


@dataclass(frozen=True, slots=True)
class Table:
    """Every point's times, of shape ``(points, shapes)``, and what was expected of them."""

    op: Op
    space: Space
    us: Mapping[Point, NDArray[np.float64]]
    expected: Mapping[Point, NDArray[np.float64]]
    device: str = ""  # that the times are of

    def scores(self) -> dict[Point, float]:
        """Mean log of the time over the best of each shape: 0 for a point that is the best everywhere."""
        best = np.min(list(self.us.values()), axis=0)
        return {point: float(np.log(us / best).mean()) for point, us in self.us.items()}


def family_of(op: Op) -> CpuGenerated:
    family = families_for(op, "cpu")[0]
    assert isinstance(family, CpuGenerated)
    return family


def expectations(op: Op, points: tuple[Point, ...], space: Space, device: Device) -> dict[Point, NDArray[np.float64]]:
    family = family_of(op)
    pairs = [(family.kernel_of(space.schedule(point), op), shape) for point in points for shape in SHAPES]
    us = expected_us(device, demand(device, family, op, pairs, weights="hot")).reshape(len(points), len(SHAPES))
    return dict(zip(points, us, strict=True))


def record(name: str, db: str) -> None:
    """Time an op's space on this host and write its table, a file an op and a device."""
    op, device = Op.parse(name), find_device("cpu")
    family, single_core = family_of(op), device.with_units(1)
    space = family.space(op, device)
    expected = expectations(op, space.points, space, single_core)
    best = np.min(list(expected.values()), axis=0)
    points = [point for point in space.points if (expected[point] <= HOPELESS * best).any()]
    lab = DeviceMeasurer(device, open_store(db), environment=dict(os.environ), resume=True)
    rows: dict[str, Any] = {}

    def name_of(point: Point) -> str:
        return family.kernel_of(space.schedule(point), op).name

    try:
        for at in range(0, len(points), CHUNK):
            trials = {
                point: [Trial.of(op, Composition.of(name_of(point), share=SERIAL), shape, cache="hot") for shape in SHAPES]
                for point in points[at : at + CHUNK]
            }
            lab.prepare(
                [name_of(point) for point, some in trials.items() if any(lab.known(trial) is None for trial in some)]
            )
            for point, some in trials.items():
                records = lab.measure(some)
                times = [r.outcome.median_us if isinstance(r.outcome, Timed) else float("inf") for r in records]
                rows["".join(map(str, point))] = [float(f"{us:.4g}") for us in times]
            print(name, len(rows), "of", len(points), flush=True)
    finally:
        lab.close()
    HOME.mkdir(exist_ok=True)
    shapes = [str(shape) for shape in SHAPES]
    numbers = {"id": device.id, "kind": device.kind, "name": device.name, "arch": device.arch, **device.numbers()}
    document = {"op": op.name, "device": numbers, "lanes": space.lanes, "shapes": shapes, "us": rows}
    (HOME / f"{op.name}-{device.id}.json").write_text(json.dumps(document, separators=(",", ":")) + "\n", encoding="utf-8")


def load(path: Path) -> Table:
    """A recorded table; a point that failed takes a thousand times the best."""
    document = json.loads(path.read_text(encoding="utf-8"))
    op = Op.parse(document["op"])
    space = family_of(op).space(op, Device(**document["device"]))
    us = {tuple(map(int, key)): np.array(row, np.float64) for key, row in document["us"].items()}
    worst = 1e3 * np.min(list(us.values()), axis=0)
    sound = {point: np.where(np.isfinite(row), row, worst) for point, row in us.items()}
    device = Device(**document["device"]).with_units(1)
    return Table(op, space, sound, expectations(op, tuple(sound), space, device), document["device"]["id"])


def replayed(table: Table, make: Maker, seed: int, most: int = MOST) -> list[float]:
    """The best score so far after each measurement; what is not in the table was hopeless and counts as looked at."""
    scores = table.scores()
    curve: list[float] = []
    known = {point: np.log(row) for point, row in table.expected.items()}
    hopeless = np.full(len(SHAPES), 20.0)

    def expected(points: Sequence[Point]) -> NDArray[np.float64]:
        return np.array([known.get(point, hopeless) for point in points])

    policy, best = make(table.space, expected, seed), np.inf
    while len(curve) < most:
        batch = policy.ask(BATCH)
        if not batch:
            break
        observations = [(point, scores.get(point, 5.0)) for point in batch]
        for _, score in observations:
            best = min(best, score)
            curve.append(best)
        policy.tell(observations)
    return curve[:most]


def needed(curve: Sequence[float], near: float) -> float:
    """Measurements until within so many times the table's best; infinite where a search never got there."""
    return next((at + 1.0 for at, score in enumerate(curve) if score <= np.log(near)), np.inf)


def interval(values: NDArray[np.float64], rng: np.random.Generator) -> tuple[float, float]:
    """Of the mean, 95 %, by bootstrap over seeds."""
    means = [values[rng.integers(len(values), size=len(values))].mean() for _ in range(2000)]
    return float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))


def page(tables: Sequence[Table], seeds: int, command: str) -> str:
    """The comparison as Markdown."""
    makers: dict[str, Maker] = {"evolution": Evolution, "evolution without crossover": Mutation, **POLICIES}
    text = [
        "# Search policies on equal measurements",
        "",
        f"`{command}`, {date.today().isoformat()}. Tables of times, each recorded on one core, hot, at "
        f"{', '.join(map(str, SHAPES))}; a point's score is its time over the best of each shape, the geometric mean. Every "
        f"policy searches each table {seeds} times, with other seeds, {BATCH} points a round, at most {MOST} points. "
        "Numbers are means over seeds with a 95 % bootstrap interval; a search that never got there counts "
        f"{MOST} measurements. `random` knows nothing; the others but `template` are given what a program is expected to "
        "take (instructions and bytes, counted from the plan).",
        "",
    ]
    counts: dict[str, dict[str, float]] = {}
    for table in tables:
        scores = table.scores()
        least = min(scores.values())
        relative = {point: score - least for point, score in scores.items()}
        instances = set(replace(table.space, template=ONE_ROW).points)
        inside = [score for point, score in relative.items() if point in instances]
        first = min(relative, key=lambda point: float(np.log(table.expected[point]).mean()))
        near = sum(score <= np.log(NEAR[1]) for score in relative.values())
        text += [
            f"## {table.op.name}, {table.device}",
            "",
            f"{len(scores)} points timed of {len(table.space.points)}; {near} "
            f"lie within 5 % of the best. The first by expectation is {np.exp(relative[first]) - 1:.0%} behind it, the best "
            f"instance of the template {np.exp(min(inside)) - 1:.0%}.",
            "",
            f"| policy | {' | '.join(f'to within {near - 1:.0%}' for near in NEAR)} | behind after 24 | after {MOST} |",
            "|---|" + "---|" * (len(NEAR) + 2),
        ]
        for name, make in makers.items():
            rng = np.random.default_rng(0)
            curves = [[score - least for score in replayed(table, make, seed)] for seed in range(seeds)]
            cells = []
            for near in NEAR:
                looked = np.array([min(needed(curve, near), float(MOST)) for curve in curves])
                reached = np.mean([np.isfinite(needed(curve, near)) for curve in curves])
                low, high = interval(looked, rng)
                if near == NEAR[1]:
                    counts.setdefault(f"{table.op.name}, {table.device}", {})[name] = float(looked.mean())
                share = "" if reached == 1 else f"; {reached:.0%} got there"
                cells.append(f"{looked.mean():.0f} ({low:.0f}..{high:.0f}{share})")
            for count in (24, MOST):
                cells.append(f"{np.exp(np.mean([curve[min(count, len(curve)) - 1] for curve in curves])) - 1:.1%}")
            text.append(f"| {name} | {' | '.join(cells)} |")
        text.append("")
    real = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else None
    return "\n".join([*text, *_measurements(counts), *(tuned(real) if real else []), *section(), *MISSES, ""])


def _measurements(counts: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Measurements to within 5 % of the exhaustive best: evolution beside random."""
    rows = [f"| {op} | {means['evolution']:.1f} | {means['random']:.1f} | {means['random'] / means['evolution']:.1f}x |"
            for op, means in counts.items()]  # fmt: skip
    head = ["| op | evolution | random | fewer |", "|---|---|---|---|"]
    return ["## Measurements to within 5 % of the exhaustive best", "", *head, *rows, ""]


def main() -> None:
    """Record where asked, replay, write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="append", default=[], metavar="OP")
    parser.add_argument("--db", default="sqlite:///policies.records.db", help="record store; recording goes on there")
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--page", type=Path)
    args = parser.parse_args()
    for name in args.record:
        record(name, args.db)
    tables = [load(path) for path in sorted(HOME.glob("*.json"))]
    text = page(tables, args.seeds, f"python -m tests.bench.policies --seeds {args.seeds} --page docs/results/policies.md")
    if args.page:
        args.page.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
