"""CUDA micro-kernels to a shared library that needs tvm-ffi and the driver only.

The kernels' unit and their launchers (argument checks, grid, tensor maps) are one translation unit; nvcc compiles it with
the CUDA runtime linked in. Each kernel is exported as a tvm-ffi function ``symbol(X, W, Y)``
that launches on tvm-ffi's current stream. No GPU is needed here.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from haotuner.backends.cuda.compiler import COMPILE_SECONDS, CompileFailed, Toolkit, find_toolkit, read_resources, run_tool
from haotuner.backends.cuda.translation_unit import device_unit
from haotuner.errors import EnvironmentMissing
from haotuner.microkernels.cuda.dense import CudaDense
from haotuner.spec.kernel import MicroKernel
from tests.microkernels.cuda_launchers import launchers

# What the launchers call of the driver. The driver is not on a build machine; a stand-in of the same soname lets the
# linker record the need for libcuda.so.1.
DRIVER_FUNCTIONS = ("cuTensorMapEncodeTiled", "cuGetErrorString", "cuGetErrorName")


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaLibrary:
    """One built library and what the compiler said about its kernels."""

    path: Path
    arch: str
    toolkit: str  # release of nvcc
    resources: Mapping[str, Mapping[str, float]]  # by symbol: registers, stack_bytes, spill_bytes, static_shared_bytes
    seconds: float  # generating and compiling


def cuda_source(programs: Mapping[str, tuple[CudaDense, MicroKernel]], arch: str) -> str:
    """One CUDA C++ translation unit with a launcher and a kernel for each program, the same for every architecture."""
    return device_unit(programs) + launchers(programs)


def compile_source(source: str, library: Path, *, arch: str, toolkit: Toolkit | None = None) -> CudaLibrary:
    """Compile a translation unit of :func:`cuda_source` into a shared library.

    Raises EnvironmentMissing where the toolkit does not build for the architecture, CompileFailed where nvcc
    refuses, or where ptxas says that it drops what a kernel asks for.
    """
    import tvm_ffi

    toolkit = toolkit or find_toolkit()
    if not toolkit.builds_for(arch):
        raise EnvironmentMissing(
            f"asked for {arch}, but nvcc {toolkit.release} builds for {', '.join(toolkit.archs)}; "
            "sm_60 and sm_70 need a CUDA 12 nvcc; without one this device can be selected for and predicted, not built for"
        )
    started = time.monotonic()
    ffi = Path(tvm_ffi.__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        unit = Path(folder, "kernels.cu")
        unit.write_text(source)
        driver = _driver_stand_in(Path(folder))
        number = arch.removeprefix("sm_")
        # No fast math: it flushes denormals, which a dense layer must not. -w: generated code leaves variables unused.
        done = run_tool(
            [
                str(toolkit.nvcc), "-O3", "-std=c++17", "-w", "-shared", "-Xcompiler=-fPIC", "-Xptxas=-v",
                f"-gencode=arch=compute_{number},code={arch}", f"-I{ffi / 'include'}", str(unit), "-o", str(library),
                f"-L{ffi / 'lib'}", "-ltvm_ffi", f"-L{driver.parent}", "-l:libcuda.so.1",
                "-cudart=static", "-Xlinker=--exclude-libs=ALL", "-Xlinker=--as-needed",
            ],
            seconds=COMPILE_SECONDS,
        )  # fmt: skip
    advice = re.findall(r"\(C[0-9]+\) (Potential Performance Loss[^\n]*)", done.out + done.errors)
    if advice:  # wgmma made serial, setmaxnreg ignored: no longer the program that the footprint describes
        raise CompileFailed(
            f"{library.name} for {arch}: ptxas does not follow the program: {'; '.join(sorted(set(advice)))}"
        )
    reported = read_resources(done.errors)
    resources = {name.removesuffix("_kernel"): facts for name, facts in reported.items()}
    return CudaLibrary(
        path=library, arch=arch, toolkit=toolkit.release, resources=resources, seconds=time.monotonic() - started
    )


def build_cuda(
    programs: Mapping[str, tuple[CudaDense, MicroKernel]], library: Path, *, arch: str, toolkit: Toolkit | None = None
) -> CudaLibrary:
    """Generate and compile programs into one shared library; see :func:`compile_source` for the errors."""
    started = time.monotonic()
    built = compile_source(cuda_source(programs, arch), library, arch=arch, toolkit=toolkit)
    return replace(built, seconds=time.monotonic() - started)


def _driver_stand_in(folder: Path) -> Path:
    library = folder / "libcuda.so.1"
    source = folder / "driver.c"
    source.write_text("".join(f"int {name}(void) {{ return 100; }}\n" for name in DRIVER_FUNCTIONS))
    run_tool(
        ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{library.name}", str(source), "-o", str(library)],
        seconds=COMPILE_SECONDS,
    )
    return library
