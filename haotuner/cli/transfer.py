"""`haotuner transfer`: models for a device from records of others, and how well that works."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from haotuner.cli.devices import columns
from haotuner.cli.output import say, tell
from haotuner.cli.place import check_place, plots_beside
from haotuner.cli.requested import Json, Quiet, Verbose
from haotuner.cli.telling import keeping, telling
from haotuner.cli.transfer_input import counts_of, known_device, known_families, read_store, shared_families
from haotuner.errors import UsageError

# LightGBM, pandas and scikit-learn take a second to import: verbs import inside, and only these wait for them.
transfer_app = typer.Typer(help="Learn a device from records of others; say how well that works.", no_args_is_help=True)

_Db = Annotated[str, typer.Option("--db", metavar="URL", help="The record store: sqlite:///FILE.")]
_Target = Annotated[str, typer.Option("--target", metavar="ID", help="The device: a profile's id, cpu, cuda, cuda:N.")]
_Family = Annotated[list[str] | None, typer.Option("--family", help="Only this family of kernels; repeatable.")]
_Seeds = Annotated[int, typer.Option("--seeds", help="Random splits and samples to average over.")]
_FewSeeds = Annotated[int, typer.Option("--seeds", min=1, help="Seeds of the forests to average over.")]


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
    """Write a cost model for the target, for `haotuner tune --model FILE`; records of other devices are its sources."""
    from haotuner.transfer.fitting import fit_model
    from haotuner.transfer.kept import save_model

    check_place(out)
    device, read = known_device(target), read_store(db, quiet=quiet, verbose=verbose)
    known_families(read, None if family is None else [family])
    fitted = fit_model(read, device, family=family, seed=seed)
    save_model(fitted.model, out)
    if json_output:
        document = {
            "out": str(out),
            "target": target,
            "family": fitted.family,
            "mode": fitted.verdict.mode,
            "gauge": fitted.verdict.gauge,
            "sources": list(fitted.sources),
            "rows": fitted.rows,
            "note": fitted.note,
        }
        say(json.dumps(document, indent=1))
    elif not quiet:
        sources = ", ".join(fitted.sources) or "no other device"
        say(f"{out}: {fitted.family} on {target}, {fitted.verdict.mode} from {sources}, {fitted.rows} own rows")
    if fitted.verdict.of_modes and verbose and not quiet:
        said = ", ".join(f"{mode} {share:.3f}" for mode, share in fitted.verdict.of_modes.items())
        tell(f"gauge, pairwise accuracy on own rows held out: {said}")
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
    """Score every mode on a target whose records are known: zero-shot, residual, continue, refit, copy, from-scratch."""
    from haotuner.transfer.evaluate import Question, evaluate

    question = Question(
        target=known_device(target).id,
        counts=counts_of("--samples", samples),
        split=split,
        seeds=seeds,
        families=tuple(family or ()),
    )
    read = read_store(db, quiet=quiet, verbose=verbose)
    known_families(read, family)
    with telling(quiet=quiet, verbose=verbose) as tell:
        report = evaluate(read, question, tell)
    if json_output:
        say(json.dumps(report, indent=1))
    else:
        say(_table(report))


@transfer_app.command()
def ablate(
    db: _Db,
    family: _Family = None,
    seeds: _FewSeeds = 5,
    json_output: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """What resource features add over program-only features, on devices that training never saw."""
    from haotuner.transfer.ablation import ablate

    read = read_store(db, quiet=quiet, verbose=verbose)
    for report in _each([ablate(read, name, seeds=seeds) for name in shared_families(read, family)], json_output):
        rows = [(name, *(f"{value:.3f}" for value in scores.values())) for name, scores in report["means"].items()]
        say(columns([(report["family"], "pairwise", "best@1", "best@5", "best@10"), *rows]))
        for source in ("device out", "own samples"):
            by = {name: scores[source] for name, scores in report["objectives"].items()}
            rows = [(name, *(f"{value:.3f}" for value in scores.values())) for name, scores in by.items()]
            say("\n" + columns([(f"objective, {source}", "pairwise", "best@1", "best@5", "best@10"), *rows]))


@transfer_app.command()
def permute(
    db: _Db,
    family: _Family = None,
    seeds: _FewSeeds = 5,
    json_output: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Swap devices' profiles: a model that uses the hardware must rank worse with a wrong one."""
    from haotuner.transfer.permutation import permute

    read = read_store(db, quiet=quiet, verbose=verbose)
    for report in _each([permute(read, name, seeds=seeds) for name in shared_families(read, family)], json_output):
        low, high = report["interval"]
        say(
            f"{report['family']}: swapping two profiles costs {report['mean_cost']:.3f} of pairwise accuracy "
            f"(90 % interval {low:.3f} to {high:.3f})"
        )


