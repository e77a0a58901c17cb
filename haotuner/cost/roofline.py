"""Analytic time: the least time of a shape, and of tile programs by steps, ring stages or counts.

Time of programs whose instructions and bytes were counted: what generated kernels are priced by.

Steps: a tile program as one loop, from the columns of a product, or from work and tiles alone.

Time of tiles that bring operands through a ring of stages while they compute: what GPU products are priced by.

In the manner of Roller's micro-performance model (OSDI 2022): what the busiest unit needs of each resource, joined by a
norm, as copies run beside the arithmetic, and a start for every round of resident tiles. Memory gives no more than what is
on its way allows (Little's law).

Analytic time: the least time of a shape, and what one micro-kernel is expected to take.

``roofline_us`` is the yardstick of every label (Williams 2009): the larger of arithmetic at peak and operands moved once.
``expected_us`` adds what the tile program itself costs: padding, waves and their tail, register pressure, latency,
traffic at each level. It is the prior of the learned model and the baseline that the learned model must beat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from haotuner.cost.machine import Machine, machine
from haotuner.spec.demand import Column, Counted, CpuStream, Demand, MatmulTile, Ring, Work
from haotuner.spec.device import Device
from haotuner.spec.occupancy import Room
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape

L3_OVER_L2 = 0.5  # rate at which a core streams from its L3, of that from its L2 (Zen 3-5, Skylake-SP and later)
COUNTED_OVERLAP = 3.0  # exponent of the norm: prefetchers run ahead, but a row's passes start with what is not there yet


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
    total = sum((time**COUNTED_OVERLAP for time in times), np.zeros_like(times[0]))
    return np.asarray((total ** (1.0 / COUNTED_OVERLAP)) + m.start_cycles / (m.clock_ghz * 1e3), np.float64)


_ELEMENT_BYTES = 4.0  # that a lane is taken to load at a time where nobody says more


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Columns of shape ``(rows,)``: how many steps a tile has, and what one asks for; see ``MatmulTile``."""

    count: Column
    fmas: Column
    tensor_fmas: Column
    loads: Column
    checks: Column
    near_bytes: Column
    mid_bytes: Column
    unroll: Column
    code: Column
    line_ratio: Column
    bank_ways: Column


def steps_of(demand: Demand, m: Machine) -> Steps:
    """The steps of a product; otherwise one step that does all of a tile's work."""
    tile, ones = demand.matmul, np.ones_like(demand.tiles.count)
    if tile is not None:
        return Steps(
            count=tile.depth,
            fmas=tile.fmas,
            tensor_fmas=tile.tensor_fmas,
            loads=tile.loads,
            checks=tile.checks,
            near_bytes=tile.near_bytes,
            mid_bytes=tile.mid_bytes,
            unroll=tile.unroll,
            code=tile.code,
            line_ratio=tile.line_ratio,
            bank_ways=tile.bank_ways,
        )
    work, tiles = demand.work, demand.tiles
    lanes = tiles.waves * lanes_of_wave(demand, m)
    flops = {kind: flops / tiles.count for kind, flops in work.flops.items()}
    near = work.near_bytes / tiles.count
    return Steps(
        count=ones,
        fmas=flops.get("simd", 0.0 * ones) / 2.0 / lanes,
        tensor_fmas=flops.get("tensor", 0.0 * ones) / 2.0,
        loads=near / _ELEMENT_BYTES / lanes,
        checks=0.0 * ones,
        near_bytes=near,
        mid_bytes=work.mid_bytes / tiles.count,
        unroll=ones,
        code=0.0 * ones,  # a short loop
        line_ratio=ones,
        bank_ways=ones,
    )


def lanes_of_wave(demand: Demand, m: Machine) -> Column:
    """Elements that one instruction of a wave computes: SIMD lanes of a thread, or threads in lockstep."""
    tiles = demand.tiles
    threads = tiles.threads / tiles.waves
    return np.asarray(threads * tiles.vector if m.wave_threads == 1 else threads, np.float64)


