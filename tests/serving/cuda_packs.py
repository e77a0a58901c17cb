"""CUDA packs built without tuning: real device code, made-up plans, through the real writer and runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from haotuner.backends.cuda.pack_dense import CudaEntry, PackedCudaDense
from haotuner.backends.cuda.pack_source import pack_library
from haotuner.backends.toolchain import Toolchain
from haotuner.microkernels.index import family_named
from haotuner.pack.write import write_pack
from haotuner.words.kernel import MicroKernel

# Of each architecture: two tiles with wide loads, and one that takes any alignment.
SIMT = ("cuda_simt_fp32__bm32_bn64_bk8_tm4_tn4_gm8_v4_kn0", "cuda_simt_fp32__bm32_bn64_bk8_tm4_tn4_gm8_v1_kn0")
FIRST, LAST = 2, 200  # rows that the plans say they were tuned for


def packed_op(name: str, kernels: Sequence[MicroKernel], cells: Sequence[tuple[int, CudaEntry]]) -> PackedCudaDense:
    """An op with one plan: (largest rows, how they are computed) of each cell."""
    return PackedCudaDense(
        name=name,
        first_m=FIRST,
        last_m=LAST,
        kernels=kernels,
        launches=[family_named(kernel.family).launch(kernel) for kernel in kernels],
        bounds=[bound for bound, _ in cells],
        entries=[entry for _, entry in cells],
    )


def document(ops: Sequence[PackedCudaDense], arch: str, **device: Any) -> dict[str, Any]:
    """The manifest's content, as `haotuner tune` writes it."""
    told = {"id": f"stand-in-{arch.replace('_', '-')}", "arch": arch, "kind": "cuda", "name": f"stand-in {arch}"}
    return {"haotuner": "0", "device": told | device, "ops": [op.entry({}) for op in ops]}


def make_pack(out: Path, ops: Sequence[PackedCudaDense], arch: str, cubin: Path, **device: Any) -> Path:
    """Build the library around device code and publish the pack at ``out``."""
    library = out.with_suffix(".so")
    pack_library(ops, arch, Toolchain.find(), library, lambda _kernels, _arch, to: to.write_bytes(cubin.read_bytes()))
    write_pack(out, library, document(ops, arch, **device), lambda _: None)
    library.unlink()
    return out