@transfer_app.command()
def report(
    db: _Db,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The page to write; plots go into a folder beside it.")],
    family: _Family = None,
    seeds: _Seeds = 20,
    samples: Annotated[str, typer.Option("--samples", help="Target sample counts.")] = "0,16,32,64,128",
    jobs: Annotated[int, typer.Option("--jobs", min=0, help="Processes; default: one a core.")] = 0,
    numbers: Annotated[
        Path | None,
        typer.Option("--numbers", metavar="FILE", help="Keep figures as they come; a later run takes them from here."),
    ] = None,
    json_output: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Write the transfer page: every target of every family under both splits, with tables, plots and tests."""
    from haotuner.transfer.page import page
    from haotuner.transfer.plots import draw, pyplot_or_say
    from haotuner.transfer.survey import survey

    check_place(out)
    folder, counts = plots_beside(out), counts_of("--samples", samples)
    read = read_store(db, quiet=quiet, verbose=verbose)
    known_families(read, family)
    pyplot_or_say()  # before minutes are spent, but what was asked is looked at first
    with telling(quiet=quiet, verbose=verbose) as tell, keeping(numbers) as (kept, keep):
        document = survey(
            read,
            families=family or (),
            counts=counts,
            seeds=seeds,
            jobs=jobs or os.cpu_count() or 1,
            tell=tell,
            kept=kept,
            keep=keep,
        )
    plots = {}
    for name, facts in document["families"].items():
        for split, reports in facts["splits"].items():
            picture = folder / f"{name}-{split}.png"
            draw(reports, f"{name}, {split}", picture)
            plots[name, split] = picture.relative_to(out.parent).as_posix()
    asked = "".join(f" --family {name}" for name in family or ()) + f" --seeds {seeds} --samples {samples}"
    words = f"haotuner transfer report --db URL --out {out.name}{asked}"
    out.write_text(page(document, words, plots), encoding="utf-8")
    if json_output:
        say(json.dumps(document, indent=1))
    elif not quiet:
        say(f"{out}: {len(document['families'])} families, {document['seeds']} seeds, {document['work_s']:.0f} s of work")


@transfer_app.command()
def speed(
    db: _Db,
    target: _Target,
    family: _Family = None,
    rows: Annotated[str, typer.Option("--rows", help="Row counts to score.")] = "4000,64000",
    json_output: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Time features and predictions of the target's transferred model on one core."""
    from haotuner.transfer.speed import time_scoring

    device, counts = known_device(target).id, counts_of("--rows", rows, least=1)
    read = read_store(db, quiet=quiet, verbose=verbose)
    known_families(read, family)
    both = [name for name in shared_families(read) if any(table.device.id == device for table in read.of(name))]
    names = family or both
    if not names or set(names) - set(both):
        raise UsageError(
            f"the speed of a transfer to {device} needs records of it and of another device; the store has both for "
            f"{', '.join(both) or 'no family'}; import more with: haotuner records import FILE --db URL"
        )
    found = [time_scoring(read, device, name, counts) for name in names]
    if json_output:
        say(json.dumps({"target": device, "families": found}, indent=1))
        return
    kinds = ("features", "zero-shot", "residual", "own forest")
    table: list[tuple[str, ...]] = [("family", "rows", *kinds)]
    for each in found:
        for count, times in each["rows"].items():
            table.append((each["family"], count, *(f"{times[kind] * 1e3:.0f} ms" for kind in kinds)))
    say(columns(table))


def _each(reports: list[dict[str, Any]], json_output: bool) -> list[dict[str, Any]]:
    """The reports of families that are still to be told in words: none where JSON was asked for, which is printed."""
    if json_output:
        say(json.dumps({"families": reports}, indent=1))
    return [] if json_output else reports


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
