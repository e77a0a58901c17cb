"""The CUDA families in the order they are tried: the newest instructions first."""

from __future__ import annotations

from haotuner.microkernels.cuda.dense import CudaDense
from haotuner.microkernels.cuda.dense_gemv import CudaGemv
from haotuner.microkernels.cuda.dense_mma import CudaMma
from haotuner.microkernels.cuda.dense_mma_turing import CudaMmaTuring
from haotuner.microkernels.cuda.dense_simt import CudaSimt
from haotuner.microkernels.cuda.dense_wgmma import CudaWgmma
from haotuner.microkernels.cuda.dense_wgmma_short import CudaWgmmaShort

CUDA_FAMILIES: tuple[CudaDense, ...] = (
    CudaWgmma("cuda_wgmma_fp16", "fp16"),
    CudaWgmma("cuda_wgmma_bf16", "bf16"),
    CudaWgmmaShort("cuda_wgmmas_fp16", "fp16"),
    CudaWgmmaShort("cuda_wgmmas_bf16", "bf16"),
    CudaMma("cuda_mma_fp16", "fp16"),
    CudaMma("cuda_mma_bf16", "bf16"),
    CudaMmaTuring("cuda_mma8_fp16", "fp16"),
    CudaSimt("cuda_simt_fp32", "fp32"),
    CudaGemv("cuda_gemv_fp16", "fp16"),
    CudaGemv("cuda_gemv_bf16", "bf16"),
    CudaGemv("cuda_gemv_fp32", "fp32"),
)
