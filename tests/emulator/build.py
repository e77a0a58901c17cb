"""The emulator and translated units, compiled with g++."""

from __future__ import annotations

import atexit
import functools
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.emulator.translate import translate
from tests.kept import kept, place, version
from tests.run_folder import in_a_run

NATIVE = Path(__file__).parent / "native"
MACHINE = ("machine.cc", "async_copy.cc", "tensor_core.cc", "runtime.cc")
ALIGNMENT = ("-fsanitize=alignment", "-fsanitize-undefined-trap-on-error")  # a misaligned vector access faults on a GPU
# For the calls before loads and stores alone; a 16-byte access stays one.
TRACED = ("-fsanitize=thread", "-fno-tree-sra")
CALLED = "-ftoplevel-reorder"  # of the 280 static functions of CUDA's headers only what is called: a third of a unit's time
UNIT = "-O0"  # a unit runs for less time than an optimiser takes, but for a traced one
TRACED_COPY = "namespace emu { void traced_copy_async(uint32_t to, const void* from, unsigned size, unsigned bytes); }"
_KERNEL = re.compile(r'^extern "C" __global__ void __launch_bounds__\([^)]*\) (\w+)\(([^{]*)\) \{$', re.MULTILINE)
COMPILE_SECONDS = 1500  # a unit takes 2 to 6 s; a machine that others use may stop it for minutes


def toolchain_missing() -> str:
    """What is missing to emulate, or nothing: g++ and the CUDA headers that come with nvcc."""
    if shutil.which("g++") is None:
        return "emulator: no g++"
    if cuda_include() is None:
        return "emulator: no CUDA toolkit headers beside nvcc"
    return ""


@functools.cache
def cuda_include() -> Path | None:
    """The toolkit's header folder; nvcc itself says where, for the one on the PATH may be a wrapper."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        return None
    done = subprocess.run(
        [nvcc, "--dryrun", "-x", "cu", "/dev/null"], capture_output=True, text=True, timeout=600, check=False
    )
    for line in done.stderr.splitlines():
        if line.startswith("#$ TOP="):
            include = Path(line.removeprefix("#$ TOP=")) / "include"
            return include if (include / "cuda_runtime.h").exists() else None
    return None


@functools.cache
def compilers() -> str:
    """Which g++ and which headers of CUDA a unit is compiled with."""
    include = cuda_include()
    release = re.findall(r"#define CUDA_VERSION \d+", (include / "cuda.h").read_text()) if include else ""
    return f"{version('g++')}\n{include} {release}"


@functools.cache
def machine() -> Path:
    """``libemulator.so``, kept between runs of the tests; elsewhere built once a process and removed at its end."""
    if in_a_run():
        return kept("emulator", _own(), _build_machine) / "libemulator.so"
    folder = Path(tempfile.mkdtemp(prefix="haotuner-emulator-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _build_machine(folder)
    return folder / "libemulator.so"


def _build_machine(folder: Path) -> None:
    units = []
    for name in MACHINE:
        unit = folder / f"{name}.o"
        _run(["g++", *_flags(), "-c", str(NATIVE / name), "-o", str(unit)])
        units.append(str(unit))
    _run(["g++", "-shared", *units, "-o", str(folder / "libemulator.so")])


@functools.cache
def _headers() -> list[str]:
    """Where a unit finds the machine's header: compiled, in a run of the tests, for CUDA's are half of a unit's time."""
    if not in_a_run():
        return [f"-I{NATIVE}"]
    return [f"-I{kept('emulator-header', _own(), _precompile)}", f"-I{NATIVE}"]


@functools.cache
def _own() -> list[str | bytes]:
    """What the machine and all that is built on it depend on; ``place``: units know the machine by its path."""
    files = [*sorted(NATIVE.iterdir()), Path(translate.__code__.co_filename), Path(__file__)]
    configuration = repr((_flags(), _flags(UNIT), ALIGNMENT, place()))
    return [compilers(), configuration, *(path.name.encode() + path.read_bytes() for path in files)]


def _precompile(folder: Path) -> None:
    target = str(folder / "emulator.h.gch")
    _run(["g++", *_flags(UNIT), *ALIGNMENT, "-x", "c++-header", str(NATIVE / "emulator.h"), "-o", target])


