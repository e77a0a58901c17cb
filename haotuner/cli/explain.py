"""`haotuner explain`: how one shape is served, what that was expected to cost, what it costs now, and what came second."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import typer

from haotuner.cli.devices import columns
from haotuner.cli.output import say
from haotuner.cli.requested import Json, PackFolder
from haotuner.errors import UsageError
from haotuner.pack.op import PackOp
from haotuner.plan.compose import alternatives
from haotuner.plan.curves import Curve
from haotuner.runtime.pack import Pack
from haotuner.words.composition import WAYS, Composition
from haotuner.words.op import Op
from haotuner.words.shape import AXIS_LIMIT, ShapeRange

LOOK_S = 0.3  # live timing: enough for a median, short enough to wait for
MOST_COPIES = 4096  # of a small weight: more take longer to pack than the answer is worth
COLD_FACTOR, CACHE_DEFAULT_BYTES = 4, 32 << 20  # as measure/policy.py: rotate over four last-level caches of weights


def explain(
    pack: PackFolder,
    op: Annotated[str, typer.Option("--op", help="Name or spec of an op in the pack.")],
    shape: Annotated[str, typer.Option("--shape", help="One shape, for example m=37.")],
    threads: Annotated[int | None, typer.Option("--threads", help="Thread count; default: all cores.")] = None,
    json_output: Json = False,
) -> None:
    """Explain the choice for one shape: regions, expected and measured time, the runner-up."""
    name = Op.parse(op).name
    m = _rows(shape)
    with Pack(pack, threads) as opened:
        dense = opened.op(name)
        entry = next(o for o in opened.manifest.ops if o.name == name)
        count = entry.threads[opened.plan_index(entry)]
        composition = dense.composition(m)
        weights = str(opened.manifest.tuning["weights"])
        unverified = opened.manifest.unverified
        measured = _measure(opened, entry, m, weights)
    plan = entry.facts.get("plans", {}).get(str(count), {})
    rows_of = dict(zip(entry.kernels, entry.tile_rows, strict=True))
    regions = composition.boxes(rows_of.__getitem__, {"m": m, "n": entry.n})
    predicted = _predicted(plan, m)
    second = _runner_up(rows_of, plan, m, composition)
    document: dict[str, Any] = {
        "op": name,
        "shape": {"m": m},
        "threads": count,
        "split": composition.share,
        "weights": weights,
        "unverified": unverified,
        "in_range": entry.first_m <= m <= entry.last_m,
        "regions": [
            {"kernel": r.kernel, **(box := {axis: list(ends) for axis, ends in r.box.items()}), "box": box} for r in regions
        ],
        "predicted_us": predicted,
        "measured_us": measured,
        "runner_up": second,
    }
    if json_output:
        say(json.dumps(document, indent=1))
    else:
        _print(document)


def _rows(shape: str) -> int:
    spans = dict(ShapeRange.parse(shape).spans)
    if list(spans) != ["m"] or len(spans["m"]) != 1 or spans["m"].last > AXIS_LIMIT:
        raise UsageError(f"--shape {shape!r}: explain one shape at a time, for example m=37")
    return spans["m"].first


def _predicted(plan: dict[str, Any], m: int) -> float | None:
    """Time the tuner expects at m; beyond the table it grows like the last entries."""
    known = plan.get("predicted_us", [])
    if not known:
        return None
    return float(known[m - 1]) if m <= len(known) else float(known[-1]) * m / len(known)


def _runner_up(rows_of: Mapping[str, int], plan: dict[str, Any], m: int, chosen: Composition) -> dict[str, Any] | None:
    """The best other composition of the kept kernels: as timed when the pack was tuned, else as the curves predict."""
    timed = {Composition.parse(label): us for label, us in plan.get("measured_us", {}).get(str(m), {}).items()}
    timed.pop(chosen, None)
    if timed:
        best = min(timed, key=lambda one: (timed[one], one))
        return {"composition": best.text, "split": best.share, "us": timed[best], "from": "measured"}
    found = []
    for way, curves in plan.get("curves", {}).items():
        for other in alternatives([_curve(c, rows_of) for c in curves], m, 3, way):
            if other.composition != chosen:
                found.append((other.us, other.composition.text, way))
    if not found:
        return None
    us, text, way = min(found)
    return {"composition": text, "split": way, "us": us, "from": "predicted"}


def _curve(stored: dict[str, Any], rows_of: Mapping[str, int]) -> Curve:
    points = {int(tiles): float(us) for tiles, us in stored["lead_us"]}
    return Curve.of(stored["kernel"], rows_of[stored["kernel"]], points, float(stored["follow_us"]))


def _measure(pack: Pack, entry: PackOp, m: int, weights: str) -> float:
    """Median time of a call now, in the state of the weights that the pack was tuned for."""
    rng = np.random.default_rng(0)
    size = entry.panels * entry.pw * entry.k * 4
    cache = int(pack.manifest.document["device"].get("l3_bytes") or CACHE_DEFAULT_BYTES)
    copies = min(max(2, -(-COLD_FACTOR * cache // size)), MOST_COPIES) if weights == "cold" else 1
    shape = (entry.k, entry.n) if entry.weight == "kn" else (entry.n, entry.k)
    dense = pack.op(entry.name)
    weight = rng.standard_normal(shape, dtype=np.float32)
    linears = [dense.bind(weight) for _ in range(copies)]
    x, y = rng.standard_normal((m, entry.k), dtype=np.float32), np.empty((m, entry.n), np.float32)
    for linear in linears:
        linear(x, out=y)
    samples: list[float] = []
    until = time.perf_counter() + LOOK_S
    while len(samples) < 5 or time.perf_counter() < until:
        linear = linears[len(samples) % copies]
        start = time.perf_counter_ns()
        linear(x, out=y)
        samples.append((time.perf_counter_ns() - start) / 1e3)
    return statistics.median(samples)


def _print(document: dict[str, Any]) -> None:
    m = document["shape"]["m"]
    where = "" if document["in_range"] else " (outside the tuned range: the nearest plan is extended)"
    say(f"{document['op']} m={m}, plan for {document['threads']} threads, {WAYS[document['split']]}{where}")
    rows = [(r["kernel"], f"{r['m'][0]}..{r['m'][1] - 1}", f"{r['n'][0]}..{r['n'][1] - 1}") for r in document["regions"]]
    say(columns([("kernel", "rows", "columns"), *rows]))
    predicted = "-" if document["predicted_us"] is None else f"{document['predicted_us']:.1f} us"
    say(f"expected {predicted}, measured now {document['measured_us']:.1f} us (weights {document['weights']})")
    if document["unverified"]:
        say("unverified: nothing was measured when the pack was made, the plan and the expected time are predictions")
    second: dict[str, Any] | None = document["runner_up"]
    if second is None:
        say("no other composition of the kept kernels covers this shape")
        return
    times = f"{second['us']:.1f} us {second['from']}, {WAYS[second['split']]}"
    say(f"runner-up: {second['composition']} ({times})")
