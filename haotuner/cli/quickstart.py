"""`haotuner quickstart`: from a model's file to an answer whether haotuner is faster for it, and how to serve it."""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from haotuner.bench.models import MODEL_PEERS, dims_of, files_of, race, requests_of, shape_constraints_of
from haotuner.cli.options import Json, Quiet, seconds_of, threads_of
from haotuner.cli.output import counted, say, tell
from haotuner.cli.progress import Watcher
from haotuner.cli.run_status import StatusWriter, status_file
from haotuner.cli.stopping import STOPPED, Stopping
from haotuner.errors import EnvironmentMissing, HaotunerError, UsageError
from haotuner.host.cache_folder import cache_folder
from haotuner.isolate.answers import ChildNotResponding
from haotuner.runtime.pack import Pack

if TYPE_CHECKING:
    from haotuner.partition.tasks import ModelTask
    from haotuner.tuning.session import Report

NAMES = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "torch": "torch.compile"}
RACED = 5  # requests of the range
SECONDS = 1.0  # of each contender at each of them
SAME = 1e-2  # of the largest value: answers that are further apart are not called the same


def quickstart(
    file: Annotated[Path, typer.Argument(metavar="MODEL.onnx|MODEL.pt2", help="The model.")],
    shapes: Annotated[
        str | None,
        typer.Option("--shapes", help="Sizes of its dimensions: batch=1..8;seq=1..512 [default: guessed from their names]."),
    ] = None,
    budget: Annotated[str, typer.Option("--budget", help="Time to measure: 60s, 5m.")] = "5m",
    out: Annotated[Path, typer.Option("--out", help="The pack's directory; an earlier pack there is replaced.")] = Path(
        "pack"
    ),
    threads: Annotated[
        str | None, typer.Option("--threads", help="Thread counts, each with a plan [default: 1,all]; the last is raced.")
    ] = None,
    against: Annotated[
        str | None, typer.Option("--peers", help=f"Peers, of {', '.join(MODEL_PEERS)} [default: all that can run the file].")
    ] = None,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Tune a model for guessed ranges, race what is installed, print how to serve it, and write a report."""
    if not file.exists():
        raise UsageError(f"{file} is not there; name an ONNX file, or a .pt2 that torch.export saved")
    peers = _peers(file, against)
    seconds, counts = seconds_of(budget), () if threads is None else threads_of(threads)
    stopping = Stopping(out)
    with stopping.signals():
        from haotuner.tuning.guessed_shapes import guessed_shapes
        from haotuner.tuning.model_session import model_request, read_models
        from haotuner.tuning.request import cpu_named
        from haotuner.tuning.session import produce

        text = guessed_shapes(file) if shapes is None else shapes
        if shapes is None and not quiet:
            tell(f"guessed sizes: {text} (others: --shapes)")
        read = read_models([file], [text], None, cpu_named("cpu"), watch=(lambda _: None) if quiet else tell)
        request = model_request(
            read, budget_s=seconds, out=out, threads=counts, cache=cache_folder(os.environ), environment=dict(os.environ)
        )
        request.check()
        if not quiet:
            tell(f"tuning {counted(len(request.ops), 'op')} of {file.name}, at most {seconds:.0f} s")
        stopping.watcher = Watcher(request.ops, request.seconds, quiet=quiet, status=StatusWriter(status_file(out), ""))
        with stopping.watcher:
            report = produce(request, stopping.watcher)
        stopping.racing = True
        raced: dict[str, Any] = {}
        if not stopping.requested:
            with suppress(KeyboardInterrupt):
                raced = _raced(report, file, peers, dict(os.environ), quiet=quiet)
        page, why = _report(report, raced)
        if json_output:
            document = {**report.document, "shapes": text, "race": raced, "report": None if page is None else str(page)}
            say(json.dumps(document, indent=1))
        else:
            say("\n".join([*_verdicts(raced, peers), *_serving(report, file), "", why]))
        if stopping.requested or not report.complete:
            raise typer.Exit(STOPPED)


def _peers(file: Path, against: str | None) -> tuple[str, ...]:
    """Peers that are installed and read the file; those that are named must be. UsageError, EnvironmentMissing."""
    readers = tuple(files_of([file], MODEL_PEERS))
    if against is None:
        return tuple(peer for peer in readers if find_spec(peer) is not None)
    named = tuple(part.strip() for part in against.split(",") if part.strip() not in ("", "none"))
    for peer in named:
        if peer not in readers:
            raise UsageError(f"--peers {peer}: {file.name} is raced against {', '.join(readers)}, or none")
        if find_spec(peer) is None:
            raise EnvironmentMissing(f"--peers {peer}: it is not installed; pip install {peer}")
    return named


def _raced(
    report: Report, file: Path, peers: Sequence[str], environment: Mapping[str, str], *, quiet: bool
) -> dict[str, Any]:
    """Document of the race and of the differences of answers; empty where nobody could be raced."""
    if not peers:
        return {}
    task, threads = report.models[0], report.threads[-1]
    with Pack(report.pack, threads=threads) as opened:
        model = opened.model(task.written.name)
        dims = dims_of(model)
        text = ";".join(f"{name}={span}" for name, span in task.spans.items() if name in dims)
        drawn = requests_of(text, dims, agreed=shape_constraints_of(model, dims))
        drawn.sort(key=lambda sizes: math.prod(sizes.values()))
        step = max(1.0, (len(drawn) - 1) / (RACED - 1))
        requests = [drawn[round(step * index)] for index in range(min(RACED, len(drawn)))]
        result: dict[str, Any] = race(
            model, [file], requests, peers, threads=threads, seconds=SECONDS, environment=environment,
            watch=(lambda _: None) if quiet else tell,
        )  # fmt: skip
        result["differences"] = {}
        for peer in (name for name in peers if name not in result["missing"]):
            result["differences"][peer] = _apart(model, peer, file, requests, threads, environment)
    result["sizes"] = {name: [span.first, span.last] for name, span in task.spans.items() if name in dims}
    return result


def _apart(model: Any, peer: str, file: Path, requests: Any, threads: int, environment: Mapping[str, str]) -> float | None:
    from haotuner.bench.model_answers import differences

    try:
        return differences(model, peer, str(file), requests, threads=threads, environment=environment)
    except (HaotunerError, ChildNotResponding) as error:
        tell(f"answers of {peer} were not compared: {error}")
        return None


def _verdicts(raced: Mapping[str, Any], peers: Sequence[str]) -> list[str]:
    """A line for each peer: how many times faster which is, at which sizes, and how far answers are apart."""
    if not raced:
        reason = "the race was stopped" if peers else "no peer is installed: pip install onnxruntime"
        return [f"not raced: {reason}"]
    lines = []
    for peer in peers:
        if peer in raced["missing"]:
            lines.append(f"{NAMES[peer]} cannot run the model")
            continue
        ratios = [row["peers"][peer]["ratio"] for row in raced["rows"] if not row["contended"]]
        busy = not ratios
        ratios = ratios or [row["peers"][peer]["ratio"] for row in raced["rows"]]
        ratio = math.exp(statistics.fmean(map(math.log, ratios)))
        where = ", ".join(f"{name} {first} to {last}" for name, (first, last) in raced["sizes"].items() if first < last)
        speed = f"{ratio:.1f}x {NAMES[peer]}" if ratio >= 1 else f"{NAMES[peer]} is {1 / ratio:.1f}x faster"
        far = raced["differences"].get(peer)
        answers = "" if far is None else f", same answers to {far:.0e}" if far < SAME else f", ANSWERS DIFFER by {far:.1e}"
        load = " (other programs were busy: run it again on a quiet machine)" if busy else ""
        lines.append(f"{speed}{f' at {where}' if where else ''}{answers.replace('e-0', 'e-')}{load}")
    return lines


def _serving(report: Report, file: Path) -> list[str]:
    """The lines of Python that serve the model."""
    task: ModelTask = report.models[0]
    inputs = ", ".join(f'"{name}": {name}' for name in task.graph.inputs)
    return [
        "",
        f'model = haotuner.load("{report.pack}").model("{task.written.name}")',
        f"answer = model.run({{{inputs}}})",
    ]


def _report(report: Report, raced: Mapping[str, Any]) -> tuple[Path | None, str]:
    """The file of the report, and a line that says where it lies, or how to get one."""
    from haotuner.cli.report import write_report

    page, race_file = (report.pack.with_name(f"{report.pack.name}.{end}") for end in ("report.html", "race.json"))
    names = [str(report.pack)]
    if raced:
        race_file.write_text(json.dumps(raced, indent=1), encoding="utf-8")
        names.append(str(race_file))
    try:
        write_report(names, page)
    except EnvironmentMissing as error:
        return None, f"no report: {error}; then haotuner report {' '.join(names)}"
    except HaotunerError as error:
        return None, f"no report: {error}"
    return page, f"report: {page}"
