"""Verb ``curve``: plans of ``haotuner tune`` by number of measurements, from cold and from a model, on recorded times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from haotuner.cli.output import say
from haotuner.errors import UsageError
from haotuner.transfer.warm_start import Ranks
from haotuner.tuning.initial_model import start_of
from tests.bench.own_records import OwnRecords
from tests.bench.transfer_use import ENOUGH, SHARE, Case, Run, markdown

COUNTS = (8, 16, 32, 64, 128, 256)
FAMILY = "cpu_dense_fp32"


def curve(
    model: Annotated[Path, typer.Option("--model", help="What `haotuner transfer fit` wrote.")],
    records: Annotated[Path, typer.Option("--records", metavar="FILE", help="The timings of the target.")],
    op: Annotated[str, typer.Option("--op", help="The op's name in the records.")] = "dense_n1024_k1024",
    seeds: Annotated[int, typer.Option("--seeds", help="Searches to average over.")] = 1,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Replay the search on recorded times, from cold and from the model: speed of the plan by number of measurements."""
    device_records = OwnRecords.read(records)
    repeated = {trial.kernel for trial, us in device_records.rounds.items() if trial.op.name == op and len(us) > 1}
    if len(repeated) < ENOUGH:
        raise UsageError(f"{records} has {len(repeated)} kernels of {op} that were timed twice; a curve needs {ENOUGH}")
    case = Case.of(device_records, op)
    start = start_of(str(model), device_records.device, FAMILY)
    if start.model is None:
        raise UsageError(f"no curve {start.words}")
    document = compared(case, start.model, seeds)
    if json_output:
        say(json.dumps(document, indent=1))
        return
    head = ["start", *(f"after {count}" for count in COUNTS), "measurements", f"to {SHARE:.0%} of the plan from cold"]
    lines = [
        [
            name,
            *(f"{means['after'][str(count)]:.3f}" for count in COUNTS),
            f"{means['all']:.0f}",
            f"{means['needed']:.0f}",
        ]
        for name, means in document["starts"].items()
    ]
    device = device_records.device.id
    say(f"{op} on {device}: speed of the plan by measurements, as a share of that with every recorded kernel")
    say("\n".join(markdown([head, *lines])))
    say(f"from the model {document['fewer']:.1f}x fewer measurements than from cold")


def compared(case: Case, start: Ranks, seeds: int) -> dict[str, Any]:
    """Means over seeds: share of the best plan's speed after so many measurements, and how many an equal plan takes."""
    full = case.full()
    runs = {
        "cold": [case.search(None, seed) for seed in range(seeds)],
        "model": [case.search(start, seed) for seed in range(seeds)],
    }
    cold_us = _mean([run.value() for run in runs["cold"]])
    starts = {name: _document(group, full, cold_us) for name, group in runs.items()}
    return {"op": case.op.name, "device": case.own.device.id, "starts": starts,
            "fewer": starts["cold"]["needed"] / starts["model"]["needed"]}  # fmt: skip


def _document(runs: list[Run], full: float, cold_us: float) -> dict[str, Any]:
    after = {str(count): _mean([full / run.value(count) for run in runs]) for count in COUNTS}
    return {
        "after": after,
        "all": _mean([len(run.order) for run in runs]),
        "needed": _mean([run.needed(cold_us / SHARE) for run in runs]),
    }


def _mean(values: list[Any]) -> float:
    return float(sum(values)) / len(values)
