"""`haotuner bench`: race a pack, or one of its models, against other libraries, each alone in its process."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from haotuner.bench.compare import contest_of, facts_of, finish
from haotuner.bench.field import HOST, PEERS, Field, field_of
from haotuner.bench.models import (
    MODEL_PEERS,
    PROGRAMS,
    dims_of,
    files_of,
    parse_inputs,
    race,
    requests_of,
    shape_constraints_of,
)
from haotuner.bench.plot import check_plot, draw
from haotuner.bench.result import Json as Document
from haotuner.bench.table import cells, closing, header
from haotuner.cli.devices import columns
from haotuner.cli.options import Json, PackFolder, Quiet, Verbose, threads_of
from haotuner.cli.output import say, tell, writing
from haotuner.cli.progress import race_progress
from haotuner.cli.report import check_report_path, report_race
from haotuner.errors import UsageError
from haotuner.hw_profiles.find import find_device
from haotuner.pack.manifest import read_manifest
from haotuner.runtime.device_memory import ordinal_of
from haotuner.runtime.pack import Pack
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape, ShapeRange
from haotuner.spec.traffic import Traffic, arrivals_of, is_trace


def bench_model(
    pack: Path,
    name: str,
    *,
    files: Sequence[Path],
    shapes: str | None,
    against: str | None,
    threads: Sequence[int],
    seconds: float,
    inputs: str,
    json_output: bool,
    quiet: bool,
    environment: Mapping[str, str],
    report: Path | None = None,
) -> None:
    """Race one model at the requests of a trace or range, and print the table."""
    peers = MODEL_PEERS if against is None else tuple(part.strip() for part in against.split(",") if part.strip() != "none")
    unknown = [peer for peer in peers if peer not in MODEL_PEERS]
    if unknown:
        raise UsageError(f"--peers {unknown[0]}: models are raced against {', '.join(MODEL_PEERS)}")
    if (manifest := read_manifest(pack)).on_device:
        raise UsageError(f"{pack} is for {manifest.arch}: whole models are raced on CPUs; tune for this CPU to race {name}")
    for file in files:
        if not file.is_file():
            raise UsageError(f"--file {file} is not there; name the ONNX file that the model was made of, or a {PROGRAMS}")
    without = [peer for peer in peers if peer not in files_of(files, peers)]
    if without and not quiet and (against is not None or not files):
        tell(f"no file for {', '.join(without)}: ONNX Runtime and OpenVINO take --file MODEL.onnx, torch --file MODEL.pt2")
    result = []
    for count in threads:
        with Pack(pack, threads=count) as opened:
            model = opened.model(name)
            text = shapes or str(opened.manifest.tuning["shapes"])
            dims = dims_of(model)
            of_data = [dim for dim in model.dims if dim not in dims]
            requests = requests_of(text, dims, data=of_data, agreed=shape_constraints_of(model, dims))
            drawn = parse_inputs(inputs, [end.name for end in model.inputs], dims)
            result.append(
                race(
                    model, files, requests, peers, threads=count, seconds=seconds, environment=environment,
                    input_values=drawn, watch=_silent if quiet else tell,
                )
            )  # fmt: skip
    document = {**result[0], "rows": [row for item in result for row in item["rows"]]}
    if report is not None:
        report_race(pack, document, report)
    if json_output:
        say(json.dumps(document, indent=1))
        return
    for item in result:
        _print_models(item, [peer for peer in peers if peer not in item["missing"]])


def _silent(_: str) -> None:
    """Nothing is told."""


def _print_models(result: Mapping[str, object], peers: Sequence[str]) -> None:
    rows: list[tuple[str, ...]] = [("shape", "threads", "first", "steady", *(f"{peer}" for peer in peers), "vs best")]
    description: Sequence[Mapping[str, object]] = result["rows"]  # type: ignore[assignment]
    for row in description:
        times: Mapping[str, Mapping[str, float]] = row["peers"]  # type: ignore[assignment]
        ours = float(row["steady_us"])  # type: ignore[arg-type]
        best = min((time_us["ratio"] for time_us in times.values()), default=None)
        shape: Mapping[str, int] = row["shape"]  # type: ignore[assignment]
        rows.append(
            (
                ";".join(f"{axis}={size}" for axis, size in shape.items()),
                str(row["threads"]),
                f"{float(row['first_us']) / 1e3:,.2f}",  # type: ignore[arg-type]
                f"{ours / 1e3:,.2f}",
                *(f"{times[peer]['steady_us'] / 1e3:,.2f}" for peer in peers),
                "-" if best is None else "contended" if row["contended"] else f"{best:.2f}x",
            )
        )
    say(columns(rows))
    summary: Mapping[str, object] = result["summary"]  # type: ignore[assignment]
    say("milliseconds; first: a size that was not seen before; others: steady, the median; vs best: peer over ours by turns")
    if summary["contended"] == len(description):
        say("EVERY ROW WAS CONTENDED: other programs were busy all the time. Run again on a quiet machine for figures")
    elif summary["contended"]:
        say(f"{summary['contended']} contended rows are left out of the mean below")
    if summary["geomean_vs_best"] is not None:
        stream: Mapping[str, float] = summary["stream_vs"]  # type: ignore[assignment]
        says = ", ".join(f"{peer} {ratio:.2f}x" for peer, ratio in stream.items())
        say(f"against the best peer, geometric mean: {summary['geomean_vs_best']:.2f}x; stream of new sizes: {says}")
    load_ms: Mapping[str, float] = summary["load_ms"]  # type: ignore[assignment]
    peak: Mapping[str, float] = summary["peak_bytes"]  # type: ignore[assignment]
    say("load, ms: " + ", ".join(f"{who} {ms:,.0f}" for who, ms in load_ms.items()))
    say("peak memory, MB: " + ", ".join(f"{who} {count / 1e6:,.0f}" for who, count in peak.items()))


SHAPES_OF_RANGE = 8  # a range or a trace is raced at this many shapes; a list is raced whole
WIDE = 400  # columns of a table that is written to a file or a pipe: nothing is cut there


def bench(
    pack: PackFolder,
    against: Annotated[
        str | None, typer.Option("--peers", help=f"Peers, of {', '.join(PEERS)} [default: all that are installed].")
    ] = None,
    shapes: Annotated[
        str | None,
        typer.Option("--shapes", help="m=1,5,37, a range, or a trace; ranges are sampled [default: the tuned range]."),
    ] = None,
    ops: Annotated[
        list[str] | None,
        typer.Option("--op", "--ops", metavar="SPEC", help="An op, or names joined by commas; repeatable [default: all]."),
    ] = None,
    device: Annotated[str, typer.Option("--device", help="cpu, or cuda:0 and so on: a GPU of this host.")] = "cpu",
    threads: Annotated[str, typer.Option("--threads", help="Thread counts, e.g. 1 or 1,all.")] = "1",
    weights: Annotated[
        str | None,
        typer.Option(
            "--cache-state",
            help="cold (each call finds its weight, or second factor, out of cache), hot, or cold,hot [default: cold; hot "
            "where all operands come with a call].",
        ),
    ] = None,
    seconds_per_row: Annotated[
        float, typer.Option("--seconds-per-row", help="Time for one op at one shape, shared by all contenders.")
    ] = 4.0,
    isa: Annotated[
        str | None,
        typer.Option("--isa", help="Limit peers to avx2 or sse, to race a pack built so (not every peer can be)."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the data.")] = 0,
    only: Annotated[str | None, typer.Option("--model", metavar="NAME", help="A whole model of the pack.")] = None,
    file: Annotated[
        list[Path] | None,
        typer.Option(
            "--file",
            metavar="MODEL.onnx",
            help="With --model: the file that peers run; torch runs a MODEL.pt2 of torch.export; repeatable.",
        ),
    ] = None,
    inputs: Annotated[
        str,
        typer.Option("--inputs", help="With --model: inputs whose elements matter: scales=0,1,0;lengths=seq;ids=0..30521."),
    ] = "",
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE.png", help="Draw time over m.")] = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE.html", help="Write the report of the pack and this race.")
    ] = None,
    json_output: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Race a pack against other libraries in the same state of the weights; contended rows are left out of the figures."""
    if report is not None:
        check_report_path(report, "--report")
    if only is not None:
        bench_model(
            pack, only, files=file or (), shapes=shapes, against=against, inputs=inputs, json_output=json_output,
            quiet=quiet, threads=tuple(count or len(os.sched_getaffinity(0)) for count in threads_of(threads)),
            seconds=seconds_per_row / 4, environment=dict(os.environ), report=report,
        )  # fmt: skip
        return
    if plot is not None:
        check_plot(plot)
    requested = [op for text in ops or () for op in _ops(text)]
    ordinal = ordinal_of(device.strip().lower())
    if ordinal is not None and "/" in device:
        raise UsageError(f"--device {device}: contenders race on whole devices; name cuda:{ordinal}")
    field = field_of(ordinal)
    contest = contest_of(
        pack,
        environment=dict(os.environ),
        ops=requested,
        shapes=() if shapes is None else _shapes(shapes, requested or _all(pack, field)),
        against=None if against is None else [name.strip() for name in against.split(",") if name.strip()],
        device=find_device(device, measure=False),
        ordinal=ordinal,
        threads=tuple(dict.fromkeys(count or len(os.sched_getaffinity(0)) for count in threads_of(threads))),
        weights=None if weights is None else tuple(word.strip() for word in weights.split(",")),
        seconds_per_row=seconds_per_row,
        isa=isa,
        seed=seed,
        machine=True,
    )
    now = find_device(device)  # peak and bandwidth measured now, not taken from a cache: shares are of this very hour
    try:
        with race_progress(contest.rows(), quiet=quiet, verbose=verbose or not sys.stderr.isatty()) as watch:
            result = finish(contest, facts_of(pack, now, ordinal), watch)
    except KeyboardInterrupt:
        tell("haotuner: stopped before the first row was raced")
        raise typer.Exit(3) from None
    if plot is not None:
        draw(result, plot)
    if report is not None:
        report_race(pack, result, report)
    if json_output:
        say(json.dumps(result, indent=1))
    else:
        _print(result, list(contest.peers), verbose=verbose)
    if result["summary"]["contended"]:
        tell("haotuner: every row was contended; see `contended` in the rows")
    if result["stopped"]:
        tell(f"haotuner: stopped; {len(result['rows'])} of {contest.rows()} rows were raced")
        raise typer.Exit(3)
    if any(row["ours_us"] is None for row in result["rows"]):
        tell("haotuner: the pack itself failed in some rows; see `failed` there")
        raise typer.Exit(1)


