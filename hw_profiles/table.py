"""The table of devices: one row each, what is publicly known of it and where from; what is not known stays empty.

For devices that somebody's measurements name and nobody tuned for here. Facts of a whole architecture are in another table.
Devices that packs are built for have profiles, which say more and are checked harder.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import get_args

from haotuner.errors import UnknownDevice
from haotuner.hw_profiles.profile import plain, profiles
from haotuner.spec.device import Device, Kind

# Column of a file, what a Device calls it, and the unit in its terms.
_OF_DEVICE = {
    "compute_units": ("compute_units", 1),
    "clock_mhz": ("clock_mhz", 1),
    "memory_gbps": ("memory_gbps", 1),
    "memory_gib": ("memory_bytes", 1 << 30),
    "l2_kib": ("l2_bytes", 1 << 10),
    "l3_mib": ("l3_bytes", 1 << 20),
}
_OF_ARCH = {
    "wave_width": ("wave_width", 1),
    "registers_per_thread": ("registers_per_thread", 1),
    "registers_per_unit": ("registers_per_unit", 1),
    "threads_per_unit": ("threads_per_unit", 1),
    "threads_per_block": ("threads_per_block", 1),
    "blocks_per_unit": ("blocks_per_unit", 1),
    "local_kib_per_unit": ("l1_bytes", 1 << 10),
    "local_kib_per_block": ("shared_per_block_bytes", 1 << 10),
}
_ARCH_ID = re.compile(r"(gfx[0-9a-f]+)-([0-9]{1,4})")
_NEEDED = ("compute_units", "wave_width", "registers_per_thread")  # of a Device
_FLOATS = frozenset({"clock_mhz", "memory_gbps", "peak_gflops", "peak_gflops_unit"})
Facts = Mapping[str, float]  # by the names of a Device's fields; only what is known


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Known facts of a device, a profile or a row of the table."""

    id: str
    name: str
    vendor: str
    kind: Kind
    arch: str
    generation: str  # family of architectures; empty where the table has none
    aliases: tuple[str, ...]
    facts: Facts
    source: str

    def device(self) -> Device:
        """As a Device.

        Raises:
            UnknownDevice: a number is not known that every Device has.
        """
        if lacking := [name for name in _NEEDED if name not in self.facts]:
            raise UnknownDevice(
                f"{self.name} ({self.id}) is known by name only: nobody says its {', '.join(lacking)} ({self.source}); "
                "add a profile if you know them (haotuner/hw_profiles/README.md)"
            )
        numbers = {name: value if name in _FLOATS else int(value) for name, value in self.facts.items()}
        derived = {"peak_gflops", "peak_gflops_unit"}
        return Device(
            id=self.id,
            kind=self.kind,
            name=self.name,
            arch=self.arch,
            sources={name: "derived" if name in derived else "datasheet" for name in numbers},
            **numbers,  # type: ignore[arg-type]  # names are those of fields, checked when the table is read
        )


def table() -> tuple[Known, ...]:
    """Every row, in the order of the file.

    Raises:
        ValueError: a row without a source, of an unknown kind or architecture, or with a number that is none.
    """
    archs = architectures()
    return tuple(_known(row, archs) for row in _rows("devices.csv"))


def architectures() -> dict[str, Mapping[str, str]]:
    """Rows of the table of architectures, by what a compiler calls them; cells are text, empty where nobody says."""
    return {row["arch"]: row for row in _rows("architectures.csv")}


def known_arch(arch: str, units: int, *, name: str) -> Known | None:
    """A device of which only the architecture and the number of units are known, as file names of MIOpen say them."""
    row = architectures().get(arch)
    if row is None:
        return None
    cells = {"id": f"{arch}-{units}", "name": name, "vendor": "", "kind": "hip", "arch": arch, "compute_units": str(units)}
    return _known({**dict.fromkeys(_OF_DEVICE, ""), "aliases": "", **cells, "source": row["source"]}, {arch: row})


