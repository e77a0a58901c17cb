"""docs/results/end-to-end.md from the document that ``python -m tests.bench.end_to_end`` makes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.bench.server import OURS

WORDS = {
    "ours": "torch eager with `swap_linears`",
    "ours_compiled": "torch.compile(dynamic=True) with `swap_linears`",
    "eager": "torch eager",
    "compile": "torch.compile(dynamic=True)",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO, LATENCY, f32",
}
BARS = (("p50_ms", "eager", 1.30), ("p50_ms", "best", 1.05), ("p99_ms", "best", 1.10))


def ratios(rows: Mapping[str, Mapping[str, float]], mine: str) -> dict[str, float]:
    """Each bar's figure for one of our rows: how many times faster than eager, or than the best of the others."""
    result = {}
    for key, against, bar in BARS:
        others = [row[key] for name, row in rows.items() if (name == against or (against == "best" and name not in OURS))]
        if others:
            result[f"{key.removesuffix('_ms')} against {against}, bar {bar:.2f}x"] = min(others) / rows[mine][key]
    return result


def page(document: Mapping[str, Any], command: str, host: str) -> str:
    """The page, whole."""
    rows, missing = document["rows"], document["missing"]
    lines = [
        "# The whole model under load",
        "",
        f"Made by `{command}` on {host}.",
        "",
        f"An encoder of BERT-base's size with random weights behind FastAPI on loopback, {document['threads']} threads; "
        f"{document['requests']} sentences a round of lengths as in GLUE (10th, 50th and 90th percentile of eight tasks), "
        f"no padding, {document['concurrency']} requests open at a time, {document['rounds']} rounds in alternating order, "
        "each contender alone in a process of its own. Clients run on the same cores. Latency is what a client sees.",
        "",
        "| contender | p50 ms | p99 ms | requests/s | furthest answer from eager's |",
        "|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        times = f"{row['p50_ms']:.1f} | {row['p99_ms']:.1f} | {row['requests_per_s']:.1f}"
        lines.append(f"| {name}: {WORDS[name]} | {times} | {document['largest_difference'][name]:.1e} |")
    lines += [
        "",
        "| times faster (over 1: ours) | " + " | ".join(n for n in OURS if n in rows) + " |",
        "|---|" + "---|" * sum(n in rows for n in OURS),
    ]
    figures = {name: ratios(rows, name) for name in OURS if name in rows}
    for words in next(iter(figures.values())):
        bar = float(words.rpartition(" ")[2][:-1])
        cells = [f"{own[words]:.2f}x {'met' if own[words] >= bar else 'short'}" for own in figures.values()]
        lines.append(f"| {words} | " + " | ".join(cells) + " |")
    spread = "; ".join(f"{name} {', '.join(f'{ms:.1f}' for ms in own)}" for name, own in document["p50_by_round"].items())
    lines += ["", f"p50 in ms, round by round: {spread}."]
    lines += [
        "",
        f"Other processes took {document['load_of_others']:.0%} of all cores meanwhile; over a few per cent, run it again.",
    ]
    if missing:
        lines += ["", f"Not measured: {'; '.join(missing)}."]
    return "\n".join(lines) + "\n"
