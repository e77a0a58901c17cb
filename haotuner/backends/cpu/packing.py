"""From what tuning found to what a pack holds: dense ops with their compositions, all others with a kernel a cell."""

from __future__ import annotations

from haotuner.backends.backend import Choice
from haotuner.backends.cpu.measuring import is_dense
from haotuner.backends.cpu.pack_dense import PackedOp, PackedPlan
from haotuner.backends.cpu.pack_op import PackedAny
from haotuner.backends.cpu.pack_sliced import PackedSliced, SlicedEntry, SlicedKernel, SlicedPlan
from haotuner.backends.cpu.setting import Setting
from haotuner.plan.cells import CellTable
from haotuner.plan.table import RowTable
from haotuner.words.composition import SERIAL, Composition
from haotuner.words.device import Device


def packed(choice: Choice, device: Device) -> PackedAny:
    """The op as ``pack_data`` takes it; ValueError where a table is not of the kind that its loops look up."""
    return _dense(choice, device) if is_dense(choice.kernels[0]) else _sliced(choice)


def packed_ratio(choice: Choice, device: Device) -> float:
    """Bytes of the packed constants over those that are bound; 1 where they are used as they are."""
    if not is_dense(choice.kernels[0]):
        return 1.0
    setting = Setting.of(choice.op, choice.kernels, device)
    return setting.panels * setting.pw / setting.n


def _dense(choice: Choice, device: Device) -> PackedOp:
    index = {kernel.name: place for place, kernel in enumerate(choice.kernels)}
    setting = Setting.of(choice.op, choice.kernels, device)
    (first, last) = choice.ranges[choice.op.dynamic[0]]
    plans = []
    for table in choice.tables:
        if not isinstance(table, RowTable):
            raise ValueError(f"{choice.op.name}: dense looks up a table by rows, this one is by cells")
        entries = [one.composition for one in table.entries]
        plans.append(
            PackedPlan(
                threads=table.threads,
                entries=[(tuple((index[k], tiles) for k, tiles in one.parts), one.share) for one in entries],
                row_block=setting.row_block,
            )
        )
    return PackedOp(name=choice.op.name, setting=setting, first_m=first, last_m=last, kernels=choice.kernels, plans=plans)


def _sliced(choice: Choice) -> PackedSliced:
    index = {kernel.name: place for place, kernel in enumerate(choice.kernels)}
    kernels = []
    for kernel in choice.kernels:
        tile = choice.family.tile(kernel)
        kernels.append(SlicedKernel(name=kernel.name, tile={**tile.extent, **tile.step}, kernel=kernel))

    def entry(composition: Composition) -> SlicedEntry:
        axis = None if composition.share == SERIAL else composition.share
        return SlicedEntry(kernel=index[composition.parts[0].kernel], axis=axis)

    plans = []
    for table in choice.tables:
        if not isinstance(table, CellTable):
            raise ValueError(f"{choice.op.name}: its table is by rows, these loops look up cells")
        plans.append(SlicedPlan(threads=table.threads, grid=table.bounds, entries=[entry(one) for one in table.entries]))
    return PackedSliced.of(choice.op, choice.ranges, kernels, plans)
