"""Where tuning starts: from the shipped model of the device or of all near ones, from one the user names, or from cold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from haotuner.cost.blend import Blend
from haotuner.cost.forest import Forest
from haotuner.cost.model import CostModel
from haotuner.cost.started import Started
from haotuner.device import Device
from haotuner.errors import HaotunerError
from haotuner.transfer.kept import load_model
from haotuner.transfer.nearness import weights_at
from haotuner.transfer.shelf import Shelved, starts

COLD = "none"  # what a user writes for no model at all


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A model to start from, or none; ``words`` say which and why, ``document`` is its JSON form."""

    model: CostModel | None
    words: str
    document: Mapping[str, Any] = field(default_factory=dict)


def start_of(asked: str | None, device: Device, family: str, *, seed: int = 0) -> Start:
    """The model that tuning starts from.

    Args:
        asked: a file that ``haotuner transfer fit`` wrote, ``none`` for a start from cold, None for what ships.
        device: what is tuned for.
        family: whose micro-kernels are ranked.
        seed: of the trees that the tuning run adds.

    Raises:
        UsageError: the file named is missing, damaged, or of another version. A shipped one is left out instead, and said.
    """
    if asked == COLD:
        return Start(model=None, words="from cold (--model none)", document={"model": None, "why": "--model none"})
    if asked is not None:
        model = load_model(Path(asked))
        return Start(model=_adapting(model, seed), words=f"from the model {asked}", document={"model": asked})
    found = starts(device, family)
    if not found:
        why = f"no shipped model of {family} is near {device.id}"
        return Start(model=None, words=f"from cold: {why}", document={"model": None, "why": why})
    return _shipped(found, device, seed)


def _shipped(found: Sequence[Shelved], device: Device, seed: int) -> Start:
    """From the device's own model, or from all near ones, the nearer the more say; a damaged one is left out, and said."""
    opened: list[tuple[Shelved, CostModel]] = []
    damaged: list[str] = []
    for one in found:
        try:
            opened.append((one, load_model(one.path)))
        except HaotunerError as error:
            damaged.append(str(error))
    if not opened:
        why = "; ".join(damaged)
        return Start(model=None, words=f"from cold: {why}", document={"model": None, "why": why})
    first, *others = [one for one, _ in opened]
    document: dict[str, Any] = {"model": first.name, "distance": round(first.distance, 3), "of": first.device.id}
    far = "the same device" if first.device.id == device.id else f"{first.distance:.1f} doublings of resources away"
    words = f"from the shipped model {first.name} ({far})"
    if others:
        document["with"] = [one.name for one in others]
        words = f"from {len(opened)} shipped models, the nearest {first.name} ({far})"
    blend = Blend([model for _, model in opened], weights_at([one.distance for one, _ in opened]))
    if damaged:
        document["left_out"] = damaged
        words += f"; left out: {'; '.join(damaged)}"
    return Start(model=Started(blend, seed=seed), words=words, document=document)


def _adapting(model: CostModel, seed: int) -> CostModel:
    """A forest forgets its rows when it is fitted again; what starts a run must not."""
    return Started(model, seed=seed) if isinstance(model, Forest) else model
