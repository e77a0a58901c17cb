"""A GPU behind the interface of a lab: rounds of blocks, bytes from memory, launches; seeded noise, scripted failures."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace

from haotuner.hw_profiles.find import find_device
from haotuner.microkernels.index import families_for, family_named
from haotuner.plan.grids import Grid
from haotuner.spec.composition import WHOLE, Composition, sum_parts
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.record import Trial
from haotuner.spec.shape import ShapeRange
from haotuner.spec.traffic import Traffic
from haotuner.tuning.strategies import Task
from tests.search.fake_lab import FakeLab

GPU = replace(find_device("a100-40gb", measure=False), id="fake-gpu")
OP = Op.parse("dense:n=1536,k=1024,dtype=fp16")
FAMILIES = tuple(family for family in families_for(OP, "cuda") if family.suits(GPU))
TASK = Task(op=OP, traffic=Traffic.of_range(ShapeRange.parse("m=1..1024"), samples=32), budget_s=3600.0)
LAUNCH_US, PEAK_GFLOPS = 2.0, 200e3


def quirk(kernel: str) -> float:
    """What no model knows of a kernel: up to a fifth, the same wherever it is used."""
    return 1 + 0.2 * (zlib.crc32(kernel.encode()) / 2**32)


def region_us(op: Op, kernel: str, rows: int, parts: int, *, hot: bool) -> float:
    """Rounds of blocks that each compute at a rate that grows with the tile; never faster than memory brings the weight."""
    microkernel = MicroKernel.parse(kernel)
    family = family_named(microkernel.family)
    grid, tile = Grid.of(microkernel, family, op, GPU), family.tile(microkernel).extent
    tiles = grid.tiles(rows)
    area = tile["m"] * tile["n"]
    share = area / (area + 2000.0)  # small tiles move more bytes for each multiply-add
    resident = grid.slots // GPU.compute_units
    flops = 2.0 * area * op["k"] / parts * resident
    round_us = flops / (PEAK_GFLOPS / GPU.compute_units * share) / 1e3 + 0.6
    weight_us = 2.0 * op["n"] * op["k"] / 1.5e6 * (0.3 if hot else 1.0)
    partial_us = 4.0 * rows * op["n"] * (parts + 1) / 1.5e6 + LAUNCH_US if parts > 1 else 0.0
    return max(grid.rounds(tiles, parts) * round_us * quirk(kernel), weight_us) + partial_us


def true_us(op: Op, composition: Composition, m: int) -> float:
    """One launch a region, one after the other."""
    total, left = 0.0, m
    for index, (kernel, tiles) in enumerate(composition.parts):
        family = family_named(MicroKernel.parse(kernel).family)
        tall = family.tile(MicroKernel.parse(kernel)).extent["m"]
        rows = left if tiles == WHOLE else tiles * tall
        total += LAUNCH_US + region_us(op, kernel, rows, sum_parts(composition.share), hot=index > 0)
        left -= rows
    return total


class FakeGpuLab(FakeLab):
    """Answers at once."""

    def __init__(
        self, *, noise: float = 0.01, seed: int = 0, fails: Callable[[MicroKernel], bool] = lambda _: False
    ) -> None:
        super().__init__(GPU, noise=noise, seed=seed, fails=fails)

    def true_us(self, trial: Trial) -> float:
        return true_us(trial.known_op, trial.composition, trial.shape["m"])
