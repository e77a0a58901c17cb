"""Splits: a target and its sources, halves of the kernels of some tables, and the rows of a table that lie in one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from haotuner.errors import UsageError
from haotuner.spec.device import Device
from haotuner.transfer.device_table import DeviceTable, Rows, program_keys
from haotuner.transfer.reading import DeviceTables

_RDNA_WAVE = 32  # lanes of a wave of every RDNA device; those with waves of 64 are GCN or CDNA


def architecture(device: Device) -> str:
    """The architecture family of a device, by what its profile says: never by its name.

    CUDA devices go by the major number of their compute capability (Volta and Turing share 7, Ampere and Ada 8: the stricter
    way). AMD's go by the width of their waves and whether they have matrix units (RDNA, CDNA, older ones); CPUs by the core
    that the compiler is told, whatever part of its instruction set is used.
    """
    if device.kind == "cuda":
        digits = "".join(c for c in device.arch if c.isdigit())
        return f"cuda {digits[:-1] or digits}.x"
    if device.kind == "hip":
        units = "" if device.wave_width <= _RDNA_WAVE else f", {'with' if device.tensor_tflops else 'no'} matrix units"
        return f"hip, waves of {device.wave_width}{units}"
    return f"{device.kind} {device.arch}"


def table_of(read: DeviceTables, family: str, target: str) -> tuple[DeviceTable, list[DeviceTable]]:
    """The target's table of a family and those of all other devices.

    Raises:
        UsageError: the target measured nothing of the family.
    """
    tables = read.of(family)
    mine = [table for table in tables if table.device.id == target]
    if not mine:
        result = ", ".join(table.device.id for table in tables)
        raise UsageError(f"no records of {family} on {target}; found {result or 'none on any device'}{read.why_not(target)}")
    return mine[0], [table for table in tables if table.device.id != target]


def half_of_kernels(tables: Sequence[DeviceTable], seed: int) -> frozenset[str]:
    """A random half of all programs of some tables, as names of kernels; the same seed gives the same half.

    Kernels that differ in parameters they do not use are one program and fall into the same half: half of CLBlast's GEMM
    variants have such a twin, and a source that measured the twin has measured the kernel.
    """
    names, named = np.unique([name for table in tables for name in table.kernels], return_inverse=True)
    _, keyed = np.unique(np.concatenate([program_keys(table.frame) for table in tables]), return_inverse=True)
    links = coo_array((np.ones(len(named)), (named, len(names) + keyed)), shape=(2 * len(named) + 1,) * 2)
    _, part = connected_components(links, directed=False)
    programs, of_name = np.unique(part[: len(names)], return_inverse=True)
    chosen = np.random.default_rng([seed, 1]).random(len(programs)) < 0.5
    return frozenset(names[chosen[of_name]].tolist())


def rows_within(table: DeviceTable, kernels: frozenset[str], *, inside: bool) -> Rows:
    """Rows whose kernel is inside (or outside) a set."""
    return np.array([row for row, name in enumerate(table.kernels) if (name in kernels) == inside], dtype=np.int64)


def check_rankable(tables: Sequence[DeviceTable], family: str) -> None:
    """UsageError where no device has a task of two kernels: nothing could be ranked."""
    if not any(table.groups() for table in tables):
        raise UsageError(f"{family}: no device has a task of two measured kernels to rank; import or measure more")
