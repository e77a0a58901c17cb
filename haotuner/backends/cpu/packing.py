"""Conversion of tuning results to contents of a pack: dense ops with compositions, all others with a kernel a cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from haotuner.backends.backend import Choice
from haotuner.backends.cpu.pack_conv import PackedConv, packed_floats, transformed
from haotuner.backends.cpu.pack_dense import Blocking, PackedOp, PackedPlan
from haotuner.backends.cpu.pack_op import PackedAny, PackedSliced, SlicedEntry, SlicedKernel, SlicedPlan
from haotuner.backends.cpu.pack_product import PackedProduct
from haotuner.backends.cpu.timing_library import is_convolution, is_dense, is_product
from haotuner.microkernels.cpu.generated import in_place_of, joins_of, stages_of
from haotuner.microkernels.index import family_named
from haotuner.ops.dtypes import DTYPE_BYTES
from haotuner.plan.table import CellTable, RowTable
from haotuner.spec.composition import SERIAL, Composition
from haotuner.spec.device import Device


def packed(choice: Choice, device: Device) -> PackedAny:
    """The op as ``pack_data`` takes it; ValueError where a table is not of the kind that its loops look up."""
    if is_convolution(choice.kernels[0]):
        return _conv(choice)
    if is_product(choice.kernels[0]):
        return PackedProduct.of(choice.op, choice.ranges, tiled(choice), cell_plans(choice))
    return _dense(choice, device) if is_dense(choice.kernels[0]) else _sliced(choice)


def packed_ratio(choice: Choice, device: Device) -> float:
    """Bytes of the packed constants over those that are bound; 1 where they are used as they are."""
    if is_convolution(choice.kernels[0]):
        op, weight = choice.op, choice.op.meaning.operands[1]
        extents = op.meaning.complete({**dict(op.static), **{axis: 1 for axis in op.dynamic}}, op.all_options())
        return packed_floats(op, choice.kernels[0]["vl"], transformed(choice.kernels)) / prod(
            weight.shape(extents, op.all_options())
        )
    if not is_dense(choice.kernels[0]):
        return 1.0
    setting = Blocking.of(choice.op, choice.kernels, device)
    weight = choice.op.meaning.operands[1]
    return setting.floats * 4 / (setting.n * setting.k * DTYPE_BYTES[choice.op.dtype_of(weight)])


def _dense(choice: Choice, device: Device) -> PackedOp:
    index = {kernel.name: index for index, kernel in enumerate(choice.kernels)}
    setting = Blocking.of(choice.op, choice.kernels, device)
    (first, last) = choice.ranges[choice.op.dynamic[0]]
    plans = []
    for table in choice.tables:
        if not isinstance(table, RowTable):
            raise ValueError(f"{choice.op.name}: dense looks up a table by rows, this one is by cells")
        entries = [entry.composition for entry in table.entries]
        plans.append(
            PackedPlan(
                threads=table.threads,
                entries=[(tuple((index[k], tiles) for k, tiles in entry.parts), entry.share) for entry in entries],
                row_block=setting.row_block,
            )
        )
    return PackedOp(op=choice.op, setting=setting, first_m=first, last_m=last, kernels=choice.kernels, plans=plans)


def _sliced(choice: Choice) -> PackedSliced:
    return PackedSliced.of(choice.op, choice.ranges, _joining(tiled(choice), plans := cell_plans(choice)), plans)


def _joining(kernels: Sequence[SlicedKernel], plans: Sequence[SlicedPlan]) -> list[SlicedKernel]:
    """The kernels with what parts of folded axes are joined by, if a plan has such parts: a batch-invariant one has none."""
    used = {entry.axis for plan in plans for entry in plan.entries} & {axis for kernel in kernels for axis in kernel.joins}
    return [kernel if used else replace(kernel, joins={}) for kernel in kernels]


def tiled(choice: Choice) -> list[SlicedKernel]:
    """The kernels with their tiles."""
    tiles = [choice.family.tile(kernel) for kernel in choice.kernels]
    return [
        SlicedKernel(
            name=kernel.name,
            tile={**tile.extent, **tile.step},
            kernel=kernel,
            joins=joins_of(choice.family, choice.op),
            in_place=in_place_of(choice.family, kernel),
            stages=stages_of(choice.family, kernel),
        )
        for kernel, tile in zip(choice.kernels, tiles, strict=True)
    ]


def cell_plans(choice: Choice) -> list[SlicedPlan]:
    """A kernel and a way to share for every cell, of each thread count."""
    index = {kernel.name: index for index, kernel in enumerate(choice.kernels)}

    def entry(composition: Composition) -> SlicedEntry:
        axis = None if composition.share == SERIAL else composition.share
        return SlicedEntry(kernel=index[composition.parts[0].kernel], axis=axis)

    plans = []
    for table in choice.tables:
        if not isinstance(table, CellTable):
            raise ValueError(f"{choice.op.name}: its table is by rows, these loops look up cells")
        plans.append(
            SlicedPlan(threads=table.threads, grid=table.bounds, entries=[entry(entry_) for entry_ in table.entries])
        )
    return plans


def _conv(choice: Choice) -> PackedConv:
    tiles = [family_named(kernel.family).tile(kernel) for kernel in choice.kernels]
    return PackedConv(
        op=choice.op,
        ranges=choice.ranges,
        micro_kernels=tuple(choice.kernels),
        tiles=tuple({**tile.extent, **tile.step} for tile in tiles),
        plans=tuple(cell_plans(choice)),
        packed_floats=packed_floats(choice.op, choice.kernels[0]["vl"], transformed(choice.kernels)),
    )
