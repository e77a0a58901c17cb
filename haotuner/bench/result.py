"""JSON document of `haotuner bench` from raced rows: ratios with their uncertainty, summaries."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from haotuner.bench.contender import MACHINE, OURS, OURS_AGAIN, SMALL_M
from haotuner.bench.race import Outcome, Row
from haotuner.bench.rotation import resting_bytes
from haotuner.cost.roofline import tiles_gflops
from haotuner.spec.device import Device

DRAWS = 2000  # the ends of a 95 % interval then rest on 50 draws each
LOW, HIGH = 2.5, 97.5  # percentiles
LEAST_PAIRS = 5  # the range of five samples misses their median's true value in one case of 16, of fewer more often

Draws = NDArray[np.float64]
Times = Sequence[float] | NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Another's time over ours, with its 95 % interval; above 1 we are faster. No interval under ``LEAST_PAIRS`` rounds."""

    value: float
    low: float | None = None
    high: float | None = None


def resampled_medians(blocks: Sequence[Times], seed: int = 0) -> Draws:
    """Medians ``(DRAWS, contenders)`` of rounds drawn with replacement, the same rounds for every contender.

    ``blocks`` is ``(contenders, rounds)``. Drawing whole rounds keeps the pairs: what slowed the machine for a moment
    slowed all of a round alike (Efron and Tibshirani 1993, chapter 8).
    """
    times = np.asarray(blocks, dtype=np.float64)
    rounds = times.shape[1]
    picks = np.random.default_rng(seed).integers(0, rounds, (DRAWS, rounds))
    return np.asarray(np.median(times[:, picks], axis=2).T)


def with_interval(value: float, drawn: Draws) -> Ratio:
    """A ratio with the 95 % interval of its draws ``(DRAWS,)`` (Efron 1979, percentile method)."""
    low, high = np.percentile(drawn, (LOW, HIGH))
    return Ratio(value=value, low=float(low), high=float(high))


def paired_ratio(ours: Times, theirs: Times, seed: int = 0) -> Ratio:
    """Median of theirs over median of ours; entry r of both was taken in the same round."""
    value = float(np.median(theirs) / np.median(ours))
    if len(ours) < LEAST_PAIRS:
        return Ratio(value=value)
    drawn = resampled_medians([ours, theirs], seed)
    return with_interval(value, drawn[:, 1] / drawn[:, 0])


def geomean(values: Sequence[float]) -> float:
    """Geometric mean of positive numbers."""
    return float(np.exp(np.mean(np.log(values))))


def geomean_ratio(values: Sequence[float], draws: Sequence[Draws]) -> Ratio:
    """Geometric mean over rows; the interval comes from the rows' own draws ``(DRAWS,)``, which are independent."""
    if not draws:
        return Ratio(value=geomean(values))
    return with_interval(geomean(values), np.exp(np.mean(np.log(np.stack(draws)), axis=0)))


def spread(times: Times) -> float:
    """Median absolute deviation over the median: a fraction."""
    middle = float(np.median(times))
    return float(np.median(np.abs(np.asarray(times) - middle)) / middle)


LOSS = 0.95  # a shape is lost only if its whole interval lies under it (design, how good it has to be)
LARGE_M = 64  # rows from which on arithmetic is the limit

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts that the race itself lacks. ``regret`` gives the planned loss of (op, m, threads, composition), or None."""

    device: Device | None = None
    tuning_seconds: float | None = None
    regret: Callable[[str, int, int, str], float | None] = lambda *_: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A row with its figures; ``draws`` are bootstrap ratios ``(DRAWS,)`` by peer, and against the best of them."""

    row: Row
    ours_us: float | None
    peers_us: Mapping[str, float]
    ratios: Mapping[str, Ratio]
    best: Ratio | None
    best_peer: str | None
    draws: Mapping[str, Draws]
    best_draws: Draws | None
    noise: Ratio | None  # ours against ours


