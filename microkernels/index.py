"""The index of families: an explicit tuple, in the order they are tried."""

from __future__ import annotations

from functools import cache

from haotuner.errors import NothingLegal
from haotuner.microkernels.cpu.conv import CpuConv
from haotuner.microkernels.cpu.conv_direct import CpuConvDirect
from haotuner.microkernels.cpu.conv_lines import CpuConvLines
from haotuner.microkernels.cpu.conv_pixel_major import CpuConvPixelMajor
from haotuner.microkernels.cpu.conv_winograd import CpuConvWinograd
from haotuner.microkernels.cpu.dense import CpuDense
from haotuner.microkernels.cpu.generated import CpuGenerated
from haotuner.microkernels.cpu.online_softmax import CpuOnline
from haotuner.microkernels.cpu.product import CpuProduct
from haotuner.microkernels.cpu.typed import TYPED_FAMILIES
from haotuner.microkernels.cpu.typed_conv import TYPED_CONV_FAMILIES
from haotuner.microkernels.cpu.typed_product import TYPED_PRODUCT_FAMILIES
from haotuner.microkernels.cuda.conv import conv_families
from haotuner.microkernels.cuda.direct import direct_family
from haotuner.microkernels.cuda.families import CUDA_FAMILIES
from haotuner.microkernels.cuda.generated import CudaGenerated
from haotuner.microkernels.cuda.online_softmax import CudaOnline, short_family
from haotuner.ops.groups import GROUPS
from haotuner.ops.index import KINDS, installed, kind_named
from haotuner.spec.family import Family
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op

# A kind with a formula has a family without a line of its own.
FAMILIES: tuple[Family, ...] = (
    CpuDense(),
    *TYPED_FAMILIES,
    CpuProduct(),
    *TYPED_PRODUCT_FAMILIES,
    CpuConvDirect(),
    CpuConv(),
    CpuConvLines(),
    CpuConvPixelMajor(),
    CpuConvWinograd(),
    *TYPED_CONV_FAMILIES,
    *CUDA_FAMILIES,
    *(CpuOnline(kind) for kind in KINDS.values() if CpuOnline.covers(kind)),
    *(CpuGenerated(kind) for kind in KINDS.values() if CpuGenerated.covers(kind) and not CpuOnline.covers(kind)),
    *(CudaOnline(kind) for kind in KINDS.values() if CpuOnline.covers(kind)),
    *(CudaGenerated(kind) for kind in KINDS.values() if CudaGenerated.covers(kind)),
)


@cache
def _own_families(kind: str) -> tuple[Family, ...]:
    """The families of a kind that a file or an installed package brought."""
    result = kind_named(kind)
    assert result is not None
    if CpuOnline.covers(result):
        return CpuOnline(result), CudaOnline(result)
    return (CpuGenerated(result), CudaGenerated(result)) if CpuGenerated.covers(result) else ()


def family_named(name: str) -> Family:
    """The family of that name; KeyError if there is none."""
    for family in FAMILIES:
        if family.name == name:
            return family
    for kind in (*GROUPS, *(item for item in installed() if f"_{item}_" in name)):
        for family in _own_families(kind):
            if family.name == name:
                return family
    if (result := short_family(name) or direct_family(name)) is not None:
        return result
    raise KeyError(f"no family {name!r}; known: {', '.join(f.name for f in FAMILIES)}")


def family_of(kernel: MicroKernel, op: Op) -> Family:
    """The kernel's family as it computes this op: on devices a convolution has kernels of products."""
    return next((family for family in conv_families(op) if family.name == kernel.family), None) or family_named(
        kernel.family
    )


def families_for(op: Op, backend: str) -> tuple[Family, ...]:
    """The families that compute this op on a backend; NothingLegal if none does."""
    known = FAMILIES if op.kind in KINDS else _own_families(op.kind)
    if (short := short_family(f"cuda_generated_{op.kind}_{op.dtype}")) is not None:
        known = (*known, short)
    result = tuple(family for family in known if family.backend == backend and family.serves(op))
    if not result:
        named = ", ".join(family.name for family in known if family.backend == backend and op.kind in family.name)
        example = "dense:n=2304,k=768" if backend == "cpu" else "dense:n=2304,k=768 or dense:n=2304,k=768,dtype=fp16"
        why = f"dtype, weight layout, epilogue or dynamic axes not covered by {named}" if named else "none has this kind"
        unknown = sorted({axis for family in FAMILIES if op.kind in family.name for axis in getattr(family, "known", ())})
        if set(unknown) - {axis for axis, _ in op.static}:
            why, example = f"it asks for a known {', '.join(unknown)}", op.meaning.example
        raise NothingLegal(f"no family computes {op.name} on {backend}: {why}. Write for example {example}")
    return result