FAR_LATENCY_US = 0.7  # of a load from memory: 500 to 900 ns by Jia et al. 2018 and later microbenchmarks
RING_OVERLAP = 4.0  # exponent of the norm: copies are asynchronous, so nearly all is hidden behind what takes longest
LOAD_WAIT = 29.0  # cycles from asking shared memory to the value, Hopper (Luo et al., arXiv 2402.13499)
LAUNCH_US = 1.0  # from one kernel of a graph or a stream to the next; least calls of an H200 take 3.4 us with what follows
FETCH_BYTES = 64.0  # that the memory hands over at a time; of neighbours asked in the next step none waits again
SUSTAINED = 0.9  # share of the memory's rate on paper that streams reach (H200: 4.3 of 4.8 TB/s)
_SPILL_LOADS = 3.0  # as in roofline.py


@dataclass(frozen=True, slots=True)
class Flow:
    """Tiles on the device at a time, and what they have on its way: columns of shape ``(rows,)``."""

    spread: Column  # tiles of the busiest unit
    resident: Column  # of them at a time
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
        resident=waves_held,
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
        total += time**RING_OVERLAP
    # One tile of a round fills its ring and writes its result with nothing to compute; the others' are hidden behind that.
    bare = (tile.mid_bytes * tile.depth_block + ring.written_bytes) / m.mid_bytes
    start_us = (start_cycles + bare) / (m.clock_ghz * 1e3) + flow.latency_us
    return np.asarray(LAUNCH_US + total ** (1.0 / RING_OVERLAP) + flow.rounds * start_us, np.float64)


def apart_us(work: Work, m: Machine) -> Column:
    """Expected microseconds of a launch that streams what it is given, beside nothing; shape ``(rows,)``."""
    return np.asarray(LAUNCH_US + work.far_bytes / (m.memory_gbps * 1e3 * SUSTAINED), np.float64)


def parts_of(demand: Demand) -> tuple[MatmulTile, Ring]:
    """The groups that a product with a ring has; ValueError where one is missing."""
    if demand.matmul is None or demand.ring is None:
        raise ValueError("a ring of stages is priced for products, whose demand has the groups matmul and ring")
    return demand.matmul, demand.ring


_CODE_TIGHT, _CODE_RAMP = 0.8, 0.5  # share of the instruction cache at which other code starts to push; width of the slope
# From 2,294 cold times of one row tile, Zen 4 and Zen 5 with AVX-512, AVX2 and SSE: with these the analysis errs by 0.09 to
# 0.15 between kernels of a shape (standard deviation, log units), by 0.12 to 0.20 without. A factor that all of them share,
# the queue inversely, would do as well; each alone is known to some 20 %.
_LOAD_QUEUE = 72.0  # loads that may be under way, Zen 2-3 and Skylake (Agner Fog); 88 and more since
_NEW_PAGE_NS = 50.0  # from asking for the first line of a page to having it, less what other lines wait meanwhile
_NEW_STREAM_PAGES = 6.5  # such waits before the prefetchers follow a stream that begins elsewhere
_AHEAD_WORTH = 0.45  # of the time by which an instruction fetches ahead
_OF_TENSOR_UNITS = ("fp16", "bf16")  # types that units for small matrices compute; fp32 would lose digits there
_OF_CPU_TILES = {"bf16": 1.0, "int8": 2.0}  # what those of a CPU compute, and how many in the time of one of bf16


def tiles_gflops(device: Device, dtype: str) -> float | None:
    """Peak of a CPU's tile registers in a type, in GFLOP/s; None where it has none or they do not compute the type."""
    if machine(device).waves_hide_latency or device.tensor_tflops is None or dtype not in _OF_CPU_TILES:
        return None
    return device.tensor_tflops * 1e3 * _OF_CPU_TILES[dtype]


def roofline_us(device: Device, op: Op, shapes: Sequence[Shape]) -> Column:
    """Least time of each shape in microseconds: flops at peak or least bytes at main-memory bandwidth; shape ``(rows,)``.

    The peak is that of the fastest units that compute the op's type.
    """
    m = machine(device)
    peak = m.gflops["tensor" if op.dtype in _OF_TENSOR_UNITS else "simd"]
    if not m.waves_hide_latency and device.tensor_tflops is not None:
        peak = tiles_gflops(device, op.dtype) or m.peak_gflops
    least = {
        shape: max(op.flops(shape) / (peak * 1e3), op.least_bytes(shape) / (m.memory_gbps * 1e3)) for shape in set(shapes)
    }
    return np.array([least[shape] for shape in shapes], dtype=np.float64)


