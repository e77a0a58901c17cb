"""CPU micro-kernels to object code (TVM, LLVM) and to libraries (the C compiler)."""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from haotuner.backends.cpu.typed_library import declarations as typed_declarations
from haotuner.backends.cpu.typed_library import direct_program, typed_object
from haotuner.backends.object_cache import ObjectCache, trim
from haotuner.backends.toolchain import Toolchain
from haotuner.microkernels.cpu import epilogue
from haotuner.microkernels.cpu.conv import last_tile
from haotuner.microkernels.cpu.typed import has_program, program_of, word_of
from haotuner.microkernels.cpu.typed_source import Ways
from haotuner.microkernels.cpu.typed_stepped import stepped_symbol
from haotuner.microkernels.index import family_named
from haotuner.spec.kernel import MicroKernel

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
    programs = programs_of(kernels)
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


def programs_of(kernels: Sequence[MicroKernel]) -> dict[str, Any]:
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
