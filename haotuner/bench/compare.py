"""Comparison of a pack with other libraries, for `haotuner bench` and the end of `haotuner tune`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from haotuner.bench.contest import Contest, usual_weights
from haotuner.bench.field import Field, field_of
from haotuner.bench.operands import plain_layer
from haotuner.bench.race import Outcome, Row, run
from haotuner.bench.result import Facts, Json, document, judge, row_json
from haotuner.errors import UsageError
from haotuner.pack.manifest import Manifest, read_manifest
from haotuner.pack.op import PackOp
from haotuner.runtime.device_memory import find_gpu
from haotuner.runtime.library import checked_manifest
from haotuner.spec.cold import UNKNOWN_CACHE_BYTES
from haotuner.spec.composition import Composition
from haotuner.spec.device import Device
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape, ShapeRange, Span
from haotuner.spec.traffic import Traffic

DEFAULT_SHAPES = 8  # spread in log scale over the tuned range, both ends among them
QUICK_BLOCK_S = 0.025  # half a block of the full race: enough to show a table, not to settle a contest
QUICK_ROUNDS = 2

Watch = Callable[[Json, int, int], None]  # row as in the document, rows done, rows in all


def contest_of(
    pack: Path,
    *,
    environment: Mapping[str, str],
    ops: Sequence[Op] = (),
    shapes: Sequence[Shape] = (),
    against: Sequence[str] | None = None,
    device: Device | None = None,
    ordinal: int | None = None,
    **settings: Any,
) -> Contest:
    """A contest over a pack: ops (none: all that can be raced), shapes (none: some of the tuned range), peers (None: all).

    ``ordinal``: the number of a GPU of this host; None races on the CPU. EnvironmentMissing if there is no such GPU.

    ``settings`` are fields of ``Contest``. Raises PackInvalid, PackMismatch, or UsageError for an op that is not held or
    cannot be raced.
    """
    field = field_of(ordinal)
    ops_of_pack = {op.name: op for op in checked_manifest(pack, None if ordinal is None else find_gpu(ordinal)).ops}
    chosen = [op.name for op in ops] or _alike(
        field, [op.op for op in ops_of_pack.values() if not op.group and field.raceable(op.op)]
    )
    unknown = [name for name in chosen if name not in ops_of_pack]
    if unknown or not chosen:
        what = f"no op {', '.join(unknown)}" if unknown else f"no op that can be raced ({field.what})"
        raise UsageError(f"{pack} holds {what}; it holds {', '.join(ops_of_pack)}")
    selected = tuple(ops_of_pack[name].op for name in dict.fromkeys(chosen))
    if settings.get("weights") is None:
        settings["weights"] = usual_weights(field, selected)
    return Contest(
        pack=pack,
        ops=selected,
        shapes=tuple(dict.fromkeys(shapes)) or _default_shapes([ops_of_pack[name] for name in chosen]),
        peers=field.entrants(selected, against),
        field=field,
        ordinal=ordinal,
        ours=field.ours,
        environment=environment,
        cache_bytes=int((device and (device.l3_bytes or device.l2_bytes)) or UNKNOWN_CACHE_BYTES),
        **settings,
    )


def facts_of(pack: Path, device: Device | None, ordinal: int | None = None) -> Facts:
    """Facts from the manifest that a race cannot see: seconds of tuning, planned regret at measured shapes."""
    manifest = read_manifest(pack) if ordinal is None else checked_manifest(pack, find_gpu(ordinal))
    seconds = _inside(manifest.document, "tuning", "seconds")
    return Facts(
        device=device,
        tuning_seconds=float(seconds) if isinstance(seconds, (int, float)) else None,
        regret=lambda op, m, threads, composition: _regret(manifest, op, m, threads, composition),
    )


def finish(contest: Contest, facts: Facts, watch: Watch | None = None) -> Json:
    """Run a contest and put its document together."""
    listen = None if watch is None else _progress(watch, facts)
    return document(run(contest, listen), list(contest.peers), facts)


def compare(
    pack: Path,
    ops: Sequence[Op],
    shapes: Sequence[Shape],
    threads: Sequence[int],
    against: Sequence[str] | None,
    seconds: float,
    *,
    environment: Mapping[str, str],
    device: Device | None = None,
    weights: str = "cold",
    watch: Watch | None = None,
) -> Json:
    """A quick look on the CPU in about ``seconds``: short blocks, few rounds, no noise floor; the document of a race.

    A busy machine may need more than ``seconds``; large shapes are then skipped, the first of each op never. Ops other than
    plain dense ones are left out; if none is, the document has no rows.
    """
    can = [op for op in ops if plain_layer(op)]
    if ops and not can:
        return document(Outcome(), [], facts_of(pack, device))
    contest = contest_of(
        pack,
        environment=environment,
        ops=can,
        shapes=shapes,
        against=against,
        device=device,
        threads=tuple(threads),
        weights=(weights,),
        block_s=QUICK_BLOCK_S,
        least_rounds=QUICK_ROUNDS,
        noise_floor=False,
        seconds=seconds,
    )
    return finish(contest, facts_of(pack, device), watch)


def _progress(watch: Watch, facts: Facts) -> Callable[[Row, int, int], None]:
    return lambda row, done, all_rows: watch(row_json(judge(row), facts), done, all_rows)


def _default_shapes(ops: Sequence[PackOp]) -> tuple[Shape, ...]:
    spans = tuple(
        (axis.name, Span(first=min(op.axis(axis.name).first for op in ops), last=max(op.axis(axis.name).last for op in ops)))
        for axis in ops[0].dynamic
    )
    tied = {"w": "h"} if {"h", "w"} <= {name for name, _ in spans} and dict(spans)["w"] == dict(spans)["h"] else {}
    free_spans = tuple((name, span) for name, span in spans if name not in tied)  # square images, as the range has them
    return Traffic.of_range(ShapeRange(spans=free_spans, tied=tuple(tied.items())), DEFAULT_SHAPES).shapes()


def _alike(field: Field, ops: Sequence[Op]) -> list[str]:
    """Names of those that have the dynamic axes and the peers of the first: shapes and contenders are for all of them."""
    return [op.name for op in ops if (field.peers_of(op), op.dynamic) == (field.peers_of(ops[0]), ops[0].dynamic)]


def _regret(manifest: Manifest, op: str, m: int, threads: int, composition: str) -> float | None:
    """Loss of what is served against the best that was measured at this very shape while tuning."""
    for op_ in manifest.ops:
        if op_.name == op:
            times = _inside(op_.facts, "plans", str(threads), "measured_us", str(m))
            if isinstance(times, Mapping) and times and composition:
                timed = {Composition.parse(label): us for label, us in times.items()}
                served = timed.get(Composition.parse(composition))
                return float(served / min(timed.values()) - 1) if served else None
    return None


def _inside(document: Any, *path: str) -> Any:
    for key in path:
        document = document.get(key) if isinstance(document, Mapping) else None
    return document
