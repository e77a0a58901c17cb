"""C source of typed micro-kernels: one file for all of a library, tiles in AMX registers included.

Tiles of typed kernels in AMX registers: which fit, their C source's lists, and what they ask of a core.

A register has 16 rows of 64 bytes. Rows of x, and rows of a panel of words (two bf16 or four int8 of a column side by side),
are loaded as they lie. So the packed weight is that of the SIMD tiles. A kernel on tiles has the parameter ``am``. Where the
CPU or its kernel has no AMX, the same kernel runs as several smaller tiles by SIMD instructions.

They are C and not TVM: TVM 0.27 legalizes bf16 away before LLVM sees it, so that ``vdpbf16ps`` cannot be had.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
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


NATIVE = Path(__file__).resolve().parent / "native"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """An instruction that multiplies whole words: the extension as gcc names it, and as /proc/cpuinfo does."""

    feature: str
    flag: str


# By terms of a word and lanes; elsewhere words are widened.
DOTS = {
    (2, 16): Dot(feature="avx512bf16", flag="avx512_bf16"),
    (4, 16): Dot(feature="avx512vnni", flag="avx512_vnni"),
    (4, 8): Dot(feature="avxvnni", flag="avx_vnni"),
}


# all: what the CPU has is found out when the kernel runs; simd: but for AMX. tiles: AMX for its kernels, dot for others.
# emulated: AMX in plain C, for tests.
Ways = Literal["all", "simd", "tiles", "dot", "wide", "emulated"]


def source(
    programs: Sequence[tuple[str, MicroKernel, int]],
    lanes: int,
    *,
    ways: Ways = "all",
    stepped: Sequence[Mapping[str, object]] = (),
) -> str:
    """C source of these programs (symbol, kernel, terms of a word).

    ``stepped``: what ``typed_stepped.h`` is told of each epilogue that is a function of this file.
    ``ways``: with any way alone the code is half as much; only where it is known to run.
    """
    text = ["#define HT_TILES_IN_C"] if ways == "emulated" else ["#define _GNU_SOURCE /* syscall */"]
    text += [f"#define HT_LANES {lanes}", '#include "typed_vectors.h"']
    if any(on_tiles(kernel) for _, kernel, _ in programs) and ways not in ("simd", "dot", "wide"):
        text.append('#include "typed_tiles.h"')
    for symbol, kernel, terms in programs:
        if on_tiles(kernel):
            text += _on_tiles(symbol, kernel, terms, ways)
        else:
            text += _in_vectors(symbol, kernel, terms, ways)
            text.append(f"void {symbol}(const ht_typed_tile* tile) {{ {symbol}_vectors(tile); }}")
    if stepped:  # store a vector as stores do
        text += _storing(lanes, rounds=False)
    for words in stepped:
        text += _included(words, "typed_stepped.h")
    return "\n".join([*text, ""])


def stores(lanes: int, *, ways: Ways = "all") -> str:
    """C source of everything that stores the sums of programs, and of depthwise taps: the same in every library."""
    dot = DOTS.get((2, lanes)) if ways not in ("wide", "emulated") else None  # what multiplies bf16 rounds to it, too
    text = [f"#define HT_LANES {lanes}", '#include "typed_vectors.h"', *_storing(lanes, rounds=dot is not None)]
    for out in (*STORED, "floats"):
        arguments = "const void* s, int64_t ld, char* to, int64_t step, int64_t rows, int64_t columns"
        call = f"ht_vl{lanes}_store_{out}(s, ld, to, step, rows, columns);"
        if out == "bf16" and dot is not None:
            faster = call.replace("store_bf16", "store_bf16_dot")
            call = f'if (__builtin_cpu_supports("{dot.feature}")) {faster} else {call}'
        text.append(f"void {store_symbol(out, lanes)}({arguments}) {{ {call} }}")
    for dtype in TAPPED:
        arguments = "void* s, int64_t n, const char* const* x, const float* const* w, int64_t step, int64_t taps"
        text.append(
            f"void {taps_symbol(dtype, lanes)}({arguments}) {{ ht_vl{lanes}_taps_{dtype}(s, n, x, w, step, taps); }}"
        )
    return "\n".join([*text, ""])


def _storing(lanes: int, *, rounds: bool) -> list[str]:
    """Lines of C that store vectors, of these lanes; ``rounds``: with the CPU's own rounding to bf16."""
    names = [f"#define HT_NAME(part) ht_vl{lanes}_##part", f"#define HT_STORE_BF16 {int(rounds)}"]
    return [*names, '#include "typed_store.h"']


