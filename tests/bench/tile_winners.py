"""Rank of vLLM's known winners among this project's candidates, by device and number of rows.

A winner's counterpart is the nearest candidate in tile, then in warps. Its rank is the share of all candidates that an order
puts ahead of it. Two orders: the analysis, and the analysis with a density of winners on other devices.

vLLM's files do not say the hidden size of experts: it is taken as ``HIDDEN``, with two experts a token where there are few.
Products of fp8 are ranked among kernels of signed bytes, whose traffic and rate are the same.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from haotuner.cost.expected import over_traffic
from haotuner.cost.families import demand
from haotuner.cost.roofline import expected_us
from haotuner.errors import NothingLegal, UnknownDevice, UsageError
from haotuner.hw_profiles.find import find_device
from haotuner.microkernels.cuda.families import DENSE_FAMILIES, GROUPED_FAMILIES
from haotuner.microkernels.cuda.triton_tile import triton_tile
from haotuner.records.text import read_text
from haotuner.records.vllm import GROUPED, TileTable
from haotuner.search.select.funnel import select
from haotuner.search.select.limits import laws_of, question
from haotuner.spec.constraint import refusals
from haotuner.spec.device import Device
from haotuner.spec.family import Family
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from haotuner.spec.traffic import Traffic
from tests.bench.transfer_study.splits import architecture
from tests.bench.vllm_tables import best_by_m, is_tile_file, read_tile_table

Floats = NDArray[np.float64]
HIDDEN = 4096  # of Mixtral's layers, for which the most tables are; one dimension of the traffic, the same for all tiles
FEW_EXPERTS = 16  # up to so many each token has two experts, of more eight (Mixtral; DeepSeek and Qwen)
FIRST = 0.05  # of all candidates
TIE = 1.001  # expectations nearer than that are equal: no order of such kernels is right or wrong
# Of the same silicon as a profile's, or variants of it by NVIDIA's data sheets: units, GB/s, dense TFLOP/s of fp16.
_SAME = {"NVIDIA_A800-SXM4-80GB": "a100-80gb", "NVIDIA_H800": "h100"}
_VARIANTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "NVIDIA_H20": ("h200", "h20", {"compute_units": 78, "memory_gbps": 4000.0, "tensor_tflops": 148.0}),
    "NVIDIA_L20": ("l40s", "l20", {"compute_units": 92, "memory_gbps": 864.0, "tensor_tflops": 119.5}),
}
# Of the density, in doublings: how far a winner speaks for other tiles, rows and columns. Weights of winners of the same
# kind and of the same architecture, and of an expectation's logarithm. Picked after a look at four settings on these
# winners: three had 0.864 to 0.876 within the first 5 %, one without the depth in the density 0.775.
TILE_WIDTH, ROWS_WIDTH, COLUMNS_WIDTH = 1.0, 1.0, 2.0
SAME_KIND, SAME_ARCHITECTURE, EXPECTATION = 4.0, 3.0, 5.0
BEYOND_LAWS = "padding, fill or frontier"  # of selection, beside other candidates
_FEW = 1e-5  # density of a tile that nobody chose


@dataclass(frozen=True, slots=True)
class Unranked:
    """A table whose winners are not ranked, and why."""

    table: TileTable
    why: str


@dataclass(frozen=True)
class Candidates:
    """All points of all families for one problem on one device, and the winners of its table."""

    table: TileTable
    device: Device
    op: Op
    rows: tuple[int, ...]  # of the op, ascending; a token has a row for each of its experts
    tokens: tuple[int, ...]
    kernels: tuple[tuple[Family, MicroKernel], ...]
    expected: Floats  # microseconds, (kernels, rows)
    tiles: Floats  # log2 of rows, columns, bytes on their way and warps, NaN without a ring, (kernels, 4)

    def winner(self, token: int) -> Floats:
        """Log2 of the known winner's tile, as ``tiles``."""
        best, size = self.table.best_by_m[token], 2 if self.op.dtype == "bf16" else 1
        depth = best["BLOCK_SIZE_K"] * size * max(best.get("num_stages", 2), 1)
        return np.log2([best["BLOCK_SIZE_M"], best["BLOCK_SIZE_N"], depth, best["num_warps"]])

    def counterparts(self, token: int) -> NDArray[np.bool_]:
        """The candidates nearest to the winner: in tile first, then in warps."""
        apart = np.abs(self.tiles - self.winner(token))
        distance = 100.0 * (apart[:, 0] + apart[:, 1]) + apart[:, 3]
        return np.asarray(distance <= np.nanmin(distance) + 1e-9)

    @cached_property
    def refused(self) -> list[str]:
        """Law of selection that refuses each kernel for the table's rows, or ``BEYOND_LAWS``; empty where it is let in."""
        traffic = Traffic.of((Shape.of(m=m), 1.0) for m in self.rows)
        selected: set[str] = set()
        for family in dict.fromkeys(family for family, _ in self.kernels):
            with suppress(NothingLegal):
                score = over_traffic(self.op, family, self.device, traffic)
                funnel = select(self.op, family, self.device, traffic, score)
                selected |= {candidate.kernel.name for candidate in funnel.candidates}
        return ["" if kernel.name in selected else self._law(family, kernel) for family, kernel in self.kernels]

    def _law(self, family: Family, kernel: MicroKernel) -> str:
        requested = question(family, kernel, self.op, self.device, {"m": max(self.rows)})
        broken = next(refusals(requested, laws_of(family, self.op, self.device)), None)
        return BEYOND_LAWS if broken is None else broken.law


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Rank of one known winner: shares of all candidates ahead of it, 0 is the first."""

    table: TileTable
    device_id: str
    tokens: int
    candidates: int
    analysis: float
    learned: float  # by winners of other devices as well
    learned_elsewhere: float  # by winners of other architectures
    lost: float  # expected time of the counterpart over the least of all
    refused: str  # law of selection that refuses every counterpart; empty where one is let in


def tile_tables(path: Path) -> tuple[list[TileTable], list[str]]:
    """Tables of a folder of vLLM's files, or of a file of JSON Lines (one table a line), and words on what is no table.

    Raises:
        UsageError: neither, or not one table.
    """
    result: list[TileTable] = []
    others: list[str] = []
    lines = sorted(path.rglob("*.jsonl*")) if path.is_dir() else [path]
    for file in sorted(path.rglob("*.json")) if path.is_dir() else ():
        if is_tile_file(file):
            result.append(read_tile_table(file))
    for file in lines:
        text, stopped = read_text(file, "JSON Lines of tile tables")
        for at, line in enumerate(filter(str.strip, text.splitlines()), 1):
            try:
                table = _table_of(file, json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                reason = stopped or f"{type(error).__name__}: {str(error)[:80]}"
                raise UsageError(f"{file}: line {at} is no tile table ({reason}); mend the line, or leave it out") from error
            if isinstance(table, TileTable):
                result.append(table)
            else:
                others.append(table)
    if not result:
        raise UsageError(f"{path}: no tile table; name a folder of vLLM's files, or JSON Lines of them")
    return result, others


def _table_of(path: Path, row: Any) -> TileTable | str:
    if "backend" in row:
        return f"tables of the backend {row['backend']}"
    return TileTable(
        kind=str(row["kind"]),
        device_name=str(row["device_name"]),
        columns=int(row["N"]),
        depth=int(row.get("K", 0)),
        experts=int(row.get("E", 0)),
        dtype=str(row.get("dtype", "")),
        block_shape=str(row.get("block_shape", "")),
        best_by_m=best_by_m(path, row["best_by_m"]),
    )


def device_of(name: str) -> Device:
    """The device of a name as vLLM's files have it.

    Raises:
        UnknownDevice: nothing is known of it.
    """
    if name in _VARIANTS:
        base, own, numbers = _VARIANTS[name]
        return replace(find_device(base), id=own, name=name.replace("_", " "), **numbers)
    return find_device(_SAME.get(name, name.replace("_", " ")), measure=False)


def candidates_of(table: TileTable) -> Candidates | Unranked:
    """All candidates for the table's problem, or why there are none."""
    try:
        device = device_of(table.device_name)
    except UnknownDevice:
        return Unranked(table, "no profile of the device")
    if device.kind != "cuda":
        return Unranked(table, "no family of products for GPUs of other makers than NVIDIA")
    grouped = table.kind == GROUPED
    if grouped and table.dtype not in ("", "bf16"):
        return Unranked(table, "no family of experts in bytes or in types of weights alone")
    if grouped:
        each = 2 if table.experts <= FEW_EXPERTS else 8
        op = Op.parse(f"grouped_n{2 * table.columns}_k{HIDDEN}_g{table.experts}_bf16")
    else:
        each, op = 1, Op.parse(f"dense_n{table.columns}_k{table.depth}_int8_inint8")
    tokens = tuple(sorted(token for token, best in table.best_by_m.items() if "BLOCK_SIZE_M" in best))
    rows = tuple(token * each for token in tokens)
    kernels: list[tuple[Family, MicroKernel]] = []
    expected, tiles = [], []
    for family in GROUPED_FAMILIES if grouped else DENSE_FAMILIES:
        points = list(family.points(op, device)) if family.serves(op) and family.suits(device) else []
        if not points:
            continue
        pairs = [(kernel, Shape.of(m=m)) for kernel in points for m in rows]
        expected.append(expected_us(device, demand(device, family, op, pairs)).reshape(len(points), -1))
        for kernel in points:
            kernels.append((family, kernel))
            tile = triton_tile(family, kernel)
            size = 2 if op.dtype == "bf16" else 1
            depth = 0 if tile is None else tile.block_k * tile.stages * size
            tiles.append([np.nan] * 4 if tile is None else [tile.block_m, tile.block_n, depth, tile.warps])
    return Candidates(
        table=table,
        device=device,
        op=op,
        rows=rows,
        tokens=tokens,
        kernels=tuple(kernels),
        expected=np.concatenate(expected),
        tiles=np.log2(np.array(tiles, np.float64)),
    )