def judge(row: Row) -> Judged:
    """Ratios of one row with their intervals. Without a time of ours there is nothing to compare."""
    blocks, medians = row.blocks_us, {name: float(np.median(times)) for name, times in row.blocks_us.items()}
    ours_us = medians.pop(OURS, None)
    again = medians.pop(OURS_AGAIN, None)
    medians.pop(MACHINE, None)
    if ours_us is None:
        return Judged(row=row, ours_us=None, peers_us=medians, ratios={}, best=None, best_peer=None, draws={},
                      best_draws=None, noise=None)  # fmt: skip
    seed = zlib.crc32(f"{row.op.name} {row.shape} {row.threads} {row.weights}".encode())
    ratios = {name: paired_ratio(blocks[OURS], blocks[name], seed) for name in medians}
    noise = None if again is None else paired_ratio(blocks[OURS], blocks[OURS_AGAIN], seed)
    best_peer = min(medians, key=lambda name: medians[name], default=None)
    draws: dict[str, Draws] = {}
    best_draws, best = None, None
    if best_peer is not None:
        best = Ratio(value=ratios[best_peer].value)
        if len(blocks[OURS]) >= LEAST_PAIRS:
            drawn = resampled_medians([blocks[OURS], *(blocks[name] for name in medians)], seed)
            draws = {name: drawn[:, index] / drawn[:, 0] for index, name in enumerate(medians, 1)}
            best_draws = drawn[:, 1:].min(axis=1) / drawn[:, 0]  # the best peer is chosen anew in every draw
            best = with_interval(best.value, best_draws)
    return Judged(row=row, ours_us=ours_us, peers_us=medians, ratios=ratios, best=best, best_peer=best_peer, draws=draws,
                  best_draws=best_draws, noise=noise)  # fmt: skip


def document(outcome: Outcome, peers: Sequence[str], facts: Facts) -> Json:
    """The whole JSON document; the listed keys are those of the README's *JSON*."""
    judged = [judge(row) for row in outcome.rows]
    rows = [row_json(judged_row, facts) for judged_row in judged]
    groups: dict[tuple[str, int], list[int]] = {}
    for index, judged_row in enumerate(judged):
        groups.setdefault((judged_row.row.weights, judged_row.row.threads), []).append(index)
    cold = [index for index, judged_row in enumerate(judged) if judged_row.row.weights == "cold"]
    headline = cold or list(range(len(judged)))
    summary = summarise([judged[i] for i in headline], [rows[i] for i in headline], peers, facts)
    overhead = [outcome.overhead_ns[threads] for threads in sorted(outcome.overhead_ns)]
    summary["weights"] = "cold" if cold else "hot"
    summary["dispatch_ns"] = overhead[0] if overhead else None
    return {
        "rows": rows,
        "missing": sorted(outcome.missing),
        "missing_why": outcome.missing,
        "summary": summary,
        "groups": [
            {"weights": weights, "threads": threads,
             **summarise([judged[i] for i in places], [rows[i] for i in places], peers, facts)}
            for (weights, threads), places in groups.items()
        ],
        "skipped": outcome.skipped,
        "watched": outcome.watched,
        "stopped": outcome.stopped,
        "device": None if facts.device is None else {"id": facts.device.id, **facts.device.numbers()},
        "versions": outcome.versions,
        "seconds": round(outcome.seconds, 1),
    }  # fmt: skip


def row_json(judged: Judged, facts: Facts) -> Json:
    """One row; ratios are peer over ours, shares are fractions of the device at this thread count."""
    row = judged.row
    device = None if facts.device is None else facts.device.with_units(min(row.threads, facts.device.compute_units))
    gflops = None if judged.ours_us is None else row.op.flops(row.shape) / judged.ours_us / 1e3
    gbps = None if judged.ours_us is None else resting_bytes(row.op, row.shape) / judged.ours_us / 1e3
    return {
        "op": row.op.name,
        "shape": row.shape.as_dict(),
        "threads": row.threads,
        "weights": row.weights,
        "ours_us": judged.ours_us,
        "peers_us": dict(judged.peers_us),
        "spread": None if judged.ours_us is None else spread(row.blocks_us[OURS]),
        "peak_ratio": _share(gflops, _peak_gflops(row, device)),
        "peak_gflops": _peak_gflops(row, device),
        "regret": None
        if row.op.kind != "dense"
        else facts.regret(row.op.name, row.shape["m"], row.threads, row.composition),
        "contended": row.contended,
        "ratios": {name: _ratio_json(ratio) for name, ratio in judged.ratios.items()},
        "best": None if judged.best is None else {"peer": judged.best_peer, **_ratio_json(judged.best)},
        "noise": None if judged.noise is None else _ratio_json(judged.noise),
        "gflops": gflops,
        "bandwidth_ratio": _share(gbps, _read_gbps(row, device)) if row.weights == "cold" else None,
        "weights_bytes": resting_bytes(row.op, row.shape) * row.rotation.copies,
        "evicted_bytes": row.rotation.evicted_bytes,
        "composition": row.composition,
        "rounds": max((len(times) for times in row.blocks_us.values()), default=0),
        "foreign_cores": round(row.foreign_cores, 3),
        "crowded": round(row.crowded, 3),
        "failed": {name: asdict(failed) for name, failed in row.failed.items()},
    }


