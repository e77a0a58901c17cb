"""What compiled CUDA kernels must keep to, read off their cubins; ``tests/bench/cuda_gates.py`` looks at all of them."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from haotuner.backends.cuda.device_code import build_cubin
from haotuner.backends.cuda.sass import Code, find_nvdisasm, read
from haotuner.microkernels.cuda.dense import CudaDense
from haotuner.microkernels.cuda.families import CUDA_FAMILIES
from haotuner.microkernels.cuda.fused import built_for
from haotuner.spec.kernel import MicroKernel
from tests.standin.patience import WALL_S

DEVICES = {"h200": "sm_90a", "a100-80gb": "sm_80", "l40s": "sm_89", "rtx-4090": "sm_89"}
OPS = ("dense:n=2304,k=768", "dense:n=2304,k=768,dtype=fp16", "dense:n=2304,k=768,dtype=bf16")
# Convolutions: windows by CUDA cores, of channels last and first; bytes, and a transposed one of them.
CONV_OPS = (
    "conv2d:c=64,f=64,r=3,s=3,pad=1,layout=nhwc",
    "conv2d:c=64,f=64,r=3,s=3,pad=1",
    "conv2d:c=64,f=64,r=3,s=3,pad=1,layout=nhwc,dtype=int8",
    "conv_transpose2d:c=64,f=64,r=2,s=2,stride=2,layout=nhwc,dtype=int8",
)
SHAPES, CONV_SHAPES = "m=1..4096", "b=1..8;h=56;w=56"
UNIT = 8  # kernels
MATRIX = {
    "cuda_wgmma": "HGMMA",
    "cuda_wgmmas": "HGMMA",
    "cuda_mma": "HMMA",
    "cuda_mma8": "HMMA",
    "cuda_simt": "FFMA",
    "cuda_gemv": "FFMA",
}
OF_BYTES = {"cuda_mma": "IMMA", "cuda_simt": "IDP"}
# Groups, matrices of a batch, and windows of an image are found before the main loop.
FOUND_BEFORE = ("grouped_", "batched_", "windows_", "images_", "phases_")
# Instructions of the main loop for each of its matrix instructions or FFMAs, on tiles that have enough of them.
HGMMA_LIMIT, HMMA_LIMIT, FFMA_LIMIT = 13.0, 3.0, 1.16
HGMMA_WINDOWS_LIMIT = 50.0  # of windows: all threads copy, and ask of each piece whether its tap lies inside
NARROW_STORES = 8  # of Y in single elements and of partial sums, four at a time, each in a loop
NARROW_OF_BYTES = 3  # of sums as they are, with what is added, and of partial sums
NARROW_OF_STEPS = 4  # of Y in single elements of each of three types


def broken(family: CudaDense, kernel: MicroKernel, arch: str, code: Code) -> Iterator[str]:
    """The gates that a kernel's code breaks, in words. Builds for steps may have longer loops: see ``fused.py``."""
    with_steps = built_for(kernel) != 0
    kind = family.name.rpartition("_")[0]
    for prefix in FOUND_BEFORE:
        kind = kind.replace(f"cuda_{prefix}", "cuda_")
    multiplies = (OF_BYTES if family.dtype == "int8" else MATRIX)[kind]
    loop = code.main_loop(multiplies)
    count = loop.count(multiplies)
    share = len(loop.instructions) / max(count, 1)
    if not count:
        yield f"no {multiplies} in a loop"
    if loop.count("MUFU"):  # of a reciprocal: nothing else in a main loop needs one
        yield "a division in the main loop"
    for spill in ("LDL", "STL"):
        if loop.count(spill):
            yield f"{loop.count(spill)} {spill} in the main loop"
    if kind in ("cuda_wgmma", "cuda_wgmmas"):
        if loop.count("R2UR"):
            yield f"{loop.count('R2UR')} R2UR in the main loop"
        if share > (HGMMA_WINDOWS_LIMIT if family.windows else HGMMA_LIMIT) and not with_steps:
            yield f"{share:.1f} instructions per HGMMA"
    if multiplies == "HMMA" and kind == "cuda_mma" and _large_mma(kernel) and share > HMMA_LIMIT and not with_steps:
        yield f"{share:.2f} instructions per HMMA"
    if multiplies == "FFMA" and kind == "cuda_simt" and share > FFMA_LIMIT and _large_simt(kernel) and not with_steps:
        yield f"{share:.3f} instructions per FFMA"
    if kind != "cuda_gemv":
        stores = code.stores()
        if not stores["128"]:
            yield "no 16-byte store"
        narrow = sum(stores.values()) - stores["128"] - stores["64"]  # of 8 bytes: partial sums, by four threads 32
        # Operands changed over, eight threads store 32 bytes of partial sums, each element by an instruction.
        across = kernel["wr"] * kernel["bm"] // 2 if kind == "cuda_wgmmas" else 0
        single = NARROW_OF_STEPS if with_steps else NARROW_OF_BYTES if family.dtype == "int8" else NARROW_STORES
        if narrow > single * (kernel["wr"] if across else 1) + across + _anywhere(family, kernel, kind, with_steps):
            yield f"stores {dict(stores)}"


