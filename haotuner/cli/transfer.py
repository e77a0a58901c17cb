"""`haotuner transfer`: models for a device from records of others, and how well that works."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from haotuner.cli.devices import columns
from haotuner.cli.option_values import Json, Quiet, Verbose
from haotuner.cli.output import say, tell
from haotuner.cli.output_path import check_output_path
from haotuner.cli.status_messages import keep_partial_results, status_messages
from haotuner.cli.transfer_input import caches_in, counts_of, device_tables, known_device, known_families, read_store
from haotuner.cli.transfer_shapes import shapes
from haotuner.cli.transfer_solvers import solvers
from haotuner.cli.transfer_winners import winners
from haotuner.errors import UsageError

# LightGBM, pandas and scikit-learn take a second to import: verbs import inside, and only these wait for them.
transfer_app = typer.Typer(help="Learn a device from records of others; say how well that works.", no_args_is_help=True)
transfer_app.command()(shapes)
transfer_app.command()(solvers)
transfer_app.command()(winners)

_Db = Annotated[str, typer.Option("--db", metavar="URL", help="The record store: sqlite:///FILE.")]
_Target = Annotated[str, typer.Option("--target", metavar="ID", help="The device: a profile's id, cpu, cuda, cuda:N.")]
_Family = Annotated[list[str] | None, typer.Option("--family", help="Only this family of kernels; repeatable.")]
_Seeds = Annotated[int, typer.Option("--seeds", help="Random splits and samples to average over.")]


@transfer_app.command()
def fit(
    db: _Db,
    target: _Target,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The model to write.")],
    family: Annotated[str | None, typer.Option("--family", help="The family, if the store has several.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the forests.")] = 0,
    json_output: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Write a cost model for the target, for `haotuner tune --cost-model FILE`; records of other devices are its sources."""
    from haotuner.transfer.fit import fit_model
    from haotuner.transfer.saved_model import save_model

    check_output_path(out)
    device, read = known_device(target), read_store(db, quiet=quiet, verbose=verbose)
    known_families(read, None if family is None else [family])
    with status_messages(quiet=quiet, verbose=verbose) as status:
        fitted = fit_model(read, device, family=family, seed=seed, tell=status)
    save_model(fitted.model, out)
    if json_output:
        document = {
            "out": str(out),
            "target": target,
            "family": fitted.family,
            "mode": fitted.choice.mode,
            "gauge": fitted.choice.accuracy,
            "sources": list(fitted.sources),
            "rows": fitted.rows,
            "note": fitted.note,
        }
        say(json.dumps(document, indent=1))
    elif not quiet:
        sources = ", ".join(fitted.sources) or "no other device"
        say(f"{out}: {fitted.family} on {target}, {fitted.choice.mode} from {sources}, {fitted.rows} own rows")
    if fitted.choice.accuracies and verbose and not quiet:
        text = ", ".join(f"{mode} {share:.3f}" for mode, share in fitted.choice.accuracies.items())
        tell(f"gauge, pairwise accuracy on own rows held out: {text}")
    if fitted.note and not quiet:
        tell(f"note: {fitted.note}")


@transfer_app.command()
def evaluate(
    db: _Db,
    target: _Target,
    samples: Annotated[str, typer.Option("--samples", help="Target sample counts.")] = "0,16,32,64,128",
    split: Annotated[
        str,
        typer.Option(
            "--split", help="device, or device-and-configs: sources see half the kernels, the other half is scored."
        ),
    ] = "device",
    seeds: _Seeds = 20,
    family: _Family = None,
    json_output: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Score every mode on a target whose records are known.

    Modes: zero-shot, residual, continue, refit, copy, from-scratch; and started, which is what `haotuner tune` runs.
    """
    from haotuner.transfer.evaluate import Evaluation, evaluate

    evaluation = Evaluation(
        target=known_device(target).id,
        counts=counts_of("--samples", samples),
        split=split,
        seeds=seeds,
        families=tuple(family or ()),
    )
    read = read_store(db, quiet=quiet, verbose=verbose)
    known_families(read, family)
    with status_messages(quiet=quiet, verbose=verbose) as tell:
        report = evaluate(read, evaluation, tell)
    if json_output:
        say(json.dumps(report, indent=1))
    else:
        say(_table(report))


@transfer_app.command()
def report(
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="A page to write, with every mode and score.")
    ] = None,
    db: Annotated[str | None, typer.Option("--db", metavar="URL", help="The record store: sqlite:///FILE.")] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="FOLDER", help="Public files: Kernel Tuner's caches, MIOpen's and CLBlast's tables."),
    ] = None,
    family: _Family = None,
    split: Annotated[
        list[str] | None,
        typer.Option("--split", help="Only device, architecture or device-and-configs; repeatable. Default: all three."),
    ] = None,
    seeds: _Seeds = 20,
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

    Prints a summary; with --out it also writes a page of every mode. Without --family, a folder's tables of solvers and of
    winners are judged as well. With --db and --data, records come from the store and these tables from the folder.
    """
    from haotuner.cli.transfer_folder import others_in, sections
    from haotuner.cli.transfer_page import page
    from haotuner.cli.transfer_summary import summary
    from haotuner.transfer import report as reports
    from haotuner.transfer.evaluate import SPLITS

    if unknown := sorted({*(split or ())} - {*SPLITS}):
        raise UsageError(f"--split {unknown[0]} is none of {', '.join(SPLITS)}")
    if out is not None:
        check_output_path(out)
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
            kept=partial,
            keep=keep,
        )
        judged = others.judged(problems, status) if others else {}
    options = "".join(f" --family {name}" for name in family or ()) + "".join(f" --split {name}" for name in split or ())
    options += f" --seeds {seeds} --samples {samples}"
    source = " ".join([*(["--db URL"] if db is not None else []), *(["--data FOLDER"] if data is not None else [])])
    if out is not None:
        command = f"haotuner transfer report {source} --out {out.name}{options}"
        more = "".join(f"{line}\n" for line in sections(judged, devices=True))
        out.write_text(page(document, command) + more, encoding="utf-8")
    if json_output:
        say(json.dumps({**document, **judged}, indent=1))
    elif not quiet or out is None:
        say("\n".join([summary(document), *sections(judged, devices=False)]))
        if out is not None:
            tell(f"{out}: {len(document['families'])} families, {document['work_s']:.0f} s of work")


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
