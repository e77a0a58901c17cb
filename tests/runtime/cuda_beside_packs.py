"""A CUDA pack of groups whose outputs one launch writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from haotuner.backends.cuda.translation_unit import device_unit
from haotuner.backends.toolchain import Toolchain
from haotuner.codegen.group import kinds_of
from haotuner.hw_profiles.find import find_device
from haotuner.microkernels.cuda.generated import CudaGenerated
from haotuner.microkernels.index import families_for, family_named
from haotuner.spec.op import Op
from tests.runtime.cuda_beside import GRAPHS
from tests.runtime.cuda_generated_packs import packed_generated
from tests.runtime.cuda_packs import make_pack
from tests.standin.cubins import cubin_of

ARCH = "sm_90a"


def packed(op: Op) -> Any:
    """An op with a kernel for short rows and one for long ones, whose blocks share rows where they can."""
    (family,) = families_for(op, "cuda")
    assert isinstance(family, CudaGenerated)
    points = list(family.points(op, find_device("h100", measure=False)))
    cut = [point for point in points if family.cut(point).stages and point["vl"] < 512]
    return packed_generated(op.name, family, (points[0], cut[0] if cut else points[-1]), 400)


def beside_pack(out: Path, code: Path, linker: Toolchain | None = None) -> Path:
    """Write a pack of every group to ``out`` and its device code below ``code``; the path of the cubin."""
    kinds = [kind for name, graph in GRAPHS.items() for kind in kinds_of(graph, name, lambda kind: True)]
    ops = [packed(Op.parse(kind.name)) for kind in kinds]
    micro_kernels = [packed_kernel.kernel for op in ops for packed_kernel in op.kernels]
    kernels: dict[str, Any] = {kernel.name: (family_named(kernel.family), kernel) for kernel in micro_kernels}
    code.mkdir(parents=True, exist_ok=True)
    unit = code / "beside.cu"
    unit.write_text(device_unit(kernels, reduces=()))
    cubin = cubin_of(unit, code, ARCH)
    make_pack(out, ops, ARCH, cubin, linker=linker)
    return cubin
