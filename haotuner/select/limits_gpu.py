"""Laws of GPUs: what a thread block may ask of a device and an op. Each gives both sides of the inequality it breaks.

After Roller (OSDI 2022) and FTuner (its hardware filters): registers, shared memory, threads, a warp for every scheduler,
whole memory transactions. A limit that the device's profile leaves out refuses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from haotuner.ops.dtypes import DTYPE_BYTES
from haotuner.select.occupancy import occupancy
from haotuner.words.device import Device
from haotuner.words.kernel import Footprint
from haotuner.words.law import Law, Laws, Question

# An SM of every CUDA architecture since 2012 issues from four schedulers (programming guide); an RDNA or CDNA compute unit
# from two to four. A unit with fewer resident waves leaves one of them idle whatever the shape.
LEAST_WAVES = 4
SECTOR_BYTES = 32  # least that an L2 or the memory hands over, on NVIDIA and AMD alike
WASTED_SECTORS = 0.4  # share of fetched bytes that nobody uses; a 32-byte piece of a row off 32 bytes wastes half
# Tiles no larger than this are let in however small the op or its traffic: the least that every family can make.
SMALL_TILE = 64

# What one block asks of a device, whatever the op: the asked, and the limit, which a profile may leave out.
BLOCK_LIMITS: Mapping[str, tuple[Callable[[Footprint], int], Callable[[Device], int | None]]] = {
    "register_file": (lambda f: f.registers_per_thread * f.threads, lambda d: d.registers_per_unit),
    "shared": (lambda f: f.shared_bytes, lambda d: d.shared_per_block_bytes),
    "threads": (lambda f: f.threads, lambda d: d.threads_per_block),
}


def block_fits(footprint: Footprint, device: Device) -> bool:
    """Whether the device can run one block at all."""
    limits = ((asked(footprint), allowed(device)) for asked, allowed in BLOCK_LIMITS.values())
    return all(most is None or asked <= most for asked, most in limits)


def _block(limit: str) -> Law:
    asked, allowed = BLOCK_LIMITS[limit]

    def law(q: Question) -> tuple[float, float] | None:
        most = allowed(q.device)
        return None if most is None else (asked(q.footprint), most)

    return law


def _instructions(q: Question) -> tuple[float, float] | None:
    return float(not q.suits), 0.0  # one set of instructions is missing, or none


def _registers(q: Question) -> tuple[float, float] | None:
    return q.footprint.registers_per_thread, q.device.registers_per_thread


def _occupancy(q: Question) -> tuple[float, float] | None:
    return LEAST_WAVES, occupancy(q.footprint, q.device).waves


def _coalescing(q: Question) -> tuple[float, float] | None:
    """A block fetches ``bk`` neighbours of each row of X; rows that do not start on a sector touch one more."""
    size = DTYPE_BYTES[q.op.dtype]
    static = dict(q.op.static)
    used = q.kernel["bk"] * size
    aligned = "k" in static and static["k"] * size % SECTOR_BYTES == 0
    sectors = -(-used // SECTOR_BYTES) + (0 if aligned else 1)
    return 1.0 - used / (sectors * SECTOR_BYTES), WASTED_SECTORS


def _rows(q: Question) -> tuple[float, float] | None:
    return q.kernel["bm"], max(SMALL_TILE, q.most["m"])


def _columns(q: Question) -> tuple[float, float] | None:
    static = dict(q.op.static)
    return (q.kernel["bn"], max(SMALL_TILE, static["n"])) if "n" in static else None


# In the order they are asked; a point counts against the first law it breaks.
GPU_LAWS: Laws = (
    ("instructions", _instructions),
    ("registers", _registers),
    ("register_file", _block("register_file")),
    ("shared", _block("shared")),
    ("threads", _block("threads")),
    ("occupancy", _occupancy),
    ("coalescing", _coalescing),
    ("rows", _rows),
    ("columns", _columns),
)
