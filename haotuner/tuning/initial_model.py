"""Initial model of tuning: the shipped model of the device or of all near ones, one the user names, or none (cold)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from haotuner.cost.forest import Forest
from haotuner.cost.model import CostModel, HasEnsemble
from haotuner.errors import HaotunerError, UsageError
from haotuner.spec.device import Device
from haotuner.transfer.models_shipped import ShippedModel, ShippedModels, starting_models
from haotuner.transfer.saved_model import Transferred, load_model
from haotuner.transfer.shared_model import GPUS, SHARED, machine_of, runs_on_gpus, shipped_file, verdict_on
from haotuner.transfer.similarity import priors_at
from haotuner.transfer.warm_start import Blend, Started, shared_of_models, shared_of_sources

COLD = "none"  # what a user writes for no model at all


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A model to start from, or none; ``words`` say which and why, ``document`` is its JSON form."""

    model: CostModel | None
    words: str
    document: Mapping[str, Any] = field(default_factory=dict)
    every_family: bool = False  # the model ranks micro-kernels of any family


NOTHING = Start(model=None, words="", document={"model": None, "why": "no kernel is ranked"})  # of models without products


def start_of(requested: str | None, device: Device, family: str, *, seed: int = 0) -> Start:
    """The model that tuning starts from.

    Args:
        requested: a file that ``haotuner transfer fit`` wrote, ``none`` for a start from cold, None for what ships.
        device: what is tuned for.
        family: whose micro-kernels are ranked.
        seed: of the trees that the tuning run adds to the model, whichever it is.

    Raises:
        UsageError: the file named is missing, damaged, or of another version or family. A shipped one is left out instead,
            and said.
    """
    if requested == COLD:
        return Start(model=None, words="from cold (--cost-model none)", document={"model": None, "why": "--cost-model none"})
    if requested is not None:
        named = load_model(Path(requested))
        _same_family(requested, named.facts, family, device)
        if named.facts.get("family") == SHARED:
            return _shared(named, f"the model {requested}", requested, device, family, seed)
        # Whatever its kind, a model that is fitted again forgets the rows it was made of; what starts a run must not.
        if isinstance(named, Transferred):
            return _start(
                shared_of_sources(named, seed), f"from the model {requested}", {"model": requested}, len(named.sources.ids)
            )
        return Start(model=Started(named, seed=seed), words=f"from the model {requested}", document={"model": requested})
    result = starting_models(device, family)
    if not result.models and (runs_on_gpus(device) or not result.damaged):
        return _shared_shipped(device, family, seed)
    return _shipped(result, device, family, seed)


class Starts:
    """Start of each family of a run: but for shared ones, a model ranks the micro-kernels of one family only.

    A file that the user names is for the first family that is asked for, if it is not shared; others start from what ships.
    """

    def __init__(self, requested: str | None, device: Device, *, seed: int = 0) -> None:
        self._requested, self._device, self._seed = requested, device, seed
        self._starts: dict[str, Start] = {}

    def of(self, family: str) -> Start:
        """The start of one family. UsageError as ``start_of``, of the first one."""
        if family not in self._starts:
            first = next(iter(self._starts.values()), None)
            named = self._requested if self._requested == COLD or first is None or first.every_family else None
            self._starts[family] = start_of(named, self._device, family, seed=self._seed)
        return self._starts[family]

    def model(self, family: str) -> CostModel | None:
        """The model alone."""
        return self.of(family).model

    @property
    def words(self) -> str:
        """Of the first family, and of every other that has a model."""
        if not self._starts:
            return NOTHING.words
        first, *others = self._starts.items()
        return "; ".join(
            [first[1].words, *(f"{name} {family.words}" for name, family in others if family.model is not None)]
        )


def _start(model: Started, words: str, document: Mapping[str, Any], sources: int, text: str = "") -> Start:
    """A start from some sources; if they share what is measured first, that is said."""
    if isinstance(model, HasEnsemble):
        words += f"; its {sources} sources share what is measured first"
        document = {**document, "opinions_of": sources}
    return Start(model=model, words=words + text, document=document)


