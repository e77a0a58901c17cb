"""Micro-kernels of a family drawn by seed."""

from __future__ import annotations

import random

from haotuner.microkernels.cuda.dense import CudaDense
from haotuner.words.device import Device
from haotuner.words.kernel import MicroKernel
from haotuner.words.op import Op


def drawn(family: CudaDense, op: Op, device: Device, count: int, seed: int = 0) -> list[MicroKernel]:
    """So many points of the family whose block fits the device's shared memory, or all, in an order by seed."""
    room = device.shared_per_block_bytes or 0
    every = [one for one in family.points(op, device) if family.footprint(one).shared_bytes <= room]
    return random.Random(seed).sample(every, min(count, len(every)))
