"""`haotuner explain` of an op on a device: the cell of a shape, what is launched there, what else was weighed and why not.

Read from the pack alone: no device is needed, and nothing is timed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

from haotuner.cli.devices import columns
from haotuner.cli.output import say
from haotuner.pack.manifest import Manifest
from haotuner.pack.op import PackOp
from haotuner.words.composition import Composition, share_in_words, sum_parts

WHY_NOT_TIMED = "calls on a device are timed by `haotuner bench`"


def device_document(manifest: Manifest, entry: PackOp, m: int) -> dict[str, Any]:
    """What serves one shape: the JSON form, with the keys that a dense op's has, and ``considered``."""
    (count,) = entry.threads
    cells = entry.facts["plans"][str(count)]["cells"]
    (bounds,) = cells["bounds"].values()
    at = min(bisect_left(bounds, m), len(bounds) - 1)
    considered = list(cells.get("considered", [[]] * len(bounds))[at])
    composition = Composition.parse(cells["entries"][at])
    rows = dict(zip(entry.kernels, entry.tile_rows, strict=True))
    regions = composition.boxes(rows.__getitem__, {"m": m, "n": entry.n})
    chosen, *others = considered or [None]
    parts = sum_parts(composition.share)
    return {
        "op": entry.name,
        "shape": {"m": m},
        "threads": count,
        "split": composition.share,
        "weights": str(manifest.tuning["weights"]),
        "unverified": manifest.unverified,
        "in_range": entry.first_m <= m <= entry.last_m,
        "cell": [bounds[at - 1] + 1 if at else 1, bounds[at]],
        "regions": [_region(r.kernel, {axis: list(span) for axis, span in r.box.items()}, parts) for r in regions
                    if r.box["m"][0] < m],
        "predicted_us": chosen["us"] if chosen else None,
        "measured_us": None,
        "not_timed": WHY_NOT_TIMED,
        "runner_up": _runner_up(chosen, others),
        "considered": considered,
    }  # fmt: skip


def _region(kernel: str, box: dict[str, list[int]], parts: int) -> dict[str, Any]:
    return {"kernel": kernel, "box": box, "m": box["m"], "n": box["n"], "sum_parts": parts}


def _runner_up(chosen: Mapping[str, Any] | None, others: list[dict[str, Any]]) -> dict[str, Any] | None:
    if chosen is None or not others:
        return None
    best = min(others, key=lambda one: float(one["us"]))
    composition = Composition.parse(best["composition"])
    return {"composition": composition.text, "split": composition.share, "us": best["us"], "chosen_us": chosen["us"],
            "from": best["from"], "way": best["way"]}  # fmt: skip


def print_device(document: Mapping[str, Any]) -> None:
    """The same for people."""
    m, (first, last) = document["shape"]["m"], document["cell"]
    where = "" if document["in_range"] else " (outside the tuned range: the nearest cell serves it)"
    split = document["split"]
    how = f", {share_in_words(split)}, added in a fixed order" if sum_parts(split) > 1 else ""
    say(f"{document['op']} m={m}, cell of {first}..{last} rows{how}{where}")
    rows = [(r["kernel"], f"{r['m'][0]}..{r['m'][1] - 1}", f"{r['n'][0]}..{r['n'][1] - 1}") for r in document["regions"]]
    say(columns([("kernel", "rows", "columns"), *rows]))
    if document["unverified"]:
        say("unverified: nothing was measured when the pack was made, the plan and all times are predictions")
    considered = document["considered"]
    if not considered:
        return
    chosen = float(considered[0]["us"])
    table = [("weighed", "us", "from", "composition", "")]
    for place, one in enumerate(considered):
        table.append((one["way"], f"{one['us']:.2f}", one["from"], one["composition"], _why(place, one, chosen)))
    say(columns(table))
    say(f"times are of {last} rows, the most of the cell, weights {document['weights']}; {document['not_timed']}")


def _why(place: int, one: Mapping[str, Any], chosen: float) -> str:
    if place == 0:
        return "kept"
    behind = float(one["us"]) / chosen - 1
    return f"{behind:.1%} behind" if behind > 0 else "within noise of it, and launches more"
