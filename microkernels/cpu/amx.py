"""Tiles of typed kernels in AMX registers: which fit, their C source's lists, and what they ask of a core.

A register has 16 rows of 64 bytes. Rows of x, and rows of a panel of words (two bf16 or four int8 of a column side by side),
are loaded as they lie, so that the packed weight is that of the SIMD tiles. A kernel on tiles has the parameter ``am``.
Where the CPU or its kernel has no AMX, the same kernel runs as several smaller tiles by SIMD instructions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import numpy as np

from haotuner.spec.demand import Demand, DemandQuery
from haotuner.spec.device import Device
from haotuner.spec.kernel import Footprint, MicroKernel

REGISTERS, ROWS, WORDS = 8, 16, 16  # tile registers; rows of one, and 32-bit words of a row
TYPES = ("bf16", "int8")  # whose words are multiplied
TILE_ROWS = (*range(1, ROWS + 1), 24, 32)  # few rows are served by one tile; 17 to 31 seldom need one of their own
# Words ahead, two steps and four, of the panel and of x: tile loads bring nothing ahead by themselves.
PREFETCHES = (0, 32, 64)
# Cycles of tdpbf16ps and tdpbusd; the next may begin after 16 of them for 16 rows (Intel's optimization manual).
LATENCY = 52.0
_SIMD_REGISTERS = 32
_BYTE_RATE = 2.0  # multiply-adds of bytes in the time of one of bf16


def has_tiles(device: Device, dtype: str) -> bool:
    """True if a CPU multiplies this type in tiles."""
    return device.kind == "cpu" and device.tensor_tflops is not None and dtype in TYPES


def on_tiles(kernel: MicroKernel) -> bool:
    """True if a kernel is made of AMX tiles."""
    return bool(dict(kernel.params).get("am"))


def shapes(lanes: int, *, panels: Literal["any", "vectors"] = "any") -> Iterator[tuple[int, int, int, int, int, int]]:
    """(mr, nr, pw, ku, vl, pf) of every tile that fits the registers; ``vectors``: those with panels as wide as a vector."""
    for rows in TILE_ROWS:
        for vectors in range(1, REGISTERS - 1):
            if registers(rows, vectors) > REGISTERS:
                continue
            for streams in (count for count in range(1, vectors + 1) if vectors % count == 0):
                if panels == "vectors" and streams != vectors:
                    continue
                for ahead in PREFETCHES:
                    yield rows, vectors * lanes, vectors * lanes // streams, 1, lanes, ahead


def registers(rows: int, vectors: int) -> int:
    """Tile registers of a tile at the least: its sums, its rows of x, and one for the weight."""
    down = -(-rows // ROWS)
    return down * vectors + down + 1


def footprint(kernel: MicroKernel) -> Footprint:
    """Tile registers, and bytes of L1 that a step reads: rows of x and lines of the panel."""
    lines = kernel["mr"] + kernel["nr"] // WORDS * ROWS
    return Footprint(registers_per_thread=registers(kernel["mr"], kernel["nr"] // WORDS), shared_bytes=lines * 4 * WORDS)


def order(kernel: MicroKernel, dtype: str) -> tuple[int, ...]:
    """Part of a kernel's layout that says how sums are rounded: bf16 otherwise on tiles; some plans have one way alone."""
    return (int(on_tiles(kernel)),) if dtype == "bf16" else ()


