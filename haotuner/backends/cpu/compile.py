"""Compilation of CPU micro-kernels: TVM's, typed ones by the C compiler, and libraries of both."""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from haotuner.backends.object_cache import ObjectCache, trim
from haotuner.backends.toolchain import Toolchain
from haotuner.hw_profiles.isa import FEATURES, ISAS, CpuInfo, has_tiles, parse_cpuinfo
from haotuner.isolate import group
from haotuner.isolate.answers import TimedOut
from haotuner.microkernels.cpu import epilogue
from haotuner.microkernels.cpu.conv import last_tile
from haotuner.microkernels.cpu.epilogue import steps_of
from haotuner.microkernels.cpu.typed import (
    dtype_of,
    has_program,
    input_of,
    output_of,
    program_of,
    programs_of,
    stepped_symbol,
    stepped_words,
    word_of,
)
from haotuner.microkernels.cpu.typed_source import DOTS, NATIVE, Ways, source, store_symbol, stores, taps_symbol
from haotuner.microkernels.index import family_named
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
TYPED_INCLUDES = (NATIVE, _RUNTIME)  # folders of headers that typed kernels include


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


def left_out_here(compiler: Sequence[str]) -> dict[str, str]:
    """Extensions that a pack which this compiler builds does without, as a word for its manifest; empty if none."""
    unknown = unknown_extensions(compiler, _cpu_here())
    return {NOT_COMPILED: ", ".join(unknown)} if unknown else {}


def _cpu_here() -> CpuInfo:
    return parse_cpuinfo(_CPUINFO.read_text(encoding="utf-8", errors="replace"))


def unknown_extensions(compiler: Sequence[str], info: CpuInfo) -> list[str]:
    """Extensions for bf16 and int8 that the CPU has and the compiler has no option for."""
    flags_of = {dot.feature: [dot.feature] for dot in DOTS.values() if dot.flag in info.flags}
    if has_tiles(info):
        flags_of["amx"] = list(FEATURES)
    with tempfile.TemporaryDirectory(prefix="haotuner-") as scratch:
        empty, compiled = (Path(scratch) / name for name in ("empty.c", "empty.o"))
        empty.touch()
        tried = [*compiler, "-c", str(empty), "-o", str(compiled)]  # zig waits for ever where it is to check syntax only
        return [name for name, of in flags_of.items() if not _runs([*tried, *(f"-m{item}" for item in of)])]


def _runs(words: list[str]) -> bool:
    try:
        return group.run(words, 20).code == 0
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
        toolchain, include = Toolchain.find(objects), list(TYPED_INCLUDES)
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


def typed_declarations(kernels: Sequence[MicroKernel]) -> list[str]:
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


_PACKAGE = Path(__file__).resolve().parents[2]
RUNTIME_SOURCES = _PACKAGE / "runtime" / "native"
TIMING_SOURCES = Path(__file__).resolve().parent / "native"
TIMING_INCLUDES = (RUNTIME_SOURCES, TIMING_SOURCES, _PACKAGE / "hw_profiles" / "native")

# TVM's merging of buffers mixes up vectors of one element, which generated programs keep their variables in.
PASSES = {"tirx.disable_storage_rewrite": True}
# LLVM's loop strength reduction makes chains of the addresses of a tile's rows, and loads of all rows come before the first
# product: of 12 x 32 sums with two terms at a time 36 went to memory, and the kernel took 1.75 times as long. Lower tiles
# have registers for that, and are a few percent faster so.
TALL = re.compile(r"cpu_(dense|conv)_.*_mr1[2-9]_nr(3[2-9]|[4-9][0-9]|[1-9][0-9]{2,})(_|$)")  # symbols of such programs
TALL_OPTIONS = ("-disable-lsr:bool=1",)
KERNELS = "kernels"  # folder of kept micro-kernels, beside those of the runtime
MOST_KEPT = 256 << 20  # bytes of it; a kernel has some ten thousand, a tune some hundred kernels


def warm(objects: Path | None = None) -> None:
    """Import the compiler now, and see that what is kept does not grow: seconds that no job should be charged for."""
    import tvm  # noqa: F401

    if objects is not None:
        trim(objects / KERNELS, MOST_KEPT)


def object_code(
    kernels: Sequence[MicroKernel], mcpu: str, out: Path, *, ways: Ways = "all", objects: Path | None = None
) -> None:
    """One object file with a function ``__tvm_ffi_<name>`` for each kernel, its tail's and its epilogue's.

    ``ways``: of typed kernels, see ``typed_source``. ``objects``: a folder in which TVM's code, and what stores typed sums,
    is kept by what it was compiled from: a program is compiled once, whichever library wants it. TVM's errors pass through.
    """
    typed = [kernel for kernel in kernels if word_of(kernel) is not None]
    if not typed:
        _tvm_object(kernels, mcpu, out, objects)
    elif len(typed) == len(kernels) and not any(map(epilogue.symbol_of, kernels)):
        typed_object(typed, mcpu, out, ways=ways, objects=objects)
    else:
        with tempfile.TemporaryDirectory(prefix="haotuner-") as scratch:
            parts = [Path(scratch) / "typed.o", Path(scratch) / "tvm.o"]
            typed_object(typed, mcpu, parts[0], ways=ways, objects=objects)
            _tvm_object(kernels, mcpu, parts[1], objects)
            Toolchain.find().merge(parts, out)


