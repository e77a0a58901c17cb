"""Steps: a tile program as one loop, from the columns of a product, or from work and tiles alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from haotuner.cost.machine import Machine
from haotuner.spec.demand import Column, Demand

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
