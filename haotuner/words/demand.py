"""Demand: what tile programs ask of any device, CPU or GPU, in one set of columns.

Each family of micro-kernels has one function that writes its parameters down as a ``Demand``; features and the
roofline read nothing else, so a new family needs one function here and no change anywhere above.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from haotuner.words.device import Device
from haotuner.words.kernel import MicroKernel
from haotuner.words.shape import Shape

Column: TypeAlias = NDArray[np.float64]  # one entry a row; a row is one (micro-kernel, shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Columns of shape ``(rows,)``. *Tile*: what one core or one thread block computes. *Wave*: threads in lockstep.

    A *step* is one value of the reduction axis for the whole tile. A CPU tile has one wave of one thread.
    """

    # the problem, seen as a product [rows, depth] x [depth, cols] (a convolution: image rows, image columns, filter taps)
    rows: Column
    cols: Column
    depth: Column
    flops: Column
    least_bytes: Column  # every operand read once, the result written once
    # the tile program
    tile_rows: Column
    tile_cols: Column
    computed_cols: Column  # the columns as computed: whole tiles, or less where the last one is narrow
    wave_rows: Column  # output rows and columns that one thread (CPU: the core) keeps in registers
    wave_cols: Column
    threads: Column  # of one tile
    waves: Column  # of one tile
    vector: Column  # elements one thread moves with one load
    unroll: Column  # steps unrolled in the innermost loop
    depth_block: Column  # steps whose operands are staged together
    streams: Column  # address streams read in parallel
    registers: Column  # of one thread: CPU SIMD registers, GPU 32-bit registers
    shared_bytes: Column  # GPU: shared memory of one tile
    # work of one step
    fmas: Column  # wave-wide multiply-adds of one wave; all are independent
    loads: Column  # wave-wide load instructions of one wave
    checks: Column  # other wave-wide instructions of one wave, those that check bounds
    near_bytes: Column  # bytes one tile takes from L1 or shared memory
    mid_bytes: Column  # bytes one tile takes from L2
    code: Column  # instructions of the innermost loop, unrolled as the compiler does it
    waits: Column  # loads of L2 that a tile waits for, one after the other, before its first step
    # traffic and working sets
    far_bytes: Column  # bytes of main memory for the whole call
    l1_set_bytes: Column  # stays in L1 while one tile runs
    l2_set_bytes: Column  # stays in L2 while one tile (CPU) or one device-wide round of tiles (GPU) runs
    # how operands travel
    staged_rows: Column  # 1 where the operand of the rows (a convolution: the image) is staged in shared memory
    staged_cols: Column  # 1 where the operand of the columns (a convolution: the filter) is staged
    staging_rows: Column  # threads side by side that stage the rows' operand; 1 where nothing is staged
    staging_cols: Column  # the same for the columns' operand
    vector_cols: Column  # elements one load moves of the columns' operand (``vector``: of the rows')
    # regularity
    line_ratio: Column  # useful share of each memory line fetched, 0..1
    bank_ways: (
        Column  # times an access is repeated: GPU shared-memory bank conflict, CPU streams that share an L1 set; 1 is none
    )
    flags: Column  # family-specific switches as a small integer; 0 where a family has none
    # CPU: the columns' operand as a stream from main memory; see ``no_stream``
    passes: Column  # tiles that compute on what one of them brings; 1 where tiles run side by side
    brought: Column  # share of what the next such tiles compute on that each brings meanwhile
    new_pages: Column  # pages a call enters that were not fetched while tiles before them were computed
    new_streams: Column  # times it goes on reading at another place than the next
    fetched: Column  # share of a column of tiles' operand that one tile fetches by instruction
    ahead_lines: Column  # cache lines between what is used and what is fetched so; 0 where nothing is
    ahead_steps: Column  # the same in steps where it is fetched step by step, else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Rows handed to a family's demand function: parameters and extents as columns."""

    device: Device
    params: Mapping[str, Column]  # NaN where a kernel has no such parameter
    extents: Mapping[str, Column]
    element_bytes: int
    cold: bool  # weights come from main memory (a server walks through all its layers)

    def param(self, name: str, default: float | None = None) -> Column:
        """One parameter; ``default`` fills it in where kernels lack it (families grew it later, or some need none)."""
        column = self.params.get(name, np.full(len(next(iter(self.extents.values()))), np.nan))
        lacking = np.isnan(column)
        if not lacking.any():
            return column
        if default is None:
            some = "some of these" if name in self.params else "these"
            raise KeyError(f"{some} micro-kernels have no parameter {name!r}; found {', '.join(sorted(self.params))}")
        return np.where(lacking, default, column)


class Problem(Protocol):
    """What is computed: the extents of a shape and the type of its elements. An ``Op`` is one."""

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of all axes."""
        ...

    @property
    def dtype(self) -> str:
        """Element type, a key of ``haotuner.ops.dtypes.DTYPE_BYTES``."""
        ...

    def extents(self, shape: Shape) -> dict[str, int]:
        """Every axis with its extent."""
        ...


def no_stream(like: Column) -> dict[str, Column]:
    """One pass and no stream, for a family on GPUs, where other waves work while one waits; of the shape of ``like``."""
    names = ("brought", "new_pages", "new_streams", "fetched", "ahead_lines", "ahead_steps")
    return {"passes": np.ones_like(like)} | {name: np.zeros_like(like) for name in names}


DemandOf: TypeAlias = Callable[[Asked], Demand]
Thing = TypeVar("Thing")


def asked(
    device: Device, problem: Problem, pairs: Sequence[tuple[MicroKernel, Shape]], *, element_bytes: int, cold: bool
) -> Asked:
    """Columns of parameters and extents for pairs of one family.

    Objects are told apart by identity, so 64,000 pairs made of few kernels and shapes cost few look-ups.
    """
    kernel_at, kernels = _distinct([kernel for kernel, _ in pairs])
    shape_at, shapes = _distinct([shape for _, shape in pairs])
    params = {name: column[kernel_at] for name, column in _params(kernels).items()}
    full = [problem.extents(shape) for shape in shapes]
    extents = {axis: np.array([row[axis] for row in full], dtype=np.float64)[shape_at] for axis in problem.axes}
    return Asked(device=device, params=params, extents=extents, element_bytes=element_bytes, cold=cold)


def _distinct(values: Sequence[Thing]) -> tuple[NDArray[np.int64], list[Thing]]:
    """Index of each value among the distinct objects, and those objects."""
    _, first, where = np.unique(np.fromiter(map(id, values), np.uint64, len(values)), return_index=True, return_inverse=True)
    return where, [values[at] for at in first.tolist()]


def _params(kernels: Sequence[MicroKernel]) -> dict[str, Column]:
    """Parameters as columns, by name; NaN where a kernel has no such parameter."""
    alike = [name for name, _ in kernels[0].params]
    values = [[value for _, value in kernel.params] for kernel in kernels]
    if all([name for name, _ in kernel.params] == alike for kernel in kernels):  # a family's own: half the time
        return dict(zip(alike, np.array(values, dtype=np.float64).T, strict=True))
    rows = [dict(kernel.params) for kernel in kernels]
    names = sorted({name for row in rows for name in row})
    return {name: np.array([row.get(name, np.nan) for row in rows], dtype=np.float64) for name in names}