def build_kernels(source: str, library: Path, *, traced: bool = False) -> Path:
    """A unit of ``cuda/translation_unit.py`` as a shared library with an ``emulator_run_SYMBOL`` for each micro-kernel.

    ``traced``: its accesses to shared memory are seen (``native/banks.cc``); four times as slow.
    """
    if not in_a_run():
        return _build_unit(source, library, traced)
    content = [*_own(), source, str(traced)]
    shutil.copy(kept("unit", content, lambda folder: _whole_unit(source, folder, traced)) / "kernels.so", library)
    return library


def _whole_unit(source: str, folder: Path, traced: bool) -> None:
    _build_unit(source, folder / "kernels.so", traced)


def _build_unit(source: str, library: Path, traced: bool) -> Path:
    unit = library.with_suffix(".cc")
    entries = "".join(_entry(symbol, parameters) for symbol, parameters in _KERNEL.findall(source) if _is_tile(parameters))
    text = translate(source) + entries
    sources: list[str] = [str(unit)]
    checks: tuple[str, ...] = ALIGNMENT
    if traced:
        text = text.replace("emu::copy_async(", "emu::traced_copy_async(")
        unit.write_text(f'#include "emulator.h"\n{TRACED_COPY}\n{text}')
        object_file = unit.with_suffix(".o")
        _run(["g++", *_flags(), *TRACED, f"-I{NATIVE}", "-c", str(unit), "-o", str(object_file)])
        sources, checks = [str(object_file), str(NATIVE / "banks.cc")], ()
    else:
        unit.write_text(text)
    _run([
        "g++", *_flags(UNIT), *checks, "-shared", *_headers(), *sources, "-o", str(library), str(machine()),
        f"-Wl,-rpath,{machine().parent}",
    ])  # fmt: skip
    return library


def _is_tile(parameters: str) -> bool:
    """Whether a kernel with these parameters computes tiles of a product, or adds up parts of its sums."""
    return "ht_cuda_args" in parameters and not any(f"ht_cuda_{other}" in parameters for other in ("fold", "direct"))


def _entry(symbol: str, parameters: str) -> str:
    passed = "*a" + "".join(f", *(const ht_cuda_{more}*)g" for more in ("groups", "batch") if f"ht_{more}" in parameters)
    passed += ", *(const ht_tensor_map*)x, *(const ht_tensor_map*)w" if "x_map" in parameters else ""
    return (
        f'extern "C" int emulator_run_{symbol}(const ht_cuda_args* a, const void* g, const void* x, const void* w, '
        "unsigned columns, unsigned rows, unsigned threads, unsigned shared) {\n"
        "  cudaLaunchConfig_t config = {};\n"
        "  config.gridDim = dim3(columns, rows), config.blockDim = dim3(threads), config.dynamicSmemBytes = shared;\n"
        f"  return emu::launch(config, [=] {{ {symbol}({passed}); }});\n}}\n"
    )


def build_plain(sources: Sequence[Path], library: Path) -> Path:
    """Hand-written CUDA sources (the bundle's probe) as a shared library, each a unit of its own."""
    if not in_a_run():
        return _build_plain(sources, library)
    beside = [path for path in sorted(sources[0].parent.iterdir()) if path.suffix in (".h", ".cuh")]
    content = [*_own(), *(path.name.encode() + b"\0" + path.read_bytes() for path in (*sources, *beside))]
    build_folder = kept("plain", content, lambda folder: _whole_plain(sources, folder))
    shutil.copy(build_folder / "plain.so", library)
    return library


def _whole_plain(sources: Sequence[Path], folder: Path) -> None:
    _build_plain(sources, folder / "plain.so")


def _build_plain(sources: Sequence[Path], library: Path) -> Path:
    units = []
    for source in sources:
        unit = library.with_name(f"{library.stem}-{source.stem}.cc")
        unit.write_text(translate(source.read_text()))
        units.append(str(unit))
    include = f"-I{sources[0].parent}"
    _run([
        "g++", *_flags(UNIT), *ALIGNMENT, "-shared", *_headers(), include, *units, "-o", str(library), str(machine()),
        f"-Wl,-rpath,{machine().parent}",
    ])  # fmt: skip
    return library


def _flags(level: str = "-O1") -> list[str]:
    # -O1: half the compile time of -O2, and the fibers spend theirs at switches. -w: generated code leaves variables unused.
    return [level, CALLED, "-std=c++17", "-fPIC", "-w", "-fpermissive", "-fno-strict-aliasing", f"-I{cuda_include()}"]


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)[:400]}\n{done.stderr[:4000]}")
