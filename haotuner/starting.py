"""Where tuning starts: from the nearest shipped model, from a model the user names, or from cold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from haotuner.cost.forest import Forest
from haotuner.cost.model import CostModel
from haotuner.cost.started import Started
from haotuner.device import Device
from haotuner.errors import HaotunerError
from haotuner.transfer.kept import load_model
from haotuner.transfer.shelf import nearest

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
        asked: a file that ``haotuner transfer fit`` wrote, ``none`` for a start from cold, None for the nearest shipped one.
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
    found = nearest(device, family)
    if found is None:
        why = f"no shipped model of {family} is near {device.id}"
        return Start(model=None, words=f"from cold: {why}", document={"model": None, "why": why})
    try:
        model = load_model(found.path)
    except HaotunerError as error:
        return Start(model=None, words=f"from cold: {error}", document={"model": None, "why": str(error)})
    same = found.device.id == device.id  # however much its measured rates drift
    far = "the same device" if same else f"{found.distance:.1f} doublings of resources away"
    return Start(
        model=_adapting(model, seed),
        words=f"from the shipped model {found.name} ({far})",
        document={"model": found.name, "distance": round(found.distance, 3), "of": found.device.id},
    )


def _adapting(model: CostModel, seed: int) -> CostModel:
    """A forest forgets its rows when it is fitted again; what starts a run must not."""
    return Started(model, seed=seed) if isinstance(model, Forest) else model
