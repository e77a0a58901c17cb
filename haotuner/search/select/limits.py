"""Constraints of every family on what a micro-kernel asks of a device. Each gives both sides of the inequality it breaks.

After Roller (OSDI 2022) and FTuner (its hardware filters). They read footprint and device only; what hangs on a family's
program or on its tiles is in the family's own laws, which are asked after these. A limit that the device's profile leaves
out refuses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from haotuner.hw_profiles.typical import typical
from haotuner.spec.constraint import ConstraintQuery, Law, Laws
from haotuner.spec.device import Device
from haotuner.spec.family import Family
from haotuner.spec.kernel import Footprint, MicroKernel
from haotuner.spec.occupancy import occupancy
from haotuner.spec.op import Op

# An SM of every CUDA architecture since 2012 issues from four schedulers (programming guide); an RDNA or CDNA compute unit
# from two to four. A unit with fewer resident waves leaves one of them idle whatever the shape.
LEAST_WAVES = 4
L1_SHARE = 0.5  # one unrolled step may fill half of a cache; the rest holds what the prefetchers bring next


def _instructions(q: ConstraintQuery) -> tuple[float, float] | None:
    return float(not q.suits), 0.0  # one set of instructions is missing, or none


def _registers(q: ConstraintQuery) -> tuple[float, float] | None:
    return q.footprint.registers_per_thread, q.device.registers_per_thread


# What one block asks of a device, whatever the op: the asked, and the limit, which a profile may leave out.
BLOCK_LIMITS: Mapping[str, tuple[Callable[[Footprint], int], Callable[[Device], int | None]]] = {
    "register_file": (lambda f: f.registers_per_thread * f.threads, lambda d: d.registers_per_unit),
    "shared": (lambda f: f.shared_bytes, lambda d: d.shared_per_block_bytes),
    "threads": (lambda f: f.threads, lambda d: d.threads_per_block),
}


def _block(limit: str) -> Law:
    requested, allowed = BLOCK_LIMITS[limit]

    def law(q: ConstraintQuery) -> tuple[float, float] | None:
        most = allowed(q.device)
        return None if most is None else (requested(q.footprint), most)

    return law


def _occupancy(q: ConstraintQuery) -> tuple[float, float] | None:
    return LEAST_WAVES, occupancy(q.footprint, q.device).waves


def _l1(q: ConstraintQuery) -> tuple[float, float] | None:
    return None if q.device.l1_bytes is None else (q.footprint.shared_bytes, q.device.l1_bytes * L1_SHARE)


def question(family: Family, kernel: MicroKernel, op: Op, device: Device, most: Mapping[str, int]) -> ConstraintQuery:
    """Query of the constraints; ``most``: the largest extent of every dynamic axis."""
    return ConstraintQuery(
        kernel=kernel,
        footprint=family.footprint(kernel),
        tile=family.tile(kernel),
        op=op,
        device=device,
        most=most,
        suits=family.suits(device),
    )


def laws_of(family: Family, op: Op, device: Device) -> Laws:
    """All constraints, in the order of checks; a point counts against the first one it breaks."""
    return (*common_laws(device), *family.laws(op, device))


def common_laws(device: Device) -> Laws:
    """Those of every family: points of one footprint break the same ones."""
    own = ("occupancy", _occupancy) if typical(device).waves_hide_latency else ("l1", _l1)
    return (
        ("instructions", _instructions),
        ("registers", _registers),
        ("register_file", _block("register_file")),
        ("shared", _block("shared")),
        ("threads", _block("threads")),
        own,
    )
