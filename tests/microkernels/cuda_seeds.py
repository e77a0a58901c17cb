"""Micro-kernels of a family drawn by seed, and the calls that a kernel of any parameters is tried on."""

from __future__ import annotations

import random

from haotuner.microkernels.cuda.dense import CudaDense
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from tests.emulator.run import Call, Case
from tests.microkernels.cuda_examples import case_of


def drawn(family: CudaDense, op: Op, device: Device, count: int, seed: int = 0) -> list[MicroKernel]:
    """So many points of the family whose block fits the device's shared memory, or all, in an order by seed."""
    room = device.shared_per_block_bytes or 0
    every = [point for point in family.points(op, device) if family.footprint(point).shared_bytes <= room]
    return random.Random(seed).sample(every, min(count, len(every)))


def ragged(family: CudaDense, kernel: MicroKernel) -> Case:
    """One row, and a tile and a little more on every side with k off a step and Y's rows on odd elements."""
    v, tile = family.vector(kernel), family.tile(kernel)
    wide = v if family.reads_kn(kernel) else 1
    columns = -(-(tile.extent["n"] + 9) // wide) * wide
    depth = -(-(tile.step["k"] + 9) // v) * v
    launch, m = family.launch(kernel), tile.extent["m"] + 3
    if launch.groups and launch.maps and family.reads_kn(kernel):
        depth = 2 * tile.step["k"]  # whole steps: one map holds the matrices of all groups
    ends, single_end = ((m // 3, m), (1,)) if launch.groups else ((), ())
    splits = 2 if launch.splits else 1
    calls = (
        Call(m=1, n=wide, k=depth if launch.groups else v, ends=single_end),
        Call(m=m, n=columns, k=depth, x_gap=v, y_gap=1, ends=ends, steps=("bias", "silu")),
        Call(m=m, n=-(-columns // 8) * 8, k=depth, splits=splits, ends=ends, steps=("residual",)),
    )
    return case_of(kernel.name, family, kernel, calls)
