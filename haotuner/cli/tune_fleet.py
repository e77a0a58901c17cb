"""`haotuner tune --on`: tunes in a fleet, one pack a device, and tells what each device took."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from haotuner.cli.devices import columns
from haotuner.cli.model_report import ModelReport
from haotuner.cli.output import say, tell
from haotuner.cli.progress import Watcher
from haotuner.errors import EnvironmentMissing
from haotuner.host.cache_folder import cache_folder
from haotuner.host.extras import how_to_get, missing
from haotuner.tuning.request import Request
from haotuner.tuning.run import Report

PACKAGES = ("ray", "grpc")


def require_ray() -> None:
    """EnvironmentMissing where Ray and its client are not installed."""
    if absent := missing(PACKAGES):
        raise EnvironmentMissing(f"a fleet needs Ray; not installed: {', '.join(absent)}. Run: {how_to_get('fleet')}")


def tune_on(
    request: Request,
    on: str,
    names: Sequence[str],
    watcher: Watcher,
    models: ModelReport | None = None,
    *,
    json_output: bool,
    quiet: bool,
) -> bool:
    """Tune on the devices of these names, print the result; True if every op of every device has a measured plan.

    One device gets its pack at the request's ``out``, several get theirs in folders of it (``cpu-avx512``). ``models``: the
    whole models of the request, of one device.
    """
    require_ray()
    from haotuner.backends.index import backend_for
    from haotuner.fleet.engine import RayEngine
    from haotuner.fleet.offer import folder_of
    from haotuner.fleet.start import fleet_at
    from haotuner.tuning.device_tasks import produce_each
    from haotuner.tuning.session import produce

    several = len(names) > 1
    requests = [
        replace(request, device=name, db=request.records, out=request.out / folder_of(name) if several else request.out)
        for name in names
    ]
    cache = cache_folder(request.environment)
    with fleet_at(on, names, environment=request.environment, cache=cache) as fleet:
        if not quiet:
            tell(f"fleet {fleet.address}: {', '.join(sorted({n for node in fleet.nodes() for n in node.devices}))}")
        engines = [RayEngine(fleet, name, backend_for) for name in names]
        if several:
            request.out.mkdir(parents=True, exist_ok=True)
        with watcher:
            reports = produce_each(requests, engines, watcher) if several else [produce(requests[0], watcher, engines[0])]
    if json_output:
        of_models = {} if models is None else models.document(reports[0])
        documents = {name: {**report.document, **of_models} for name, report in zip(names, reports, strict=True)}
        say(json.dumps({"devices": documents} if several else documents[names[0]], indent=1))
    elif quiet:
        for report in reports:
            say(str(report.pack))
    else:
        say(columns([("device", "op", "kernels", "measured", "reused", "stopped", "pack"), *_rows(names, reports)]))
        for name, report in zip(names, reports, strict=True):
            say(_start(name, report))
        if models is not None:
            say(models.table(reports[0]))
    return all(report.complete for report in reports)


def _rows(names: Sequence[str], reports: Sequence[Report]) -> list[tuple[str, ...]]:
    return [
        (
            name,
            entry["name"],
            str(len(entry["kernels"])),
            f"{entry['measured']} of {entry['candidates']}",
            str(report.document["reused"]),
            report.stopped,
            str(report.pack),
        )
        for name, report in zip(names, reports, strict=True)
        for entry in report.document["ops"]
    ]


def _start(name: str, report: Report) -> str:
    """Words on what a device's search began with, and what it learned from the others."""
    learned = report.document.get("learned_from", {})
    others = [f"{family}: {of['rows']} rows of {', '.join(of['of'])}" for family, of in sorted(learned.items())]
    return f"{name} started {report.start}" + (f"; then from {'; '.join(others)}" if others else "")
