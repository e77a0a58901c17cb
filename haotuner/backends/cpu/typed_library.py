"""Typed micro-kernels in libraries: their object code by the C compiler, and the tables that the runtime reads."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from haotuner.backends.toolchain import Toolchain
from haotuner.hw_profiles.amx import FEATURES, has_tiles
from haotuner.hw_profiles.isa import ISAS, CpuInfo, parse_cpuinfo
from haotuner.isolate import command
from haotuner.isolate.answers import TimedOut
from haotuner.microkernels.cpu.epilogue import steps_of
from haotuner.microkernels.cpu.typed import dtype_of, has_program, input_of, output_of, programs_of, word_of
from haotuner.microkernels.cpu.typed_source import DOTS, NATIVE, Ways, source, store_symbol, stores, taps_symbol
from haotuner.microkernels.cpu.typed_stepped import stepped_symbol, stepped_words
from haotuner.ops.dtypes import DTYPES
from haotuner.spec.kernel import MicroKernel

TILED_LANES = 8
# What is tried in turn where a compiler does not know the instructions (gcc before 11 not AMX, 9 not all of AVX-512).
_TRIED: dict[Ways, tuple[Ways, ...]] = {
    "all": ("all", "simd", "wide"),
    "tiles": ("tiles", "dot", "wide"),
    "dot": ("dot", "wide"),
}
NOT_COMPILED = "not compiled"  # in a manifest: what the CPU has and the compiler did not know
_CPUINFO = Path("/proc/cpuinfo")
_RUNTIME = Path(__file__).resolve().parents[2] / "runtime" / "native"


def way_here(kernel: MicroKernel) -> Ways:
    """The way in which this host runs typed kernels of a type."""
    word = word_of(kernel)
    dot = None if word is None else DOTS.get((word.terms, kernel["vl"]))
    if dot is None:
        return "wide"
    info = _cpu_here()
    if kernel["vl"] == ISAS[0].wave_width and has_tiles(info):
        return "tiles"
    return "dot" if dot.flag in info.flags else "wide"


def left_out_here(compiler: str) -> dict[str, str]:
    """Extensions that a pack which this compiler builds does without, as a word for its manifest; empty if none."""
    unknown = unknown_extensions(compiler, _cpu_here())
    return {NOT_COMPILED: ", ".join(unknown)} if unknown else {}


def _cpu_here() -> CpuInfo:
    return parse_cpuinfo(_CPUINFO.read_text(encoding="utf-8", errors="replace"))


def unknown_extensions(compiler: str, info: CpuInfo) -> list[str]:
    """Extensions for bf16 and int8 that the CPU has and the compiler has no option for."""
    flags_of = {dot.feature: [dot.feature] for dot in DOTS.values() if dot.flag in info.flags}
    if has_tiles(info):
        flags_of["amx"] = list(FEATURES)
    tried = [compiler, "-fsyntax-only", "-x", "c", "/dev/null"]
    return [name for name, of in flags_of.items() if not _runs([*tried, *(f"-m{item}" for item in of)])]


def _runs(words: list[str]) -> bool:
    try:
        return command.run(words, 20).code == 0
    except (OSError, TimedOut):
        return False


def typed_object(
    kernels: Sequence[MicroKernel], mcpu: str, out: Path, *, ways: Ways = "all", objects: Path | None = None
) -> None:
    """One object file of typed kernels; RuntimeError with the compiler's words, ValueError of a level that has no flags.

    ``objects``: a folder in which what stores their sums is kept, half of a small library's time and the same in all.
    """
    level = next((isa for isa in ISAS if isa.arch == mcpu), None)
    if level is None:
        raise ValueError(f"typed kernels are built for {', '.join(isa.arch for isa in ISAS)}, not for {mcpu}")
    halves = ("-mf16c",) if "f16c" in level.flags else ()
    with tempfile.TemporaryDirectory(prefix="haotuner-") as scratch:
        toolchain, include = Toolchain.find(objects), [NATIVE, _RUNTIME]
        programs_c, stores_c = (Path(scratch) / name for name in ("typed.c", "stores.c"))
        flags = (*level.compile_flags, *halves)
        tried = _TRIED.get(ways, (ways,))
        for way in tried:
            programs_text, stores_text = source_of(kernels, ways=way)
            programs_c.write_text(programs_text)
            stores_c.write_text(stores_text)
            made = [programs_c.with_suffix(".o")] if programs_text else []
            try:
                for program in made:
                    toolchain.object(programs_c, include, program, flags)
                toolchain.object(stores_c, include, stores_c.with_suffix(".o"), flags, keep=True)
                toolchain.merge([*made, stores_c.with_suffix(".o")], out)
                break
            except RuntimeError:  # `haotuner doctor` says what the compiler does not know
                if way == tried[-1]:
                    raise


def source_of(kernels: Sequence[MicroKernel], *, ways: Ways = "all") -> tuple[str, str]:
    """C source of typed kernels, empty where none has a program of its own, and of what stores their sums."""
    programs: dict[str, tuple[str, MicroKernel, int]] = {}
    for kernel in filter(has_program, kernels):
        word = word_of(kernel)
        assert word is not None
        programs |= {tile.name: (tile.name, tile, word.terms) for tile in programs_of(kernel)}
    ordered = [programs[name] for name in sorted(programs)]
    by_symbol = {stepped_symbol(kernel): kernel for kernel in kernels}
    stepped = [stepped_words(kernel) for symbol, kernel in sorted(by_symbol.items(), key=str) if symbol is not None]
    (lanes,) = {kernel["vl"] for kernel in kernels}
    text = source(ordered, lanes, ways=ways, stepped=stepped) if ordered or stepped else ""
    return text, stores(lanes, ways=ways)


def declarations(kernels: Sequence[MicroKernel]) -> list[str]:
    """C declarations of the programs of these kernels and of what stores their sums, a line each."""
    lines = []
    for kernel in kernels:
        if word_of(kernel) is not None:
            stored = (output_of(kernel), "fp32", "floats")
            if has_program(kernel):
                lines += [f"extern void {tile.name}(const ht_typed_tile*);" for tile in programs_of(kernel)]
            lines.append(
                f"extern void {_taps(kernel)}(void*, int64_t, const char* const*, const float* const*, int64_t, int64_t);"
            )
            if (stepped := stepped_symbol(kernel)) is not None:
                block = "const void*, int64_t, char*, int64_t, int64_t, int64_t"
                lines.append(f"extern void {stepped}({block}, const float* const*);")
            lines += [
                f"extern void {store_symbol(out, kernel['vl'])}(const void*, int64_t, char*, int64_t, int64_t, int64_t);"
                for out in stored
            ]
    return list(dict.fromkeys(lines))


def _taps(kernel: MicroKernel) -> str:
    return taps_symbol(input_of(kernel), kernel["vl"])


def direct_program(kernel: MicroKernel) -> str | None:
    """Runtime program of a kernel of depthwise convolutions, a name and the C source ``kinds/<...>.c``; None: nothing.

    Kernels in other types than fp32 have programs for vectors of 8 lanes and more; with fewer each pixel is summed alone.
    """
    if not kernel.family.startswith("cpu_conv_direct_"):
        return None
    if word_of(kernel) is None:
        return f"ht_conv_direct_{kernel['vl']}"
    return f"ht_conv_direct_{kernel['vl']}_{input_of(kernel)}" if kernel["vl"] >= TILED_LANES else None


def types_of(kernel: MicroKernel, variable: str, *, beside: bool = False) -> str:
    """C source of ``static const ht_typed <variable>`` for an op of this kernel.

    ``beside``: a call may bring what makes floats of whole sums, so that storing them rounds.
    """
    word, dtype, out = word_of(kernel), DTYPES[dtype_of(kernel)], output_of(kernel)
    assert word is not None
    whole = out if DTYPES[out].eps else "fp32"
    elements = [DTYPES[name] for name in (input_of(kernel), dtype.name, out, whole)]
    exact = dtype.sums == "int32"
    raw = exact and out == "int32" and not steps_of(kernel) and not beside
    words = [f"{{{element.code}, {element.size * 8}}}" for element in elements]
    words += [str(word.terms), str(word.bytes), store_symbol("fp32" if raw else out, kernel["vl"])]
    words += [store_symbol("floats", kernel["vl"]) if exact else "NULL", str(int(raw)), _taps(kernel)]
    words.append(f"&{direct_program(kernel)}" if direct_program(kernel) else "NULL")
    return f"static const ht_typed {variable} = {{{', '.join(words)}}};"
