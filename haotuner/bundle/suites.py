"""The shapes a bundle measures: ragged ones for correctness, published dynamic workloads for time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from haotuner.bundle.manifest import Entry
from haotuner.words.op import Op

NAME = "suites.json"
# DietCode (MLSys 2022, dynamic dense workload): BERT with batch 16 and these eight sequence lengths.
T8 = (5, 24, 43, 62, 81, 100, 119, 128)
DIETCODE_ROWS = tuple(16 * t for t in T8)
# From one request's decode step to a long prefill, within MikPoly's range of 1 to 4096.
SERVING_ROWS = (1, 16, 64, 256, 1024, 4096)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One dense layer over its row counts."""

    name: str
    op: str  # an Op's name
    rows: tuple[int, ...]
    hot: bool = False  # measured with the weight in the L2 too


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Shapes and policies that one run of a bundle covers."""

    timed: tuple[Workload, ...]
    ragged_limit: int  # largest extent of a correctness shape
    peak_bytes: int  # moved by one memory measurement: several times any L2
    peak_rounds: int  # of the FMA and tensor loops
    rotation_bytes: int  # distinct weights one graph walks through at least, where the L2 is not larger
    subset_shares: tuple[float, ...]  # of the multiprocessors
    subset_kernels: int  # fastest kernels of each workload that are timed again on subsets
    patience_s: float  # a trial that takes longer is killed


Layers = Mapping[str, tuple[int, int]]  # (n, k) of each


def _dense(prefix: str, layers: Layers, dtype: str, rows: tuple[int, ...], *, hot: bool = False) -> tuple[Workload, ...]:
    return tuple(
        Workload(name=f"{prefix}_{layer}_{dtype}", op=Op.parse(f"dense:n={n},k={k},dtype={dtype}").name, rows=rows, hot=hot)
        for layer, (n, k) in layers.items()
    )


BERT_BASE = {"qkv": (2304, 768), "out": (768, 768), "up": (3072, 768), "down": (768, 3072)}
LLAMA2_13B_TP4 = {"qkv": (3840, 5120), "o": (5120, 1280), "up": (3456, 5120), "down": (5120, 3456)}  # MikPoly, table 5
LLAMA3_8B = {"qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}

FULL = Suite(
    timed=(
        *_dense("bert_base", BERT_BASE, "fp32", DIETCODE_ROWS, hot=True),
        *_dense("bert_base", BERT_BASE, "fp16", DIETCODE_ROWS, hot=True),
        *_dense("llama3_8b", LLAMA3_8B, "fp16", SERVING_ROWS),
        *_dense("llama2_13b_tp4", LLAMA2_13B_TP4, "fp16", SERVING_ROWS),
        *_dense("llama3_8b", {"o": LLAMA3_8B["o"]}, "bf16", SERVING_ROWS),
    ),
    ragged_limit=1100,
    peak_bytes=2 << 30,
    peak_rounds=16384,  # a millisecond and more on an H200, against 3 us that events and the launch add
    rotation_bytes=64 << 20,
    subset_shares=(0.25, 0.5, 0.75),
    subset_kernels=4,
    patience_s=20,
)
# For a dry run on an emulated device: every stage, a few small shapes.
TINY = Suite(
    timed=(
        Workload(name="tiny_fp32", op="dense_n40_k16", rows=(1, 24), hot=True),
        Workload(name="tiny_fp16", op="dense_n40_k16_fp16", rows=(1, 24)),
        Workload(name="tiny_bf16", op="dense_n40_k16_bf16", rows=(9,)),
    ),
    ragged_limit=70,
    peak_bytes=1 << 14,
    peak_rounds=1,
    rotation_bytes=1 << 12,
    subset_shares=(0.5,),
    subset_kernels=1,
    patience_s=10,  # a check takes 0.1 to 1 s there
)
SUITES = {"full": FULL, "tiny": TINY}


def ragged_shapes(entry: Entry, limit: int) -> list[tuple[int, int, int, int, int]]:
    """Shapes (m, n, k, gap between X's rows, gap between Y's rows) that meet every edge of a tile.

    One element; a row and a column over a tile with k off a step; several tiles with a ragged last one; and more row tiles
    than one raster group holds. Extents keep to the kernel's vector promise and to ``limit``.
    """
    rows, columns = entry.tile
    v = entry.vector
    wide = v if entry.kn else 1

    def whole(extent: int, step: int) -> int:
        return max(step, min(extent, limit) // step * step)

    found = [
        (1, wide, v, 0, 0),
        (rows + 1, whole(columns + 9, wide), whole(71, v), v, 1),
        (whole(3 * rows - 1, 1), whole(2 * columns - 1, wide), whole(200, v), 0, 2),
        (whole(9 * rows + 5, 1), whole(520, wide), whole(520, v), 8, 0),
        (7, whole(limit, wide), whole(limit, v), 0, 0),
    ]
    return list(dict.fromkeys(found))


def write(suite: Suite, root: Path) -> None:
    """Write a suite into a bundle."""
    (root / NAME).write_text(json.dumps(asdict(suite), indent=1))


def read(root: Path) -> Suite:
    """The suite of a bundle."""
    fields: dict[str, Any] = json.loads((root / NAME).read_text())
    timed = tuple(Workload(**{**workload, "rows": tuple(workload["rows"])}) for workload in fields.pop("timed"))
    shares = tuple(fields.pop("subset_shares"))
    return Suite(timed=timed, subset_shares=shares, **fields)
