"""Similarity of two devices, from their profiles alone, and how far each source is believed for it: its prior."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from haotuner.cost.machine import machine
from haotuner.cost.model import Scores
from haotuner.spec.device import Device

OTHER_KIND = 4.0  # doublings; another vendor's compiler and instruction set count as much as a resource 16 times larger
HALVING = 1.0  # doublings of difference that halve a source's prior (tried 0.7, 1, 1.4, and equal priors)
# A forest over resource features interpolates between devices but does not extrapolate: with a source of the same
# generation it ranks better than the sources' own forests (RTX 3060 and A4000: pairwise 0.80 against 0.75), without one
# worse (TITAN RTX: 0.61 against 0.77). So its share is half beside an equal source and halves every two doublings away.
JOINT_SHARE = 0.5
JOINT_HALVING = 2.0
# Doublings of difference beyond which the model of another device is no better a start than the analysis: another kind of
# device counts four.
FARTHEST = 12.0


def distance(device: Device, other: Device) -> float:
    """Sum of absolute log2 ratios of the resources that decide how kernels rank; 0 for equal profiles.

    Per unit: FMA pipes, threads, L1, shared-memory rate, registers, instruction cache, wave width; of the device: balance,
    L2 a unit, units. Rates of one unit decide the order of kernels, so clocks and sheer size do not count.
    """
    difference = float(np.abs(_profile(device) - _profile(other)).sum())
    return difference + (OTHER_KIND if device.kind != other.kind else 0.0)


def start_distance(device: Device, other: Device) -> float:
    """``distance`` of one unit of each: a search runs on one, so a device is at distance 0 from parts of itself."""
    return distance(device.with_units(1), other.with_units(1))


def priors_of(sources: Sequence[Device], target: Device) -> Scores:
    """Prior of each source, summing to 1; shape ``(sources,)``."""
    return priors_at([distance(source, target) for source in sources])


def priors_at(distances: Sequence[float]) -> Scores:
    """Prior of each source from its distance in doublings, summing to 1; shape ``(sources,)``."""
    raw = np.exp2(-np.asarray(distances) / HALVING)
    return np.asarray(raw / raw.sum(), dtype=np.float64)


def joint_share(sources: Sequence[Device], target: Device) -> float:
    """Prior share of the forest over all sources; the sources' own forests have the rest.

    A source of the very same profile needs no interpolation: the share is 0, so that a device learns from itself what it
    measured.
    """
    nearest = min(distance(source, target) for source in sources)
    return JOINT_SHARE * float(np.exp2(-nearest / JOINT_HALVING)) if nearest > 0 else 0.0


def _profile(device: Device) -> Scores:
    m = machine(device)
    values = (
        m.pipes, m.threads_per_unit, m.l1_bytes, m.near_bytes, m.registers_per_unit, m.code_bytes, m.wave_width, m.balance,
        m.l2_bytes / m.l2_units, m.units,
    )  # fmt: skip
    return np.asarray(np.log2(values), dtype=np.float64)