def lists(kernel: MicroKernel) -> dict[str, str]:
    """Lists for ``native/typed_amx.h``: each register's steps, written out, and the registers' shapes."""
    rows, vectors = kernel["mr"], kernel["nr"] // WORDS
    down = -(-rows // ROWS)
    sums = {(i, j): i * vectors + j for i in range(down) for j in range(vectors)}
    of_x = [down * vectors + i for i in range(down)]
    first = down * vectors + down
    of_w = [first + j % (REGISTERS - first) for j in range(vectors)]
    heights = [min(ROWS, rows - i * ROWS) for i in range(down)]
    shape = [heights[i] for i, _ in sums] + heights + [ROWS] * (REGISTERS - first)
    item = {(i, j): f"ONE({i}, {j}, {sums[i, j]}, {of_x[i]}, {of_w[j]})" for i, j in sums}
    passes = [f"LOAD({j}, {of_w[j]}) {' '.join(item[i, j] for i in range(down))}" for j in range(vectors)]
    return {
        "ROWS(ONE)": " ".join(f"ONE({i}, {of_x[i]})" for i in range(down)),
        "COLUMNS(ONE)": " ".join(f"ONE({j}, {of_w[j]})" for j in range(vectors)),
        "TILE(ONE)": " ".join(item.values()),
        "PASS(LOAD, ONE)": " ".join(passes),
        "SHAPE": f"{{1, 0, {{0}}, {{{', '.join(['64'] * REGISTERS)}}}, {{{', '.join(map(str, shape))}}}}}",
    }


def in_vectors(kernel: MicroKernel) -> MicroKernel:
    """The SIMD tile whose copies make up a kernel's tile, the largest that fits the registers."""
    result = (1, kernel["pw"])
    for rows in (count for count in range(1, kernel["mr"] + 1) if kernel["mr"] % count == 0):
        for columns in range(kernel["pw"], kernel["nr"] + 1, kernel["pw"]):
            vectors = columns // kernel["vl"]
            if kernel["nr"] % columns == 0 and rows * vectors + vectors + 1 <= _SIMD_REGISTERS:
                result = max(result, (rows, columns), key=lambda tile: tile[0] * tile[1])
    params = {**dict(kernel.params), "mr": result[0], "nr": result[1]}
    return MicroKernel(kernel.family, tuple(params.items()))


def demand(requested: DemandQuery, demanded: Demand, terms: int) -> Demand:
    """The demand of a family's kernels, corrected in the rows of those on tiles.

    Args:
        requested: rows as the family was asked.
        demanded: all of them as SIMD tiles.
        terms: of a word.
    """
    tiles, tile = requested.param("am", 0.0) > 0, demanded.matmul
    if tile is None or not tiles.any():
        return demanded
    rate = np.where(tiles, _BYTE_RATE if terms == 4 else 1.0, 1.0)
    rows, vectors = requested.param("mr"), requested.param("nr") / requested.param("vl")
    down = np.ceil(rows / ROWS)
    step = WORDS * float(terms)  # terms of an instruction
    waits = LATENCY / (down * vectors)  # few sums wait for themselves
    whole = np.floor(rows / ROWS)
    cycles = vectors * (whole * np.maximum(ROWS, waits) + (down - whole) * np.maximum(rows - whole * ROWS, waits))
    flops, size = demanded.work.flops["simd"], float(requested.element_bytes)
    # Lines of x are used as a whole, whatever else of their set there is; where x and panel fit L1 the panel stays.
    stays = demanded.tiles.l1_set_bytes <= float(requested.device.l1_bytes or 32 * 2**10)
    from_l2 = np.where(stays, rows, rows + ROWS * vectors) * size
    more = (from_l2 - tile.mid_bytes) * tile.depth * demanded.tiles.count

    def where(of_tiles: object, of_vectors: object) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.where(tiles, np.asarray(of_tiles, np.float64), np.asarray(of_vectors, np.float64))

    return replace(
        demanded,
        work=replace(
            demanded.work,
            flops={"simd": where(0.0, flops), "tensor": where(flops / rate, 0.0)},
            mid_bytes=where(demanded.work.mid_bytes + more, demanded.work.mid_bytes),  # what is packed comes on top
        ),
        tiles=replace(demanded.tiles, registers=where(down * vectors + down + 1.0, demanded.tiles.registers)),
        matmul=replace(
            tile,
            fmas=where(down * vectors / step, tile.fmas),
            tensor_fmas=where(cycles * WORDS / rate, tile.tensor_fmas),
            loads=where((rows + ROWS * vectors) / step, tile.loads),  # of lines
            checks=where(0.0, tile.checks),
            mid_bytes=where(from_l2, tile.mid_bytes),
            code=where(down * vectors + down + vectors, tile.code),
            bank_ways=where(1.0, tile.bank_ways),
            rate=rate,
        ),
    )
