"""What else the kept kernels of a pack could do for one shape, beside what the plan chose: like compared with like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from haotuner.pack.manifest import PackOp
from haotuner.plan.compose import alternatives
from haotuner.plan.curves import Curve
from haotuner.plan.sharing import rows_of
from haotuner.words.kernel import MicroKernel
from haotuner.words.op import Op

LOOKED_AT = 3  # of each way to share: enough for one that is not the chosen one


def predicted_us(plan: Mapping[str, Any], m: int) -> float | None:
    """Time the tuner expects at m, microseconds; beyond the table it grows like the last entries."""
    known = plan.get("predicted_us", [])
    if not known:
        return None
    return float(known[m - 1]) if m <= len(known) else float(known[-1]) * m / len(known)


def runner_up(entry: PackOp, plan: Mapping[str, Any], m: int, threads: int, chosen: str, way: str) -> dict[str, Any] | None:
    """The best other composition: as timed when the pack was tuned, else as the curves predict; None if there is none.

    ``chosen_us`` is the time of the chosen composition from the same source; None if it has none there.
    """
    timed = {name: float(us) for name, us in plan.get("measured_us", {}).get(str(m), {}).items()}
    own = timed.pop(f"{chosen}@{way}", None)
    if timed:
        name = min(timed, key=lambda n: (timed[n], n))
        composition, _, split = name.partition("@")
        return {"composition": composition, "split": split, "us": timed[name], "chosen_us": own, "from": "measured"}
    curves = {split: [_curve(c) for c in found] for split, found in plan.get("curves", {}).items()}
    found = [
        (other.us, other.name, split)
        for split, kept in curves.items()
        if rows_of(split, Op.parse(entry.name), threads, m) >= m  # more rows are never shared so
        for other in alternatives(kept, m, LOOKED_AT)
        if (other.name, split) != (chosen, way)
    ]
    if not found:
        return None
    us, composition, split = min(found)
    own = _curves_us(curves.get(way, []), chosen)
    return {"composition": composition, "split": split, "us": us, "chosen_us": own, "from": "predicted"}


def _curves_us(curves: Sequence[Curve], composition: str) -> float | None:
    """What the curves say of a composition, written ``KERNEL*tiles+KERNEL*tiles``; None if one has no curve."""
    by_name = {curve.kernel: curve for curve in curves}
    total = 0.0
    for place, part in enumerate(composition.split("+")):
        kernel, _, tiles = part.partition("*")
        curve = by_name.get(kernel)
        if curve is None:
            return None
        total += curve.follow_us * int(tiles) if place else float(curve.lead(np.array([int(tiles)]))[0])
    return total


def _curve(stored: Mapping[str, Any]) -> Curve:
    points = {int(tiles): float(us) for tiles, us in stored["lead_us"]}
    return Curve.of(stored["kernel"], MicroKernel.parse(stored["kernel"])["mr"], points, float(stored["follow_us"]))
