"""`haotuner explain PACK --model MODEL --predicted`: what tuning expected, and what requests take here."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from haotuner.bench.models import dims_of
from haotuner.cli.devices import columns
from haotuner.cli.explain_steps import CALLS, timed_steps
from haotuner.cli.output import say
from haotuner.errors import UsageError
from haotuner.pack.manifest import Manifest
from haotuner.runtime.pack import Pack

KINDS = ("products", "groups", "all")


def predicted_document(manifest: Manifest, pack: Path, name: str, text: str, threads: int | None) -> dict[str, Any]:
    """Of each request that the plan was made for: predicted and measured microseconds, and the ratio of both.

    Measured is the sum of the steps, each the least of some calls. UsageError for a pack that keeps no predictions.
    """
    predictions = manifest.tuning.get("models", {}).get(name, {}).get("predicted_us", {})
    if not predictions:
        raise UsageError(f"the pack keeps no predicted times of a model {name!r}; tune it again with this haotuner")
    rows, least = [], CALLS
    with Pack(pack, threads=threads) as opened:
        model, count = opened.model(name), str(opened.threads)
        used = count if count in predictions else next(iter(predictions))
        dims = dims_of(model)
        for sizes_text, expected in predictions[used].items():
            every = {key: int(size) for key, _, size in (part.partition("=") for part in sizes_text.split(";"))}
            sizes = {dim: every[dim] for dim in dims}
            steps, call_us, calls = timed_steps(model, sizes, text)
            least = min(least, calls)
            measured = _measured(steps)
            rows.append({"shape": sizes, "predicted_us": expected, "measured_us": measured, "call_us": call_us,
                         "ratio": expected["all"] / max(measured["all"], 1e-9)})  # fmt: skip
    ratios = [row["ratio"] for row in rows]
    return {
        "model": name,
        "threads": int(count),
        "plan_threads": int(used),
        "rows": rows,
        "calls": least,
        "median": statistics.median(ratios),
        "within_10_percent": sum(abs(ratio - 1) <= 0.1 for ratio in ratios) / len(ratios),
    }


def _measured(steps: list[dict[str, Any]]) -> dict[str, float]:
    groups = sum(row["us"] for row in steps if row["do"] == "loops")
    whole = sum(row["us"] for row in steps)
    return {"products": whole - groups, "groups": groups, "all": whole}


def print_predicted(document: Mapping[str, Any]) -> None:
    """A line a request, then the median.

    ``timed``: the share of what is predicted of products that is of ops which were timed, at whatever shapes, not told by a
    cost model alone; ``call``: the least whole call, with what else ran here in it.
    """
    least = f"steps the least of {document['calls']} calls each"
    say(f"{document['model']}, threads {document['threads']}: predicted / measured us, {least}")
    rows: list[tuple[str, ...]] = [("request", *KINDS, "ratio", "timed", "call")]
    for row in document["rows"]:
        pairs = [f"{row['predicted_us'][kind]:,.0f} / {row['measured_us'][kind]:,.0f}" for kind in KINDS]
        where, ratio = ";".join(f"{k}={v}" for k, v in row["shape"].items()), f"{row['ratio']:.2f}"
        rows.append((where, *pairs, ratio, _timed(row["predicted_us"]), f"{row['call_us']:,.0f}"))
    say(columns(rows))
    say(f"median {document['median']:.2f}; {document['within_10_percent']:.0%} of the requests within 10 %")


def _timed(expected: Mapping[str, float]) -> str:
    """Packs of earlier versions do not say."""
    return f"{expected['timed'] / max(expected['products'], 1e-9):.0%}" if "timed" in expected else "-"
