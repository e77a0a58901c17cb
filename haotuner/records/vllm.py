"""Tile tables of vLLM: the best Triton tile by number of rows, of one problem on one device, without times.

vLLM reads one file a problem (fused_moe/configs and quantization/utils/configs): its name holds the problem, the device and
the type, its content is an object from rows to parameters, in which the nearest number of rows counts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

GROUPED, DENSE = "grouped", "dense"  # experts of a mixture (E matrices of N columns), one matrix (N, K)
TILE_NAMES = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "num_warps", "num_stages")
LEAST_EXTENT = 16  # of a tile that Triton multiplies on tensor cores; all its extents are powers of two
RASTER = "GROUP_SIZE_M"  # row tiles that share columns in the L2


@dataclass(frozen=True, slots=True, kw_only=True)
class TileTable:
    """Best tiles of one problem on one device, by number of rows (tokens)."""

    kind: str  # GROUPED or DENSE
    device_name: str  # as a driver says it, blanks as underscores
    columns: int  # N: of one matrix; of experts the intermediate size
    depth: int = 0  # K, of DENSE
    experts: int = 0  # E, of GROUPED
    dtype: str = ""  # fp8_w8a8, int8_w8a8, int8_w8a16, int4_w4a16; empty: bf16 or fp16
    block_shape: str = ""  # of scales, such as [128,128]
    best_by_m: Mapping[int, Mapping[str, int]]

    @property
    def file_name(self) -> str:
        """Name under which vLLM looks for the table."""
        sizes = f"E={self.experts},N={self.columns}" if self.kind == GROUPED else f"N={self.columns},K={self.depth}"
        dtype = f",dtype={self.dtype}" if self.dtype else ""
        block = f",block_shape={self.block_shape}" if self.block_shape else ""
        return f"{sizes},device_name={self.device_name}{dtype}{block}.json"

    def text(self) -> str:
        """Content of that file."""
        return json.dumps({str(m): dict(self.best_by_m[m]) for m in sorted(self.best_by_m)}, indent=4) + "\n"


def device_name(name: str) -> str:
    """A driver's name of a device as file names have it; all of the H200 family have one."""
    text = name.strip().replace(" ", "_")
    return "NVIDIA_H200" if "H200" in text.split("_") else text


def triton_extent(extent: int) -> int:
    """The least extent that Triton multiplies and that holds ``extent``."""
    return max(LEAST_EXTENT, 1 << math.ceil(math.log2(max(extent, 1))))
