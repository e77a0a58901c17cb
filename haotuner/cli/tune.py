"""`haotuner tune`: tune ops for a range of shapes on this host, write a pack, say how good it is."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from haotuner.cli.devices import columns
from haotuner.cli.model_report import read_models
from haotuner.cli.options import Json, Quiet, Verbose, peers_of, seconds_of, threads_of
from haotuner.cli.output import counted, say, tell
from haotuner.cli.progress import Watcher
from haotuner.cli.run_status import StatusWriter, status_file
from haotuner.cli.stopping import STOPPED, Stopping
from haotuner.cli.terminal_plot import WITHOUT, has_plotext, pack_plots
from haotuner.errors import HaotunerError, UsageError
from haotuner.host.cache_folder import cache_folder
from haotuner.records.address import without_password
from haotuner.search.policies.names import NAMES, TEMPLATE
from haotuner.search.task_scheduler import GRADIENT, STRATEGIES
from haotuner.spec.traffic import arrivals_of
from haotuner.spec.workloads import DEFAULT, WORKLOADS, workload_shapes
from haotuner.tuning.request import (
    BUDGET_OF_MODELS_S,
    BUDGET_PER_OP_S,
    Request,
    cpu_named,
    derivation_s,
    ops_asked,
    serves_on,
)

PEERS_HERE = "torch,onnxruntime,numpy"

if TYPE_CHECKING:  # the models and their libraries take a second to import: only a run that needs them waits
    from haotuner.cli.tune_race import Speed
    from haotuner.codegen.template import Template
    from haotuner.tuning.session import Report


def tune(
    file: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="MODEL.onnx",
            help="Whole models for one pack; --shapes, once or once a model, names dimensions: batch=1..8;seq=1..512.",
        ),
    ] = None,
    op: Annotated[
        list[str] | None, typer.Option("--op", metavar="SPEC", help="An op, e.g. dense:n=2304,k=768; repeatable.")
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(
            "--workload",
            metavar="NAME|FILE",
            help=f"Named ops, in int8 NAME:dtype=int8: {', '.join(WORKLOADS)}; or a file of `haotuner workload`. "
            f"[default: {DEFAULT}]",
        ),
    ] = None,
    shapes: Annotated[
        list[str] | None,
        typer.Option(
            "--shapes",
            help="dynamic (m=1..2048), m=1..4096, m=1,2,4, m=8..512:8, or a trace (.csv, .jsonl); "
            "one range for each set of axes. [default: dynamic]",
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            "--device",
            help="cpu, cpu:avx512, cpu:avx2, cpu:sse, cuda:0; with --zero-measure also a profile (h200), with --on several.",
        ),
    ] = "cpu",
    on: Annotated[
        str,
        typer.Option("--on", metavar="ray|URL", help="Measure in a fleet: ray for this host, ray://HOST:PORT for its head."),
    ] = "",
    threads: Annotated[
        str | None, typer.Option("--threads", help="Thread counts of a CPU, each with a plan of its own [default: 1,all].")
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            help=f"Time to measure: 60s, 5m [default: {BUDGET_PER_OP_S:.0f}s an op, of models {BUDGET_OF_MODELS_S:.0f}s].",
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="The pack's directory; an earlier pack there is replaced.")] = Path(
        "pack"
    ),
    db: Annotated[str | None, typer.Option("--db", help="Record store [default: sqlite:///OUT.records.db].")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of everything that is drawn.")] = 0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Use the records of an earlier run; measure only the rest.")
    ] = False,
    weights: Annotated[
        str, typer.Option("--cache-state", help="State in which kernels are timed: cold (as servers see them) or hot.")
    ] = "cold",
    batch_invariant: Annotated[
        bool, typer.Option("--batch-invariant", help="Promise, checked before publishing, that results do not depend on m.")
    ] = False,
    search: Annotated[
        str,
        typer.Option("--search", metavar="NAME", help=f"Generated kernels: explore all schedules by {', '.join(NAMES)}."),
    ] = "",
    template: Annotated[
        Path | None,
        typer.Option("--template", metavar="FILE", help="With --search: values that knobs of schedules may have, as TOML."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--cost-model",
            metavar="FILE|none",
            help="A cost model to start from (`haotuner transfer fit`), or none [default: what ships for it].",
        ),
    ] = None,
    zero_measure: Annotated[
        bool, typer.Option("--zero-measure", help="Measure nothing: a pack from predictions, marked unverified; exit 3.")
    ] = False,
    objective: Annotated[
        str,
        typer.Option("--objective", metavar="NAME", help="Of models: sum, geomean, or latency=5ms: what time is spent for."),
    ] = "sum",
    strategy: Annotated[
        str,
        typer.Option("--strategy", metavar="NAME", help=f"How models' tasks share the budget: {' or '.join(STRATEGIES)}."),
    ] = GRADIENT,
    early_stopping: Annotated[
        int, typer.Option("--early-stopping", metavar="N", help="Leave a model's task after N turns without gain; 0: never.")
    ] = 0,
    derive: Annotated[
        bool,
        typer.Option(
            "--derive",
            help="Of models: derive other forms of their products, and take those that are faster. Off unless asked for: "
            "few models gain, and where forms may pay their kernels and their race take a part of the budget. Forms that "
            "add zeros may have NaN beside infinities; `haotuner explain` names these, --batch-invariant leaves them out.",
        ),
    ] = False,
    subgraphs: Annotated[
        bool,
        typer.Option("--subgraphs", help="Of ONNX files with operators without a rule: tune the parts between these."),
    ] = False,
    against: Annotated[
        str | None, typer.Option("--peers", help=f"Peers on a CPU for the closing table, or none [default: {PEERS_HERE}].")
    ] = None,
    json_output: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Tune on this host for a range of shapes and write a pack. By default: BERT-base's four dense layers, m 1..2048."""
    stopping = Stopping(out)
    with stopping.signals():
        cores = len(os.sched_getaffinity(0))
        if op and workload:
            raise UsageError("--op and --workload exclude each other; name the ops, or the workload")
        if file and (op or workload):
            raise UsageError("a model brings its own ops; leave --op and --workload out")
        if derive and not (file and device.startswith("cpu")):
            raise UsageError("--derive is of models on CPUs; name a model's file, and leave --device out or say cpu")
        if subgraphs and not (file and device.startswith("cpu")):
            raise UsageError("--subgraphs is of models on CPUs; name a model's file, and leave --device out or say cpu")
        names = check_fleet(on, device, models=bool(file), zero_measure=zero_measure)
        device = names[0]
        peers = peers_of(PEERS_HERE if against is None else against)
        ranges = shapes or ["dynamic"]
        seconds = None if budget is None else seconds_of(budget)
        began = time.monotonic()
        derive_s = derivation_s(seconds) if derive else 0.0
        of_device = serves_on(device), cpu_named(device)
        from_files = None
        if file:
            from_files = read_models(
                file, ranges, *of_device, quiet=quiet, derive_s=derive_s, with_zeros=not batch_invariant, subgraphs=subgraphs
            )
        arrivals = arrivals_of(*ranges) if from_files is None else from_files.arrivals
        if workload is not None:
            arrivals = arrivals.with_own(workload_shapes(workload), first=not shapes)
        request = Request(
            ops=ops_asked(op or None, workload, arrivals, device) if from_files is None else from_files.ops,
            models=() if from_files is None else from_files.models,
            arrivals=arrivals,
            device=device,
            threads=() if threads is None else threads_of(threads),
            budget_s=seconds,
            spent_s=0.0 if from_files is None else from_files.derived_s,
            out=out,
            db=db,
            seed=seed,
            resume=resume,
            weights=weights,
            batch_invariant=batch_invariant,
            search=search or ("" if template is None else TEMPLATE),
            template=None if template is None else _template(template),
            model=model,
            zero_measure=zero_measure,
            objective=objective,
            strategy=strategy,
            early_stopping=early_stopping,
            cache=cache_folder(os.environ),
            environment=dict(os.environ),
        )
        request.check()
        budget_s = request.seconds
        if not quiet:
            what = ", ".join(model.written.name for model in request.models) or ", ".join(o.name for o in request.ops)
            here = f"{cores} cores, at most" if device.startswith("cpu") else "at most"
            how = "from predictions alone" if zero_measure else f"{here} {budget_s:.0f} s"
            tell(f"tuning {what} for {request.shapes} on {', '.join(names)}, {how}")
        from haotuner.cli.tune_race import compare, race_models, times_table
        from haotuner.search.task_scheduler import enough_s
        from haotuner.tuning.session import produce

        enough = enough_s(len(request.ops) + len(request.models))
        if request.models and not zero_measure and not quiet and budget_s < enough:
            ops = counted(len(request.ops), "op")
            tell(f"{_seconds(budget_s)} is little for {ops}: --budget {_seconds(enough)} measures each")
        status = StatusWriter(status_file(out), without_password(request.records))
        stopping.watcher = Watcher(request.ops, budget_s, quiet=quiet, status=status)
        if on:
            from haotuner.cli.tune_fleet import tune_on

            complete = tune_on(request, on, names, stopping.watcher, from_files, json_output=json_output, quiet=quiet)
            if stopping.requested or not complete:
                raise typer.Exit(STOPPED)
            return
        with stopping.watcher:
            report = produce(request, stopping.watcher)
        speed, of_models = None, None
        if report.device.kind != "cpu":  # peers run on this host's CPU
            if peers and against is not None:
                tell(f"--peers {against}: peers on a GPU are raced by `haotuner bench`, not here")
            peers = ()
        stopping.racing = True
        if peers and not stopping.requested and not zero_measure and from_files is None:
            with suppress(KeyboardInterrupt):  # the pack is there, and its figures are told without peers
                speed = compare(request, report, peers, quiet=quiet)
        if peers and not stopping.requested and not zero_measure and from_files is not None:
            with suppress(KeyboardInterrupt):
                of_models = race_models(request, report, None if against is None else peers, quiet=quiet)
        if json_output:
            raced = speed or of_models
            more = {} if from_files is None else from_files.document(report)
            say(json.dumps({**report.document, **more, "speed": None if raced is None else raced.document}, indent=1))
        elif quiet:
            say(str(report.pack))
        else:
            by_op = bool(report.tuned) and (from_files is None or verbose)  # a model has dozens of ops
            if by_op:
                say(_table(report, speed))
                say(_legend(report))
            if speed is not None:
                say(speed.note())
            if by_op:
                say(f"\n{times_table(report, speed)}")
                _plot(report, speed)
            if from_files is not None:
                say(from_files.table(report))
            if of_models is not None:
                say(of_models.text())
            say(_closing(report, time.monotonic() - began, budget_s, verbose=verbose))
        if stopping.requested or not report.complete:
            raise typer.Exit(STOPPED)


