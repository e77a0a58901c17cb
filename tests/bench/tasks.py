"""One budget shared by Ansor's gradient beside round robin: ``python -m tests.bench.tasks [--seeds 20] [--page FILE]``.

Curves are replayed on recorded times (``tests/bench/records``), so that both differ in nothing but whose turn it is. A task
is an op of a device's records. Its candidates come in the order of the analytic expectation, twelve a turn; its time is the
mean over the recorded extents of the least time so far. A model is all tasks of a device, called as often as a seed says.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from haotuner.cost.families import demand
from haotuner.cost.roofline import expected_us
from haotuner.microkernels.cpu.dense import CpuDense
from haotuner.search.task_objectives import Objective
from haotuner.search.task_scheduler import STRATEGIES, Scheduler, Shared
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.bench.own_records import FOLDER, OwnRecords

A_TURN = 12  # candidates
LEAST = 24  # candidates of a task worth sharing time among
CLOSE = (0.10, 0.05, 0.02)  # above what all turns come to
OFTEN = (1, 16)  # calls of a task in a request, log-uniformly drawn

PAGE = """# One budget for all tasks of a model

`python -m tests.bench.tasks --seeds {seeds} --page docs/results/tasks.md`. Recorded times of dense layers replayed: twelve
candidates a turn, in the order of the analytic expectation. Tasks are called 1 to 16 times in a request, as a seed says;
means over {seeds} seeds. *turns to 5 %*: until the objective is within 5 % of where all turns end. *after a quarter*: how
far off it is when a quarter of all turns are over.

| device | objective | tasks / turns | {heads} | after a quarter |
|---|---|---|---|---|---|---|
{rows}

**What it says.** The gradient needs half to two thirds of the turns of round robin; after a quarter of the turns it misses a
third of what round robin misses.

**What it does not say.** Real turns cost more than their timings, for each begins its search again. On a busy machine with
more tasks than time the first turns take all of the budget, and nothing is left to share.
"""

Curve = list[float]


def curves_of(path: Path) -> tuple[list[Op], list[Curve]]:
    """Tasks of a device's records and their time after each turn."""
    own = OwnRecords.read(path)
    by_op: dict[tuple[str, str], dict[str, dict[Shape, float]]] = {}
    for trial, us in own.us.items():
        if trial.threads == 1:
            by_op.setdefault((trial.op.name, trial.weights), {}).setdefault(trial.kernel, {})[trial.shape] = us
    ops, curves = [], []
    for (name, weights), kernels in sorted(by_op.items()):
        shapes = sorted({shape for times in kernels.values() for shape in times}, key=lambda shape: shape["m"])
        if len(kernels) >= LEAST and len(shapes) > 1:
            ops.append(Op.parse(name))
            curves.append(_curve(own.device.with_units(1), ops[-1], weights, kernels, shapes))
    return ops, curves


def _curve(
    device: Device, op: Op, weights: str, kernels: Mapping[str, Mapping[Shape, float]], shapes: Sequence[Shape]
) -> Curve:
    names = list(kernels)
    pairs = [(MicroKernel.parse(name), shape) for name in names for shape in shapes]
    expected = expected_us(device, demand(device, CpuDense(), op, pairs, weights=weights)).reshape(len(names), len(shapes))
    order = np.argsort(np.log(expected).mean(axis=1), kind="stable").tolist()
    worst = [max(times.get(shape, 0.0) for times in kernels.values()) for shape in shapes]
    best, curve = np.array(worst), []
    for first in range(0, len(order), A_TURN):
        for index in order[first : first + A_TURN]:
            us = kernels[names[index]]
            best = np.minimum(best, [us.get(shape, math.inf) for shape in shapes])
        curve.append(float(best.mean()))
    return curve


def replayed(scheduler: Scheduler, curves: Sequence[Curve], first: Sequence[float]) -> list[float]:
    """The objective after each turn, from the first at which every task has one."""
    order_ = []
    while (index := scheduler.next()) is not None:
        at = len(scheduler.times[index])
        scheduler.tell(index, curves[index][at], finished=at + 1 == len(curves[index]))
        if all(scheduler.times):
            order_.append(scheduler.objective.value(scheduler.latencies(), first))
    return order_


def of_seed(ops: Sequence[Op], curves: Sequence[Curve], objective: Objective, seed: int) -> dict[str, list[float]]:
    """Of each strategy the objective after each turn; tasks belong to two models in turn."""
    draw = np.random.default_rng(seed)
    often = np.exp(draw.uniform(math.log(OFTEN[0]), math.log(OFTEN[1]), len(ops))).round()
    flops = [op.flops(Shape.of(m=256)) for op in ops]
    tasks = [Shared(op.kind, work, (float(calls) * (at % 2 == 0), float(calls) * (at % 2 == 1)))
             for at, (op, work, calls) in enumerate(zip(ops, flops, often, strict=True))]  # fmt: skip
    first = [sum(t.calls[m] * curve[0] for t, curve in zip(tasks, curves, strict=True)) for m in (0, 1)]
    return {name: replayed(Scheduler(tasks, objective, name), curves, first) for name in STRATEGIES}


def row(path: Path, objective: Objective, seeds: int) -> str:
    """One device, one objective."""
    ops, curves = curves_of(path)
    to: dict[str, dict[float, list[int]]] = {name: {share: [] for share in CLOSE} for name in STRATEGIES}
    halfway: dict[str, list[float]] = {name: [] for name in STRATEGIES}
    for seed in range(seeds):
        curves_ = of_seed(ops, curves, objective, seed)
        end = min(min(curve) for curve in curves_.values())
        for name, values in curves_.items():
            for share in CLOSE:
                limit = end + share * abs(end)
                to[name][share].append(next(at for at, value in enumerate(values, len(ops)) if value <= limit))
            quarter = (sum(map(len, curves)) - len(ops)) // 4
            halfway[name].append(values[quarter] / end if end > 0 else end / values[quarter])
    cells = [path.stem.removeprefix("cpu-amd-epyc-"), objective.kind, f"{len(ops)} / {sum(map(len, curves))}"]
    for share in CLOSE:
        cells.append(" / ".join(f"{statistics.mean(to[name][share]):.0f}" for name in STRATEGIES))
    cells.append(" / ".join(f"{statistics.mean(halfway[name]) - 1:.1%}" for name in STRATEGIES))
    return f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; ``--page`` writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--page", type=Path)
    args: Any = parser.parse_args(arguments)
    paths = sorted(FOLDER.glob("*.json"))
    rows = [row(path, Objective(kind), args.seeds) for path in paths for kind in ("sum", "geomean")]
    heads = [f"turns to {share:.0%}, gradient / round robin" for share in CLOSE]
    text = PAGE.format(seeds=args.seeds, heads=" | ".join(heads), rows="\n".join(rows))
    print(text)
    if args.page:
        args.page.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    main()
