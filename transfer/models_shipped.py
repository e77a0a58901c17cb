"""Models of our own measurements that ship with haotuner, and which of them is nearest to a device."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from haotuner.cost.features import recorded_versions, why_outdated
from haotuner.microkernels.cpu.typed_source import has_tiles
from haotuner.spec.device import Device
from haotuner.transfer.similarity import FARTHEST, start_distance


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedModel:
    """One shipped model: where it lies, what it was learnt on, and how far that is from the device asked for."""

    name: str
    path: Path
    device: Device
    family: str
    distance: float = 0.0  # doublings of resources, see ``nearness.start_distance``
    facts: Mapping[str, Any] = field(default_factory=dict)  # provenance: ops, rows, date, columns, sha256, scores


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedModels:
    """Shipped models, or some of them, and what is wrong with each of the folder whose provenance cannot be read.

    One damaged file must not take the sound ones away, and whoever is handed these is told of it.
    """

    models: tuple[ShippedModel, ...]
    damaged: tuple[str, ...] = ()  # a sentence each; of which family or device these were nobody knows


def folder() -> Path:
    """Folder of the shipped models: in a checkout as in a wheel."""
    return Path(str(files("haotuner.transfer").joinpath("models")))


def models_shipped(position: Path | None = None) -> ShippedModels:
    """Every shipped model, by name, whatever columns it uses."""
    result: list[ShippedModel] = []
    damaged: list[str] = []
    for path in sorted((position or folder()).glob("*.json")):
        try:
            result.append(_shipped_model(path))
        except ValueError as error:
            damaged.append(str(error))
    return ShippedModels(models=tuple(result), damaged=tuple(damaged))


def _shipped_model(path: Path) -> ShippedModel:
    """The model whose provenance this file is; ValueError says what is wrong with the file."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        device, family, model = Device(**facts["device"]), str(facts["family"]), path.with_name(facts["model"])
        recorded_versions(facts)  # without it the model would be passed over as one of other columns
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} does not say what the model beside it was learnt on ({type(error).__name__}: {error}); copy it again"
        ) from error
    return ShippedModel(name=path.stem, path=model, device=device, family=family, facts=facts)


def near(device: Device, family: str, position: Path | None = None) -> ShippedModels:
    """The models of the family, the most like this device first: those within ``FARTHEST`` that are up to date.

    The number of units is left out of the comparison, so a device is at distance 0 from parts of itself.
    """
    every = models_shipped(position)
    known = [
        ShippedModel(name=s.name, path=s.path, device=s.device, family=family, facts=s.facts,
                distance=start_distance(s.device, device))
        for s in every.models
        if s.family == family and not why_outdated(recorded_versions(s.facts)) and _alike(s.device, device, family)
    ]  # fmt: skip
    sound = sorted((s for s in known if s.distance <= FARTHEST), key=lambda s: (s.distance, s.name))
    return replace(every, models=tuple(sound))


def _alike(source: Device, device: Device, family: str) -> bool:
    """True if both multiply the family's type in tiles, or neither: programs and roofline are others there."""
    dtype = family.rpartition("_")[2]
    return has_tiles(source, dtype) == has_tiles(device, dtype)


def starting_models(device: Device, family: str, position: Path | None = None) -> ShippedModels:
    """The models to start from, nearest first: the device's own alone if there is one, else every one that is ``near``.

    The same device is one of the same id, however much its measured rates drift. Elsewhere the nearest alone is a worse
    start than all of them (docs/decisions/069).
    """
    result = near(device, family, position)
    own = tuple(model for model in result.models if model.device.id == device.id)[:1]
    return replace(result, models=own or result.models)
