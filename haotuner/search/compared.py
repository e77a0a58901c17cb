"""Shapes at which candidates are compared: where most of the time of the traffic goes first, then far from each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from haotuner.cost.machine import machine
from haotuner.cost.roofline import roofline_us
from haotuner.search.task import Task
from haotuner.spec.device import Device
from haotuner.spec.shape import Shape

TRIALS = 2000  # of a budget at least: a shape whose call takes more of it, at the roofline, is not raced at
LEAST_LIMIT_US = 2_000.0  # but never so small a shape is left out


def of_a_call(device: Device) -> Device:
    """Device that times of one thread are of: a CPU's core, all of a GPU."""
    return device if machine(device).waves_hide_latency else device.with_units(1)


def compared(task: Task, device: Device, most: int) -> list[Shape]:
    """At most so many shapes at which micro-kernels race: spread over those of which a call leaves time for many more.

    The first is the one that the traffic is expected to spend most time at; so a race that ends early has timed what counts.
    """
    limit_us = max(task.budget_s * 1e6 / TRIALS, LEAST_LIMIT_US)
    pairs = list(task.traffic)
    least = np.asarray(roofline_us(of_a_call(device), task.op, [shape for shape, _ in pairs]), np.float64).tolist()
    short = [(shape, share, us) for (shape, share), us in zip(pairs, least, strict=True) if us <= limit_us]
    if not any(share for _, share, _ in short):
        short = [(shape, share, us) for (shape, share), us in zip(pairs, least, strict=True)]
    ordered = sorted(short, key=lambda item: (-item[1] * item[2], item[0].axes))
    return spread([shape for shape, _, _ in ordered], most)


def spread(shapes: Sequence[Shape], most: int) -> list[Shape]:
    """At most so many of the shapes, the first one first, each far from those before it in log space."""
    places = np.log([[extent for _, extent in shape.axes] for shape in shapes])
    chosen, nearest = [0], np.linalg.norm(places - places[0], axis=1)
    while len(chosen) < min(most, len(shapes)):
        chosen.append(int(nearest.argmax()))
        nearest = np.minimum(nearest, np.linalg.norm(places - places[chosen[-1]], axis=1))
    return [shapes[position] for position in chosen]
