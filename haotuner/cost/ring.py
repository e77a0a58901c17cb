"""Time of tiles that bring operands through a ring of stages while they compute: what GPU products are priced by.

In the manner of Roller's micro-performance model (OSDI 2022): what the busiest unit needs of each resource, joined by a
norm, as copies run beside the arithmetic, and a start for every round of resident tiles. Memory gives no more than what is
on its way allows (Little's law).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from haotuner.cost.machine import Machine
from haotuner.spec.demand import Column, Demand, MatmulTile, Ring, Work

FAR_LATENCY_US = 0.7  # of a load from memory: 500 to 900 ns by Jia et al. 2018 and later microbenchmarks
OVERLAP = 4.0  # exponent of the norm: copies are asynchronous, so nearly all is hidden behind what takes longest
LOAD_WAIT = 29.0  # cycles from asking shared memory to the value, Hopper (Luo et al., arXiv 2402.13499)
LAUNCH_US = 1.0  # from one kernel of a graph or a stream to the next; least calls of an H200 take 3.4 us with what follows
FETCH_BYTES = 64.0  # that the memory hands over at a time; of neighbours asked in the next step none waits again
SUSTAINED = 0.9  # share of the memory's rate on paper that streams reach (H200: 4.3 of 4.8 TB/s)
_SPILL_LOADS = 3.0  # as in roofline.py


@dataclass(frozen=True, slots=True)
class Flow:
    """Tiles on the device at a time, and what they have on its way: columns of shape ``(rows,)``."""

    spread: Column  # tiles of the busiest unit
    held: Column  # of them at a time
    rounds: Column  # of resident tiles, one after the other
    steps: Column  # of the ring, in one tile
    latency_us: Column  # of a step's loads: of memory, as far as they come from there, else of the L2
    reach: Column  # share of the memory's rate that is reached, 0..1
    awake: Column  # share of a unit's schedulers that have a wave, 0..1


def flow_of(demand: Demand, m: Machine, resident: Column) -> Flow:
    """Flow of the tiles of a product with a ring."""
    tile, ring = parts_of(demand)
    count, steps = demand.tiles.count, np.ceil(tile.depth / tile.depth_block)
    spread = np.ceil(count / m.units)
    waves_held = np.minimum(spread, resident)
    brought = tile.mid_bytes * tile.depth_block  # bytes of one step of one tile
    # Tiles that run together wait together for what one of them asks first; later rounds find it in the L2.
    rounds = np.ceil(spread / resident)
    new = np.minimum(demand.work.far_bytes / demand.work.least_bytes / rounds, 1.0)
    missed = new * np.minimum(brought / (tile.tile_rows + tile.tile_cols) / FETCH_BYTES, 1.0)
    latency_us = m.mid_latency / (m.clock_ghz * 1e3) + missed * FAR_LATENCY_US
    running = np.minimum(waves_held * m.units, count)
    in_flight = running * np.minimum(ring.ahead, steps) * brought
    return Flow(
        spread=spread,
        held=waves_held,
        rounds=rounds,
        steps=steps,
        latency_us=latency_us,
        reach=np.minimum(in_flight / (m.memory_gbps * 1e3 * FAR_LATENCY_US), 1.0),
        awake=np.minimum(waves_held * demand.tiles.waves / m.issue, 1.0),
    )


def ring_us(demand: Demand, m: Machine, resident: Column, spilled: Column, start_cycles: Column) -> Column:
    """Expected microseconds of each row; shape ``(rows,)``.

    Args:
        demand: of a product with a ring.
        m: the whole device.
        resident: tiles that a unit holds.
        spilled: registers of a thread that do not fit.
        start_cycles: before a tile's first step.
    """
    tile, ring = parts_of(demand)
    flow = flow_of(demand, m, resident)
    waves, spills = demand.tiles.waves, _SPILL_LOADS * spilled
    # What follows a tile's last step runs beside other tiles' steps, and shares the schedulers with them.
    tail = ring.tail / (flow.steps * tile.depth_block)
    issued = tile.fmas + tile.loads + tile.checks + spills + tail + 2.0 / np.maximum(tile.unroll, 1.0)
    mid = tile.mid_bytes / np.maximum(tile.line_ratio, 0.05)
    cycles = [  # of one tile for one element of the depth
        tile.tensor_fmas / m.tensor_fmas / flow.awake,
        waves * tile.fmas / m.pipes / flow.awake,
        waves * (tile.loads + spills) / m.loads,
        waves * issued / m.issue / flow.awake,
        tile.near_bytes * tile.bank_ways / m.near_bytes,
        mid / m.mid_bytes,
    ]
    walked = flow.spread * flow.steps * tile.depth_block / (m.clock_ghz * 1e3)
    far_us = demand.work.far_bytes / np.maximum(tile.line_ratio, 0.05) / (m.memory_gbps * 1e3 * SUSTAINED * flow.reach)
    # A wave by itself waits for each of its loads; others fill that time only as far as there are any.
    alone = flow.rounds * flow.steps * tile.depth_block * (issued + LOAD_WAIT * (tile.loads + spills)) / (m.clock_ghz * 1e3)
    stages_us = flow.rounds * flow.steps / ring.ahead * flow.latency_us
    times = [*(walked * each for each in cycles), alone, stages_us, far_us]
    total = np.zeros_like(far_us)
    for time in times:
        total += time**OVERLAP
    # One tile of a round fills its ring and writes its result with nothing to compute; the others' are hidden behind that.
    bare = (tile.mid_bytes * tile.depth_block + ring.written_bytes) / m.mid_bytes
    start_us = (start_cycles + bare) / (m.clock_ghz * 1e3) + flow.latency_us
    return np.asarray(LAUNCH_US + total ** (1.0 / OVERLAP) + flow.rounds * start_us, np.float64)


def apart_us(work: Work, m: Machine) -> Column:
    """Expected microseconds of a launch that streams what it is given, beside nothing; shape ``(rows,)``."""
    return np.asarray(LAUNCH_US + work.far_bytes / (m.memory_gbps * 1e3 * SUSTAINED), np.float64)


def parts_of(demand: Demand) -> tuple[MatmulTile, Ring]:
    """The groups that a product with a ring has; ValueError where one is missing."""
    if demand.matmul is None or demand.ring is None:
        raise ValueError("a ring of stages is priced for products, whose demand has the groups matmul and ring")
    return demand.matmul, demand.ring
