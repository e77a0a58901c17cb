"""C source of typed micro-kernels: one file for all of a library and one of what stores, from the headers in ``native/``.

They are C and not TVM: TVM 0.27 legalizes bf16 away before LLVM sees it, so that ``vdpbf16ps`` cannot be had.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from haotuner.microkernels.cpu import amx
from haotuner.spec.kernel import MicroKernel

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
    if any(amx.on_tiles(kernel) for _, kernel, _ in programs) and ways not in ("simd", "dot", "wide"):
        text.append('#include "typed_tiles.h"')
    for symbol, kernel, terms in programs:
        if amx.on_tiles(kernel):
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
        small = amx.in_vectors(kernel)
        text += _in_vectors(symbol, small, terms, ways)
        down, right = kernel["mr"] // small["mr"], kernel["nr"] // small["nr"]
        text.append(f"static void {symbol}_parts(const ht_typed_tile* tile) {{ ht_typed_tile part = *tile; "
                    f"part.tiles *= {down}; part.groups *= {right}; {symbol}_vectors(&part); }}")  # fmt: skip
    if ways not in ("simd", "dot", "wide"):
        target = "" if ways == "emulated" else '__attribute__((target("amx-tile,amx-bf16,amx-int8")))'
        words = {"MR": kernel["mr"], "NV": kernel["nr"] // kernel["vl"], "PW": kernel["pw"], "PF": kernel["pf"],
                 "TYPE": terms, "SIGNED": dict(kernel.params).get("sg", 0), "TARGET": target, "PROGRAM": f"{symbol}_tiles",
                 "NAME(part)": f"{symbol}_tiles_##part"}  # fmt: skip
        text += _included({**words, **amx.lists(kernel)}, "typed_amx.h")
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
