"""`haotuner inspect`: what a pack says of itself. Runs none of its code."""

from __future__ import annotations

import json
from typing import Any

from haotuner.backends.cpu.compile import NOT_COMPILED
from haotuner.cli.devices import columns
from haotuner.cli.options import Json, PackFolder, Quiet, Verbose, facts_of
from haotuner.cli.output import say
from haotuner.errors import EnvironmentMissing
from haotuner.pack.manifest import Manifest, read_manifest
from haotuner.runtime.device_memory import find_gpu
from haotuner.spec.cold import waits
from haotuner.spec.cuda_arch import driver_words
from haotuner.verify.pack_groups import meaning_of


def inspect(pack: PackFolder, json_output: Json = False, quiet: Quiet = False, verbose: Verbose = False) -> None:
    """Print a pack's device, tuning run, ops and kernels."""
    manifest = read_manifest(pack)
    if json_output:
        say(json.dumps({"path": str(pack), **manifest.whole_document}, indent=1))
        return
    header = ("op", "tuned for", "threads", "kernels", "packed", "regret mean", "regret max")
    with facts_of(pack):
        head = columns(_head(pack, manifest))
        table = columns([header, *(_row(op, measured=not manifest.unverified) for op in manifest.ops)])
    if not quiet:
        say(f"{head}\n")
    say(table)
    for name, files in manifest.models.items():
        say(f"model {name}: {files.weights_bytes:,} bytes of weights")
    if not quiet:
        say("packed: size of the packed weight over the plain one; regret: loss against the best timed, - if nothing was")
    if verbose:
        for op in manifest.ops:
            say(f"\n{op.name}")
            for kernel in op.kernels:
                say(f"  {kernel}")


def _head(pack: Any, manifest: Manifest) -> list[tuple[str, str]]:
    document = manifest.document
    device, tuning = document["device"], manifest.tuning
    built = dict(document.get("toolchain", {}))
    unknown = built.pop(NOT_COMPILED, "")
    versions = ", ".join(f"{name} {version}" for name, version in built.items())
    # What has no weight is timed with its operands in cache, whatever was asked for.
    weighted = bool(manifest.models) or any(waits(meaning_of(op)) for op in manifest.ops)
    weights = f", weights {tuning['weights']}" if weighted else ""
    rows = [
        ("pack", str(pack)),
        ("device", f"{device.get('name', '')} ({manifest.device_id}), built for {manifest.arch}"),
        *([("driver", _driver(manifest))] if manifest.driver else []),
        ("library", f"{manifest.library}, sha256 {manifest.sha256[:16]}…"),
        (
            "tuned",
            f"{tuning['shapes']}{weights}, {tuning['seconds']:.0f} s, stopped: {tuning['stopped']}",
        ),
        ("built by", f"haotuner {document.get('haotuner', '?')}, {versions}"),
    ]
    if unknown:
        without = f"{unknown}: the compiler did not know it, bf16 and int8 do without; tune with a newer one"
        rows.append((NOT_COMPILED, without))
    if manifest.unverified:
        rows.append(("unverified", "nothing was measured on the device: plans and times are predictions"))
    checked = document.get("verification", {})
    if not checked.get("numbers", True):
        rows.append(("not checked", f"results: {checked.get('why', '')}"))
    return rows


def _driver(manifest: Manifest) -> str:
    """Driver that the code needs, and whether this host's driver is too old for it."""
    needed = f"for CUDA {driver_words(manifest.driver)}"
    try:
        problem = find_gpu(0).too_old(manifest)
    except EnvironmentMissing:  # a host without devices may look at a pack
        problem = ""
    return f"{needed}; not on this host: {problem}" if problem else needed


def _row(op: Any, *, measured: bool) -> tuple[str, ...]:
    facts = op.facts
    return (
        op.name,
        " ".join(f"{axis.name}={axis.first}..{axis.last}" for axis in op.dynamic),
        ",".join(map(str, op.threads)),
        str(len(op.kernels)),
        f"{facts.get('packed_ratio', 1):.3f}x",
        *(_regret(facts.get(name) if measured else None) for name in ("regret_mean", "regret_max")),
    )


def _regret(fraction: float | None) -> str:
    return "-" if fraction is None else f"{fraction:.2%}"
