"""``python -m tests.bench.transfer_study solvers``: choice of a solver for a shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from haotuner.cli.options import Json, Quiet, Verbose
from haotuner.cli.output import status_messages, tell
from haotuner.errors import UsageError
from tests.bench.markdown import markdown_table
from tests.bench.transfer_study.tables_in_folder import show, tables_in

if TYPE_CHECKING:  # LightGBM and pandas take a second to import
    from haotuner.records.miopen import SolverTable

_ORDER = ("mean", "p10", "least")


def solvers(
    data: Annotated[Path, typer.Option("--data", metavar="FOLDER", help="A folder with MIOpen's find databases.")],
    target: Annotated[list[str] | None, typer.Option("--target", metavar="ID", help="Only this device; repeatable.")] = None,
    shapes: Annotated[bool, typer.Option("--shapes/--no-shapes", help="Judge shapes held out on one device too.")] = True,
    problems: Annotated[int, typer.Option("--problems", min=0, help="Score so many a device, at random; 0: all.")] = 0,
    seed: Annotated[int, typer.Option("--seed", help="Seed of what is drawn at random.")] = 0,
    json_output: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Score the choice of a solver: every device left out with all of its silicon, then shapes left out on one device."""
    tables = find_databases(data, quiet=quiet, verbose=verbose)
    if not tables:
        raise UsageError(f"--data {data} holds no find database of MIOpen (*.fdb.txt, *.fdb.txt.bz2) that can be used")
    with status_messages(quiet=quiet, verbose=verbose) as say_progress:
        document = judged(tables, tuple(target or ()), shapes, problems, seed, say_progress)
    show(document, section, json_output=json_output)


def find_databases(folder: Path, *, quiet: bool, verbose: bool) -> list[SolverTable]:
    """Every find database in a folder and those below it; what is left out goes to stderr.

    Raises:
        UsageError: no folder.
    """
    from haotuner.records.miopen import is_find_database, read_find_database

    result: list[SolverTable] = []
    for path, table in tables_in(folder, is_find_database, read_find_database, quiet=quiet):
        if any(item.device.id == table.device.id for item in result):
            if not quiet:
                tell(f"left out: {path}: another file of {table.device.id} was read")
            continue
        result.append(table)
        if verbose:
            tell(f"{path}: {len(table)} times of {len(table.solvers)} solvers on {table.device.name}")
    return result


def judged(
    tables: list[SolverTable],
    targets: tuple[str, ...],
    shapes: bool,
    problems: int,
    seed: int,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Both scores, as one JSON document; devices out only where there are two silicons."""
    from tests.bench.transfer_study.solvers.evaluate import evaluate_solvers
    from tests.bench.transfer_study.solvers.learned import Settings
    from tests.bench.transfer_study.solvers.pool import SolverPool
    from tests.bench.transfer_study.solvers.shapes import evaluate_shapes

    pool, settings = SolverPool(tables), Settings(seed=seed)
    document: dict[str, Any] = {
        "files": {table.device.id: {"times": len(table), "left_out": dict(table.left_out)} for table in tables}
    }
    if targets or len({table.device.arch for table in tables}) > 1:
        document["devices"] = evaluate_solvers(pool, settings=settings, targets=targets, problems=problems, tell=progress)
    if shapes:
        document["shapes"] = evaluate_shapes(pool, settings=settings, problems=problems, tell=progress)
    return document


def section(document: Mapping[str, Any]) -> Iterator[str]:
    """Lines of Markdown."""
    yield "## Choice of a solver for a convolution (MIOpen)"
    yield ""
    yield "Share of the best time that the chosen solver reaches, on problems whose best takes at least 0.05 ms and that"
    yield "have two solvers or more. *Learned*: a forest over problem, solver and device, put right by what near sources"
    yield "say of the very problem."
    yield ""
    devices = document.get("devices")
    if devices:
        yield "### On a device whose silicon no source has"
        yield ""
        yield from markdown_table(("target", "ranking", "mean", "tenth percentile", "least", "source has"), _rows(devices))
        bar = devices["bar"]
        low, high = bar["needed"]
        yield f"Mean over targets: learned {bar['learned']:.3f}, the best of prior and copies {bar['best_baseline']:.3f}."
        yield f"With a third of the gap to what files of the same silicon reach (0.93 to 0.98): {low:.3f} to {high:.3f}."
        yield ""
    if shapes := document.get("shapes"):
        yield "### On the same device, shapes held out"
        yield ""
        rows = [
            (f"**{device}**" if at == 0 else "", name, *(f"{scores[key]:.3f}" for key in _ORDER))
            for device, shape in shapes["devices"].items()
            for at, (name, scores) in enumerate(shape["rankings"].items())
        ]
        yield from markdown_table(("device", "ranking", "mean", "tenth percentile", "least"), rows)


def _rows(devices: Mapping[str, Any]) -> list[tuple[str, ...]]:
    result = []
    for target, device in devices["targets"].items():
        for at, (name, scores) in enumerate(device["rankings"].items()):
            has = device["known"].get(name)
            cells = (*(f"{scores[key]:.3f}" for key in _ORDER), "" if has is None else f"{has:.0%}")
            result.append((f"**{target}** ({device['problems']} problems)" if at == 0 else "", name, *cells))
    return result