def least_us(device: Device, demand: Demand) -> Column:
    """Least microseconds from demands, for problems that are no ``Op``; shape ``(rows,)``."""
    m, work = machine(device), demand.work
    return np.maximum(arithmetic_us(work, m), work.least_bytes / (m.memory_gbps * 1e3))


def arithmetic_us(work: Work, m: Machine) -> Column:
    """Microseconds of all flops at the peak of the units that do them, one kind after the other."""
    total = np.zeros_like(work.least_bytes)
    for kind, flops in work.flops.items():
        total = total + flops / (m.gflops[kind] * 1e3)
    return total


def resident_tiles(demand: Demand, m: Machine) -> tuple[Column, Column]:
    """Tiles a unit holds at a time (at least 1); what limits them: 0 registers, 1 shared memory, 2 threads, 3 blocks."""
    tiles = demand.tiles
    if not m.waves_hide_latency:
        return np.ones_like(tiles.count), np.full_like(tiles.count, 3.0)
    room = Room(
        threads=m.threads_per_unit, registers=m.registers_per_unit, shared_bytes=m.l1_bytes, blocks=m.blocks_per_unit
    )
    fits = room.holds(
        threads=np.maximum(tiles.waves * m.wave_threads, 1.0),
        registers=np.maximum(np.minimum(tiles.registers, m.registers_per_thread), 1.0),
        shared_bytes=np.maximum(tiles.shared_bytes, 1.0),
    )
    limits = np.stack([fits[name] for name in ("registers", "shared", "threads", "blocks")])
    return np.maximum(limits.min(axis=0), 1.0), limits.argmin(axis=0).astype(np.float64)


def spilled_registers(demand: Demand, m: Machine) -> Column:
    """Registers that one thread needs beyond those it can have."""
    tiles = demand.tiles
    threads = np.maximum(tiles.waves * m.wave_threads, 1.0)
    room = np.minimum(m.registers_per_thread, m.registers_per_unit / threads)
    return np.maximum(tiles.registers - room, 0.0)


def tile_count(demand: Demand) -> Column:
    """Tiles that cover the output, every axis rounded up; a narrow last one is a part of one."""
    return demand.tiles.count


def start_cycles(demand: Demand, m: Machine) -> Column:
    """Cycles before the first step of a tile."""
    waits = 0.0 if demand.staging is None else demand.staging.waits
    return np.asarray(m.start_cycles + waits * m.mid_latency + np.zeros_like(demand.tiles.count), np.float64)


def code_fill(steps: Steps, m: Machine) -> Column:
    """Bytes of the unrolled innermost loop over the instruction cache."""
    return steps.code * m.instruction_bytes / m.code_bytes


def code_fetch_cycles(steps: Steps, m: Machine) -> Column:
    """Cycles of one step for one wave to fetch its code once the loop has outgrown the instruction cache.

    A loop that is larger than a least-recently-used cache misses everywhere, not only in its excess, so the price sets
    in within a few tenths of a full cache; waves drift apart and fetch on their own.
    """
    missing = np.clip((code_fill(steps, m) - _CODE_TIGHT) / _CODE_RAMP, 0.0, 1.0)
    return missing * (steps.fmas + steps.loads + steps.checks) * m.instruction_bytes / m.fetch_bytes


def step_cycles(demand: Demand, m: Machine, resident: Column) -> Column:
    """Cycles one unit needs for one step of ``resident`` tiles that run on it together."""
    steps, tiles = steps_of(demand, m), demand.tiles
    waves = tiles.waves * resident
    spills = _SPILL_LOADS * spilled_registers(demand, m)
    pipes = np.where(tiles.vector < m.wave_width, m.narrow_pipes, m.pipes)
    overhead = 2.0 / np.maximum(steps.unroll, 1.0)  # counter and branch
    times = [
        waves * steps.fmas / pipes,
        waves * (steps.loads + spills) / m.loads,
        waves * (steps.fmas + steps.loads + steps.checks + spills + overhead) / m.issue,
        resident * steps.near_bytes * steps.bank_ways / m.near_bytes,
        resident * steps.mid_bytes / np.maximum(steps.line_ratio, 0.05) / m.mid_bytes,
        waves * code_fetch_cycles(steps, m),
        # each accumulator waits for its own last value; a core that spills one waits for it to be stored and loaded as well.
        # Where a CPU's tile has many terms in one instruction its waits are counted in ``tensor_fmas``.
        np.where(steps.tensor_fmas > 0, float(m.waves_hide_latency), 1.0) * m.fma_latency
        + np.where(spills > 0, m.spill_wait, 0.0),
        resident * steps.tensor_fmas / m.tensor_fmas,
    ]
    return _overlapped(times, m.overlap)


