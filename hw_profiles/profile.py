"""Profiles: devices one does not have, one TOML file each, found by id or by the names drivers report."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from haotuner.spec.device import Device, Source

_FIELDS = {field.name for field in fields(Device)} - {"id", "sources", "mig"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A device from a file: its numbers, the names it goes by, and where the numbers were read."""

    device: Device
    aliases: tuple[str, ...]
    references: Mapping[str, str]  # title -> address
    memory: Mapping[str, Any]  # how the bandwidth comes about: type, bus_bits, gbits_per_pin


def parse_profile(text: str, device_id: str) -> Profile:
    """Read one profile; the file's name is the id.

    Raises:
        ValueError: not TOML, a key that no Device has, a missing source, or a number out of range.
    """
    table = tomllib.loads(text)
    references = table.pop("source", {})
    aliases = table.pop("aliases", [])
    memory = table.pop("memory", {})
    unknown = sorted(table.keys() - _FIELDS)
    if unknown:
        raise ValueError(
            f"profile {device_id}: unknown keys {', '.join(unknown)}; a Device has {', '.join(sorted(_FIELDS))}"
        )
    if not references or not aliases:
        raise ValueError(f"profile {device_id}: needs a [source] table and aliases (the names that drivers report)")
    numbers = {key for key, value in table.items() if isinstance(value, (int, float))}
    sources: dict[str, Source] = {key: "datasheet" for key in numbers}
    if "peak_gflops" in table and "compute_units" in table:
        table.setdefault("peak_gflops_unit", table["peak_gflops"] / table["compute_units"])
        sources.setdefault("peak_gflops_unit", "derived")
    try:
        device = Device(id=device_id, sources=sources, **table)
    except TypeError as error:
        raise ValueError(f"profile {device_id}: {error}") from error
    return Profile(device=device, aliases=tuple(aliases), references=references, memory=memory)


def folder() -> Traversable:
    """Folder of the profiles, in a checkout as in a wheel."""
    return files("haotuner.hw_profiles").joinpath("profiles")


def _texts() -> dict[str, Traversable]:
    """The file of every profile by id, in their order."""
    result = {entry.name.removesuffix(".toml"): entry for entry in folder().iterdir() if entry.name.endswith(".toml")}
    return {name: result[name] for name in sorted(result)}


def _read(file: Traversable, device_id: str) -> Profile:
    return parse_profile(file.read_text(encoding="utf-8"), device_id)


def profiles() -> tuple[Profile, ...]:
    """Every profile, ordered by id."""
    return tuple(_read(file, name) for name, file in _texts().items())


def plain(name: str) -> str:
    """A name as it is compared: lower case, one space between words."""
    return " ".join(name.lower().split())


def profile_named(name: str) -> Profile | None:
    """The profile of that id or alias; None when nobody goes by that name."""
    required, files_by_id = plain(name), _texts()
    if required in files_by_id:  # no need to parse the others: a file has one id, and no alias is another's id
        return _read(files_by_id[required], required)
    for device_id, file in files_by_id.items():
        profile = _read(file, device_id)
        if required in (plain(profile.device.name), *map(plain, profile.aliases)):
            return profile
    return None
