"""``python -m tests.bench.transfer_study shapes``: kernels for shapes that were not measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from haotuner.cli.options import Json, Quiet, Verbose
from haotuner.cli.output import status_messages
from haotuner.cli.transfer_input import known_families
from tests.bench.markdown import markdown_table
from tests.bench.transfer_study.read_folder import device_tables
from tests.bench.transfer_study.tables_in_folder import show


def shapes(
    db: Annotated[str | None, typer.Option("--db", metavar="URL", help="The record store: sqlite:///FILE.")] = None,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="FOLDER", help="Kernel Tuner's cache files, instead of a store.")
    ] = None,
    family: Annotated[list[str] | None, typer.Option("--family", help="Only this family of kernels; repeatable.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the folds and the forests.")] = 0,
    json_output: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Hold out a fifth of each device's shapes at a time and choose their kernels from the others."""
    from tests.bench.transfer_study.held_out_shapes import evaluate_held_out

    read = device_tables(db, data, quiet=quiet, verbose=verbose)
    names = known_families(read, family)
    with status_messages(quiet=quiet, verbose=verbose) as progress:
        document = evaluate_held_out([t for name in names for t in read.of(name)], seed=seed, tell=progress)
    show(document, section, json_output=json_output)


def section(document: Mapping[str, Any]) -> Iterator[str]:
    """Lines of Markdown."""
    yield "## Shapes held out on the same device"
    yield ""
    yield "Share of the best throughput of the one kernel chosen, among those measured at the shape."
    yield ""
    rows = [
        (
            f"**{name}** ({item['shapes']} shapes)" if at == 0 else "",
            way,
            *(f"{scores[key]:.3f}" for key in ("mean", "p10", "least")),
        )
        for name, item in document["tables"].items()
        for at, (way, scores) in enumerate(item["rankings"].items())
    ]
    yield from markdown_table(("kernels and device", "chosen by", "mean", "tenth percentile", "least"), rows)
