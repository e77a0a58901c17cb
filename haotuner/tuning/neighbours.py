"""Neighbours: devices that are tuned at the same time, and what their records say of one another's kernels.

A device that ships no model of its own starts each turn from a model of what the others have measured so far
(``haotuner/transfer``). The search corrects it by its own times, as it does with every start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from haotuner.cost.forest import Forest
from haotuner.cost.model import CostModel
from haotuner.errors import UnknownDevice, UsageError
from haotuner.spec.device import Device
from haotuner.spec.record import Record, Timed
from haotuner.transfer.fit import FEWEST_OWN_ROWS, fit_model
from haotuner.transfer.reading import read_records
from haotuner.transfer.warm_start import Started, shared_of_sources
from haotuner.tuning.initial_model import Start

GROWN = 1.5  # times the rows of the last fit: a fit takes seconds, and a few rows more teach little


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """Model of a device from its neighbours' records: how many rows of which of them."""

    model: CostModel
    rows: int
    sources: tuple[str, ...]


class Neighbours:
    """Records of devices as they come, and models from them. One object for all devices of a run; thread-safe."""

    def __init__(self, devices: Sequence[Device], *, seed: int = 0) -> None:
        self._devices = {device.id: device for device in devices}
        self._seed, self._lock = seed, Lock()
        self._records: dict[tuple[str, str], list[Record]] = {}  # by family and device
        self._learned: dict[tuple[str, str], Learned] = {}

    def note(self, record: Record) -> None:
        """A device has a record: kept where it is a time of one kernel."""
        if isinstance(record.outcome, Timed) and len(record.trial.composition.parts) == 1:
            family = record.trial.composition.parts[0].kernel.partition("__")[0]
            with self._lock:
                self._records.setdefault((family, record.device_id), []).append(record)

    def model(self, device: Device, family: str, start: Start, requested: str | None = None) -> CostModel | None:
        """Model that the next search of a device starts from.

        ``start``: its own start, which stays where it is of this very device, was ``requested``, or knows more.
        """
        if requested is not None or start.document.get("of") == device.id:
            return start.model
        learned = self._learn(device, family)
        return start.model if learned is None else learned.model

    def document(self, device: Device) -> Mapping[str, Any]:
        """JSON form of what a device has learned from others, by family."""
        with self._lock:
            mine = {family: learned for (family, name), learned in self._learned.items() if name == device.id}
        return {family: {"rows": learned.rows, "of": list(learned.sources)} for family, learned in mine.items()}

    def _learn(self, device: Device, family: str) -> Learned | None:
        with self._lock:
            before = self._learned.get((family, device.id))
            records = [
                record
                for (name, device_id), of_device in self._records.items()
                if name == family and device_id != device.id
                for record in of_device
            ]
        if len(records) < max(FEWEST_OWN_ROWS, 0 if before is None else GROWN * before.rows):
            return before
        try:
            fitted = fit_model(read_records(records, self._device), device, family=family, seed=self._seed)
        except UsageError:  # records that cannot be compared: the device starts as it would alone
            return before
        sources = fitted.sources or tuple(sorted({record.device_id for record in records}))
        if isinstance(fitted.model, Forest):
            model = Started(fitted.model, seed=self._seed)
        else:
            model = shared_of_sources(fitted.model, self._seed)
        learned = Learned(model=model, rows=len(records), sources=sources)
        with self._lock:
            self._learned[family, device.id] = learned
        return learned

    def _device(self, name: str) -> Device:
        if name not in self._devices:
            raise UnknownDevice(f"{name} is not tuned in this run")
        return self._devices[name]