def _in_vectors(symbol: str, kernel: MicroKernel, terms: int, ways: Ways) -> list[str]:
    """C source of ``<symbol>_vectors``: the program by SIMD instructions."""
    text, lanes = [], kernel["vl"]
    dot = DOTS.get((terms, lanes)) if ways not in ("wide", "emulated") else None
    made = [("dot", 1, f'__attribute__((target("{dot.feature}")))')] if dot else []
    for way, number, target in made if made and ways in ("dot", "tiles") else [("wide", 0, ""), *made]:
        words = {"MR": kernel["mr"], "NV": kernel["nr"] // lanes, "PW": kernel["pw"], "PF": kernel["pf"],
                 "TYPE": terms, "PLAIN": int(kernel.family.endswith("_fp32")), "DOT": number,
                 "SIGNED": dict(kernel.params).get("sg", 0), "TARGET": target, "PROGRAM": f"{symbol}_{way}"}  # fmt: skip
        words |= _lists(kernel["mr"], kernel["nr"] // lanes)
        words |= {"NAME(part)": f"{symbol}_{way}_##part", "UNROLL": f'_Pragma("GCC unroll {kernel["ku"]}")'}
        text += _included(words, "typed_program.h")
    run = f"{symbol}_wide(tile)"
    if dot and ways in ("dot", "tiles"):
        run = f"{symbol}_dot(tile)"
    elif dot:
        run = f'if (__builtin_cpu_supports("{dot.feature}")) {symbol}_dot(tile); else {run}'
    return [*text, f"static void {symbol}_vectors(const ht_typed_tile* tile) {{ {run}; }}"]


def _on_tiles(symbol: str, kernel: MicroKernel, terms: int, ways: Ways) -> list[str]:
    """C source of a program on AMX tiles, and of the same in smaller SIMD tiles where there are none."""
    text, run = [], f"{symbol}_parts(tile)"
    if ways in ("all", "simd", "dot", "wide"):
        small = in_vectors(kernel)
        text += _in_vectors(symbol, small, terms, ways)
        down, right = kernel["mr"] // small["mr"], kernel["nr"] // small["nr"]
        text.append(f"static void {symbol}_parts(const ht_typed_tile* tile) {{ ht_typed_tile part = *tile; "
                    f"part.tiles *= {down}; part.groups *= {right}; {symbol}_vectors(&part); }}")  # fmt: skip
    if ways not in ("simd", "dot", "wide"):
        target = "" if ways == "emulated" else '__attribute__((target("amx-tile,amx-bf16,amx-int8")))'
        words = {"MR": kernel["mr"], "NV": kernel["nr"] // kernel["vl"], "PW": kernel["pw"], "PF": kernel["pf"],
                 "TYPE": terms, "SIGNED": dict(kernel.params).get("sg", 0), "TARGET": target, "PROGRAM": f"{symbol}_tiles",
                 "NAME(part)": f"{symbol}_tiles_##part"}  # fmt: skip
        text += _included({**words, **lists(kernel)}, "typed_amx.h")
        otherwise = run if ways == "all" else "__builtin_trap()"  # this host was said to have tiles
        run = f"if (ht_tiles_here()) {symbol}_tiles(tile); else {otherwise}"
    return [*text, f"void {symbol}(const ht_typed_tile* tile) {{ {run}; }}"]


def _included(words: Mapping[str, object], header: str) -> list[str]:
    """A header with these macros defined for it alone."""
    return [*(f"#define HT_{name} {value}" for name, value in words.items()), f'#include "{header}"',
            *(f"#undef HT_{name.partition('(')[0]}" for name in words)]  # fmt: skip


def _lists(rows: int, vectors: int) -> dict[str, str]:
    """Lists of a tile's steps for each of its rows, of its vectors and of its sums: see ``typed_program.h``."""
    each = [f"ONE({i}, {j})" for i in range(rows) for j in range(vectors)]
    row, vector = ([f"ONE({i})" for i in range(count)] for count in (rows, vectors))
    return {f"{name}(ONE)": " ".join(text) for name, text in (("ROWS", row), ("COLUMNS", vector), ("TILE", each))}


STORED = ("fp32", "bf16", "fp16", "int32", "int8", "uint8")


def store_symbol(out: str, lanes: int) -> str:
    """Name of what stores fp32 sums as another type (fp32: any 32 bits as they are; floats: int32 as fp32)."""
    return f"typed_store_{out}_vl{lanes}"


TAPPED = ("fp32", "bf16", "fp16", "uint8", "int8")  # types of x that depthwise convolutions have


def taps_symbol(dtype: str, lanes: int) -> str:
    """Name of what adds the taps of a depthwise convolution of images of a type."""
    return f"typed_taps_{dtype}_vl{lanes}"
