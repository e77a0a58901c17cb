"""`haotuner bench`: race a pack against other libraries, each alone in its process, and say how sure the figures are."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from haotuner.bench.compare import contest_of, facts_of, finish
from haotuner.bench.field import HOST, PEERS, Field, field_of
from haotuner.bench.plot import check_plot, draw
from haotuner.bench.result import Json as Document
from haotuner.bench.table import cells, closing, header
from haotuner.cli.bench_model import bench_model
from haotuner.cli.option_values import Json, PackFolder, Quiet, Verbose, threads_of
from haotuner.cli.output import say, tell, writing
from haotuner.cli.progress import race_progress
from haotuner.errors import UsageError
from haotuner.hw_profiles.find import find_device
from haotuner.pack.manifest import read_manifest
from haotuner.runtime.gpus import ordinal_of
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape, ShapeRange
from haotuner.spec.trace import arrivals_of, is_trace
from haotuner.spec.traffic import Traffic

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
    given: Annotated[
        str,
        typer.Option("--inputs", help="With --model: inputs whose elements matter: scales=0,1,0;lengths=seq;ids=0..30521."),
    ] = "",
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE.png", help="Draw time over m.")] = None,
    json_output: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Race a pack against other libraries in the same state of the weights; contended rows are left out of the figures."""
    if only is not None:
        bench_model(
            pack, only, files=file or (), shapes=shapes, against=against, given=given, json_output=json_output, quiet=quiet,
            threads=tuple(count or len(os.sched_getaffinity(0)) for count in threads_of(threads)),
            seconds=seconds_per_row / 4, environment=dict(os.environ),
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
