"""Splits: halves of the kernels of some tables, and the rows of a table that lie in one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from haotuner.errors import UsageError
from haotuner.transfer.device_table import DeviceTable, Rows, program_keys


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
