"""Simulation of a fleet from recorded times: ``python -m tests.bench.fleet_simulation --out PAGE.md``.

An operator of the simulation is one recorded task: the times of every kernel of one product, at one size, on one device.
A run measures kernels in an order until one within ``ENOUGH`` of the task's best was timed. The order is what is varied:

alone       the expectation by the roofline
sharing     also what the same kernels were worth on operators that this device has finished
transfer    also what they were worth for the same operator on devices that have finished it
both        both

Nothing is timed here. The page says what is assumed.
"""

from __future__ import annotations

import argparse
import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from haotuner.cost.families import demand
from haotuner.cost.roofline import expected_us
from haotuner.microkernels.cpu.dense import CpuDense
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.bench.markdown import markdown_table
from tests.bench.own_records import OwnRecords, all_records

MODES = ("alone", "sharing", "transfer", "both")
OPS, DEVICES, MEASURERS = (10, 30, 100, 300, 1000), (1, 2, 4, 6, 8, 10), (1, 2, 4, 8, 16, 32, 64)
ENOUGH = 1.02  # of the best time: 2 % is the noise of a timing
LEAST_KERNELS = 60  # of a recorded task: fewer are no search
MEASURE_S = 0.12  # of one timing: what `tune` took for one in the recorded runs, its check included
BUILD_S = 0.9  # of one build; builders run anywhere, and BUILDERS of them feed one measurer
BUILDERS = 8
SPREAD_OP, SPREAD_DEVICE, SPREAD_PAIR = 0.05, 0.10, 0.05  # of log times: what makes drawn operators and devices differ
PRIOR_COUNT = 4  # of observations that say "as expected": what a few others saw counts little
HALF, LEAST_SHARED = 0.5, 8  # kernels that a device and others must have timed before their agreement is computed
Values = NDArray[np.float64]
STYLES: dict[str, dict[str, Any]] = {  # what knows nothing of others is grey, sharing blue; transfer is dashed
    "alone": {"color": "#b5bac1", "linewidth": 4},
    "transfer": {"color": "#4b5159", "linewidth": 1.4, "linestyle": "--", "marker": "o", "markersize": 3},
    "sharing": {"color": "#9cc4e8", "linewidth": 4},
    "both": {"color": "#1f6fb4", "linewidth": 1.4, "linestyle": "--", "marker": "o", "markersize": 3},
}


@dataclass(frozen=True, slots=True)
class Bank:
    """Recorded log times by (device, task, kernel), and those expected by the roofline; NaN where nothing was recorded."""

    times: Values
    expected: Values
    devices: tuple[str, ...]
    tasks: tuple[str, ...]


def kernel_key(kernel: MicroKernel, lanes: int) -> tuple[int, int, int]:
    """Key of a kernel on any instruction set: rows, vectors in a row, unrolling."""
    params = dict(kernel.params)
    return params["mr"], params["nr"] // lanes, params["ku"]


def bank_of(records: Sequence[OwnRecords]) -> Bank:
    """Cold tasks of one thread that every device has, over all kernels that any device timed."""
    tables = [_tasks_of(own) for own in records]
    tasks = sorted(set.intersection(*(set(table) for table in tables)))
    keys = sorted({key for table in tables for task in tasks for key in table[task]})
    filled = np.full((2, len(tables), len(tasks), len(keys)), np.nan)
    for at, table in enumerate(tables):
        for column, task in enumerate(tasks):
            for key, pair in table[task].items():
                filled[:, at, column, keys.index(key)] = pair
    return Bank(filled[0], filled[1], tuple(own.device.id for own in records), tuple(tasks))


def _tasks_of(own: OwnRecords) -> dict[str, dict[tuple[int, ...], tuple[float, float]]]:
    """Log time and log expectation of each kernel, by task."""
    rows: dict[tuple[Op, Shape], list[tuple[MicroKernel, float]]] = {}
    for trial, us in own.us.items():
        kernels = trial.composition.kernels
        if isinstance(trial.op, Op) and trial.threads == 1 and trial.weights == "cold" and len(kernels) == 1:
            rows.setdefault((trial.op, trial.shape), []).append((kernels[0], us))
    table: dict[str, dict[tuple[int, ...], tuple[float, float]]] = {}
    family, device = CpuDense(), own.device.with_units(1)
    for (op, shape), timed in rows.items():
        if len(timed) < LEAST_KERNELS:
            continue
        priors = expected_us(device, demand(device, family, op, [(kernel, shape) for kernel, _ in timed]))
        task = table.setdefault(f"{op.name} {shape}", {})
        for (kernel, us), prior in zip(timed, priors, strict=True):
            key, pair = kernel_key(kernel, device.wave_width), (float(np.log(us)), float(np.log(prior)))
            task[key] = min(task.get(key, pair), pair)
    return table


