"""Ways to run one call on a GPU, and which compilers are there."""

from __future__ import annotations

import importlib.metadata
import shutil

from haotuner.errors import EnvironmentMissing
from haotuner.spec.composition import SERIAL, in_parts, sum_parts
from haotuner.spec.cuda_arch import driver_words, needed_driver
from haotuner.spec.op import Op

OLDEST = 75  # compute capability 7.5: what CUDA 13 still builds for
PARTS = (2, 3, 4, 6, 8, 12, 16)  # of the sum over k that are worth timing: a grid of half to a sixteenth of a round
LEAST_TERMS = 64  # of k in a part; fewer are over before the loads of a part have arrived
WORKSPACE_BYTES = 64 << 20  # of partial sums, in fp32; beyond it a grid is not short of blocks on any GPU that we know
PARTIAL_BYTES = 4
PACKAGES = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc-cu13")


def ways(op: Op, *, one_order: bool) -> tuple[str, ...]:
    """Of a dense layer the sum over k whole, then in parts; every other op is whole, in one launch."""
    if one_order or op.kind != "dense":
        return (SERIAL,)
    return (SERIAL, *(in_parts(parts) for parts in PARTS if op["k"] >= parts * LEAST_TERMS))


def rows_of(way: str, op: Op, limit: int) -> int:
    """Rows up to which the partial sums of a way fit the workspace, at most ``limit``."""
    parts = sum_parts(way)
    return limit if parts == 1 else min(limit, WORKSPACE_BYTES // (PARTIAL_BYTES * parts * op["n"]))


def compilers() -> dict[str, str]:
    """CUDA compilers that are there, by name: where nvcc is, versions of NVRTC's packages."""
    nvcc = shutil.which("nvcc")
    result = {"nvcc": nvcc} if nvcc else {}
    for name in PACKAGES:
        try:
            result[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return result


def driver_lacks(arch: str, driver: int) -> str:
    """Driver that the code that is compiled here needs, where this host's is older (0: none); else empty."""
    from haotuner.backends.cuda.device_code import find_compiler

    try:
        compiler = find_compiler(arch).name
    except EnvironmentMissing:  # said where one is needed
        return ""
    needed = needed_driver(arch, int(compiler.split()[-1].partition(".")[0]))
    if not driver or driver >= needed:
        return ""
    return f"a driver for CUDA {driver_words(needed)}, as {compiler} compiles for {arch}"


def compiler_words(arch: str) -> dict[str, str]:
    """The compiler that builds for an architecture here, in a word for fingerprints. EnvironmentMissing if there is none."""
    from haotuner.backends.cuda.device_code import find_compiler

    return {"device code": find_compiler(arch).name}