def _tvm_object(kernels: Sequence[MicroKernel], mcpu: str, out: Path, objects: Path | None) -> None:
    programs = tir_programs(kernels)
    tall = {name: program for name, program in programs.items() if TALL.match(name)}
    others = {name: program for name, program in programs.items() if name not in tall}
    if not programs or (objects is None and not (tall and others)):
        _compile(programs, mcpu, out)
        return
    parts: list[Path] = []
    with tempfile.TemporaryDirectory(prefix="haotuner-") as scratch:
        if objects is None:
            parts = [Path(scratch) / "tall.o", Path(scratch) / "others.o"]
            _compile(tall, mcpu, parts[0])
            _compile(others, mcpu, parts[1])
            Toolchain.find().merge(parts, out)
            return
        for name, program in sorted(programs.items()):  # one by one they take no longer than in one module
            parts.append(Path(scratch) / f"{len(parts)}.o")
            key = _key(program, mcpu)
            ObjectCache(objects / KERNELS / key[:2]).fetch(key, parts[-1], partial(_compile, {name: program}, mcpu))
        Toolchain.find().merge(parts, out)


def tir_programs(kernels: Sequence[MicroKernel]) -> dict[str, Any]:
    """TVM's functions of these kernels and of their epilogues, by symbol."""
    programs: dict[str, Any] = {}  # by name: some families' kernels share programs
    for kernel in dict.fromkeys(epilogue.bare(kernel) for kernel in kernels):
        for symbol, function in _functions_by_symbol(kernel).items():
            programs.setdefault(symbol, function)
    for name, kernel in {epilogue.symbol_of(kernel): kernel for kernel in kernels}.items():
        if name:
            rows = epilogue.along_rows(kernel)
            programs[name] = epilogue.program(epilogue.steps_of(kernel), kernel["vl"], name, rows_are_channels=rows)
    return programs


@lru_cache(maxsize=64)  # a kernel's code is hashed before it is compiled
def _functions_by_symbol(kernel: MicroKernel) -> dict[str, Any]:
    module = family_named(kernel.family).schedule(kernel, kernel.name)
    return {symbol.name_hint: function for symbol, function in module.functions.items()}


def built(programs: Mapping[str, Any], mcpu: str) -> Any:
    """TVM's compiled module of programs that are all tall tiles or none."""
    import tvm
    from tvm.target import Target

    options = {"cl-opt": list(TALL_OPTIONS)} if any(map(TALL.match, programs)) else {}
    with tvm.transform.PassContext(opt_level=3, config=PASSES):
        return tvm.compile(tvm.IRModule(programs), target=Target({"kind": "llvm", "mcpu": mcpu, **options})).mod


def _compile(programs: Mapping[str, Any], mcpu: str, out: Path) -> None:
    built(programs, mcpu).write_to_file(str(out), "o")


def _key(program: Any, mcpu: str) -> str:
    """Hash of all that a program's code depends on: the program itself, the target and the compiler."""
    import tvm

    versions = [importlib.metadata.version(name) for name in ("apache-tvm", "apache-tvm-ffi")]
    words = repr((versions, PASSES, TALL_OPTIONS, TALL.pattern, mcpu))
    return hashlib.sha256(f"{words}\0{tvm.ir.save_json(program)}".encode()).hexdigest()[:32]


def _functions(kernel: MicroKernel) -> list[str]:
    """TVM's function of a kernel and, where it has one, its tail's; none of a kernel whose program is in C."""
    if word_of(kernel) is not None or kernel.family.startswith("cpu_conv_direct_"):
        return []
    name = epilogue.bare(kernel).name
    return [f"__tvm_ffi_{name}", f"__tvm_ffi_{name}_tail"][: 2 if last_tile(kernel) else 1]


def declarations(kernels: Sequence[MicroKernel]) -> str:
    """C declarations of the functions of these kernels."""
    names = list(dict.fromkeys(name for kernel in kernels for name in _functions(kernel)))
    typed = typed_declarations(kernels)
    names += sorted({f"__tvm_ffi_{epilogue.symbol_of(kernel)}" for kernel in kernels if epilogue.symbol_of(kernel)})
    return "\n".join([*(f"extern int {name}(void*, const TVMFFIAny*, int32_t, TVMFFIAny*);" for name in names), *typed])


def _table_row(kernel: MicroKernel) -> str:
    function, tail = (*_functions(kernel), "NULL", "NULL")[:2]
    if direct_program(kernel) is not None and word_of(kernel) is None:
        function = f"(ht_kernel_fn)(void (*)(void)){direct_program(kernel)}"
    if word_of(kernel) is not None and has_program(kernel):
        function = f"(ht_kernel_fn)(void (*)(void)){program_of(kernel).name}"
    words = [f'"{kernel.name}"', function, kernel["mr"], kernel["nr"], kernel["pw"], tail, last_tile(kernel)]
    words += [f"__tvm_ffi_{epilogue.symbol_of(kernel)}", kernel["vl"]] if epilogue.symbol_of(kernel) else ["NULL", 0]
    words += [dict(kernel.params)["wt"]] if "wt" in dict(kernel.params) else []
    if (stepped := stepped_symbol(kernel)) is not None:
        words.append(f".stepped = {stepped}")
    return f"  {{{', '.join(map(str, words))}}},"


def kernel_table(kernels: Sequence[MicroKernel], variable: str, storage: str = "") -> str:
    """C source of ``const ht_kernel <variable>[]``, and a check that the runtime's scratch tile holds each of them."""
    rows = [_table_row(kernel) for kernel in kernels]
    room = {False: "HT_MAX_TILE", True: "HT_TYPED_TILE"}
    fits = [
        f'_Static_assert({k["mr"]} * {k["nr"]} <= {room[word_of(k) is not None]}, "{k.name}: tile too large");'
        for k in kernels
    ]
    return "\n".join([declarations(kernels), f"{storage}const ht_kernel {variable}[] = {{", *rows, "};", *fits, ""])