@dataclass(frozen=True)
class _Winners:
    """All known winners: what decides how far each speaks for another problem."""

    tiles: Floats  # (distinct tiles, 4)
    at: NDArray[np.int64]  # tile of each winner
    rows: Floats  # log2 of rows of one matrix
    columns: Floats
    kinds: NDArray[np.str_]
    devices: NDArray[np.str_]
    architectures: NDArray[np.str_]

    @staticmethod
    def of(every: Sequence[Candidates]) -> _Winners:
        known = [(item, token, m) for item in every for token, m in zip(item.tokens, item.rows, strict=True)]
        tiles, at = np.unique([item.winner(token) for item, token, _ in known], axis=0, return_inverse=True)
        return _Winners(
            tiles=tiles,
            at=at,
            rows=np.log2([m / max(item.table.experts, 1) for item, _, m in known]),
            columns=np.log2([item.table.columns for item, _, _ in known]),
            kinds=np.array([item.table.kind for item, _, _ in known]),
            devices=np.array([item.device.id for item, _, _ in known]),
            architectures=np.array([architecture(item.device) for item, _, _ in known]),
        )

    def weights(self, item: Candidates, m: int) -> Floats:
        """How far each winner speaks for ``m`` rows of a problem; none of the problem's device does."""
        near_rows = np.abs(self.rows - np.log2(m / max(item.table.experts, 1))) / ROWS_WIDTH
        near_columns = np.abs(self.columns - np.log2(item.table.columns)) / COLUMNS_WIDTH
        same = np.where(self.kinds == item.table.kind, SAME_KIND, 1.0)
        same = same * np.where(self.architectures == architecture(item.device), SAME_ARCHITECTURE, 1.0)
        return np.asarray(np.exp(-near_rows - near_columns) * same * (self.devices != item.device.id))


