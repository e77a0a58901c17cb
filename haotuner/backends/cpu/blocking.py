"""Blocking: the fixed numbers that run.c needs for an op with a set of micro-kernels. The same when timed and served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from haotuner.microkernels.cpu.dense_sums import K_BLOCK_LEAST_ROWS, k_block
from haotuner.microkernels.cpu.typed import begun, word_of
from haotuner.ops.dtypes import DTYPES
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op

L2_SHARE = 0.5  # the weight of one column block; the other half is for X and for what the prefetchers bring
L2_DEFAULT_BYTES = 512 << 10  # smallest private L2 of server cores since 2017 is 1 MiB, of desktop ones 256-512 KiB

# Rows whose X stays in L2 while the weight streams past. Measured at m=2048 (Zen 5): 48 to 96 rows gave 1.00 to 1.10x of no
# blocking on one core and 1.05 to 1.10x on two, for k=768 and 3072; under 24 the weight is streamed too often.
ROWS_LEAST, ROWS_MOST = 24, 96


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocking:
    """Extents and layout of a packed weight, and the blocks of columns and rows that stay in L2."""

    n: int
    k: int
    pw: int
    panels: int
    col_block: int
    row_block: int
    k_block: int = 0  # terms of a part of the sum over k; 0: it is never cut
    k_block_from: int = 0  # rows from which on it is
    k_block_rows: int = 0  # row_block there
    floats: int = 0  # of the packed weight

    @staticmethod
    def of(op: Op, kernels: Sequence[MicroKernel], device: Device) -> Blocking:
        """ValueError unless the kernels share one panel width."""
        widths = {kernel["pw"] for kernel in kernels}
        if len(widths) != 1:
            raise ValueError(f"kernels of one shape share one packed weight; panel widths are {sorted(widths)}")
        pw = widths.pop()
        n, k = op["n"], op["k"]
        panels = max(-(-n // kernel["nr"]) * (kernel["nr"] // pw) for kernel in kernels)
        l2 = device.l2_bytes or L2_DEFAULT_BYTES
        fits = int(l2 * L2_SHARE) // (DTYPES[op.dtype].size * k)  # rows of X, or columns of the weight, in half of L2
        word = word_of(kernels[0])
        part = k_block(k) if word is None else 0  # sums of a part would lie in Y, which typed ones do not
        return Blocking(
            n=n,
            k=k,
            pw=pw,
            panels=panels,
            col_block=max(pw, fits // pw * pw),
            row_block=_rows(fits),
            k_block=part,
            k_block_from=K_BLOCK_LEAST_ROWS if part else 0,
            k_block_rows=_rows(int(l2 * L2_SHARE) // (4 * part)) if part else 0,
            floats=panels * (k * pw if word is None else word.depth(k) * word.floats(pw) + begun(kernels[0]) * pw),
        )

    def words(self, m: int) -> dict[str, int]:
        """Settings of a call of m rows, by name."""
        blocked = self.k_block > 0 and m >= self.k_block_from
        return {
            "n": self.n,
            "k": self.k,
            "pw": self.pw,
            "panels": self.panels,
            "col_block": self.col_block,
            "row_block": self.k_block_rows if blocked else self.row_block,
            "k_block": self.k_block if blocked else 0,
            "floats": self.floats,
        }


def _rows(fits: int) -> int:
    return min(max(fits, ROWS_LEAST), ROWS_MOST)
