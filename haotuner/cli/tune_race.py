"""Closing races of `haotuner tune`: ops against numpy and installed peers, models against ONNX Runtime."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from haotuner.bench.compare import compare as race_ops
from haotuner.bench.models import PROGRAMS, TURNS, dims_of, race
from haotuner.cli.devices import columns
from haotuner.cli.output import counted, tell
from haotuner.cli.progress import race_progress
from haotuner.errors import HaotunerError
from haotuner.hw_profiles.find import find_device
from haotuner.partition.cost_estimate import predicted_us
from haotuner.plan.table import CellTable
from haotuner.runtime.pack import Pack
from haotuner.spec.cold import waits
from haotuner.spec.device import Device
from haotuner.spec.shape import Shape, Span
from haotuner.tuning.request import Request
from haotuner.tuning.session import Report
from haotuner.tuning.strategies import Tuned

if TYPE_CHECKING:
    from haotuner.partition.tasks import ModelTask

QUICK_SHAPES = 6
OP_RACE_S, QUICK_ROW_S = 40.0, 2.0  # at most, and for one op at one shape; more is what `haotuner bench` is for
OTHER_LOAD = "other programs were busy meanwhile; run `haotuner bench` on a quiet machine for figures to rely on"


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Geometric means of peer over ours by op, thread count and peer; ``best`` is the best peer at each shape."""

    document: Mapping[str, Any]
    peers: Sequence[str]
    threads: Sequence[int]
    ratios: Mapping[tuple[str, int, str], float]

    def cell(self, op: str, threads: int, peer: str) -> str:
        """``1.42x``, or a dash."""
        value = self.ratios.get((op, threads, peer))
        return "-" if value is None else f"{value:.2f}x"

    def overall(self, threads: int) -> float | None:
        """Geometric mean over the ops against the best peer at each shape."""
        result = [value for (_, count, peer), value in self.ratios.items() if count == threads and peer == "best"]
        return math.exp(sum(map(math.log, result)) / len(result)) if result else None

    def note(self) -> str:
        """Meaning of the figures, and whether to trust them."""
        contended = sum(bool(row.get("contended")) for row in self.document["rows"])
        shapes = sorted({row["shape"]["m"] for row in self.document["rows"]})
        missing, rows = self.document.get("missing", []), self.document["rows"]
        whole = len(rows) == len({(row["op"], row["threads"]) for row in rows}) * len(shapes)
        of = f"{'' if whole else 'what was raced of '}m = {', '.join(map(str, shapes))}"
        text = f"peer time over ours, geometric mean over {of}; > 1 means haotuner is faster"
        if missing:
            text += f"\nnot installed: {', '.join(missing)}"
        if contended == len(rows):
            return text + f"\nno figure is given, ~ marks their times: all rows were contended, {OTHER_LOAD}"
        return text + (
            f"\n{contended} of {len(rows)} rows are left out, ~ marks their times: {OTHER_LOAD}" if contended else ""
        )


def compare(request: Request, report: Report, against: Sequence[str], *, quiet: bool) -> Speed | None:
    """Race the new pack; None when no peer is installed, and when none has such an op."""
    peers = [name for name in against if name == "numpy" or find_spec(_module(name)) is not None]
    if not peers:
        return None
    raced = [tuned for tuned in report.tuned if tuned.task.op.kind == "dense"]  # what peers have an operator for
    if not raced:
        return None
    ops = [tuned.task.op for tuned in raced]
    threads = sorted({table.threads for tuned in raced for table in tuned.tables})
    rows = sorted({shape["m"] for tuned in raced for shape in tuned.task.traffic.shapes()})
    shapes = [Shape.of(m=m) for m in spread(Span(first=rows[0], last=rows[-1]).sample(QUICK_SHAPES))]
    seconds = min(OP_RACE_S, QUICK_ROW_S * len(ops) * len(threads) * len(shapes))
    if not quiet:
        tell(f"racing against {', '.join(peers)} for about {seconds:.0f} s")
    device: Device = find_device(request.device, cache_dir=request.cache)
    with race_progress(len(ops) * len(threads) * len(shapes), quiet=quiet) as watch:
        result = race_ops(
            request.out,
            ops,
            shapes,
            threads,
            peers,
            OP_RACE_S,
            environment=request.environment,
            device=device,
            weights=request.weights,
            watch=watch,
        )
    if not result["rows"]:  # none of them computes such an op: numpy and bf16
        return None
    return Speed(document=result, peers=peers, threads=threads, ratios=_ratios(result["rows"], peers))


def spread(sizes: Sequence[int]) -> list[int]:
    """The sizes in another order, of which the first few lie apart: a race that ends early has some of each part."""
    digits = len(sizes).bit_length()
    return [sizes[at] for at in sorted(range(len(sizes)), key=lambda at: f"{at:0{digits}b}"[::-1])]


