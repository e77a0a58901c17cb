"""Alternatives of the kept kernels of a pack for one shape, beside what the plan chose: like compared with like."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from haotuner.plan.compose import alternatives
from haotuner.plan.curves import Curve
from haotuner.spec.composition import Composition

LOOKED_AT = 3  # of each way to share: enough for one that is not the chosen one


def predicted_us(plan: Mapping[str, Any], m: int) -> float | None:
    """Time the tuner expects at m, microseconds; beyond the table it grows like the last entries."""
    known = plan.get("predicted_us", [])
    if not known:
        return None
    return float(known[m - 1]) if m <= len(known) else float(known[-1]) * m / len(known)


def runner_up(
    plan: Mapping[str, Any],
    m: int,
    chosen: Composition,
    tile_rows: Mapping[str, int],
    is_used: Callable[[str], bool] = lambda way: True,
) -> dict[str, Any] | None:
    """The best other composition: as timed when the pack was tuned, else as the curves predict; None if there is none.

    Args:
        plan: facts of the pack about one op and thread count.
        m: rows of the call.
        chosen: what serves them.
        tile_rows: rows of a tile, by kernel.
        is_used: whether so many rows are ever shared in this way.

    Returns:
        ``composition``, ``split``, ``us``, ``from``, and ``chosen_us``: the chosen one's time from the same source, None if
        it has none there.
    """
    timed = {Composition.parse(label): float(us) for label, us in plan.get("measured_us", {}).get(str(m), {}).items()}
    own = timed.pop(chosen, None)
    if timed:
        best = min(timed, key=lambda item: (timed[item], item))
        return {"composition": best.text, "split": best.share, "us": timed[best], "chosen_us": own, "from": "measured"}
    curves = {way: [_curve(c, tile_rows) for c in item] for way, item in plan.get("curves", {}).items()}
    result = [
        (other.us, other.composition)
        for way, curve_list in curves.items()
        if is_used(way)
        for other in alternatives(curve_list, m, LOOKED_AT, way)
        if other.composition != chosen
    ]
    if not result:
        return None
    us, best = min(result)
    own = _curves_us(curves.get(chosen.share, []), chosen)
    return {"composition": best.text, "split": best.share, "us": us, "chosen_us": own, "from": "predicted"}


def _curves_us(curves: Sequence[Curve], composition: Composition) -> float | None:
    """Time of a composition by the curves, in us; None if one of its kernels has no curve."""
    by_name = {curve.kernel: curve for curve in curves}
    total = 0.0
    for index, part in enumerate(composition.parts):
        curve = by_name.get(part.kernel)
        if curve is None:
            return None
        total += curve.follow_us * part.tiles if index else float(curve.lead(np.array([part.tiles]))[0])
    return total


def _curve(stored: Mapping[str, Any], tile_rows: Mapping[str, int]) -> Curve:
    points = {int(tiles): float(us) for tiles, us in stored["lead_us"]}
    return Curve.of(stored["kernel"], tile_rows[stored["kernel"]], points, float(stored["follow_us"]))