def expected_us(device: Device, demand: Demand) -> Column:
    """Expected time in microseconds of each row; shape ``(rows,)``, finite and positive."""
    m = machine(device)
    return worked_us(demand, m) + exposed_us(demand, m)


def worked_us(demand: Demand, m: Machine) -> Column:
    """Expected microseconds without those of ``exposed_us``."""
    if demand.counted is not None:
        return np.maximum(counted_us(demand, m, demand.counted), arithmetic_us(demand.work, m))
    resident, _ = resident_tiles(demand, m)
    if demand.ring is not None:
        tiles_us = ring_us(demand, m, resident, spilled_registers(demand, m), start_cycles(demand, m))
        return tiles_us if demand.apart is None else tiles_us + apart_us(demand.apart, m)
    tiles, steps = tile_count(demand), steps_of(demand, m)
    stream = demand.stream or CpuStream.none(tiles)
    spread = np.ceil(tiles / m.units)  # tiles of the busiest unit
    rounds, rest = np.floor(spread / resident), np.mod(spread, resident)
    start = start_cycles(demand, m)
    full = rounds * (steps.count * step_cycles(demand, m, resident) + start)
    last = steps.count * step_cycles(demand, m, np.maximum(rest, 1.0)) + start
    busy_us = (full + np.where(rest > 0, last, 0.0)) / (m.clock_ghz * 1e3)
    reach = np.minimum(tiles / m.units, 1.0)  # idle units ask the memory for nothing
    far_bytes = demand.work.far_bytes / np.maximum(steps.line_ratio, 0.05)
    far_us = far_bytes / (m.memory_gbps * 1e3 * np.maximum(reach, 1.0 / m.units))
    # The first of several passes waits for what was not brought before; all bring what comes next until it is there.
    pass_us = busy_us / stream.passes
    bringing = np.minimum(stream.passes, 1.0 / np.maximum(stream.brought, 1.0 / stream.passes))
    ahead_us = far_us * stream.brought
    rest_us = far_us - bringing * ahead_us
    first_us = _overlapped([pass_us, rest_us + ahead_us], m.overlap)
    others_us = (bringing - 1.0) * _overlapped([pass_us, ahead_us], m.overlap) + (stream.passes - bringing) * pass_us
    return np.asarray(first_us + others_us, dtype=np.float64)


def exposed_us(demand: Demand, m: Machine) -> Column:
    """Microseconds of each row in which a CPU waits for main memory because its prefetchers begin anew; shape ``(rows,)``.

    They stop at the end of a page and where a stream ends. A core runs on until its load queue is full, so it waits the less
    the fewer loads a step has and the longer a step takes; what instructions fetch ahead comes earlier still.
    """
    stream, tile, tiles = demand.stream, demand.matmul, tile_count(demand)
    if stream is None or tile is None or not (stream.new_pages.any() or stream.new_streams.any()):
        return np.zeros_like(tiles)
    at_work = np.clip(tiles, 1.0, m.units)
    steps = tile.depth * tile.computed_cols / tile.tile_cols
    supply_ns = demand.work.far_bytes / steps / (m.memory_gbps / at_work)
    step_ns = np.maximum(step_cycles(demand, m, np.ones_like(steps)) / m.clock_ghz, supply_ns)
    page_ns = _NEW_PAGE_NS - _LOAD_QUEUE / tile.loads * step_ns
    pages_ns = stream.new_pages * np.maximum(page_ns - _AHEAD_WORTH * stream.ahead_steps * step_ns, 0.0)
    streams_ns = stream.new_streams * _NEW_STREAM_PAGES * np.maximum(page_ns, 0.0)
    return np.asarray((pages_ns + streams_ns) / at_work / 1e3, dtype=np.float64)


def _overlapped(times: Sequence[Column], norm: float) -> Column:
    """Times on different resources as one: their ``norm``-norm."""
    total = np.zeros_like(times[0])
    for time in times:
        total += time**norm
    return np.asarray(total ** (1.0 / norm), dtype=np.float64)
