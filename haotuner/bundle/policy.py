"""How a time is taken, the same for our kernels and for the peers.

A CUDA graph of launches is replayed between two events; a sample is the replay's time over its launches. *Cold* weights: the
launches walk through distinct weights that together exceed the L2 several times, so each finds its weight in memory. *Hot*:
every launch uses the same weight. X and Y stay where the launch before left them, as in a server. The gap between dependent
launches of a graph, about a microsecond, is part of the time.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from haotuner.words.cold import GPU_CACHES

POLICY_VERSION = 1
HOT_LAUNCHES = 20  # of a hot graph
MAX_LAUNCHES = 160  # of a cold graph: weights of a megabyte exceed an L2 of 50 MB three times
MIN_LAUNCHES = 2
MIN_SAMPLES, MAX_SAMPLES = 3, 15
SAMPLE_BUDGET_US = 8_000.0  # of one trial, so that the 20,000 of a full suite take a few minutes
GRAPH_BUDGET_US = 20_000.0  # a kernel far too small for its shape gets fewer launches


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One trial: how many distinct weights, how many launches in the graph, how many replays."""

    weights: int
    launches: int
    samples: int


def weights_of(weight_bytes: int, l2_bytes: int, floor_bytes: int) -> int:
    """Distinct weights that exceed the L2 (or the floor) ``GPU_CACHES`` times, within the limits of a graph."""
    wanted = -(-max(l2_bytes, floor_bytes) * GPU_CACHES // weight_bytes)
    return max(MIN_LAUNCHES, min(MAX_LAUNCHES, wanted))


def plan(*, cold: bool, weights: int, one_launch_us: float) -> Plan:
    """Launches and samples of a trial whose single launch takes about that long."""
    launches = weights if cold else HOT_LAUNCHES
    affordable = int(GRAPH_BUDGET_US / max(one_launch_us, 0.1))
    launches = max(MIN_LAUNCHES, min(launches, affordable))
    samples = int(SAMPLE_BUDGET_US / max(one_launch_us * launches, 0.1))
    return Plan(weights=weights if cold else 1, launches=launches, samples=max(MIN_SAMPLES, min(MAX_SAMPLES, samples)))


def fingerprint(judge: str, machine: dict[str, str]) -> str:
    """Hash of what makes results comparable beside a kernel's own code: what measures, the device, the driver."""
    text = "\n".join([f"policy {POLICY_VERSION}", judge, *(f"{key}={machine[key]}" for key in sorted(machine))])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
