"""Clocks, power and what slows a GPU, from NVML beside each batch of times; where NVML is not there, nothing is said."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

# nvml.h, nvmlClocksEventReasons: what makes times another device's. A cap of power is how big products run.
SLOWED = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
POWER_CAP = 0x4
Seen = Mapping[str, float]


class Clocks:
    """NVML's view of one GPU by CUDA's ordinal; every question may stay unanswered."""

    def __init__(self, ordinal: int, module: Any = None) -> None:
        self._module, self._handle = module, None
        self.absent = ""  # why NVML answers nothing; empty where it does
        try:
            self._module = module or importlib.import_module("pynvml")
            nvml: Any = self._module
            nvml.nvmlInit()
            self._handle = nvml.nvmlDeviceGetHandleByIndex(ordinal)
        except Exception as error:  # pynvml raises classes of its own, and needs a library that may be of any age
            self._module, self.absent = None, f"{type(error).__name__}: {error}"

    def look(self) -> dict[str, float]:
        """Current readings: ``clock_mhz``, ``memory_clock_mhz``, ``power_w``, ``temperature_c``, ``reasons``."""
        if self._module is None:
            return {}
        nvml, readings = self._module, dict[str, float]()
        questions: tuple[tuple[str, Callable[[], Any]], ...] = (
            ("clock_mhz", lambda: nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_SM)),
            ("memory_clock_mhz", lambda: nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_MEM)),
            ("power_w", lambda: nvml.nvmlDeviceGetPowerUsage(self._handle) / 1e3),
            ("temperature_c", lambda: nvml.nvmlDeviceGetTemperature(self._handle, nvml.NVML_TEMPERATURE_GPU)),
            ("reasons", lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle)),
        )
        for name, question in questions:
            try:
                readings[name] = float(question())
            except nvml.NVMLError:
                continue
        return readings

    @staticmethod
    def slowed(before: Seen, after: Seen) -> str:
        """Reasons that slowed the device at either look, in words; empty if nothing did."""
        reasons = int(before.get("reasons", 0)) | int(after.get("reasons", 0))
        return ", ".join(words for bit, words in SLOWED.items() if reasons & bit)

    @staticmethod
    def facts(before: Seen, after: Seen) -> dict[str, float | str]:
        """Facts of a record: means of both looks, and whether power was capped."""
        result: dict[str, float | str] = {
            name: (before[name] + after[name]) / 2 for name in before.keys() & after.keys() if name != "reasons"
        }
        if "reasons" in before or "reasons" in after:
            reasons = int(before.get("reasons", 0)) | int(after.get("reasons", 0))
            result["throttled"] = "power cap" if reasons & POWER_CAP else "no"
        return result
