"""The sum over k in parts, as cost models see it: more columns of less depth, and adding the parts up.

So many times the columns with a part of the depth ask a device for the same blocks and bytes as the sum in so many parts.
"""

from __future__ import annotations

from dataclasses import replace

from haotuner.ops.dtypes import DTYPE_BYTES
from haotuner.spec.device import Device
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape

LAUNCH_US = 1.5  # from the end of a kernel to the first block of the next one on its stream (H100: 1 to 2)
PARTIAL_BYTES = 4  # sums of parts are kept in fp32


def in_parts_of(op: Op, parts: int) -> Op:
    """A product that asks for what ``op`` with its sum in so many parts asks for: more columns, less depth."""
    if parts == 1:
        return op
    static = dict(op.static)
    changed = {"n": static["n"] * parts, "k": -(-static["k"] // parts)}
    return replace(op, static=tuple((axis, changed.get(axis, extent)) for axis, extent in op.static))


def adding_us(op: Op, device: Device, shape: Shape, parts: int) -> float:
    """Time to add up the parts of a sum behind the kernel, in us; 0 for one part."""
    if parts == 1:
        return 0.0
    elements = shape[op.dynamic[0]] * op["n"]
    moved = elements * (2 * parts * PARTIAL_BYTES + DTYPE_BYTES[op.dtype])  # parts are written and read again
    return LAUNCH_US + moved / ((device.memory_gbps or 1000.0) * 1e3)
