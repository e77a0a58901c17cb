"""``python -m tests.bench.transfer_study evaluate``: scores of every mode on one target."""

from __future__ import annotations

import json
import os
from typing import Annotated, Any

import typer

from haotuner.cli.devices import columns
from haotuner.cli.options import Json, Quiet, Verbose
from haotuner.cli.output import say, status_messages
from haotuner.cli.transfer_input import known_device, known_families, read_store
from tests.bench.transfer_study import evaluate as evaluation
from tests.bench.transfer_study.options import Family, Seeds, counts_of


def evaluate(
    db: Annotated[str, typer.Option("--db", metavar="URL", help="The record store: sqlite:///FILE.")],
    target: Annotated[str, typer.Option("--target", metavar="ID", help="The device: a profile's id, cpu, cuda, cuda:N.")],
    samples: Annotated[str, typer.Option("--samples", help="Target sample counts.")] = "0,16,32,64,128",
    split: Annotated[
        str,
        typer.Option(
            "--split", help="device, or device-and-configs: sources see half the kernels, the other half is scored."
        ),
    ] = "device",
    seeds: Seeds = 20,
    family: Family = None,
    jobs: Annotated[int, typer.Option("--jobs", min=0, help="Processes; default: one a core.")] = 0,
    json_output: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Score every mode on a target whose records are known.

    Modes: zero-shot, residual, copy, from-scratch; and started, which is what `haotuner tune` runs.
    """
    requested = evaluation.Evaluation(
        target=known_device(target).id,
        counts=counts_of("--samples", samples),
        split=split,
        seeds=seeds,
        families=tuple(family or ()),
    )
    read = read_store(db, quiet=quiet, verbose=verbose)
    known_families(read, family)
    with status_messages(quiet=quiet, verbose=verbose) as tell:
        report = evaluation.evaluate(read, requested, tell, jobs or os.cpu_count() or 1)
    if json_output:
        say(json.dumps(report, indent=1))
    else:
        say(_table(report))


def _table(report: dict[str, Any]) -> str:
    keys = ("pairwise", "best@1", "best@5", "best@10")
    rows: list[tuple[str, ...]] = [("samples", "mode", *keys)]
    counts = sorted({int(count) for by in report["modes"].values() for count in by})
    for count in map(str, counts):
        for mode, by in report["modes"].items():
            if count in by:
                rows.append((count, mode, *(f"{by[count][key]:.3f}" for key in keys)))
        if count in report["chosen"]:
            chosen = report["chosen"][count]
            rows.append((count, f"chosen: {chosen['mode']}", *(f"{chosen[key]:.3f}" for key in keys)))
    for name, scores in report["baselines"].items():
        rows.append(("", f"baseline {name}", *(f"{scores[key]:.3f}" for key in keys)))
    reach = [("measurements to", "95 %", "97 %", "99 %")]
    reach += [(mode, *(f"{n:.0f}" for n in to.values())) for mode, to in report["measurements_to"].items()]
    return f"{columns(rows)}\n\n{columns(reach)}"