def _shared_shipped(device: Device, family: str, seed: int) -> Start:
    """The shipped model of all GPUs, or of all CPUs, where it beat the roofline on held-out devices.

    Else the roofline, and the reason.
    """
    machine = machine_of(device)
    name = f"the shared model of {machine[:-1].upper()}s"
    try:
        model = load_model(shipped_file(machine))
    except HaotunerError as error:
        return Start(model=None, words=f"from the roofline: {error}", document={"model": None, "why": str(error)})
    if verdict_on(model.facts, family, device) is None:
        why = f"{name} is not used for {family}: no device with such kernels was held out of it"
        return Start(model=None, words=f"from the roofline: {why}", document={"model": None, "why": why})
    return _shared(model, name, f"{SHARED}/{machine}", device, family, seed)


def _shared(model: Forest | Transferred, name: str, file: str, device: Device, family: str, seed: int) -> Start:
    """A start from a model of every family, or from the roofline where held-out devices say that it ranks no better."""
    verdict, sources = verdict_on(model.facts, family, device), dict(model.facts.get("sources", {}))
    if verdict is None:
        certain = f"how well it ranks {family} is not known, as no device with such kernels was held out"
    else:
        certain = (
            f"on held-out devices its first picks had {verdict.model:.3f} of the best throughput, "
            f"the roofline's {verdict.roofline:.3f}"
        )
        if not verdict.beats:
            why = f"{name} is not used for {family}: {certain}"
            return Start(
                model=None, words=f"from the roofline: {why}", document={"model": None, "why": why}, every_family=True
            )
        certain += f"; a prediction is off by {verdict.spread:.0%} (one standard deviation)"
    rows = sum(sum(families.values()) for families in sources.values())
    measured = f"{device.id} {'is' if device.id in sources else 'is not'} among them"
    devices = f"{len(sources)} device{'s' if len(sources) > 1 else ''} ({', '.join(sorted(sources))}; {measured})"
    if winners := int(model.facts.get("winners", 0)):
        devices += f", and known winners of {winners} devices"
    words = f"from {name}, {rows:,} timings of {devices}; {certain}"
    document: dict[str, Any] = {"model": file, "sources": sources}
    document["held_out"] = None if verdict is None else asdict(verdict)
    return Start(model=Started(model, seed=seed), words=words, document=document, every_family=True)


def _same_family(requested: str, facts: Mapping[str, Any], family: str, device: Device) -> None:
    """UsageError if a model is known to rank another family; files written before this was kept do not say."""
    known = facts.get("family")
    if known == SHARED and facts.get("machine", GPUS) == machine_of(device):
        return
    if known is not None and known != family:
        raise UsageError(
            f"the model {requested} ranks {known} kernels, this run needs one for {family}; "
            f"make one with: haotuner transfer fit --family {family}, or leave --cost-model out"
        )


def _shipped(result: ShippedModels, device: Device, family: str, seed: int) -> Start:
    """Start from the device's own model, or all near ones, the nearer the more say; a damaged one is left out, and said."""
    opened: list[tuple[ShippedModel, CostModel]] = []
    damaged = list(result.damaged)
    for model in result.models:
        try:
            opened.append((model, load_model(model.path)))
        except HaotunerError as error:
            damaged.append(str(error))
    left_out = {"left_out": damaged} if damaged else {}
    text = f"; left out: {'; '.join(damaged)}" if damaged else ""
    if not opened:
        why = f"no shipped model of {family} " + ("can be opened" if result.models else f"is near {device.id}")
        return Start(model=None, words=f"from cold: {why}{text}", document={"model": None, "why": why} | left_out)
    first, *others = [model for model, _ in opened]
    document: dict[str, Any] = {"model": first.name, "distance": round(first.distance, 3), "of": first.device.id}
    far = "the same device" if first.device.id == device.id else f"{first.distance:.1f} doublings of resources away"
    words = f"from the shipped model {first.name} ({far})"
    if others:
        document["with"] = [model.name for model in others]
        words = f"from {len(opened)} shipped models, the nearest {first.name} ({far})"
    distances = [model.distance for model, _ in opened]
    models = [model for _, model in opened]
    shared = shared_of_models(models, distances, Blend(models, priors_at(distances)), seed)
    return _start(shared, words, document | left_out, len(opened), text)
