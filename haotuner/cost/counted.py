"""Time of programs whose instructions and bytes were counted: what generated kernels are priced by."""

from __future__ import annotations

import numpy as np

from haotuner.cost.machine import Machine
from haotuner.spec.demand import Column, Counted, Demand

L3_OVER_L2 = 0.5  # rate at which a core streams from its L3, of that from its L2 (Zen 3-5, Skylake-SP and later)
OVERLAP = 3.0  # exponent of the norm: prefetchers run ahead, but a row's passes start with what is not there yet


def counted_us(demand: Demand, m: Machine, counted: Counted) -> Column:
    """Expected microseconds of each row; shape ``(rows,)``."""
    busy = np.clip(demand.tiles.count, 1.0, m.units)
    cycle_us = 1.0 / (m.clock_ghz * 1e3 * busy)
    times = [
        counted.cycles * cycle_us,
        counted.l1_bytes / m.mid_bytes * cycle_us,
        counted.l2_bytes / (m.mid_bytes * L3_OVER_L2) * cycle_us,
        demand.work.far_bytes / (m.memory_gbps * 1e3 * busy / m.units),
    ]
    total = sum((time**OVERLAP for time in times), np.zeros_like(times[0]))
    return np.asarray((total ** (1.0 / OVERLAP)) + m.start_cycles / (m.clock_ghz * 1e3), np.float64)