def standings(every: Sequence[Candidates], tell: Callable[[str], None] = lambda _: None) -> list[Standing]:
    """Rank of every known winner, its device left out of the density."""
    winners = _Winners.of(every)
    result = []
    for at, item in enumerate(every):
        near = np.exp(-np.abs(item.tiles[:, None] - winners.tiles[None]).sum(axis=2) / TILE_WIDTH)
        near[np.isnan(near)] = 0.0
        elsewhere = winners.architectures != architecture(item.device)
        for column, (token, m) in enumerate(zip(item.tokens, item.rows, strict=True)):
            expected, own = item.expected[:, column], item.counterparts(token)
            weights = winners.weights(item, m)
            refused = {item.refused[index] for index in np.flatnonzero(own).tolist()}
            result.append(
                Standing(
                    table=item.table,
                    device_id=item.device.id,
                    tokens=token,
                    candidates=len(expected),
                    analysis=float((expected * TIE < expected[own].min()).mean()),
                    learned=_ahead(near, winners.at, weights, expected, own),
                    learned_elsewhere=_ahead(near, winners.at, weights * elsewhere, expected, own),
                    lost=float(expected[own].min() / expected.min()),
                    refused="" if "" in refused else min(refused),
                )
            )
        if at % 20 == 0:
            tell(f"{at} of {len(every)} tables")
    return result


def _ahead(near: Floats, at: NDArray[np.int64], weights: Floats, expected: Floats, own: NDArray[np.bool_]) -> float:
    """Share of candidates ahead of the best counterpart, by density and expectation."""
    density = near @ np.bincount(at, weights, minlength=near.shape[1])
    score = np.log(density / max(density.sum(), 1e-30) + _FEW) - EXPECTATION * np.log(expected)
    return float((score > score[own].max() + np.log(TIE) * EXPECTATION).mean())


def first_shares(items: Iterable[Standing]) -> tuple[float, float, float]:
    """Shares of winners within the first ``FIRST`` candidates: analysis, with other devices, with other architectures."""
    columns = np.array([[item.analysis, item.learned, item.learned_elsewhere] for item in items])
    analysis, learned, elsewhere = (columns <= FIRST).mean(axis=0).tolist()
    return analysis, learned, elsewhere


def refusals_by_law(items: Iterable[Standing]) -> Counter[str]:
    """Number of winners whose every counterpart a law refuses."""
    return Counter(item.refused for item in items if item.refused)