def times_table(report: Report, speed: Speed | None) -> str:
    """Time of one call and GFLOP/s at a few heights: as raced, or without a race as the plans expect."""
    times: dict[tuple[str, int, int], float] = {}
    contended: set[tuple[str, int, int]] = set()
    if speed is not None:
        rows = {(row["op"], row["threads"], row["shape"]["m"]): row for row in speed.document["rows"]}
        times = {where: row["ours_us"] for where, row in rows.items()}
        contended = {where for where, row in rows.items() if row.get("contended")}
    else:
        for tuned in report.tuned:
            rows_tuned = [shape["m"] for shape in tuned.task.traffic.shapes()] if tuned.row_tables else []
            for table in tuned.row_tables:
                for m in Span(first=min(rows_tuned), last=max(rows_tuned)).sample(QUICK_SHAPES):
                    if m <= len(table.entries):
                        times[tuned.task.op.name, table.threads, m] = table.entries[m - 1].us
    heights = sorted({m for _, _, m in times})
    flops = {tuned.task.op.name: tuned.task.op.flops for tuned in report.tuned}
    lines: list[tuple[str, ...]] = [("us (GFLOP/s)", "threads", *(f"m={m}" for m in heights))]
    for op, threads in dict.fromkeys((op, threads) for op, threads, _ in times):
        known = [(times.get((op, threads, m)), m) for m in heights]
        cells = [
            f"{'~' if (op, threads, m) in contended else ''}{_amount(us)} ({flops[op](Shape.of(m=m)) / us / 1e3:.0f})"
            if us
            else "-"
            for us, m in known
        ]
        lines.append((op, str(threads), *cells))
    what = "time of one call as raced" if speed is not None else "time of one call that the plans expect"
    if speed is not None and any("-" in line[2:] for line in lines):
        what += f" (-: the {OP_RACE_S:.0f} s of the race were over)"
    by_cells = _cell_lines(report)
    tables = [columns(lines)] if len(lines) > 1 else []
    tables += [columns([("op", "threads", "shape", "us", "GFLOP/s"), *by_cells])] if by_cells else []
    weighted = [tuned.task.cache for tuned in report.tuned if waits(tuned.task.op)]
    state = f"weights {weighted[0]}" if weighted else "operands in cache"
    return "\n\n".join(tables) + f"\n{what}, {state}"


def _amount(us: float) -> str:
    return f"{us:.3g}" if us < 100 else f"{us:,.0f}"


