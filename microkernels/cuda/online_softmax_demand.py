"""Demand of attention on tensor cores: on a multiprocessor's units for each tile of keys, and of a block alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from haotuner.codegen.online_softmax_schedule import FED, GROUP_ROWS, PIECE, TENSOR, TOGETHER, WIDE, OnlinePlan, padded
from haotuner.codegen.online_softmax_tensor import HELD, factor, tiles_seen
from haotuner.graph.extents import evaluate
from haotuner.microkernels.cpu.generated_demand import Levels
from haotuner.microkernels.cuda.dense_mma import HOPPER_SHARE
from haotuner.microkernels.cuda.dense_wgmma import SUSTAINED
from haotuner.microkernels.cuda.generated import (
    JOIN_LAUNCH_CYCLES,
    PARTIAL_FLOATS,
    REGISTERS_HELD,
    SCHEDULERS,
    THREADS_HELD,
    Cut,
)
from haotuner.microkernels.cuda.generated_program import WARP
from haotuner.spec.demand import Column, Counted, Demand, DemandQuery, Tiles, Work
from haotuner.spec.device import Device
from haotuner.spec.kernel import Footprint, MicroKernel
from haotuner.spec.occupancy import RESERVED_BYTES

BYTES = 2  # of an element
TENSOR_FMAS = 512.0  # of a multiprocessor in a cycle, where its profile does not say: sm_86 and sm_89 in fp16
POWERS = 16.0  # exponentials of a multiprocessor in a cycle (CUDA guide, arithmetic instructions)
ISSUED = 128.0  # threads whose instruction starts in a cycle: four warps
SHARED = 128.0  # bytes of shared memory in a cycle
EACH_SCORE, ANY_SCORE = 5.0, 12.0  # instructions of a score from product to operand; of one that is more than a product
EACH_COPY = 12.0  # of 16 bytes that are brought, counted in the compiled loop
DEPENDENT = 3.0  # cycles of a warp from an instruction to the next that needs it
WAIT_CYCLES = 750.0  # of a block for each tile of keys: its barrier, the first products, lanes that exchange maxima
EACH = {TENSOR: EACH_SCORE, WIDE: 3.0, FED: 4.6}
# Of a block: its first tiles come from the L2 or from memory, rows are written.
START_CYCLES = {TENSOR: 2400.0, WIDE: 5600.0, FED: 7600.0}
# Of a group's own way through a tile of keys, where nothing is beside it: waits; of exponentials and of products how much.
ALONE = {WIDE: (230.0, 1.15, 0.5), FED: (600.0, 0.9, 0.0)}
JOIN_PART = 125.0  # of a second launch behind the first, for each part that it reads
LEFT_BYTES = 3.0  # of parts' records that a multiprocessor writes and reads again in a cycle
SHARED_HELD = 100 << 10  # of a multiprocessor whose profile does not say


class OnlineSoftmaxResources(Protocol):
    """Resources of the family's kernels."""

    def plan(self, kernel: MicroKernel) -> Any:
        """A kernel's plan."""
        ...

    def footprint(self, kernel: MicroKernel) -> Footprint:
        """Registers, shared memory and threads of one block."""
        ...

    def cut(self, kernel: MicroKernel) -> Cut:
        """Cut of a program by the host."""
        ...