def check_fleet(on: str, device: str, *, models: bool, zero_measure: bool) -> tuple[str, ...]:
    """Names of the devices; UsageError for several without --on, and for what a fleet does not do."""
    names = tuple(name.strip() for name in device.split(",") if name.strip()) or (device,)
    if len(names) > 1 and models:
        raise UsageError(
            f"--device {device}: a whole model is tuned for one device at a time; name one, and run once for each"
        )
    if not on and len(names) > 1:
        raise UsageError(f"--device {device}: several devices are tuned by a fleet; add --on ray, or name one device")
    if len(set(names)) < len(names):
        raise UsageError(f"--device {device}: name each device once")
    if on and zero_measure:
        raise UsageError("--on and --zero-measure exclude each other: a fleet is for measuring")
    if on and on != "ray" and not on.startswith("ray://"):
        raise UsageError(f"--on {on}: write ray, or ray://HOST:PORT as `haotuner fleet join` prints it on the head")
    return names


def _plot(report: Report, speed: Speed | None) -> None:
    """Time over shape of the first op, in letters; on a terminal without plotext how to get it."""
    if has_plotext():
        with suppress(HaotunerError):  # the run is done; a pack for another device is not loaded here
            races = [] if speed is None else speed.document["rows"]
            for text in pack_plots(report.pack, report.tuned[0].task.op.name, races):
                say(f"\n{text}")
    elif sys.stdout.isatty():
        tell(WITHOUT)


