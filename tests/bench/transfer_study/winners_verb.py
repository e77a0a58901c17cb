"""``python -m tests.bench.transfer_study winners``: tables of one best configuration a device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from haotuner.cli.options import Json, Quiet, Verbose
from haotuner.cli.output import status_messages, tell
from haotuner.errors import UsageError
from tests.bench.markdown import markdown_table
from tests.bench.transfer_study.tables_in_folder import show, tables_in

if TYPE_CHECKING:  # LightGBM takes a second to import
    from haotuner.records.clblast import Winners


def winners(
    data: Annotated[Path, typer.Option("--data", metavar="FOLDER", help="A folder with CLBlast's best-known parameters.")],
    seed: Annotated[int, typer.Option("--seed", help="Seed of what is drawn at random.")] = 0,
    json_output: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Say where each device's known winner comes in an order learned from other vendors' winners."""
    from tests.bench.transfer_study.winners.evaluate import evaluate_winners

    result = winner_tables(data, quiet=quiet, verbose=verbose)
    if result is None:
        raise UsageError(f"--data {data} holds no table of best-known parameters (JSON: kernel, parameters, rows) to use")
    with status_messages(quiet=quiet, verbose=verbose) as progress:
        document = evaluate_winners(result, seed=seed, tell=progress)
    show(document, section, json_output=json_output)


def winner_tables(folder: Path, *, quiet: bool, verbose: bool) -> Winners | None:
    """The first usable table in a folder and those below it; what is left out goes to stderr. None: there is none.

    Raises:
        UsageError: no folder.
    """
    from haotuner.records.clblast import is_winners_file, read_winners

    for path, result in tables_in(folder, is_winners_file, read_winners, quiet=quiet):
        if verbose:
            tell(f"{path}: winners of {len(result.winners)} devices of {', '.join(result.vendors())}")
        return result
    return None


def section(document: Mapping[str, Any], *, devices: bool = False) -> Iterator[str]:
    """Lines of Markdown; ``devices`` adds a row for each."""
    names = list(document["median"])
    yield "## Winners without times (CLBlast's Xgemm)"
    yield ""
    yield f"Where the known winner of {document['winners']} devices comes among {document['space']} configurations, 0 % the"
    yield "first, in an order learned from the winners of all other vendors. Ties count half."
    yield ""
    alone = document["device_out"]
    yield "With the device alone left out, by the density of known winners, relatives counted more: median"
    yield f"{alone['median']:.2%}, {alone['within']:.0%} within the first {document['early']:.0%}."
    yield ""
    rows: list[tuple[str, ...]] = [
        (f"**all** ({document['winners']})", *(f"**{document['median'][name]:.2%}**" for name in names)),
        *(
            (f"{vendor or 'unknown'} ({item['winners']})", *(f"{item[name]:.2%}" for name in names))
            for vendor, item in document["vendors"].items()
        ),
        (f"share within the first {document['early']:.0%}", *(f"{document['within'][name]:.0%}" for name in names)),
    ]
    yield from markdown_table(("vendor left out", *(f"median by {name}" for name in names)), rows)
    if devices:
        each = [
            (name, item["vendor"], *(f"{item[key]:.2%}" for key in names))
            for name, item in sorted(document["devices"].items())
        ]
        yield from markdown_table(("device", "vendor", *names), each)
