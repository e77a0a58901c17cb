"""Launchers of a unit's kernels as tvm-ffi functions ``symbol(X, W, Y)``: what a library of ``cuda_library.py`` exports.

They launch on tvm-ffi's current stream of X's device, with one share of k and no epilogue; m = 0 launches nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from haotuner.microkernels.cuda.dense import CudaDense
from haotuner.microkernels.cuda.launch import OPERAND_ELEMENTS, Map
from haotuner.spec.kernel import MicroKernel

_HEAD = f"""
#include <cuda.h>
#include <cuda_runtime.h>
#include <string.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/extra/cuda/device_guard.h>
#include <tvm/ffi/function.h>
namespace {{
using tvm::ffi::TensorView;
void ht_check(cudaError_t error) {{
  if (error == cudaSuccess || error == cudaErrorCudartUnloading) return;
  cudaGetLastError();
  TVM_FFI_THROW(RuntimeError) << "CUDA launch: " << cudaGetErrorString(error);
}}
ht_cuda_args ht_arguments(TensorView x, TensorView w, TensorView y, bool kn, DLDataType type, int64_t vector) {{
  for (TensorView one : {{x, w, y}}) {{
    if (one.device().device_type != kDLCUDA || one.device().device_id != x.device().device_id)
      TVM_FFI_THROW(ValueError) << "X, W and Y must lie on one CUDA device";
    if (one.ndim() != 2 || one.dtype() != type || one.stride(1) != 1)
      TVM_FFI_THROW(ValueError) << "X, W and Y must be matrices of the kernel's dtype with inner stride 1";
  }}
  const int64_t m = x.size(0), k = x.size(1), n = w.size(kn ? 1 : 0);
  if (w.size(kn ? 0 : 1) != k || y.size(0) != m || y.size(1) != n || (w.size(0) > 1 && w.stride(0) != w.size(1)))
    TVM_FFI_THROW(ValueError) << "Mismatched extents: X (" << m << ", " << k << "), Y (" << y.size(0) << ", "
                              << y.size(1) << ")";
  if (m * x.stride(0) > {OPERAND_ELEMENTS} || n * k > {OPERAND_ELEMENTS})
    TVM_FFI_THROW(ValueError) << "X or W has more than 2^31 elements";
  const uintptr_t bytes = vector * type.bits / 8;
  const uintptr_t addresses = (uintptr_t)x.data_ptr() | (uintptr_t)w.data_ptr();
  if (k % vector || (m > 1 && x.stride(0) % vector) || (kn && n % vector) || addresses % bytes)
    TVM_FFI_THROW(ValueError) << "k, X's row stride and the addresses of X and W must be multiples of " << vector
                              << " elements";
  return {{x.data_ptr(), w.data_ptr(), nullptr, nullptr, y.data_ptr(), nullptr, (int32_t)m, (int32_t)n, (int32_t)k,
          (int32_t)(m > 1 ? x.stride(0) : k), (int32_t)(m > 1 ? y.stride(0) : n), 1, HT_Y_OWN, 0, nullptr, nullptr,
          nullptr, 0}};
}}
ht_tensor_map ht_encoded(CUtensorMapDataType type, const void* base, int64_t rows, int64_t columns, int64_t pitch,
                         unsigned box_rows, unsigned box_columns, CUtensorMapSwizzle swizzle) {{
  alignas(128) CUtensorMap map;
  const cuuint64_t extents[] = {{(cuuint64_t)columns, (cuuint64_t)rows}}, pitches[] = {{(cuuint64_t)pitch * 2}};
  const cuuint32_t box[] = {{box_columns, box_rows}}, steps[] = {{1, 1}};
  const CUresult error = cuTensorMapEncodeTiled(&map, type, 2, (void*)base, extents, pitches, box, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (error != CUDA_SUCCESS) {{
    const char* text = "";
    cuGetErrorString(error, &text);
    TVM_FFI_THROW(RuntimeError) << "cuTensorMapEncodeTiled: " << text;
  }}
  ht_tensor_map bytes;
  memcpy((void*)&bytes, &map, sizeof map);
  return bytes;
}}
}}  // namespace
"""
_DL_TYPES = {"fp32": "kDLFloat, 32, 1", "fp16": "kDLFloat, 16, 1", "bf16": "kDLBfloat, 16, 1"}
_MAP_TYPES = {"fp16": "CU_TENSOR_MAP_DATA_TYPE_FLOAT16", "bf16": "CU_TENSOR_MAP_DATA_TYPE_BFLOAT16"}


def launchers(programs: Mapping[str, tuple[CudaDense, MicroKernel]]) -> str:
    """Host C++ to follow the unit of these programs."""
    return _HEAD + "".join(_launcher(symbol, family, kernel) for symbol, (family, kernel) in programs.items())


def _launcher(symbol: str, family: CudaDense, kernel: MicroKernel) -> str:
    launch, kn = family.launch(kernel), family.reads_kn(kernel)
    maps = "".join(f", {_encoded(item, kn, family.dtype)}" for item in launch.maps)
    kind = f"{str(kn).lower()}, DLDataType{{{_DL_TYPES[family.dtype]}}}, {launch.vector}"
    columns = f"((args.n + {launch.tile_n - 1}) / {launch.tile_n})"
    return f"""
static void {symbol}_launch(TensorView x, TensorView w, TensorView y) {{
  const ht_cuda_args args = ht_arguments(x, w, y, {kind});
  if (args.m == 0) return;
  tvm::ffi::CUDADeviceGuard guard(x.device().device_id);
  const auto attribute = cudaFuncAttributeMaxDynamicSharedMemorySize;
  ht_check(cudaFuncSetAttribute((const void*)&{symbol}, attribute, {launch.shared_bytes}));
  cudaLaunchConfig_t config = {{}};
  config.gridDim = dim3((args.m + {launch.tile_m - 1}) / {launch.tile_m} * {columns});
  config.blockDim = dim3({launch.threads});
  config.dynamicSmemBytes = {launch.shared_bytes};
  config.stream = (cudaStream_t)TVMFFIEnvGetStream(kDLCUDA, x.device().device_id);
  ht_check(cudaLaunchKernelEx(&config, {symbol}, args{maps}));
}}
TVM_FFI_DLL_EXPORT_TYPED_FUNC({symbol}, {symbol}_launch);
"""


def _encoded(tensor_map: Map, kn: bool, dtype: str) -> str:
    of_w = "args.w, args.k, args.n, args.n" if kn else "args.w, args.n, args.k, args.k"
    operand = "args.x, args.m, args.k, args.ldx" if tensor_map.operand == "x" else of_w
    swizzle = (
        f"CU_TENSOR_MAP_SWIZZLE_{tensor_map.swizzle_bytes}B" if tensor_map.swizzle_bytes else "CU_TENSOR_MAP_SWIZZLE_NONE"
    )
    return f"ht_encoded({_MAP_TYPES[dtype]}, {operand}, {tensor_map.rows}, {tensor_map.columns}, {swizzle})"
