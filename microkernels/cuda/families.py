"""The CUDA families in the order they are tried: the newest instructions first."""

from __future__ import annotations

from haotuner.microkernels.cuda.dense import CudaDense
from haotuner.microkernels.cuda.dense_gemv import CudaGemv
from haotuner.microkernels.cuda.dense_mma import CudaMma
from haotuner.microkernels.cuda.dense_mma_turing import CudaMmaTuring
from haotuner.microkernels.cuda.dense_simt import CudaSimt
from haotuner.microkernels.cuda.dense_wgmma import CudaWgmma, CudaWgmmaShort
from haotuner.microkernels.cuda.dense_wgmma_windows import CudaWgmmaWindows

_TILES: tuple[tuple[type[CudaDense], str, tuple[str, ...]], ...] = (
    (CudaWgmma, "wgmma", ("fp16", "bf16")),
    (CudaWgmmaShort, "wgmmas", ("fp16", "bf16")),
    (CudaMma, "mma", ("fp16", "bf16")),
    (CudaMmaTuring, "mma8", ("fp16",)),
    (CudaSimt, "simt", ("fp32",)),
    (CudaGemv, "gemv", ("fp16", "bf16", "fp32")),
)
# Products of bytes by the signs of X and W; those of channels-first images without signs, which are W, have their own.
_OF_BYTES: tuple[tuple[type[CudaDense], str], ...] = ((CudaMma, "mma"), (CudaSimt, "simt"))
_SIGNS = {"int8": "us", "sint8": "ss"}
DENSE_FAMILIES: tuple[CudaDense, ...] = (
    *(tiles(f"cuda_{name}_{dtype}", dtype) for tiles, name, dtypes in _TILES for dtype in dtypes),
    *(tiles(f"cuda_{name}_{of}", "int8", signs=signs) for tiles, name in _OF_BYTES for of, signs in _SIGNS.items()),
)
GROUPED_FAMILIES: tuple[CudaDense, ...] = tuple(
    tiles(f"cuda_grouped_{name}_{dtype}", dtype, grouped=True) for tiles, name, dtypes in _TILES for dtype in dtypes
)
# Of products whose weight is nobody's to keep: no tensor maps, which are made once for a weight.
BATCHED_FAMILIES: tuple[CudaDense, ...] = (
    *(
        tiles(f"cuda_batched_{name}_{dtype}", dtype, batched=True)
        for tiles, name, dtypes in _TILES
        if name in ("mma", "simt")
        for dtype in dtypes
    ),
    *(
        tiles(f"cuda_batched_{name}_{of}", "int8", batched=True, signs=signs)
        for tiles, name in _OF_BYTES
        for of, signs in {**_SIGNS, "tint8": "su"}.items()
    ),
)
# Of convolutions alone, whose image columns are never laid out.
WINDOW_FAMILIES: tuple[CudaDense, ...] = (
    *(CudaWgmmaWindows(f"cuda_windows_wgmma_{dtype}", dtype, batched=True, windows="last") for dtype in ("fp16", "bf16")),
    *(CudaMma(f"cuda_windows_mma_{dtype}", dtype, batched=True, windows="last") for dtype in ("fp16", "bf16")),
    *(
        tiles(f"cuda_windows_{name}_{of}", "int8", batched=True, windows="last", signs=signs)
        for tiles, name in _OF_BYTES
        for of, signs in _SIGNS.items()
    ),
    CudaSimt("cuda_windows_simt_fp32", "fp32", batched=True, windows="last"),
    CudaSimt("cuda_images_simt_fp32", "fp32", batched=True, windows="first"),
)
# The same of transposed convolutions, all residues of whose results' places are one launch.
PHASE_FAMILIES: tuple[CudaDense, ...] = tuple(
    type(item)(
        item.name.replace("_windows_", "_phases_"), item.dtype, batched=True, signs=item.signs, windows="last", phased=True
    )
    for item in WINDOW_FAMILIES
    if item.windows == "last"
)
CUDA_FAMILIES: tuple[CudaDense, ...] = (
    *DENSE_FAMILIES,
    *GROUPED_FAMILIES,
    *BATCHED_FAMILIES,
    *WINDOW_FAMILIES,
    *PHASE_FAMILIES,
)