@dataclass(frozen=True, slots=True)
class Fleet:
    """Drawn operators on drawn devices: log times and expectations, shape ``(devices, ops, kernels)``."""

    times: Values
    expected: Values

    @staticmethod
    def drawn(bank: Bank, devices: int, ops: int, seed: int) -> Fleet:
        """Devices beyond the recorded ones and operators beyond the recorded tasks are recorded ones with other times."""
        rng = np.random.default_rng(seed)
        device = rng.permutation(np.arange(max(devices, len(bank.devices))) % len(bank.devices))[:devices]
        task = rng.integers(len(bank.tasks), size=ops)
        kernels = bank.times.shape[2]
        spread = SPREAD_OP * rng.standard_normal((1, ops, kernels))
        spread = spread + SPREAD_DEVICE * rng.standard_normal((devices, 1, kernels))
        spread = spread + SPREAD_PAIR * rng.standard_normal((devices, ops, kernels))
        return Fleet(bank.times[device[:, None], task] + spread, bank.expected[device[:, None], task])


def timed_kernels(times: Values, order: Values) -> NDArray[np.intp]:
    """Kernels by rising ``order``, up to the first within ENOUGH of the least of ``times``."""
    ranks = np.argsort(np.where(np.isnan(times), np.inf, order), kind="stable")
    enough = times[ranks] <= np.nanmin(times) + np.log(ENOUGH)
    return ranks[: int(np.argmax(enough)) + 1]


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of tuning all operators for all devices."""

    measurements: float
    device_hours: float  # of measurers while they measured or waited for a build
    hours: float  # from the first to the last, in parallel


def others_mean(sums: Values, counts: Values, op_sums: Values, op_counts: Values, device: int) -> Values:
    """Worth of each kernel elsewhere: on other devices, and there for this operator; near 0 where little is known."""
    mean: Values = (op_sums + sums.sum(0) - sums[device]) / (op_counts + counts.sum(0) - counts[device] + PRIOR_COUNT)
    return mean


def agreement(sums: Values, counts: Values, device: int) -> float:
    """Share of the others' experience that a device takes over: how far its own agreed with theirs; HALF at the start."""
    other_counts = counts.sum(0) - counts[device]
    both = (counts[device] > 0) & (other_counts > 0)
    if both.sum() < LEAST_SHARED:
        return HALF
    own, others = sums[device, both] / counts[device, both], (sums.sum(0) - sums[device])[both] / other_counts[both]
    variance = float(np.mean(others**2))
    return float(np.clip(np.mean(own * others) / variance, 0.0, 1.0)) if variance else 0.0