def known_names() -> dict[str, Known]:
    """Every id, name and alias as ``plain`` writes it, with what is known of its device; profiles before rows."""
    result: dict[str, Known] = {}
    for profile in profiles():
        known = of_device(profile.device, source=", ".join(profile.references))
        for name in (profile.device.id, profile.device.name, *profile.aliases):
            result.setdefault(plain(name), known)
    for row in table():
        for name in (row.id, row.name, *row.aliases):
            result.setdefault(plain(name), row)
    return result


def known_named(name: str) -> Known | None:
    """The profile or the row of that id, name or alias; None when nobody goes by it. A profile comes first.

    An id of ``known_arch`` (``gfx906-60``) names what is known of that architecture.
    """
    known = known_names().get(plain(name))
    match = _ARCH_ID.fullmatch(name.strip().lower()) if known is None else None
    return known_arch(match[1], int(match[2]), name=match[0]) if match else known


def stranger(name: str, *, vendor: str, on_cpu: bool, qualifier: str = "") -> Known:
    """A device that no table has: its name, its vendor, whether it is a CPU.

    ``qualifier``: what tells it from others of the name.
    """
    plain_id = "-".join(re.findall(r"[a-z0-9]+", f"{name} {qualifier}".lower())) or "unknown"
    return Known(
        id=plain_id,
        name=name,
        vendor=vendor,
        kind="cpu" if on_cpu else "opencl",
        arch="",
        generation="",
        aliases=(),
        facts={},
        source="whoever named it",
    )


def of_device(device: Device, *, source: str = "") -> Known:
    """Facts of a Device, in the words of the table."""
    row = architectures().get(device.arch, {})
    return Known(
        id=device.id,
        name=device.name,
        vendor=_vendor(device.arch, device.name),
        kind=device.kind,
        arch=device.arch,
        generation=row.get("generation", ""),
        aliases=(),
        facts=device.numbers(),
        source=source,
    )


def _known(row: Mapping[str, str], archs: Mapping[str, Mapping[str, str]]) -> Known:
    arch = archs.get(row["arch"])
    if arch is None or row["kind"] not in get_args(Kind) or not row["source"]:
        raise ValueError(
            f"table of devices: {row['id']} needs a source, a known kind and an architecture of the other table"
        )
    facts = dict(_numbers(row, _OF_DEVICE)) | dict(_numbers(arch, _OF_ARCH))
    if arch["lanes_per_unit"]:
        lanes = float(arch["lanes_per_unit"])
        if lanes % facts["wave_width"] == 0:
            facts["fma_pipes"] = lanes / facts["wave_width"]
        if "clock_mhz" in facts and "compute_units" in facts:
            facts["peak_gflops_unit"] = 2.0 * lanes * facts["clock_mhz"] / 1000.0
            facts["peak_gflops"] = facts["peak_gflops_unit"] * facts["compute_units"]
    kind: Kind = row["kind"]  # type: ignore[assignment]  # one of them, as asked above
    return Known(
        id=row["id"],
        name=row["name"],
        vendor=row["vendor"] or _vendor(row["arch"], row["name"]),
        kind=kind,
        arch=row["arch"],
        generation=arch["generation"],
        aliases=tuple(alias for alias in row["aliases"].split(";") if alias),
        facts=facts,
        source=row["source"],
    )


def _numbers(row: Mapping[str, str], columns: Mapping[str, tuple[str, int]]) -> Iterator[tuple[str, float]]:
    for column, (field, unit) in columns.items():
        if row[column]:
            yield field, float(row[column]) * unit


def _vendor(arch: str, name: str) -> str:
    makers = {"sm_": "nvidia", "gfx": "amd"}
    result = next((maker for start, maker in makers.items() if arch.startswith(start)), "")
    return result or next((maker for maker in ("amd", "intel", "arm", "apple") if maker in name.lower()), "")


def _rows(name: str) -> list[dict[str, str]]:
    text = files("haotuner.hw_profiles").joinpath(name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
