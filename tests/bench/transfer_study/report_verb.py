"""``python -m tests.bench.transfer_study report``: every device, and its architecture, left out in turn."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from haotuner.cli.options import Json, Quiet, Verbose
from haotuner.cli.output import check_output_path, say, status_messages, tell
from haotuner.cli.pages.document import document_of_pages
from haotuner.cli.report import check_report_path, write_document
from haotuner.cli.transfer_input import caches_in, known_families
from haotuner.errors import UsageError
from tests.bench.transfer_study import report as reports
from tests.bench.transfer_study.bars import bars_table
from tests.bench.transfer_study.evaluate import SPLITS
from tests.bench.transfer_study.options import Family, Seeds, counts_of
from tests.bench.transfer_study.other_tables import others_in, sections
from tests.bench.transfer_study.partial_results import keep_partial_results
from tests.bench.transfer_study.read_folder import device_tables
from tests.bench.transfer_study.report_html import report_pages
from tests.bench.transfer_study.report_page import page
from tests.bench.transfer_study.report_summary import summary


def report(
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="A page to write, with every mode and score.")
    ] = None,
    page_out: Annotated[
        Path | None, typer.Option("--report", metavar="FILE.html", help="The same as pages of `haotuner report`.")
    ] = None,
    db: Annotated[str | None, typer.Option("--db", metavar="URL", help="The record store: sqlite:///FILE.")] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="FOLDER", help="Public files: Kernel Tuner's caches, MIOpen's and CLBlast's tables."),
    ] = None,
    family: Family = None,
    split: Annotated[
        list[str] | None,
        typer.Option("--split", help="Only device, architecture or device-and-configs; repeatable. Default: all three."),
    ] = None,
    seeds: Seeds = 20,
    samples: Annotated[str, typer.Option("--samples", help="Target sample counts.")] = "0,16,32,64,128",
    problems: Annotated[
        int, typer.Option("--problems", min=0, help="Of MIOpen's, score so many a device, at random; 0: all.")
    ] = 4000,
    jobs: Annotated[int, typer.Option("--jobs", min=0, help="Processes; default: one a core.")] = 0,
    numbers: Annotated[
        Path | None,
        typer.Option("--numbers", metavar="FILE", help="Keep figures as they come; a later run takes them from here."),
    ] = None,
    json_output: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Score transfer on every device left out in turn, its whole architecture left out, and half of the configurations.

    Prints a summary; with --out it also writes a page of every mode, with --report one HTML file with plots. Without
    --family, a folder's tables of solvers and of winners are judged as well. With --db and --data, records come from the
    store and these tables from the folder.
    """
    if unknown := sorted({*(split or ())} - {*SPLITS}):
        raise UsageError(f"--split {unknown[0]} is none of {', '.join(SPLITS)}")
    if out is not None:
        check_output_path(out)
    if page_out is not None:
        check_report_path(page_out)
    counts = counts_of("--samples", samples)
    others = others_in(data, quiet=quiet, verbose=verbose) if data is not None and data.is_dir() and not family else None
    if others and data is not None and db is None and not caches_in(data):  # nothing to make records of
        with status_messages(quiet=quiet, verbose=verbose) as status:
            document = others.judged(problems, status)
        lines = "\n".join(sections(document, devices=out is not None))
        if out is not None:
            out.write_text(lines + "\n", encoding="utf-8")
        say(json.dumps(document, indent=1) if json_output else lines)
        return
    read = device_tables(db, None if others and db is not None else data, quiet=quiet, verbose=verbose)
    known_families(read, family)
    with status_messages(quiet=quiet, verbose=verbose) as status, keep_partial_results(numbers) as (partial, keep):
        document = reports.report(
            read,
            families=family or (),
            splits=tuple(split or SPLITS),
            counts=counts,
            seeds=seeds,
            processes=jobs or os.cpu_count() or 1,
            tell=status,
            earlier=partial,
            keep=keep,
        )
        judged = others.judged(problems, status) if others else {}
    options = "".join(f" --family {name}" for name in family or ()) + "".join(f" --split {name}" for name in split or ())
    options += f" --seeds {seeds} --samples {samples}"
    source = " ".join([*(["--db URL"] if db is not None else []), *(["--data FOLDER"] if data is not None else [])])
    if out is not None:
        command = f"python -m tests.bench.transfer_study report {source} --out {out.name}{options}"
        more = "".join(f"{line}\n" for line in (*bars_table(document), *sections(judged, devices=True)))
        out.write_text(page(document, command) + more, encoding="utf-8")
    if page_out is not None:
        write_document(document_of_pages(report_pages(document), f"transfer, {source}"), page_out)
    if json_output:
        say(json.dumps({**document, **judged}, indent=1))
    elif not quiet or out is None:
        say("\n".join([summary(document), *sections(judged, devices=False)]))
        if out is not None:
            tell(f"{out}: {len(document['families'])} families, {document['work_s']:.0f} s of work")