def _table(report: Report, speed: Speed | None) -> str:
    peers = [] if speed is None else [*speed.peers, *(["best"] if len(speed.peers) > 1 else [])]
    rows: list[tuple[str, ...]] = [("op", "threads", "kernels", "measured", "regret", *(f"vs {peer}" for peer in peers))]
    for entry in report.document["ops"]:
        tuned = next(t for t in report.tuned if t.task.op.name == entry["name"])
        measured = f"{entry['measured']} of {entry['candidates']}"
        for table in tuned.tables:
            ratios = [] if speed is None else [speed.cell(entry["name"], table.threads, peer) for peer in peers]
            known = entry["regret_cover"] is not None and table.measured
            lost = f"{(1 + entry['regret_cover']) * (1 + table.regret_mean) - 1:.1%}" if known else "-"
            rows.append((entry["name"], str(table.threads), str(len(entry["kernels"])), measured, lost, *ratios))
    for table in report.tuned[0].tables if speed is not None and len(report.tuned) > 1 else ():
        over_all = speed.overall(table.threads) if speed is not None else None
        if over_all is not None:
            rows.append(("all", str(table.threads), "", "", "", *("" for _ in peers[:-1]), f"{over_all:.2f}x"))
    return columns(rows)


def _legend(report: Report) -> str:
    ratios = [round(entry["packed_ratio"], 2) for entry in report.document["ops"]]
    times = " to ".join(f"{ratio:.2f}" for ratio in sorted({min(ratios), max(ratios)}))
    sizes = "as much memory as" if set(ratios) == {1.0} else f"{times} times the memory of"
    return (
        "measured: kernels that were timed, of the candidates that selection kept; regret: loss against the best that was\n"
        f"timed, - where nothing was; packed weights take {sizes} plain ones"
    )


