"""`haotuner transfer`: models for a device from records of others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from haotuner.cli.options import Json, Quiet, Verbose
from haotuner.cli.output import check_output_path, say, status_messages, tell
from haotuner.cli.transfer_input import known_device, known_families, known_winners, read_store
from haotuner.errors import UsageError

# LightGBM, pandas and scikit-learn take a second to import: verbs import inside, and only these wait for them.
transfer_app = typer.Typer(help="Learn a device from records of others.", no_args_is_help=True)

_Target = Annotated[str, typer.Option("--target", metavar="ID", help="The device: a profile's id, cpu, cuda, cuda:N.")]


@transfer_app.command()
def fit(
    target: _Target,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The model to write.")],
    db: Annotated[str | None, typer.Option("--db", metavar="URL", help="The record store: sqlite:///FILE.")] = None,
    winners: Annotated[
        list[Path] | None, typer.Option("--winners", metavar="FILE", help="CLBlast's best parameters, JSON or header.")
    ] = None,
    family: Annotated[str | None, typer.Option("--family", help="One family; of GPUs by default all, in one model.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the forests.")] = 0,
    json_output: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Write a cost model for the target, for `haotuner tune --cost-model FILE`; records of other devices are its sources."""
    from haotuner.transfer.fit import fit_model
    from haotuner.transfer.reading import DeviceTables
    from haotuner.transfer.saved_model import save_model

    check_output_path(out)
    if db is None and not winners:
        raise UsageError("transfer fit needs what others measured: --db URL of a store, or --winners FILE")
    device = known_device(target)
    read = DeviceTables() if db is None else read_store(db, quiet=quiet, verbose=verbose)
    known_families(read, None if family is None else [family])
    tables = known_winners(winners or (), seed=seed, quiet=quiet)
    with status_messages(quiet=quiet, verbose=verbose) as status:
        fitted = fit_model(read, device, family=family, winners=tables, seed=seed, tell=status)
    save_model(fitted.model, out)
    if json_output:
        document = {
            "out": str(out),
            "target": target,
            "family": fitted.family,
            "mode": fitted.mode,
            "sources": list(fitted.sources),
            "rows": fitted.rows,
            "note": fitted.note,
        }
        say(json.dumps(document, indent=1))
    elif not quiet:
        sources = ", ".join(fitted.sources) or "no other device"
        say(f"{out}: {fitted.family} on {target}, {fitted.mode} from {sources}, {fitted.rows} own rows")
    if fitted.note and not quiet:
        tell(f"note: {fitted.note}")
