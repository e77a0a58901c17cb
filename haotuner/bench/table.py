"""The printed result: rows of cells for a table, and the lines under it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from haotuner.host.extras import how_to_get

Json = dict[str, Any]
_LARGE = 10_000_000  # calls; from here on break-even is written in millions


def header(peers: Sequence[str]) -> list[str]:
    """Names of the columns; times in microseconds."""
    return ["op", "shape", "threads", "weights", "ours us", *peers, "best/ours", "95 %", "A/A", "of peak", "of memory", ""]


def cells(row: Json, peers: Sequence[str]) -> list[str]:
    """One row of the document as text."""
    best, noise = row["best"], row["noise"]
    notes = ["contended"] * row["contended"] + [f"{name}: {failed['reason']}" for name, failed in row["failed"].items()]
    return [
        row["op"],
        ";".join(f"{axis}={extent}" for axis, extent in row["shape"].items()),
        str(row["threads"]),
        row["weights"],
        _time(row["ours_us"]),
        *(_time(row["peers_us"].get(name)) for name in peers),
        "-" if best is None else f"{best['ratio']:.2f}x",
        "-" if best is None or best["low"] is None else f"{best['low']:.2f}..{best['high']:.2f}",
        "-" if noise is None else f"{noise['ratio']:.2f}",
        _percent(row["peak_ratio"]),
        _percent(row["bandwidth_ratio"]),
        " ".join(notes),
    ]


def line(row: Json) -> str:
    """One row in one line, for progress where there is no terminal."""
    peers = "  ".join(f"{name} {_time(us)}" for name, us in row["peers_us"].items())
    marks = "".join(f"  [{name}: {failed['reason']}]" for name, failed in row["failed"].items())
    marks += "  [contended]" if row["contended"] else ""
    shape = ";".join(f"{axis}={extent}" for axis, extent in row["shape"].items())
    return f"{row['op']} {shape} threads={row['threads']} {row['weights']}: ours {_time(row['ours_us'])} us  {peers}{marks}"


def closing(result: Json) -> list[str]:
    """The lines under the table: what was left out first, then the figures."""
    lines: list[str] = []
    if result["summary"]["contended"]:
        lines.append(
            "EVERY ROW WAS CONTENDED: other work ran on this machine all the time. No figure below can be trusted; "
            "stop that work and run again."
        )
    elif result["summary"]["rows_left_out"]:
        lines.append(f"{_count(result['summary']['rows_left_out'], 'contended row')} left out of the figures below.")
    if result["skipped"]:
        lines.append(f"{_count(result['skipped'], 'row')} skipped: no time was left.")
    lines += [f"missing: {name} ({result['missing_why'][name]})" for name in result["missing"]]
    if result["missing"]:
        lines.append(f"{how_to_get('bench')} brings the peers but zentorch, which is for AMD: pip install zentorch")
    evicted = sum(bool(row.get("evicted_bytes")) for row in result["rows"])
    if evicted:
        lines.append(
            f"{_count(evicted, 'row')} with other memory read between calls: the copies of small weights fit into caches."
        )
    lines += _failures(result["rows"])
    for group in result["groups"]:
        lines += _group(group)
    if result["summary"]["dispatch_ns"] is not None:
        lines.append(f"a call costs {result['summary']['dispatch_ns']:.0f} ns over the bare foreign call")
    return lines


def _failures(rows: Sequence[Json]) -> list[str]:
    """Messages of contenders that have no time in some row, each once."""
    reasons = [(name, failed["detail"]) for row in rows for name, failed in row["failed"].items() if failed["detail"]]
    return [f"{name}: {detail}" for name, detail in dict.fromkeys(reasons)]


def _group(group: Json) -> list[str]:
    if group["geomean_vs_best"] is None:
        return []
    low, high = group["interval_vs_best"]
    text = f"{group['weights']} weights, {_count(group['threads'], 'thread')}, {_count(group['rows'], 'row')}: "
    text += f"{group['geomean_vs_best']:.3f}x the best peer at each shape{_between(low, high)}"
    lines = [text]
    for name, value in sorted(group["geomean_vs"].items(), key=lambda pair: pair[1]):
        lines.append(
            f"  {value:6.2f}x {name}{_between(*group['interval_vs'][name])}{_pays(group['break_even_calls'].get(name))}"
        )
    worst = group["worst"]
    shape = ";".join(f"{axis}={extent}" for axis, extent in worst["shape"].items())
    lines.append(f"  worst: {worst['ratio']:.2f}x {worst['peer']} at {worst['op']} {shape}")
    if group["lost"]:
        lines.append(f"  lost (whole interval under 0.95): {len(group['lost'])} of {group['rows']} rows")
    if group["noise_floor"] is not None:
        lines.append(f"  noise floor, ours against ours: {group['noise_floor']:.1%}")
    if group["peak_ratio"] is not None:
        lines.append(f"  share of the FMA peak, m >= 64: {group['peak_ratio']:.1%}")
    if group["bandwidth_ratio"] is not None:
        lines.append(f"  share of the read bandwidth, m <= 8: {group['bandwidth_ratio']:.1%}")
    return lines


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _pays(calls: int | None) -> str:
    if calls is None:
        return ""
    return f", tuning pays after {f'{calls / 1e6:.0f} million' if calls >= _LARGE else f'{calls:,}'} calls"


def _between(low: float | None, high: float | None) -> str:
    return "" if low is None else f" (95 %: {low:.3f} to {high:.3f})"


def _time(us: float | None) -> str:
    if us is None:
        return "-"
    return f"{us:.1f}" if us < 1000 else f"{us:.0f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
