"""Verbs of the page docs/transfer/study.md and of its parts; each prints one JSON document."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from haotuner.cli.output import check_output_path, say, status_messages
from haotuner.cli.transfer_input import known_device, known_families
from haotuner.errors import UsageError
from tests.bench.transfer_study import ablation, permutation
from tests.bench.transfer_study.options import Family, Seeds, counts_of
from tests.bench.transfer_study.page import study_page
from tests.bench.transfer_study.partial_results import keep_partial_results
from tests.bench.transfer_study.plots import draw, plots_beside, pyplot_or_say
from tests.bench.transfer_study.read_folder import device_tables, shared_families
from tests.bench.transfer_study.speed import time_scoring
from tests.bench.transfer_study.survey import survey

Db = Annotated[str | None, typer.Option("--db", metavar="URL", help="The record store: sqlite:///FILE.")]
Data = Annotated[Path | None, typer.Option("--data", metavar="FOLDER", help="Kernel Tuner's files instead of a store.")]


def study(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The page; plots go into a folder beside it.")],
    db: Db = None,
    data: Data = None,
    family: Family = None,
    seeds: Seeds = 20,
    samples: Annotated[str, typer.Option("--samples", help="Target sample counts.")] = "0,16,32,64,128",
    jobs: Annotated[int, typer.Option("--jobs", min=0, help="Processes; default: one a core.")] = 0,
    numbers: Annotated[
        Path | None,
        typer.Option("--numbers", metavar="FILE", help="Keep figures as they come; a later run takes them from here."),
    ] = None,
) -> None:
    """Write the page: bars, the report, plots, ablation and permutation test of each family."""
    check_output_path(out)
    pyplot_or_say()  # before minutes are spent
    read = device_tables(db, data, quiet=False, verbose=False)
    folder, counts, families = plots_beside(out), counts_of("--samples", samples), family or []
    known_families(read, families)
    with status_messages(quiet=False, verbose=False) as tell, keep_partial_results(numbers) as (partial, keep):
        document = survey(
            read,
            families=families,
            counts=counts,
            seeds=seeds,
            processes=jobs or os.cpu_count() or 1,
            tell=tell,
            earlier=partial,
            keep=keep,
        )
    plots = {}
    for name, facts in document["families"].items():
        for split, reports in facts["splits"].items():
            picture = folder / f"{name}-{split}.png"
            draw(reports, f"{name}, {split}", picture)
            plots[name, split] = picture.relative_to(out.parent).as_posix()
    options = f"--db URL{''.join(f' --family {name}' for name in families)} --seeds {seeds} --samples {samples}"
    out.write_text(study_page(document, f"python -m tests.bench.transfer_study study {options}", plots), encoding="utf-8")
    say(json.dumps(document, indent=1))


def ablate(db: Db = None, data: Data = None, family: Family = None, seeds: Seeds = 5) -> None:
    """Say what each group of features is worth."""
    read = device_tables(db, data, quiet=False, verbose=False)
    names = shared_families(read, family)
    say(json.dumps({"families": [ablation.ablate(read, name, seeds=seeds) for name in names]}, indent=1))


def permute(db: Db = None, data: Data = None, family: Family = None, seeds: Seeds = 5) -> None:
    """Say what it costs to give devices each other's profiles."""
    read = device_tables(db, data, quiet=False, verbose=False)
    names = shared_families(read, family)
    say(json.dumps({"families": [permutation.permute(read, name, seeds=seeds) for name in names]}, indent=1))


def speed(
    target: Annotated[str, typer.Option("--target", metavar="ID", help="The device.")],
    db: Db = None,
    data: Data = None,
    family: Family = None,
    rows: Annotated[str, typer.Option("--rows", help="Numbers of rows that are scored.")] = "4000,64000",
) -> None:
    """Time the scoring of a target's rows."""
    read = device_tables(db, data, quiet=False, verbose=False)
    device, counts = known_device(target).id, counts_of("--rows", rows, least=1)
    known_families(read, family)
    both = [name for name in shared_families(read) if any(table.device.id == device for table in read.of(name))]
    names = family or both
    if not names or set(names) - set(both):
        raise UsageError(
            f"the speed of a transfer to {device} needs records of it and of another device; the store has both for "
            f"{', '.join(both) or 'no family'}; import more with: haotuner records import FILE --db URL"
        )
    timed = [time_scoring(read, device, name, counts) for name in names]
    say(json.dumps({"target": device, "families": timed}, indent=1))
