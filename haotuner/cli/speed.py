"""The closing table of `haotuner tune`: a quick race against numpy and the peers that are installed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from haotuner.bench.compare import compare as race
from haotuner.cli.devices import columns
from haotuner.cli.output import tell
from haotuner.cli.progress import race_progress
from haotuner.hw_profiles.find import find_device
from haotuner.plan.cells import CellTable
from haotuner.spec.cold import waits
from haotuner.spec.device import Device
from haotuner.spec.shape import Shape, Span
from haotuner.tuning.request import Request
from haotuner.tuning.session import Report
from haotuner.tuning.strategies import Tuned

QUICK_SHAPES = 6
QUICK_S, QUICK_ROW_S = 40.0, 2.0  # at most, and for one op at one shape; more is what `haotuner bench` is for
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
    shapes = [Shape.of(m=m) for m in Span(first=rows[0], last=rows[-1]).sample(QUICK_SHAPES)]
    seconds = min(QUICK_S, QUICK_ROW_S * len(ops) * len(threads) * len(shapes))
    if not quiet:
        tell(f"racing against {', '.join(peers)} for about {seconds:.0f} s")
    device: Device = find_device(request.device, cache_dir=request.cache)
    with race_progress(len(ops) * len(threads) * len(shapes), quiet=quiet) as watch:
        result = race(
            request.out,
            ops,
            shapes,
            threads,
            peers,
            QUICK_S,
            environment=request.environment,
            device=device,
            weights=request.weights,
            watch=watch,
        )
    if not result["rows"]:  # none of them computes such an op: numpy and bf16
        return None
    return Speed(document=result, peers=peers, threads=threads, ratios=_ratios(result["rows"], peers))


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
        what += f" (-: the {QUICK_S:.0f} s of the race were over)"
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