def _template(path: Path) -> Template:
    from haotuner.tuning.schedule_search import read_template

    return read_template(path)


def _seconds(seconds: float) -> str:
    """A time as --budget takes it."""
    return f"{seconds:.0f}s" if seconds < 120 else f"{math.ceil(seconds / 60)}m"


def _unmeasured(report: Report, budget_s: float) -> list[str]:
    """Lines on what a budget left out, and one that would not; a run that was stopped has other reasons."""
    from haotuner.search.task_scheduler import enough_s

    lacking = sum(not tuned.measured for tuned in report.tuned)
    if not lacking or report.stopped == "signal" or report.stopped == "zero-measure":
        return []
    enough = _seconds(max(enough_s(len(report.tuned)), budget_s * (1 + lacking / len(report.tuned))))
    return [
        f"{lacking} of {counted(len(report.tuned), 'op')} had no time to be measured: --budget {_seconds(budget_s)} was too "
        f"little on this machine; run again with --resume --budget {enough}"
    ]


def _unverified(report: Report) -> str:
    """Reason that a pack is marked so; a model's generated groups may have times where no op has."""
    if any(model.report.measured for model in report.models):
        return "unverified: generated groups were timed and no op was; plans and times of the ops are predictions"
    return "unverified: nothing was measured on the device, plans and times are predictions"


def _closing(report: Report, seconds: float, budget_s: float, *, verbose: bool) -> str:
    """``seconds``: that passed since the command was given."""
    document: Mapping[str, Any] = report.document
    made = f"{counted(len(report.tuned), 'op')} for {report.device.id}"
    lines = [f"\n{report.pack}: {made} in {seconds:.0f} s ({report.stopped})"]
    if report.start:
        lines.append(f"started {report.start}")
    if document["unverified"]:
        lines.append(_unverified(report))
    lines += _unmeasured(report, budget_s)
    if "kept" in document:
        lines.append(f"not replaced: {document['kept']}")
    if document["verification"]["why"]:
        checked = "checked in part" if document["verification"]["numbers"] else "not checked"
        lines.append(f"results were {checked}: {document['verification']['why']}")
    if document["reused"]:
        lines.append(f"{document['reused']} measurements of an earlier run were used again")
    if document["failures"]:
        lines.append("failures: " + ", ".join(f"{count} {reason}" for reason, count in document["failures"].items()))
    if verbose:
        for entry in document["ops"]:
            lines.append(f"{entry['name']}: {entry['funnel']}; refused {entry['refused']}; model {entry['model']}")
            lines += [f"  {kernel}" for kernel in entry["kernels"]]
    where = "" if report.device.kind == "cpu" else ', device="cuda:0"'
    lines.append(f'serve it: haotuner.load("{report.pack}"{where}); look closer: haotuner explain, report, bench')
    return "\n".join(lines)