def tensor_demand(requested: DemandQuery, family: OnlineSoftmaxResources) -> Demand:
    """Work of the tensor cores, and cycles of the multiprocessor that has the most blocks."""
    device, rows = requested.device, len(requested.kernel_at)
    units = max(1, device.compute_units)
    names = ("blocks", "steps", "parts", "cycles", "least", "moved", "flops", "near")
    columns: dict[str, Column] = {name: np.zeros(rows) for name in names}
    for row, at in enumerate(requested.kernel_at.tolist()):
        kernel = requested.kernels[at]
        plan: OnlinePlan = family.plan(kernel)
        sizes = {name: int(requested.extents[name][row]) for name in plan.graph.dimensions}
        for name, value in _row(plan, sizes, device, family.footprint(kernel), family.cut(kernel)).items():
            columns[name][row] = value
    blocks, parts = columns["blocks"], columns["parts"]
    threads = requested.each(lambda kernel: family.footprint(kernel).threads)
    shared = requested.each(lambda kernel: family.footprint(kernel).shared_bytes)
    joined = np.where(parts > 1, JOIN_LAUNCH_CYCLES + JOIN_PART * parts, 0.0)
    busy = np.clip(blocks * parts, 1.0, units)
    stored = columns["least"] <= Levels.of(device).l3
    far = columns["least"] if requested.cold else np.where(stored, 0.0, columns["least"])
    return Demand(
        work=Work(
            flops={"simd": np.zeros(rows), "tensor": columns["flops"]}, least_bytes=columns["least"], far_bytes=far,
            mid_bytes=columns["moved"], near_bytes=columns["near"],
        ),
        tiles=Tiles(
            count=blocks * parts, threads=threads, waves=np.ceil(threads / device.wave_width), vector=np.ones(rows),
            registers=requested.each(lambda kernel: family.footprint(kernel).registers_per_thread), shared_bytes=shared,
            l1_set_bytes=shared, l2_set_bytes=shared,
        ),
        counted=Counted(cycles=(columns["cycles"] + joined) * busy, l1_bytes=columns["moved"], l2_bytes=np.zeros(rows)),
    )  # fmt: skip


def bytes_over(
    kernel: MicroKernel, extents: Mapping[str, int], device: Device, family: OnlineSoftmaxResources
) -> dict[str, int]:
    """Bytes of a call over each level's edge, as of other programs: those of registers are shared memory's."""
    plan: OnlinePlan = family.plan(kernel)
    sizes = {name: int(extents[name]) for name in plan.graph.dimensions}
    row = {name: int(value) for name, value in
           _row(plan, sizes, device, family.footprint(kernel), family.cut(kernel)).items()}  # fmt: skip
    least = row["least"]
    return {"registers": row["near"], "L1": row["moved"], "L2": least, "L3": least, "least": least}