def _cell_lines(report: Report) -> list[tuple[str, ...]]:
    """Lines of ops whose plans are by cells: at a few of the shapes that were timed."""
    lines: list[tuple[str, ...]] = []
    for tuned in report.tuned:
        for table in tuned.tables:
            if isinstance(table, CellTable):
                if table.considered:
                    lines += _weighed_lines(tuned, table)
                    continue
                timed = sorted(table.measured, key=tuned.task.op.flops)
                picked = [timed[index * (len(timed) - 1) // 3] for index in range(4)] if len(timed) > 4 else timed
                for shape in picked:
                    us = min(table.measured[shape].values())
                    gflops = tuned.task.op.flops(shape) / us / 1e3
                    lines.append((tuned.task.op.name, str(table.threads), str(shape), f"{us:,.2f}", f"{gflops:.2f}"))
    return lines


def _weighed_lines(tuned: Tuned, table: CellTable) -> list[tuple[str, ...]]:
    """Lines of a table whose cells were weighed one by one: what is expected at the largest shapes of a few of them."""
    op = tuned.task.op
    ((axis, ends),) = table.bounds.items()
    places = sorted({round(at * (len(ends) - 1) / (QUICK_SHAPES - 1)) for at in range(QUICK_SHAPES)})
    lines: list[tuple[str, ...]] = []
    for position in places:
        shape, us = Shape.of({axis: ends[position]}), table.considered[position][0].us
        lines.append((op.name, str(table.threads), str(shape), f"{us:,.2f}", f"{op.flops(shape) / us / 1e3:,.0f}"))
    return lines


def _module(peer: str) -> str:
    return {"onednn": "torch", "inductor": "torch"}.get(peer, peer)


def _ratios(rows: Sequence[Mapping[str, Any]], peers: Sequence[str]) -> dict[tuple[str, int, str], float]:
    logs: dict[tuple[str, int, str], list[float]] = {}
    for row in rows:
        times = {peer: us for peer, us in row["peers_us"].items() if us}
        if not times or not row["ours_us"] or row.get("contended"):
            continue
        for peer in peers:
            if peer in times:
                logs.setdefault((row["op"], row["threads"], peer), []).append(math.log(times[peer] / row["ours_us"]))
        logs.setdefault((row["op"], row["threads"], "best"), []).append(math.log(min(times.values()) / row["ours_us"]))
    return {key: math.exp(sum(log) / len(log)) for key, log in logs.items()}


READ_ONNX = ("onnxruntime", "openvino")
DEFAULT_PEERS = READ_ONNX[:1]
MODEL_RACE_S, REQUEST_S = 10.0, 0.5  # of a race without loading, at most; and of a contender at a request
LEAST_CALLS = 1 + 2 * TURNS  # of a contender at a request, however slow it is


@dataclass(frozen=True, slots=True)
class ModelSpeed:
    """Rows of ``haotuner.bench.models.race`` for every model and thread count, and the peers that could not be raced."""

    rows: Sequence[Mapping[str, Any]]
    hints: Sequence[str]

    @property
    def document(self) -> Mapping[str, Any]:
        """The JSON form."""
        return {"rows": list(self.rows)}

    def text(self) -> str:
        """A line for each model, peer and thread count; behind them what was not raced, and how to race it."""
        lines, cells = [], dict[tuple[str, str, int], list[str]]()
        for row in self.rows:
            where = ";".join(f"{name}={size}" for name, size in row["shape"].items()) or "every request"
            for peer, against in row["peers"].items():
                ratio = "~" if row["contended"] else f"{against['ratio']:.2f}x"
                cells.setdefault((row["model"], peer, row["threads"]), []).append(f"{ratio} at {where}")
        for (model, peer, threads), own in cells.items():
            lines.append(f"{model} against {peer}, threads {threads}: {', '.join(own)}")
        if cells:
            lines.append("peer time over ours; > 1 means haotuner is faster")
        if any(row["contended"] for row in self.rows):
            lines.append(f"~ stands for figures that are left out: {OTHER_LOAD}")
        return "\n".join([*lines, *self.hints])


def race_models(request: Request, report: Report, against: Sequence[str] | None, *, quiet: bool) -> ModelSpeed:
    """Race the models of a new pack for a CPU. ``against``: names of ``--peers``; None where none were named.

    A request is raced where its expected time leaves room for ``LEAST_CALLS`` calls in ``QUICK_S`` seconds.
    """
    peers = [peer for peer in (DEFAULT_PEERS if against is None else against) if peer in READ_ONNX]
    others = [peer for peer in against or () if peer not in READ_ONNX]
    rows: list[Mapping[str, Any]] = []
    hints = [f"models are raced here against {' and '.join(READ_ONNX)}, not {', '.join(others)}"] if others else []
    share = MODEL_RACE_S / len(request.models) / len(report.threads)
    for model in request.models:
        name, file = model.written.name, model.file
        why = _cannot(model, peers)
        for threads in report.threads if not why else ():
            sizes = few_requests(predicted_us(model, report.tuned, report.device, threads), share / (1 + len(peers)))
            if not sizes:
                why = "one race would take longer than tune waits for it"
                break
            seconds = min(REQUEST_S, share / (1 + len(peers)) / len(sizes))
            if not quiet:
                tell(f"racing {name} against {', '.join(peers)} at {counted(len(sizes), 'request')}, threads {threads}")
            try:
                rows += _raced(request, name, [file], sizes, peers, threads, seconds)
            except HaotunerError as error:
                why = str(error)
                break
        if why:
            hints.append(f"{name} was not raced: {why}; run haotuner bench {report.pack} --model {name} --file {file}")
    return ModelSpeed(rows, hints)


def _cannot(model: ModelTask, peers: Sequence[str]) -> str:
    """Reason that no peer can run a model; empty where some can."""
    if model.subgraph is not None:
        return "it is a part of its file, which peers read whole"
    if model.file.suffix == PROGRAMS:
        return "it is a file of torch.export, which torch compiles for minutes"
    if not peers:
        return "--peers names no peer that reads ONNX"
    missing = [peer for peer in peers if find_spec(peer) is None]
    return f"{', '.join(missing)} is not installed" if missing else ""


def few_requests(expected: Mapping[str, Mapping[str, float]], seconds: float) -> list[dict[str, int]]:
    """The fastest, a middle and the slowest request that fit into so many seconds of a contender, as expected."""
    fast = sorted(expected, key=lambda text: (expected[text]["all"], text))
    left, chosen = seconds * 1e6, list[str]()
    for text in dict.fromkeys([*fast[:1], *fast[len(fast) // 2 :][:1], *fast[-1:]]):
        left -= LEAST_CALLS * expected[text]["all"]
        if left < 0:
            break
        chosen.append(text)
    return [dict(_size(part) for part in text.split(";") if part) for text in chosen]


def _size(part: str) -> tuple[str, int]:
    name, _, size = part.rpartition("=")
    return name, int(size)


def _raced(
    request: Request,
    name: str,
    files: Sequence[Any],
    sizes: Sequence[Mapping[str, int]],
    peers: Sequence[str],
    threads: int,
    seconds: float,
) -> Sequence[Mapping[str, Any]]:
    with Pack(request.out, threads=threads) as opened:
        model = opened.model(name)
        dims = dims_of(model)  # others are told by the data
        requests = [{dim: size for dim, size in shape.items() if dim in dims} for shape in sizes]
        raced = race(model, files, requests, peers, threads=threads, seconds=seconds, environment=request.environment)
    if raced["missing"]:
        raise HaotunerError(f"{', '.join(raced['missing'])} cannot run it")
    rows: Sequence[Mapping[str, Any]] = raced["rows"]
    return rows
