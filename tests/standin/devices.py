"""Devices that the stand-in can be: one table of what the driver answers, and how it is written down."""

from __future__ import annotations

from dataclasses import dataclass, replace

# CUdevice_attribute of cuda.h.
ATTRIBUTES = {
    "threads_per_block": 1, "block_x": 2, "block_y": 3, "block_z": 4, "grid_x": 5, "grid_y": 6, "grid_z": 7,
    "shared_default": 8, "warp": 10, "registers_per_block": 12, "clock_khz": 13, "units": 16,
    "concurrent": 31, "memory_khz": 36, "bus_bits": 37, "l2_bytes": 38, "threads": 39, "unified": 41,
    "major": 75, "minor": 76, "priorities": 78, "shared_per_unit": 81, "registers": 82,
    "shared_per_block": 97, "blocks": 106,
}  # fmt: skip
SAME = {
    "threads_per_block": 1024, "block_x": 1024, "block_y": 1024, "block_z": 64, "grid_x": 2**31 - 1, "grid_y": 65535,
    "grid_z": 65535, "shared_default": 49152, "warp": 32, "registers_per_block": 65536, "concurrent": 1, "unified": 1,
    "priorities": 1, "registers": 65536,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class StandinDevice:
    """What one device answers; sizes as in the tables of compute capabilities of the CUDA programming guide."""

    name: str  # always begins with "stand-in"
    arch: str
    units: int
    threads: int  # a unit holds
    blocks: int  # a unit holds
    shared_kb: int  # of a unit; a block may have 1 KB less
    clock_mhz: int
    memory_mhz: int
    bus_bits: int
    l2_mb: int
    memory_bytes: int = 1 << 30

    def text(self) -> str:
        """The device in the words of STANDIN_DEVICES."""
        capability = int(self.arch.removeprefix("sm_").rstrip("af"))
        shared = self.shared_kb << 10
        facts = SAME | {
            "clock_khz": self.clock_mhz * 1000, "units": self.units, "memory_khz": self.memory_mhz * 1000,
            "bus_bits": self.bus_bits, "l2_bytes": self.l2_mb << 20, "threads": self.threads, "blocks": self.blocks,
            "major": capability // 10, "minor": capability % 10, "shared_per_unit": shared,
            "shared_per_block": shared - 1024 if self.arch != "sm_75" else shared,
        }  # fmt: skip
        numbers = ",".join(f"{ATTRIBUTES[key]}={value}" for key, value in facts.items())
        return f"name={self.name},memory={self.memory_bytes},{numbers}"


def _device(
    arch: str, units: int, threads: int, blocks: int, shared_kb: int, rest: tuple[int, int, int, int]
) -> StandinDevice:
    clock_mhz, memory_mhz, bus_bits, l2_mb = rest
    return StandinDevice(
        name=f"stand-in {arch}", arch=arch, units=units, threads=threads, blocks=blocks, shared_kb=shared_kb,
        clock_mhz=clock_mhz, memory_mhz=memory_mhz, bus_bits=bus_bits, l2_mb=l2_mb,
    )  # fmt: skip


DEVICES = {
    device.arch: device
    for device in (
        _device("sm_75", 40, 1024, 16, 64, (1590, 5001, 256, 4)),
        _device("sm_80", 108, 2048, 32, 164, (1410, 1215, 5120, 40)),
        _device("sm_86", 82, 1536, 16, 100, (1695, 9751, 384, 6)),
        _device("sm_89", 128, 1536, 24, 100, (2520, 10501, 384, 72)),
        _device("sm_90a", 132, 2048, 32, 228, (1980, 2619, 5120, 50)),
        _device("sm_100a", 148, 2048, 32, 228, (1965, 3996, 8192, 126)),
        _device("sm_103a", 160, 2048, 32, 228, (1965, 3996, 8192, 126)),
        _device("sm_120a", 170, 1536, 24, 100, (2407, 14001, 512, 96)),
    )
}
# A slice of a board, as MIG gives it.
DEVICES["sm_90a-mig"] = replace(DEVICES["sm_90a"], name="stand-in sm_90a MIG 1g", units=16, l2_mb=6, memory_bytes=128 << 20)


def device(name: str, *, units: int | None = None, memory_bytes: int | None = None) -> StandinDevice:
    """A device of the table, with another number of multiprocessors or bytes of memory where a test wants them."""
    if name not in DEVICES:
        raise KeyError(f"no stand-in device {name!r}; known: {', '.join(DEVICES)}")
    entry = DEVICES[name]
    return replace(entry, units=units or entry.units, memory_bytes=memory_bytes or entry.memory_bytes)