def _ops(text: str) -> list[Op]:
    """A spec, whose commas are its own, or names joined by commas."""
    return [Op.parse(name) for name in ([text] if ":" in text else text.split(",")) if name.strip()]


def _all(pack: Path, field: Field = HOST) -> list[Op]:
    return [op for op_ in read_manifest(pack).ops if not op_.group and field.raceable(op := Op.parse(op_.name))]


def _shapes(text: str, ops: list[Op]) -> list[Shape]:
    """Shapes to race: lists whole, ranges sampled, of traces those with the greatest weight."""
    if is_trace(text):
        weight: dict[Shape, float] = {}
        arrivals = arrivals_of(text)
        for op in ops:
            for shape, share in arrivals.traffic(op):
                weight[shape] = weight.get(shape, 0.0) + share
        heaviest = sorted(weight, key=lambda shape: (-weight[shape], shape.axes))[:SHAPES_OF_RANGE]
        return sorted(heaviest, key=lambda shape: shape.axes)
    shape_range = ShapeRange.parse(text)
    if shape_range.axes() == ("m",):
        return [Shape.of(m=extent) for extent in shape_range.span("m").sample(SHAPES_OF_RANGE)]
    axes = set(ops[0].dynamic) if ops else {"m"}
    if set(shape_range.axes()) != axes:
        required = "m; write m=1,5,37" if axes == {"m"} else ", ".join(sorted(axes))
        raise UsageError(f"--shapes {text!r}: {ops[0].name if ops else 'dense'} has other dynamic axes: {required}")
    lists = [extents for _, span in shape_range.spans for extents in [span.listed]]
    count = math.prod(map(len, lists)) if all(lists) else SHAPES_OF_RANGE  # lists are raced whole
    return list(Traffic.of_range(shape_range, max(count, SHAPES_OF_RANGE)).shapes())


def _print(result: Document, peers: list[str], *, verbose: bool) -> None:
    shown = [name for name in peers if name not in result["missing"]]
    table = Table(*header(shown), box=None, pad_edge=False)
    for column in table.columns[4:]:
        column.justify = "right"
    for row in result["rows"]:
        table.add_row(*cells(row, shown), style="dim" if row["contended"] else None)
    console = Console() if sys.stdout.isatty() else Console(width=WIDE)
    lines = closing(result)
    for row in result["rows"] if verbose else ():
        lines += [f"{row['op']} {row['shape']} {name}: {failed['detail']}" for name, failed in row["failed"].items()]
    if verbose:
        lines.append(", ".join(f"{name} {version}" for name, version in result["versions"].items()))
    with writing():
        console.print(table)
    say("\n" + "\n".join(lines))
