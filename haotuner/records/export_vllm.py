"""Choices as tile tables of vLLM: one file for experts, or for a product of signed bytes, on one device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from haotuner.microkernels.cuda.dense_demand import RASTER_ROWS
from haotuner.microkernels.cuda.triton_tile import TritonTile, triton_tile
from haotuner.microkernels.index import family_named
from haotuner.ops.dtypes import DTYPE_BYTES
from haotuner.records.choices import Choice
from haotuner.records.vllm import DENSE, GROUPED, RASTER, TILE_NAMES, TileTable, device_name, triton_extent
from haotuner.spec.device import Device
from haotuner.spec.op import Op

# Tokens for which vLLM's own tuner writes tiles (benchmarks/kernels/benchmark_moe.py).
TOKENS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096)
# Scales of a quantised product: vLLM's name of such a file has always this block, whatever the tile.
_BLOCK = "[128,128]"
Layer = Literal["up", "down"]


@dataclass(slots=True)
class TileTables:
    """Tables, and what no table holds: reason to number of choices.

    ``changed``: tiles that Triton cannot have, and that have the next power of two in a table.
    """

    tables: list[TileTable] = field(default_factory=list)
    changed: int = 0
    left_out: Counter[str] = field(default_factory=Counter)


def why_no_table(op: Op) -> str:
    """Reason that vLLM has no tile table for an op; empty where it has one."""
    if op.kind == "grouped":
        return "" if op.dtype in ("fp16", "bf16") else f"experts in {op.dtype}; vLLM's tables are of fp16 and bf16 here"
    if op.kind == "dense":
        signed = op.dtype == "int8" and op.option("in") == "int8"
        return "" if signed else "products other than of signed bytes (dtype=int8,in=int8), for which vLLM has no tile table"
    return f"kind {op.kind}: vLLM has tile tables of experts (grouped) and of quantised products (dense) alone"


def tables_of(choices: Sequence[Choice], device: Device, name: str, *, experts_a_token: int, layer: Layer) -> TileTables:
    """Tile tables of choices on one device.

    Args:
        choices: of any ops; those that no table holds are counted.
        device: bounds the shared memory of a tile.
        name: as a driver says it.
        experts_a_token: rows of a grouped op for each token.
        layer: which product of an expert a grouped op is: ``up`` (gate and up together, n is twice N) or ``down`` (k is N).
    """
    result = TileTables()
    tiles: dict[Op, dict[int, dict[str, int]]] = {}
    for choice in choices:
        op = choice.problem
        reason = why_no_table(op) if isinstance(op, Op) else "kernels of others, which are not Triton's"
        if reason or not isinstance(op, Op):
            result.left_out[reason] += 1
            continue
        tile = triton_tile(family_named(choice.kernel.family), choice.kernel)
        if tile is None:
            result.left_out[f"kernels of {choice.kernel.family}, which are no tiles of tensor cores"] += 1
            continue
        rows, each = choice.shape[op.dynamic[0]], experts_a_token if op.kind == "grouped" else 1
        if rows % each:
            result.left_out[f"numbers of rows that are no multiple of {each} experts a token"] += 1
            continue
        values, changed = _values(tile, DTYPE_BYTES[op.dtype], device)
        if changed:
            result.changed += 1
        tiles.setdefault(op, {})[rows // each] = values
    for op, best in tiles.items():
        result.tables.append(_table(op, device_name(name), best, layer))
    return result


def _table(op: Op, name: str, best: dict[int, dict[str, int]], layer: Layer) -> TileTable:
    if op.kind == "grouped":
        columns = op["k"] if layer == "down" else op["n"] // 2
        return TileTable(kind=GROUPED, device_name=name, columns=columns, experts=op["g"], best_by_m=best)
    return TileTable(
        kind=DENSE, device_name=name, columns=op["n"], depth=op["k"], dtype="int8_w8a8", block_shape=_BLOCK, best_by_m=best
    )


def _values(tile: TritonTile, size: int, device: Device) -> tuple[dict[str, int], bool]:
    """Parameters of Triton, and whether they differ from the kernel's: extents and warps are powers of two there."""
    m, n, k = triton_extent(tile.block_m), triton_extent(tile.block_n), triton_extent(tile.block_k)
    warps, stages = 1 << (tile.warps.bit_length() - 1), tile.stages
    most = device.shared_per_block_bytes
    while most is not None and stages > 2 and (m + n) * k * size * stages > most:
        stages -= 1
    values = dict(zip(TILE_NAMES, (m, n, k, warps, stages), strict=True))
    changed = (m, n, k, warps, stages) != (tile.block_m, tile.block_n, tile.block_k, tile.warps, tile.stages)
    return {**dict(list(values.items())[:3]), RASTER: RASTER_ROWS, **dict(list(values.items())[3:])}, changed
