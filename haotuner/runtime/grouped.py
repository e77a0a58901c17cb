"""A grouped op of a pack on a device: rows in groups, each with a matrix of its own, in one launch."""

from __future__ import annotations

from haotuner.runtime.device_linear import DeviceDenseOp


class GroupedOp(DeviceDenseOp):
    """One grouped op of a pack that was opened for a device.

    ``bind`` takes weights (g, n, k) ((g, k, n) for weight=kn) and values (g, n) of the columns of each group.
    """

    @property
    def groups(self) -> int:
        """Matrices, one for each group of rows."""
        return self.entry.axis("g").extent or 0
