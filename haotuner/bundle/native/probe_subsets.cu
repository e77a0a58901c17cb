// Fewer multiprocessors: green contexts, reached through the runtime's driver entry points, so that an older driver is an
// error code and not a library that does not load.
#include "probe_launch.h"

#include <cuda.h>
#include <cudaTypedefs.h>

namespace {

constexpr int kMaxUnits = 1024;
constexpr int kUnitThreads = 64;

__global__ void units_kernel(unsigned int* seen, long long cycles) {
    unsigned int unit;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(unit));
    if (threadIdx.x == 0 && unit < kMaxUnits) atomicAdd(&seen[unit], 1u);
#ifdef __CUDA_ARCH__
    const long long start = clock64();  // stay long enough that the next block goes elsewhere
    while (clock64() - start < cycles) {
    }
#endif
}

template <class Function>
bool entry(const char* name, unsigned version, Function* function) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult status;
    if (cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &status) != cudaSuccess) {
        cudaGetLastError();
        return false;
    }
    *function = (Function)found;
    return status == cudaDriverEntryPointSuccess && found != nullptr;
}

}  // namespace

PROBE_API int probe_units(int* units, void* stream) {
    unsigned int* seen = nullptr;
    static unsigned int counts[kMaxUnits];
    cudaError_t error = cudaMalloc((void**)&seen, sizeof counts);
    if (error == cudaSuccess) error = cudaMemsetAsync(seen, 0, sizeof counts, (cudaStream_t)stream);
    if (error == cudaSuccess) error = probe_launch(units_kernel, kMaxUnits, kUnitThreads, stream, seen, 20000ll);
    if (error == cudaSuccess)
        error = cudaMemcpyAsync(counts, seen, sizeof counts, cudaMemcpyDeviceToHost, (cudaStream_t)stream);
    if (error == cudaSuccess) error = cudaStreamSynchronize((cudaStream_t)stream);
    if (seen != nullptr) cudaFree(seen);
    *units = 0;
    for (unsigned int count : counts) *units += count != 0;
    return error;
}

PROBE_API int probe_subset(int units, void** stream, int* got) {
    PFN_cuDeviceGetDevResource_v12040 resource_of = nullptr;
    PFN_cuDevSmResourceSplitByCount_v12040 split = nullptr;
    PFN_cuDevResourceGenerateDesc_v12040 describe = nullptr;
    PFN_cuGreenCtxCreate_v12040 create = nullptr;
    PFN_cuGreenCtxStreamCreate_v12050 stream_in = nullptr;
    PFN_cuCtxFromGreenCtx_v12040 plain_of = nullptr;
    PFN_cuCtxSetCurrent_v4000 make_current = nullptr;
    if (!entry("cuDeviceGetDevResource", 12040, &resource_of) || !entry("cuDevSmResourceSplitByCount", 12040, &split) ||
        !entry("cuDevResourceGenerateDesc", 12040, &describe) || !entry("cuGreenCtxCreate", 12040, &create) ||
        !entry("cuGreenCtxStreamCreate", 12050, &stream_in) || !entry("cuCtxFromGreenCtx", 12040, &plain_of) ||
        !entry("cuCtxSetCurrent", 4000, &make_current))
        return cudaErrorNotSupported;
    CUdevResource whole = {}, part = {};
    unsigned int groups = 1;
    CUdevResourceDesc description;
    CUgreenCtx context;
    CUresult result = resource_of(0, &whole, CU_DEV_RESOURCE_TYPE_SM);
    if (result == CUDA_SUCCESS) result = split(&part, &groups, &whole, nullptr, 0, (unsigned)units);
    if (result == CUDA_SUCCESS) result = describe(&description, &part, 1);
    if (result == CUDA_SUCCESS) result = create(&context, description, 0, CU_GREEN_CTX_DEFAULT_STREAM);
    if (result == CUDA_SUCCESS) result = stream_in((CUstream*)stream, context, CU_STREAM_NON_BLOCKING, 0);
    // Current from here on, as PyTorch's green contexts are: launches and events then belong to the stream's context.
    CUcontext plain = nullptr;
    if (result == CUDA_SUCCESS) result = plain_of(&plain, context);
    if (result == CUDA_SUCCESS) result = make_current(plain);
    *got = (int)part.sm.smCount;
    if (result != CUDA_SUCCESS) return (int)result;  // the driver's codes of these calls are the runtime's
    return probe_new_marks();
}