def summarise(judged: Sequence[Judged], rows: Sequence[Json], peers: Sequence[str], facts: Facts) -> Json:
    """Figures over rows that were not contended; over all if every one was, with ``contended`` set."""
    clean = [(judged_row, row) for judged_row, row in zip(judged, rows, strict=True) if not judged_row.row.contended]
    counted = clean or list(zip(judged, rows, strict=True))
    raced = [judged_row for judged_row, _ in counted if judged_row.best is not None]
    against = {name: _over_rows(raced, name) for name in peers}
    best = _over_rows(raced, None)
    noise = [abs(math.log(judged_row.noise.value)) for judged_row, _ in counted if judged_row.noise is not None]
    return {
        "geomean_vs_best": None if best is None else best.value,
        "geomean_vs": {name: ratio.value for name, ratio in against.items() if ratio is not None},
        "worst": _worst(raced),
        "interval_vs_best": None if best is None else [best.low, best.high],
        "interval_vs": {name: [ratio.low, ratio.high] for name, ratio in against.items() if ratio is not None},
        "lost": [
            _row_summary(judged_row)
            for judged_row in raced
            if judged_row.best is not None and judged_row.best.high is not None and judged_row.best.high < LOSS
        ],
        "noise_floor": float(np.exp(np.mean(noise)) - 1) if noise else None,
        "peak_ratio": _geomean_of(row["peak_ratio"] for _, row in counted if row["shape"].get("m", LARGE_M) >= LARGE_M),
        "bandwidth_ratio": _geomean_of(
            row["bandwidth_ratio"] for _, row in counted if row["shape"].get("m", LARGE_M) <= SMALL_M
        ),
        "break_even_calls": _break_even(raced, peers, facts.tuning_seconds),
        "rows": len(counted),
        "rows_left_out": len(rows) - len(counted),
        "contended": bool(rows) and not clean,
    }


def _over_rows(judged: Sequence[Judged], peer: str | None) -> Ratio | None:
    """Geometric mean against one peer, or against the best at each shape, over the rows where it has a time."""
    values: list[float] = []
    draws: list[Draws] = []
    for judged_row in judged:
        ratio = judged_row.best if peer is None else judged_row.ratios.get(peer)
        if ratio is None:
            continue
        values.append(ratio.value)
        drawn = judged_row.best_draws if peer is None else judged_row.draws.get(peer)
        if drawn is not None:
            draws.append(drawn)
    if not values:
        return None
    return geomean_ratio(values, draws if len(draws) == len(values) else [])


def _worst(judged: Sequence[Judged]) -> Json | None:
    lowest = min(judged, key=lambda item: item.best.value if item.best is not None else math.inf, default=None)
    return None if lowest is None else _row_summary(lowest)


def _row_summary(judged: Judged) -> Json:
    assert judged.best is not None
    row = judged.row
    return {"op": row.op.name, "shape": row.shape.as_dict(), "threads": row.threads, "weights": row.weights,
            "peer": judged.best_peer, "ratio": judged.best.value}  # fmt: skip


def _break_even(judged: Sequence[Judged], peers: Sequence[str], tuning_seconds: float | None) -> Json:
    """Calls after which tuning has paid for itself, rows being equally likely; None where it never does."""
    if tuning_seconds is None:
        return {}
    result: Json = {}
    for name in ("best", *peers):
        saved = [
            (judged_row.peers_us[judged_row.best_peer or "" if name == "best" else name] - judged_row.ours_us) / 1e6
            for judged_row in judged
            if judged_row.ours_us is not None and (name == "best" or name in judged_row.peers_us)
        ]
        mean = float(np.mean(saved)) if saved else 0.0
        result[name] = round(tuning_seconds / mean) if mean > 0 else None
    return result


def _ratio_json(ratio: Ratio) -> Json:
    return {"ratio": ratio.value, "low": ratio.low, "high": ratio.high}


def _peak_gflops(row: Row, device: Device | None) -> float | None:
    """Of tile registers what they can; else the machine's rate between the others' blocks, without it the device's best."""
    if device is not None and (tiles := tiles_gflops(device, row.op.dtype)):
        return tiles
    here = _machine(row, row.machine_flops)
    if here or device is None:
        return here
    if row.op.dtype == "fp32":
        return device.peak_gflops
    return None if device.tensor_tflops is None else device.tensor_tflops * 1e3


def _read_gbps(row: Row, device: Device | None) -> float | None:
    """Read bandwidth in GB/s of a row: as measured between its blocks, else the device's."""
    return _machine(row, row.machine_bytes) or (None if device is None else device.memory_gbps)


def _machine(row: Row, work: float | None) -> float | None:
    """10^9 units of the machine's work a second; None where it did other work, or none."""
    times = row.blocks_us.get(MACHINE)
    return work / float(np.median(times)) / 1e3 if times and work else None


def _share(achieved: float | None, peak: float | None) -> float | None:
    return None if achieved is None or not peak else achieved / peak


def _geomean_of(values: Any) -> float | None:
    known = [value for value in values if value]
    return float(np.exp(np.mean(np.log(known)))) if known else None
