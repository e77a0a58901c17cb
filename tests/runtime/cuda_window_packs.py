"""CUDA packs of convolutions whose kernels read windows where they lie, channels last."""

from __future__ import annotations

from typing import Any

from haotuner.microkernels.cuda.families import CUDA_FAMILIES
from haotuner.spec.op import Op
from tests.runtime.cuda_packs import Pick

_FAMILIES: dict[str, Any] = {family.name: family for family in CUDA_FAMILIES}
_TILE = {"bm": 32, "bn": 32, "bk": 32, "wm": 1, "wn": 2, "st": 3}
_STRIPS = {"bm": 32, "bn": 64, "bk": 8, "tm": 4, "tn": 4}
WINDOW_PICKS = (  # several taps of several steps; in groups, apart, with steps wider than a warp's rows; bytes along a line
    Pick(
        arch="sm_80",
        op=Op.parse("conv2d:c=64,f=24,r=3,s=3,pad=1,layout=nhwc,dtype=fp16,epilogue=bias+residual+relu").name,
        kernels=(
            _FAMILIES["cuda_batched_mma_fp16"].kernel(**_TILE, v=1),
            _FAMILIES["cuda_windows_mma_fp16"].kernel(**_TILE),
        ),
        dtype="float16",
    ),
    Pick(
        arch="sm_90a",
        op=Op.parse("conv2d:c=128,f=10,r=2,s=3,pad=1.2.1.2,stride=2.1,dilation=1.2,groups=2,layout=nhwc,dtype=bf16").name,
        kernels=(_FAMILIES["cuda_windows_mma_bf16"].kernel(bm=64, bn=16, bk=64, wm=4, wn=1, st=2),),
        dtype="bfloat16",
    ),
    Pick(
        arch="sm_90a",
        op=Op.parse("conv2d:c=128,f=24,r=3,s=2,pad=1,stride=1.2,layout=nhwc,dtype=bf16,epilogue=bias+residual+relu").name,
        kernels=(
            _FAMILIES["cuda_batched_mma_bf16"].kernel(**_TILE, v=1),
            _FAMILIES["cuda_windows_wgmma_bf16"].kernel(bm=128, bn=16, wr=2, st=3),
        ),
        dtype="bfloat16",
    ),
    Pick(
        arch="sm_80",
        op=Op.parse("conv1d:c=64,f=20,s=5,pad=2,stride=2,layout=nwc,dtype=int8,out=uint8,epilogue=scale+bias+relu").name,
        kernels=(_FAMILIES["cuda_windows_mma_int8"].kernel(**{**_TILE, "bk": 64}, v=16),),
        dtype="int8",
    ),
    Pick(
        arch="sm_80",
        op=Op.parse("conv2d:c=16,f=20,r=3,s=2,pad=1,stride=2.1,layout=nhwc,epilogue=bias+residual+relu").name,
        kernels=(
            _FAMILIES["cuda_batched_simt_fp32"].kernel(**_STRIPS, v=1),
            _FAMILIES["cuda_windows_simt_fp32"].kernel(**_STRIPS),
        ),
        dtype="float32",
    ),
    Pick(
        arch="sm_75",
        op=Op.parse("conv1d:c=128,f=20,s=3,pad=2,dilation=2,groups=2,layout=nwc,dtype=int8,in=int8").name,
        kernels=(_FAMILIES["cuda_windows_simt_sint8"].kernel(bm=32, bn=64, bk=64, tm=4, tn=4, v=16),),
        dtype="int8",
    ),
)
IMAGE_PICKS = (  # channels first: pixels along the columns of a product an image, in groups, with strides and dilations
    Pick(
        arch="sm_80",
        op=Op.parse(
            "conv2d:c=48,f=40,r=2,s=3,pad=1.2.1.2,stride=2.1,dilation=1.2,groups=2,epilogue=bias+residual+relu"
        ).name,
        kernels=(
            _FAMILIES["cuda_batched_simt_fp32"].kernel(**_STRIPS, v=1),
            _FAMILIES["cuda_images_simt_fp32"].kernel(**_STRIPS, kn=1),
        ),
        dtype="float32",
    ),
    Pick(
        arch="sm_90a",
        op=Op.parse("conv1d:c=16,f=9,s=5,pad=2,stride=2").name,
        kernels=(_FAMILIES["cuda_images_simt_fp32"].kernel(bm=16, bn=64, bk=16, tm=2, tn=8, v=4, kn=1),),
        dtype="float32",
    ),
)
BESIDE_COLUMNS = Pick(  # planned by columns, whose copies are wider than those of its windows
    arch="sm_80",
    op=Op.parse("conv2d:c=36,f=8,r=2,s=2,layout=nhwc,dtype=fp16").name,
    kernels=(
        _FAMILIES["cuda_windows_mma_fp16"].kernel(**_TILE, v=4),
        _FAMILIES["cuda_batched_mma_fp16"].kernel(**_TILE, v=8),
    ),
    dtype="float16",
)
# Transposed: all residues in a launch; in groups, of dilations that share a factor; bytes; results that no tap reaches.
PHASE_PICKS = (
    Pick(
        arch="sm_90a",
        op=Op.parse("conv_transpose2d:c=128,f=40,r=4,s=3,stride=2,pad=1,groups=2,layout=nhwc,dtype=fp16").name,
        kernels=(_FAMILIES["cuda_phases_wgmma_fp16"].kernel(bm=128, bn=32, st=4),),
        dtype="float16",
    ),
    Pick(
        arch="sm_80",
        op=Op.parse(
            "conv_transpose2d:c=64,f=24,r=4,s=3,stride=2,pad=1,layout=nhwc,dtype=fp16,epilogue=bias+residual+relu"
        ).name,
        kernels=(
            _FAMILIES["cuda_batched_mma_fp16"].kernel(**_TILE, v=1, kn=1),
            _FAMILIES["cuda_phases_mma_fp16"].kernel(**_TILE),
        ),
        dtype="float16",
    ),
    Pick(
        arch="sm_90a",
        op=Op.parse(
            "conv_transpose2d:c=128,f=10,r=3,s=5,stride=2.3,dilation=2.1,pad=1.2.0.1,opad=1,groups=2,layout=nhwc,dtype=bf16,"
            "out=fp32,epilogue=residual+silu+scale"
        ).name,
        kernels=(_FAMILIES["cuda_phases_mma_bf16"].kernel(bm=64, bn=16, bk=64, wm=4, wn=1, st=2),),
        dtype="bfloat16",
    ),
    Pick(
        arch="sm_80",
        op=Op.parse(
            "conv_transpose1d:c=64,f=20,s=5,pad=2,stride=3,layout=nwc,dtype=int8,out=uint8,epilogue=scale+bias+relu"
        ).name,
        kernels=(_FAMILIES["cuda_phases_mma_int8"].kernel(**{**_TILE, "bk": 64}, v=16),),
        dtype="int8",
    ),
    Pick(
        arch="sm_80",
        op=Op.parse("conv_transpose2d:c=16,f=20,r=2,s=1,stride=3.2,layout=nhwc,epilogue=bias").name,
        kernels=(_FAMILIES["cuda_phases_simt_fp32"].kernel(**_STRIPS),),
        dtype="float32",
    ),
)
