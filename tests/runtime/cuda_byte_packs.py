"""CUDA packs of products of bytes: as cuda_packs.py has those of floats."""

from __future__ import annotations

from typing import Any

from haotuner.microkernels.cuda.families import CUDA_FAMILIES
from haotuner.spec.op import Op
from tests.runtime.cuda_packs import Pick

_FAMILIES: dict[str, Any] = {family.name: family for family in CUDA_FAMILIES}
_BYTE_TILE = {"bm": 32, "bn": 64, "bk": 64, "wm": 1, "wn": 2, "st": 3}
_WORD_TILE = {"bm": 32, "bn": 64, "bk": 32, "tm": 4, "tn": 4}
BYTE_PICKS = (  # whole copies, and pairs of bytes; words, and those that are gathered; windows, in groups
    Pick(
        arch="sm_80",
        op=Op.parse("dense:n=72,k=144,dtype=int8,out=uint8,epilogue=scale+bias+relu").name,
        kernels=tuple(_FAMILIES["cuda_mma_int8"].kernel(**_BYTE_TILE, v=v) for v in (16, 2)),
        dtype="int8",
    ),
    Pick(
        arch="sm_90a",
        op=Op.parse("dense:n=71,k=64,dtype=int8,in=int8,out=fp16,epilogue=scale+residual+silu").name,
        kernels=tuple(_FAMILIES["cuda_mma_sint8"].kernel(**_BYTE_TILE, v=v) for v in (16, 2)),
        dtype="int8",
    ),
    Pick(
        arch="sm_75",
        op=Op.parse("dense:n=72,k=52,dtype=int8,in=int8").name,
        kernels=tuple(_FAMILIES["cuda_simt_sint8"].kernel(**_WORD_TILE, v=v) for v in (4, 1)),
        dtype="int8",
    ),
    Pick(
        arch="sm_80",
        op=Op.parse("conv2d:c=8,f=6,r=3,s=3,pad=1,dtype=int8,out=int8,epilogue=scale+bias+residual+relu").name,
        kernels=(_FAMILIES["cuda_batched_mma_tint8"].kernel(**_BYTE_TILE, v=8),),
        dtype="int8",
    ),
    Pick(
        arch="sm_75",
        op=Op.parse("conv2d:c=6,f=10,r=3,s=3,pad=1,groups=2,layout=nhwc,dtype=int8,out=fp32,epilogue=scale+bias").name,
        kernels=(_FAMILIES["cuda_batched_simt_int8"].kernel(**_WORD_TILE, v=1),),
        dtype="int8",
    ),
    Pick(
        arch="sm_80",
        op=Op.parse(
            "conv_transpose2d:c=12,f=6,r=4,s=3,stride=2,pad=1,groups=2,layout=nhwc,dtype=int8,in=int8,out=uint8,"
            "epilogue=scale+bias+residual+relu"
        ).name,
        kernels=(_FAMILIES["cuda_batched_simt_sint8"].kernel(**_WORD_TILE, v=1, kn=1),),
        dtype="int8",
    ),
    Pick(
        arch="sm_75",
        op=Op.parse("conv_transpose1d:c=9,f=5,s=4,stride=2,opad=1,dtype=int8").name,
        kernels=(_FAMILIES["cuda_batched_simt_tint8"].kernel(**_WORD_TILE, v=1, kn=2),),
        dtype="int8",
    ),
)
BYTE_PRODUCTS = (
    Pick(
        arch="sm_80",
        op=Op.parse("batch_matmul:k=16,layout=nt,dtype=int8,out=fp16,epilogue=gelu").name,
        kernels=tuple(_FAMILIES["cuda_batched_mma_int8"].kernel(**_BYTE_TILE, v=v) for v in (16, 2)),
        dtype="int8",
    ),
    Pick(
        arch="sm_75",
        op=Op.parse("batch_matmul:k=15,layout=tn,dtype=int8,in=int8").name,
        kernels=(_FAMILIES["cuda_batched_simt_sint8"].kernel(**_WORD_TILE, v=1, kn=2),),
        dtype="int8",
    ),
)