def cost(fleet: Fleet, mode: str, measurers: int) -> Cost:
    """Tuning in one mode: a measurer serves one device, and takes the next of that device's operators when it is free.

    What another run has learned is used from the moment at which that run has ended.
    """
    devices, ops, kernels = fleet.times.shape
    share, transfer = mode in ("sharing", "both"), mode in ("transfer", "both")
    regret = fleet.times - fleet.expected  # how a kernel stands to its expectation
    regret = regret - np.nanmedian(regret, axis=2, keepdims=True)
    sums, counts = np.zeros((devices, kernels)), np.zeros((devices, kernels))
    op_sums, op_counts = np.zeros((ops, kernels)), np.zeros((ops, kernels))
    free = [(0.0, at, at % devices) for at in range(measurers)]
    # Each device begins elsewhere, so that the others have something to learn from.
    waiting = {device: np.roll(np.arange(ops), device * ops // devices).tolist() for device in range(devices)}
    running: list[tuple[float, int, int, Values]] = []
    total, busy, end = 0, 0.0, 0.0
    heapq.heapify(free)
    while free:
        now, measurer, device = heapq.heappop(free)
        if not waiting[device]:  # its device is done: it goes on with the one that has most left
            device = max(waiting, key=lambda at: len(waiting[at]))
            if not waiting[device]:
                continue
        while running and running[0][0] <= now:
            _, at, op, seen = heapq.heappop(running)
            known = ~np.isnan(seen)
            sums[at, known] += seen[known]
            counts[at, known] += 1
            op_sums[op, known] += seen[known]
            op_counts[op, known] += 1
        op = waiting[device].pop()
        order = fleet.expected[device, op].copy()
        if transfer:
            order += agreement(sums, counts, device) * others_mean(sums, counts, op_sums[op], op_counts[op], device)
        if share:
            order += sums[device] / (counts[device] + 1)
        ranks = timed_kernels(fleet.times[device, op], order)
        count = len(ranks)
        seconds = count * max(MEASURE_S, BUILD_S / BUILDERS) + BUILD_S
        seen = np.full(kernels, np.nan)
        seen[ranks] = regret[device, op, ranks]
        heapq.heappush(running, (now + seconds, device, op, seen))
        heapq.heappush(free, (now + seconds, measurer, device))
        total, busy, end = total + count, busy + seconds, max(end, now + seconds)
    return Cost(total, busy / 3600, end / 3600)


Curves = dict[str, tuple[Sequence[int], dict[str, list[Cost]]]]


def mean_cost(bank: Bank, devices: int, ops: int, mode: str, measurers: int, seeds: int) -> Cost:
    """Mean over drawn fleets."""
    runs = [cost(Fleet.drawn(bank, devices, ops, seed), mode, measurers) for seed in range(seeds)]
    means = (float(np.mean([getattr(run, name) for run in runs])) for name in ("measurements", "device_hours", "hours"))
    return Cost(*means)


def exponent(sizes: Sequence[int], values: Sequence[float]) -> float:
    """Slope of log values over log sizes, by least squares: 1 grows in proportion, less grows more slowly."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def page(bank: Bank, seeds: int, ops: Sequence[int], devices: Sequence[int], measurers: Sequence[int]) -> tuple[str, Curves]:
    """The page, and the curves of its picture by axis and mode."""
    most = ops[-1]
    curves: Curves = {
        "operators": (ops, {m: [mean_cost(bank, devices[-1], n, m, devices[-1], seeds) for n in ops] for m in MODES}),
        "devices": (devices, {m: [mean_cost(bank, n, most // 10, m, n, seeds) for n in devices] for m in MODES}),
        "measurers": (
            measurers,
            {m: [mean_cost(bank, devices[-1], most // 10, m, n, seeds) for n in measurers] for m in MODES},
        ),
    }
    text = _HEAD.format(tasks=len(bank.tasks), devices=len(bank.devices), kernels=bank.times.shape[2], **_CONSTANTS)
    for axis, heading in (
        ("operators", f"Operators, for {devices[-1]} devices"),
        ("devices", f"Devices, for {most // 10} operators"),
    ):
        sizes, rows = curves[axis]
        slopes = {mode: exponent(sizes, [c.measurements for c in rows[mode]]) for mode in MODES}
        cells = [(mode, *(f"{c.measurements:,.0f}" for c in rows[mode]), f"{slopes[mode]:.2f}") for mode in MODES]
        text += f"\n## {heading}\n\nMeasurements. The last column is the power with which they grow.\n\n"
        text += "\n".join(markdown_table(("order", *map(str, sizes), "power"), cells)) + "\n"
    sizes, rows = curves["measurers"]
    cells = [(mode, *(f"{60 * c.hours:.1f}" for c in rows[mode])) for mode in MODES]
    text += f"\n## Measurers, for {devices[-1]} devices and {most // 10} operators\n\nMinutes from first to last.\n\n"
    return text + "\n".join(markdown_table(("order", *map(str, sizes)), cells)) + "\n", curves


def draw(curves: Curves, path: Path) -> None:
    """PNG of the three panels. Orders that lie on one another are told apart by width and dashes."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    figure = Figure(figsize=(10.5, 3.4), layout="constrained")
    for number, (axis_name, (sizes, rows)) in enumerate(curves.items(), 1):
        axis = figure.add_subplot(1, 3, number)
        minutes = axis_name == "measurers"
        for mode in MODES:
            values = [60 * c.hours if minutes else c.measurements for c in rows[mode]]
            axis.plot(sizes, values, label=mode, **STYLES[mode])
        axis.set(xscale="log", yscale="log", xlabel=axis_name)
        axis.set_title("minutes until all is tuned" if minutes else "measurements", fontsize="medium", loc="left")
        axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        for ticks in (axis.xaxis, axis.yaxis):
            ticks.set_minor_locator(NullLocator())
        axis.grid(visible=True, alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    figure.axes[0].legend(fontsize="small", frameon=False)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def main() -> None:
    """Write the page and its picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/results/fleet-simulation.md"))
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    text, curves = page(bank_of(all_records()), arguments.seeds, OPS, DEVICES, MEASURERS)
    picture = arguments.out.with_suffix(".png")
    draw(curves, picture)
    arguments.out.write_text(
        text + f"\n![Measurements over operators and devices, minutes over measurers]({picture.name})\n"
    )


_CONSTANTS = {
    "enough": round(100 * (ENOUGH - 1)), "measure": MEASURE_S, "build": BUILD_S, "builders": BUILDERS,
    "op": SPREAD_OP, "device": SPREAD_DEVICE, "pair": SPREAD_PAIR,
}  # fmt: skip
_HEAD = """# A simulated fleet

Made by `python -m tests.bench.fleet_simulation`. Nothing is timed: {tasks} recorded tasks of {devices} devices are replayed.
A task is one product at one size, with the times of up to {kernels} kernels. A run of a task ends with the first kernel
that is within {enough} % of its best.

| order of measurements | what it knows |
|---|---|
| alone | the expectation by the roofline |
| sharing | also what kernels were worth on operators that this device has finished |
| transfer | also what they were worth on other devices, as far as this device has agreed with them |
| both | both |

## What is assumed

- A timing takes {measure} s. A build takes {build} s, and {builders} builders feed each measurer.
- Operators and devices beyond the recorded ones are recorded ones whose log times differ by normal draws. Their deviations
  are {op} by operator and kernel, {device} by device and kernel, and {pair} by both.
- A kernel is the same on two instruction sets if its tile has the same rows, vectors and unrolling.
- Experience is used from the moment at which the run that made it has ended. Nothing fails, and moving data costs nothing.
- `tune` ends by its budget and by what it still expects to gain. It does not know when it is within {enough} %.
"""


if __name__ == "__main__":
    main()
