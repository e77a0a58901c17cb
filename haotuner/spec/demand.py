"""Demand: what tile programs ask of any device, CPU or GPU: work that adds up, tiles, and groups of columns that some have.

Each family of micro-kernels writes its parameters down as a ``Demand``; features and the roofline read nothing else. A new
family needs no change anywhere above, and a group of columns that it leaves out none either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from haotuner.spec.device import Device
from haotuner.spec.kernel import Footprint, MicroKernel, Tile
from haotuner.spec.shape import Shape

Column: TypeAlias = NDArray[np.float64]  # one entry a row; a row is one (micro-kernel, shape)
# Of each micro-kernel: one number, or one for each use (a few rows, many); higher is better. Or the same by several who may
# disagree, ``(who, kernels, uses)``: the first decides the order, and what any of them ranks first is kept.
Expectation: TypeAlias = Callable[[Sequence[MicroKernel]], NDArray[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Flops and bytes of whole calls, whatever the program: columns of shape ``(rows,)``. The work of two calls adds up.

    A program that fuses two operators asks for their sum less what no longer leaves the unit.
    """

    flops: Mapping[str, Column]  # by kind of unit that does them: "simd"; "tensor" (units for small matrices)
    least_bytes: Column  # every operand read once, the result written once
    far_bytes: Column  # of main memory
    mid_bytes: Column  # that units take from L2
    near_bytes: Column  # that units take from L1 or shared memory

    def __add__(self, other: Work) -> Work:
        """Both calls, one after the other."""
        kinds, none = {**self.flops, **other.flops}, np.zeros_like(self.least_bytes)
        return Work(
            flops={kind: self.flops.get(kind, none) + other.flops.get(kind, none) for kind in kinds},
            least_bytes=self.least_bytes + other.least_bytes,
            far_bytes=self.far_bytes + other.far_bytes,
            mid_bytes=self.mid_bytes + other.mid_bytes,
            near_bytes=self.near_bytes + other.near_bytes,
        )

    def times(self, count: Column) -> Work:
        """So many such calls, one after the other or side by side."""
        return Work(
            flops={kind: count * flops for kind, flops in self.flops.items()},
            least_bytes=count * self.least_bytes,
            far_bytes=count * self.far_bytes,
            mid_bytes=count * self.mid_bytes,
            near_bytes=count * self.near_bytes,
        )

    @staticmethod
    def streamed(flops: Column, least_bytes: Column) -> Work:
        """Work that passes every byte once through all levels and nothing twice, done by SIMD units."""
        return Work(flops={"simd": flops}, least_bytes=least_bytes, far_bytes=least_bytes, mid_bytes=least_bytes,
                    near_bytes=least_bytes)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """Into how many tiles a call is cut, and what one of them keeps busy: columns of shape ``(rows,)``.

    A *tile* is what one core or one thread block computes at a time, a *wave* threads in lockstep. A CPU tile has one wave
    of one thread.
    """

    count: Column  # of a call; the last ones may be parts of one
    threads: Column  # of one tile
    waves: Column  # of one tile
    vector: Column  # elements one thread moves with one load
    registers: Column  # of one thread: CPU SIMD registers, GPU 32-bit registers
    shared_bytes: Column  # GPU: shared memory of one tile
    l1_set_bytes: Column  # stays in L1 while one tile runs
    l2_set_bytes: Column  # stays in L2 while one tile (CPU) or one device-wide round of tiles (GPU) runs


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulTile:
    """A tile of a product [rows, depth] x [depth, cols] (a convolution: image rows, image columns, filter taps).

    A *step* is one value of the reduction axis for the whole tile.
    """

    rows: Column
    cols: Column
    depth: Column
    tile_rows: Column
    tile_cols: Column
    computed_cols: Column  # the columns as computed: whole tiles, or less where the last one is narrow
    wave_rows: Column  # output rows and columns that one thread (CPU: the core) keeps in registers
    wave_cols: Column
    unroll: Column  # steps unrolled in the innermost loop
    depth_block: Column  # steps whose operands are staged together
    streams: Column  # address streams read in parallel
    # work of one step
    fmas: Column  # wave-wide multiply-add instructions of one wave; all are independent
    tensor_fmas: Column  # multiply-adds, each counted, that units for small matrices do for one tile; 0 where there are none
    loads: Column  # wave-wide load instructions of one wave
    checks: Column  # other wave-wide instructions of one wave, those that check bounds
    near_bytes: Column  # bytes one tile takes from L1 or shared memory
    mid_bytes: Column  # bytes one tile takes from L2
    code: Column  # instructions of the innermost loop, unrolled as the compiler does it
    # regularity
    line_ratio: Column  # useful share of each memory line fetched, 0..1
    bank_ways: (
        Column  # times an access is repeated: GPU shared-memory bank conflict, CPU streams that share an L1 set; 1: none
    )
    flags: Column  # family-specific switches as a small integer; 0 where a family has none
    rate: Column | float = 1.0  # multiply-adds of this type done in the time of one of those that the peak counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """Staging of a product's operands before they are used: columns of shape ``(rows,)``."""

    rows: Column  # 1 where the operand of the rows (a convolution: the image) is staged in shared memory
    cols: Column  # 1 where the operand of the columns (a convolution: the filter) is staged (CPU: packed)
    row_threads: Column  # threads side by side that stage the rows' operand; 1 where nothing is staged
    col_threads: Column  # the same for the columns' operand
    vector_cols: Column  # elements one load moves of the columns' operand (``Tiles.vector``: of the rows')
    waits: Column  # loads of L2 that a tile waits for, one after the other, before its first step


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuStream:
    """The columns' operand of a product as a stream from main memory, read by a core that waits for it."""

    passes: Column  # tiles that compute on what one of them brings; 1 where tiles run side by side
    brought: Column  # share of what the next such tiles compute on that each brings meanwhile
    new_pages: Column  # pages a call enters that were not fetched while tiles before them were computed
    new_streams: Column  # times it goes on reading at another place than the next
    fetched: Column  # share of a column of tiles' operand that one tile fetches by instruction
    ahead_lines: Column  # cache lines between what is used and what is fetched so; 0 where nothing is
    ahead_steps: Column  # the same in steps where it is fetched step by step, else 0

    @staticmethod
    def none(like: Column) -> CpuStream:
        """One pass and no stream, as on GPUs, where other waves work while one waits; of the shape of ``like``."""
        zero = np.zeros_like(like)
        return CpuStream(passes=np.ones_like(like), brought=zero, new_pages=zero, new_streams=zero, fetched=zero,
                         ahead_lines=zero, ahead_steps=zero)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """Stages of fast memory through which a tile's operands come while it computes: columns of shape ``(rows,)``."""

    ahead: Column  # blocks of steps (``MatmulTile.depth_block``) on their way while one is computed; at least 1
    written_bytes: Column  # that a tile writes at its end, when its ring is empty
    tail: Column | float = 0.0  # instructions of a wave behind the last step, an exchange between lanes as four


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """A program whose instructions were counted, and what it moves over each level: columns of shape ``(rows,)``.

    Where a family counts them nothing else prices its work; ``Work`` keeps what is moved beyond the last level.
    """

    cycles: Column  # of one unit that does all the work, everything in L1
    l1_bytes: Column  # between L1 and what lies beyond it
    l2_bytes: Column  # the same of L2


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Demand of tile programs on a device. Work and tiles every family can tell; the other groups only some.

    Features of a group that a family leaves out are NaN, which the learned model takes for what it is: not known.
    """

    work: Work
    tiles: Tiles
    matmul: MatmulTile | None = None
    staging: Staging | None = None
    stream: CpuStream | None = None
    ring: Ring | None = None
    counted: Counted | None = None
    apart: Work | None = None  # of another launch that the tiles wait for, or that waits for them; ``work`` leaves it out


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandQuery:
    """Rows handed to a family's demand function: parameters and extents as columns."""

    device: Device
    params: Mapping[str, Column]  # NaN where a kernel has no such parameter
    extents: Mapping[str, Column]
    element_bytes: int
    cold: bool  # weights come from main memory (a server walks through all its layers)
    kernels: Sequence[MicroKernel]  # the distinct ones
    kernel_at: NDArray[np.int64]  # of each row among them

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

    def each(self, of: Callable[[MicroKernel], float]) -> Column:
        """A number of each row's micro-kernel, asked once for every kernel."""
        return np.array([of(kernel) for kernel in self.kernels], np.float64)[self.kernel_at]

    def tiles(
        self, tile: Callable[[MicroKernel], Tile], footprint: Callable[[MicroKernel], Footprint], *, vector: Column
    ) -> Tiles:
        """Tiles as a family's geometry and footprint say, with nothing but the footprint kept in caches."""
        count, shapes = np.ones(len(self.kernel_at)), [tile(kernel).extent for kernel in self.kernels]
        for axis in shapes[0]:
            size = np.array([shape[axis] for shape in shapes], np.float64)[self.kernel_at]
            count = count * np.ceil(self.extents[axis] / size)
        threads = self.each(lambda kernel: footprint(kernel).threads)
        shared = self.each(lambda kernel: footprint(kernel).shared_bytes)
        return Tiles(
            count=count,
            threads=threads,
            waves=np.ceil(threads / self.device.wave_width),
            vector=vector,
            registers=self.each(lambda kernel: footprint(kernel).registers_per_thread),
            shared_bytes=shared,
            l1_set_bytes=shared,
            l2_set_bytes=shared,
        )


class Problem(Protocol):
    """Problem to compute: the extents of a shape and the type of its elements. An ``Op`` is one."""

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


DemandOf: TypeAlias = Callable[[DemandQuery], Demand]
Thing = TypeVar("Thing")


def demand_query(
    device: Device, problem: Problem, pairs: Sequence[tuple[MicroKernel, Shape]], *, element_bytes: int, cold: bool
) -> DemandQuery:
    """Columns of parameters and extents for pairs of one family.

    Objects are told apart by identity, so 64,000 pairs made of few kernels and shapes cost few look-ups.
    """
    kernel_at, kernels = _distinct([kernel for kernel, _ in pairs])
    shape_at, shapes = _distinct([shape for _, shape in pairs])
    params = {name: column[kernel_at] for name, column in _params(kernels).items()}
    full = [problem.extents(shape) for shape in shapes]
    extents = {axis: np.array([row[axis] for row in full], dtype=np.float64)[shape_at] for axis in full[0]}
    return DemandQuery(device=device, params=params, extents=extents, element_bytes=element_bytes, cold=cold,
                       kernels=kernels, kernel_at=kernel_at)  # fmt: skip


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
