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
from haotuner.spec.composition import Composition, share_in_words, sum_parts

PARTIAL_BYTES = 4  # partial sums are fp32
WHY_NOT_TIMED = "calls on a device are timed by `haotuner bench`"


def device_document(manifest: Manifest, entry: PackOp, m: int) -> dict[str, Any]:
    """JSON form of what serves one shape, with the keys that a dense op's has, and ``considered``."""
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
    shown = [_region(r.kernel, {axis: list(span) for axis, span in r.box.items()}, parts) for r in regions
             if r.box["m"][0] < m]  # fmt: skip
    return {
        "op": entry.name,
        "shape": {"m": m},
        "threads": count,
        "split": composition.share,
        "weights": str(manifest.tuning["weights"]),
        "unverified": manifest.unverified,
        "in_range": entry.first_m <= m <= entry.last_m,
        "cell": [bounds[at - 1] + 1 if at else 1, bounds[at]],
        "regions": shown,
        **_launched(entry, m, composition.parts[0].kernel, len(shown), parts),
        "predicted_us": chosen["us"] if chosen else None,
        "measured_us": None,
        "not_timed": WHY_NOT_TIMED,
        "runner_up": _runner_up(chosen, others),
        "considered": considered,
    }  # fmt: skip


def _launched(entry: PackOp, m: int, first: str, launched: int, parts: int) -> dict[str, Any]:
    """Launches of a call, its workspace, and of groups of rows how many there are and the row tiles of the worst cut."""
    whole = parts == 1
    result: dict[str, Any] = {"launches": launched if whole else 2 * launched}  # a sum of the parts behind each
    result["workspace_bytes"] = 0 if whole else PARTIAL_BYTES * parts * m * entry.n
    if entry.kind == "grouped":
        groups = entry.axis("g").extent or 1
        filled = min(m, groups)
        rows = dict(zip(entry.kernels, entry.tile_rows, strict=True))[first]
        result |= {"groups": groups, "row_tiles": filled + (m - filled) // rows}
    return result


def _region(kernel: str, box: dict[str, list[int]], parts: int) -> dict[str, Any]:
    return {"kernel": kernel, "box": box, "m": box["m"], "n": box["n"], "sum_parts": parts}


def _runner_up(chosen: Mapping[str, Any] | None, others: list[dict[str, Any]]) -> dict[str, Any] | None:
    if chosen is None or not others:
        return None
    best = min(others, key=lambda item: float(item["us"]))
    composition = Composition.parse(best["composition"])
    return {"composition": composition.text, "split": composition.share, "us": best["us"], "chosen_us": chosen["us"],
            "from": best["from"], "way": best["way"]}  # fmt: skip


def print_device(document: Mapping[str, Any]) -> None:
    """Printed form, for people."""
    m, (first, last) = document["shape"]["m"], document["cell"]
    where = "" if document["in_range"] else " (outside the tuned range: the nearest cell serves it)"
    split = document["split"]
    how = f", {share_in_words(split)}, added in a fixed order" if sum_parts(split) > 1 else ""
    say(f"{document['op']} m={m}, cell of {first}..{last} rows{how}{where}")
    rows = [(r["kernel"], f"{r['m'][0]}..{r['m'][1] - 1}", f"{r['n'][0]}..{r['n'][1] - 1}") for r in document["regions"]]
    say(columns([("kernel", "rows", "columns"), *rows]))
    if "groups" in document:
        most = f"blocks for {document['row_tiles']} row tiles, the most of any cut"
        say(f"one launch for {document['groups']} groups of rows, with {most}; planned for even groups; no workspace")
    elif document["workspace_bytes"]:
        say(f"{document['launches']} launches; workspace of partial sums: {document['workspace_bytes']} bytes")
    if document["unverified"]:
        say("unverified: nothing was measured when the pack was made, the plan and all times are predictions")
    considered = document["considered"]
    if not considered:
        return
    table = [("weighed", "us", "from", "composition", "")]
    for index, considered_row in enumerate(considered):
        table.append(
            (
                considered_row["way"],
                f"{considered_row['us']:.2f}",
                considered_row["from"],
                considered_row["composition"],
                _why(index, considered_row, considered[0]),
            )
        )
    say(columns(table))
    say(f"times are of {last} rows, the most of the cell, weights {document['weights']}; {document['not_timed']}")


def _why(index: int, considered: Mapping[str, Any], chosen: Mapping[str, Any]) -> str:
    if index == 0:
        return "kept"
    behind = float(considered["us"]) / float(chosen["us"]) - 1
    if behind > 0:
        return f"{behind:.1%} behind"
    if considered["from"] != chosen["from"]:
        return f"only {considered['from']}, the kept one is {chosen['from']}: the two do not compare"
    return "within noise of it: one launch goes before parts of a sum, these before two regions"
