"""`haotuner bench PACK --model MODEL`: a whole model against ONNX Runtime, OpenVINO and torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from haotuner.bench.models import MODEL_PEERS, PROGRAMS, dims_of, files_of, parse_inputs, race, requests_of
from haotuner.bench.shape_constraints import shape_constraints_of
from haotuner.cli.devices import columns
from haotuner.cli.output import say, tell
from haotuner.errors import UsageError
from haotuner.pack.manifest import read_manifest
from haotuner.runtime.pack import Pack


def bench_model(
    pack: Path,
    name: str,
    *,
    files: Sequence[Path],
    shapes: str | None,
    against: str | None,
    threads: Sequence[int],
    seconds: float,
    given: str,
    json_output: bool,
    quiet: bool,
    environment: Mapping[str, str],
) -> None:
    """Race one model at the requests of a trace or range, and print the table."""
    peers = MODEL_PEERS if against is None else tuple(part.strip() for part in against.split(",") if part.strip() != "none")
    unknown = [peer for peer in peers if peer not in MODEL_PEERS]
    if unknown:
        raise UsageError(f"--peers {unknown[0]}: models are raced against {', '.join(MODEL_PEERS)}")
    if (manifest := read_manifest(pack)).placed:
        raise UsageError(f"{pack} is for {manifest.arch}: whole models are raced on CPUs; tune for this CPU to race {name}")
    for file in files:
        if not file.is_file():
            raise UsageError(f"--file {file} is not there; name the ONNX file that the model was made of, or a {PROGRAMS}")
    without = [peer for peer in peers if peer not in files_of(files, peers)]
    if without and not quiet and (against is not None or not files):
        tell(f"no file for {', '.join(without)}: ONNX Runtime and OpenVINO take --file MODEL.onnx, torch --file MODEL.pt2")
    result = []
    for count in threads:
        with Pack(pack, threads=count) as opened:
            model = opened.model(name)
            text = shapes or str(opened.manifest.tuning["shapes"])
            dims = dims_of(model)
            of_data = [dim for dim in model.dims if dim not in dims]
            requests = requests_of(text, dims, data=of_data, agreed=shape_constraints_of(model, dims))
            drawn = parse_inputs(given, [end.name for end in model.inputs], dims)
            result.append(
                race(
                    model, files, requests, peers, threads=count, seconds=seconds, environment=environment, given=drawn,
                    watch=_silent if quiet else tell,
                )
            )  # fmt: skip
    document = {**result[0], "rows": [row for item in result for row in item["rows"]]}
    if json_output:
        say(json.dumps(document, indent=1))
        return
    for item in result:
        _print(item, [peer for peer in peers if peer not in item["missing"]])


def _silent(_: str) -> None:
    """Nothing is told."""


def _print(result: Mapping[str, object], peers: Sequence[str]) -> None:
    rows: list[tuple[str, ...]] = [("shape", "threads", "first", "steady", *(f"{peer}" for peer in peers), "vs best")]
    description: Sequence[Mapping[str, object]] = result["rows"]  # type: ignore[assignment]
    for row in description:
        times: Mapping[str, Mapping[str, float]] = row["peers"]  # type: ignore[assignment]
        ours = float(row["steady_us"])  # type: ignore[arg-type]
        best = min((time_us["ratio"] for time_us in times.values()), default=None)
        shape: Mapping[str, int] = row["shape"]  # type: ignore[assignment]
        rows.append(
            (
                ";".join(f"{axis}={size}" for axis, size in shape.items()),
                str(row["threads"]),
                f"{float(row['first_us']) / 1e3:,.2f}",  # type: ignore[arg-type]
                f"{ours / 1e3:,.2f}",
                *(f"{times[peer]['steady_us'] / 1e3:,.2f}" for peer in peers),
                "-" if best is None else "contended" if row["contended"] else f"{best:.2f}x",
            )
        )
    say(columns(rows))
    summary: Mapping[str, object] = result["summary"]  # type: ignore[assignment]
    say("milliseconds; first: a size that was not seen before; others: steady, the median; vs best: peer over ours by turns")
    if summary["contended"] == len(description):
        say("EVERY ROW WAS CONTENDED: other programs were busy all the time. Run again on a quiet machine for figures")
    elif summary["contended"]:
        say(f"{summary['contended']} contended rows are left out of the mean below")
    if summary["geomean_vs_best"] is not None:
        stream: Mapping[str, float] = summary["stream_vs"]  # type: ignore[assignment]
        says = ", ".join(f"{peer} {ratio:.2f}x" for peer, ratio in stream.items())
        say(f"against the best peer, geometric mean: {summary['geomean_vs_best']:.2f}x; stream of new sizes: {says}")
    load_ms: Mapping[str, float] = summary["load_ms"]  # type: ignore[assignment]
    peak: Mapping[str, float] = summary["peak_bytes"]  # type: ignore[assignment]
    say("load, ms: " + ", ".join(f"{who} {ms:,.0f}" for who, ms in load_ms.items()))
    say("peak memory, MB: " + ", ".join(f"{who} {count / 1e6:,.0f}" for who, count in peak.items()))