def _anywhere(family: CudaDense, kernel: MicroKernel, kind: str, with_steps: bool) -> int:
    """Stores of rows that begin anywhere: of 16 bits, each element of a thread by an instruction (``ht_put_rows``)."""
    if with_steps or family.dtype not in ("fp16", "bf16") or kind not in ("cuda_mma", "cuda_mma8", "cuda_wgmma"):
        return 0
    return (
        kernel["wr"] * kernel["bn"] // 2
        if kind == "cuda_wgmma"
        else kernel["bm"] * kernel["bn"] // (kernel["wm"] * kernel["wn"] * 32)
    )


def _large_mma(kernel: MicroKernel) -> bool:
    """A warp has 16 instructions or more for 16 elements of k, and 16-byte loads."""
    rows, columns = kernel["bm"] // kernel["wm"], kernel["bn"] // kernel["wn"]
    return rows * columns >= 64 * 32 and kernel["v"] == 8


def _large_simt(kernel: MicroKernel) -> bool:
    """A thread has 64 FFMAs for an element of k, and stages of 16 or more; those of 8 are at 1.13 to 1.19."""
    tile = kernel["bm"] * kernel["bn"]
    return kernel["tm"] * kernel["tn"] == 64 and kernel["v"] == 4 and kernel["bk"] >= 16 and tile >= 64 * 128


def proposed(device: str, each: int | None, ops: Sequence[str] = OPS, shapes: str = SHAPES) -> list[MicroKernel]:
    """What selection keeps for the device, of each op all or, by seed, so many of each family."""
    kernels: list[MicroKernel] = []
    for op in ops:
        command = [sys.executable, "-m", "haotuner", "candidates", "--op", op, "--shapes", shapes, "--device", device]
        done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=WALL_S, check=True)
        candidates = [MicroKernel.parse(name) for name in json.loads(done.stdout)["kept"]]
        kernels += candidates if each is None else some_of_each_family(candidates, each)
    return kernels


def some_of_each_family(kernels: Sequence[MicroKernel], each: int) -> list[MicroKernel]:
    """So many of each family, or all of a small one, by seed."""
    draw, families = random.Random(0), defaultdict(list)
    for kernel in kernels:
        families[kernel.family].append(kernel)
    return [kernel for _, members in sorted(families.items()) for kernel in draw.sample(members, min(each, len(members)))]


def checked(kernels: Sequence[MicroKernel], arch: str, folder: Path) -> dict[str, list[str]]:
    """The broken gates of each kernel that breaks one."""
    nvdisasm = find_nvdisasm()
    assert nvdisasm is not None
    families = {family.name: family for family in CUDA_FAMILIES}
    broken_gates: dict[str, list[str]] = {}
    for start in range(0, len(kernels), UNIT):
        programs = {kernel.name: (families[kernel.family], kernel) for kernel in kernels[start : start + UNIT]}
        cubin = build_cubin(programs, folder / f"{arch}-{start}.cubin", arch=arch)
        code = read(cubin.path, nvdisasm)
        for name, (family, kernel) in programs.items():
            why = list(broken(family, kernel, arch, code[name]))
            if cubin.resources[name]["spill_bytes"]:
                why.append(f"{cubin.resources[name]['spill_bytes']:.0f} bytes of spills")
            if why:
                broken_gates[name] = why
    return broken_gates
