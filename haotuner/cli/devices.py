"""`haotuner devices`: what this host has, and every profile of a device one may not have."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from haotuner.cli.output import say
from haotuner.host.cache_folder import cache_folder
from haotuner.hw_profiles.find import Listed, list_devices
from haotuner.spec.device import Device

_GIB = 1 << 30


def devices(
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    every: Annotated[bool, typer.Option("--all", help="List also the table of devices that others measured.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print the names only.")] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Print every number with its source.")] = False,
) -> None:
    """List the devices that --device accepts: this host's CPU and GPUs, then the profiles."""
    listed = list_devices(cache_dir=cache_folder(os.environ), tabled=every)
    if json_output:
        say(json.dumps({"devices": [_as_json(entry) for entry in listed]}, indent=1))
    elif quiet:
        say("\n".join(entry.ask for entry in listed))
    elif verbose:
        say("\n\n".join(in_full(entry.ask, entry.device) for entry in listed))
    else:
        header = ("--device", "id", "kind", "arch", "units", "memory", "GB/s", "fp32 TFLOP/s", "source")
        say(columns([header, *(_row(entry) for entry in listed)]))


def device_json(device: Device) -> dict[str, Any]:
    """Every known number of a device, and where each came from."""
    named = {"id": device.id, "kind": device.kind, "name": device.name, "arch": device.arch, "mig": device.mig}
    return {**named, "memory_bytes": device.memory_bytes, **device.numbers(), "sources": dict(device.sources)}


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows of text, aligned; the first is the header."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines)


def amount(value: float | None, scale: float = 1.0, digits: int = 0) -> str:
    """A number in other units, or a dash where nobody knows it."""
    return "-" if value is None else f"{value / scale:.{digits}f}"


def in_full(ask: str, device: Device) -> str:
    """Every known number of a device with its source, one a line."""
    known = [(name, f"{value:g}" if isinstance(value, float) else str(value)) for name, value in device.numbers().items()]
    rows = [(f"  {name}", value, device.sources.get(name, "")) for name, value in known]
    return f"{ask}: {device.name} ({device.id}, {device.kind}, {device.arch})\n{columns(rows)}"


def _as_json(entry: Listed) -> dict[str, Any]:
    return {**device_json(entry.device), "source": entry.source, "ask": entry.ask}


def _row(entry: Listed) -> tuple[str, ...]:
    device = entry.device
    memory = "-" if device.memory_bytes is None else f"{device.memory_bytes / _GIB:.0f} GiB"
    rates = (amount(device.memory_gbps), amount(device.peak_gflops, 1000, 2))
    return (entry.ask, device.id, device.kind, device.arch, str(device.compute_units), memory, *rates, entry.source)