def _row(plan: OnlinePlan, sizes: Mapping[str, int], device: Device, footprint: Footprint, cut: Cut) -> dict[str, float]:
    """Of one kernel at one shape."""
    s, sums, units = plan.schedule, plan.sums, max(1, device.compute_units)
    depth, columns = (padded(evaluate(extent, sizes), PIECE) for extent in (sums.depth[1], sums.column[1]))
    count, keys = (evaluate(extent, sizes) for extent in (sums.row[1], sums.key[1]))
    outer = prod(evaluate(extent, sizes) for _, extent in sums.outer)
    seen = tiles_seen(sums, s, sizes)
    blocks, steps = max(1, outer * len(seen)), outer * float(seen.sum())
    parts = _parts(cut, blocks, outer * count, int(seen.max(initial=0)), device)
    once = _step(plan, count, depth, columns, device)
    room = (
        (device.threads_per_unit or THREADS_HELD) // footprint.threads,
        (device.registers_per_unit or REGISTERS_HELD) // (footprint.threads * footprint.registers_per_thread),
        (device.l1_bytes or SHARED_HELD) // (footprint.shared_bytes + RESERVED_BYTES),
    )
    resident, mine = max(1, min(room)), -(-blocks * parts // units)
    rounds, rest = divmod(mine, resident)
    each = steps / blocks / parts
    first = (
        START_CYCLES[s.along] + DEPENDENT * EACH_COPY * (s.rows * depth + s.keys * (depth + columns)) / 8 / footprint.threads
    )
    cycles = rounds * (each * _together(once, resident) + first)
    cycles += (each * _together(once, rest) + first) if rest else 0.0
    tile = s.keys * (depth + columns) * BYTES
    own = outer * count * (depth + columns) * BYTES
    left = 4 * BYTES * outer * count * cut.record * parts if parts > 1 else 0  # written and read again, in floats
    cycles += left / (LEFT_BYTES * units)
    return {
        "blocks": blocks, "steps": steps, "parts": parts, "cycles": cycles,
        "least": own + outer * keys * (depth + columns) * BYTES, "moved": steps * tile + own + left,
        "flops": 2.0 * steps * s.rows * s.keys * (depth + columns),
        "near": steps * tile * (s.rows // GROUP_ROWS if s.along in TOGETHER else s.warps),
    }  # fmt: skip


def _parts(cut: Cut, blocks: int, rows: int, tiles: int, device: Device) -> int:
    """Parts of the keys, as ``ht_cuda_generated_parts`` of runtime/native/cuda/generated.c cuts them."""
    if cut.parts < 2 or rows == 0:
        return 1
    spare = device.compute_units * (device.threads_per_unit or THREADS_HELD) // (blocks * cut.lanes)
    return max(1, int(min(cut.parts, tiles, PARTIAL_FLOATS // (rows * cut.record), spare)))


def _step(plan: OnlinePlan, count: int, depth: int, columns: int, device: Device) -> tuple[float, float]:
    """Cycles of a multiprocessor for one tile of keys of one block: where many overlap, and of one alone.

    Warps without a row compute nothing, but for those that multiply together.
    """
    s = plan.schedule
    warps = s.warps if s.along in TOGETHER else -(-min(max(count, 1), s.rows) // s.out_rows)
    rows, brought = warps * s.out_rows, s.keys * (depth + columns)
    scores = rows * s.keys
    fmas = (device.tensor_tflops or 0.0) * 1e6 / (2.0 * max(1, device.compute_units) * (device.clock_mhz or 1500.0))
    share = SUSTAINED if s.along in TOGETHER else HOPPER_SHARE if device.arch in ("sm_90", "sm_90a") else 1.0
    tensor = rows * brought / ((fmas or TENSOR_FMAS) * share)
    powers = scores / POWERS
    each = EACH[s.along] + (ANY_SCORE if factor(plan.sums) is None else 0.0)
    issued = (scores * each + rows * columns + brought / 8 * EACH_COPY) / ISSUED
    if s.along in TOGETHER:
        groups = -(-rows // GROUP_ROWS)
        shared = ((groups + 1) * brought + rows * depth) * BYTES / SHARED
        wait, serial, products = ALONE[s.along]
        alone = products * tensor + serial * (powers + issued) / groups + wait
        return float(np.sqrt(tensor**2 + powers**2 + issued**2 + shared**2)), alone
    again = 0 if s.out_rows // PIECE * depth <= HELD else rows * depth  # the rows' operand, read for every tile of keys
    shared = ((warps + 1) * brought + again) * BYTES / SHARED
    alone = (tensor + powers + issued) * SCHEDULERS / min(warps, SCHEDULERS) + WAIT_CYCLES
    alone += DEPENDENT * EACH_COPY * brought / 8 / (s.warps * WARP)  # a thread copies before it multiplies
    return float(np.sqrt(tensor**2 + powers**2 + issued**2 + shared**2)), alone


def _together(once: tuple[float, float], resident: int) -> float:
    """Cycles of a tile of keys for each of so many blocks that share a multiprocessor."""
    return float(np.hypot(once[0] * resident, once[1]))


def apart(
    requested: DemandQuery,
    of: Callable[[MicroKernel], bool],
    function: Callable[[DemandQuery], Demand],
    other: Callable[[DemandQuery], Demand],
) -> Demand:
    """The demand of rows by two functions: ``function`` of the kernels that ``of`` tells, ``other`` of the rest."""
    first = np.array([of(kernel) for kernel in requested.kernels], bool)[requested.kernel_at]
    if first.all() or not first.any():
        return function(requested) if first.all() else other(requested)
    result: Demand = _joined(function(_some(requested, first)), other(_some(requested, ~first)), first)
    return result


def _some(requested: DemandQuery, rows: NDArray[np.bool_]) -> DemandQuery:
    used, at = np.unique(requested.kernel_at[rows], return_inverse=True)
    params = {name: column[rows] for name, column in requested.params.items()}
    return replace(
        requested,
        params={name: column for name, column in params.items() if not np.isnan(column).all()},
        extents={name: column[rows] for name, column in requested.extents.items()},
        kernels=[requested.kernels[position] for position in used.tolist()],
        kernel_at=at,
    )


def _joined(value: Any, other: Any, rows: NDArray[np.bool_]) -> Any:
    if value is None:
        return None
    if is_dataclass(value):
        parts = {
            field.name: _joined(getattr(value, field.name), getattr(other, field.name), rows) for field in fields(value)
        }
        return replace(value, **parts)  # type: ignore[type-var]
    if isinstance(value, Mapping):
        return {name: _joined(value.get(name, 0.0), other.get(name, 0.0), rows) for name in dict.fromkeys((*value, *other))}
    result = np.empty(len(rows))
    result[rows], result[~rows] = value, other
    return result
