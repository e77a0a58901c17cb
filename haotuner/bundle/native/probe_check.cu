// Inputs, and the judge: every output against a float64 sum of products, one thread each, no tiling that could share a mistake
// with the kernels under test.
#include "probe_launch.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace {

constexpr int kThreads = 256;
constexpr int64_t kBlocks = 4096;  // a grid-stride loop takes the rest

// Counter-based values: the finalizer of MurmurHash3 (Appleby 2011) on index and seed.
__device__ uint32_t scrambled(uint64_t index, uint32_t seed) {
    uint64_t h = index + (uint64_t)seed * 0x9e3779b97f4a7c15ull;
    h ^= h >> 33;
    h *= 0xff51afd7ed558ccdull;
    h ^= h >> 33;
    h *= 0xc4ceb9fe1a85ec53ull;
    h ^= h >> 33;
    return (uint32_t)h;
}

__device__ float value(uint64_t index, uint32_t seed, int pattern) {
    const uint32_t bits = scrambled(index, seed);
    if (pattern == 1) return (float)((int)(bits % 3) - 1);
    return (float)((int)(bits >> 8) - (1 << 23)) * (1.0f / (1 << 23));  // 24 bits: exact in fp32
}

__device__ double widened(const void* memory, int64_t at, int type) {
    if (type == PROBE_FP16) return (double)__half2float(((const __half*)memory)[at]);
    if (type == PROBE_BF16) return (double)__bfloat162float(((const __nv_bfloat16*)memory)[at]);
    return (double)((const float*)memory)[at];
}

__device__ void store(void* memory, int64_t at, int type, float number) {
    if (type == PROBE_FP16)
        ((__half*)memory)[at] = __float2half(number);
    else if (type == PROBE_BF16)
        ((__nv_bfloat16*)memory)[at] = __float2bfloat16(number);
    else
        ((float*)memory)[at] = number;
}

__global__ void fill_kernel(void* memory, int64_t count, int type, int pattern, uint32_t seed) {
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (int64_t)gridDim.x * blockDim.x)
        store(memory, i, type, value((uint64_t)i, seed, pattern));
}

// Counts are 64-bit atomics; the largest error is kept as an integer in millionths, which orders like the error itself.
__global__ void compare_kernel(const void* x, const void* w, const void* y, int m, int n, int k, int x_stride, int y_stride,
                               int type, int weight_is_kn, unsigned long long* counts) {
    const int64_t count = (int64_t)m * n;
    const double out_roundoff = type == PROBE_FP16 ? 1.0 / 2048 : type == PROBE_BF16 ? 1.0 / 256 : 1.0 / 16777216;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t row = i / n, column = i % n;
        double sum = 0, magnitude = 0;
        for (int64_t at = 0; at < k; at++) {
            const double a = widened(x, row * x_stride + at, type);
            const double b = widened(w, weight_is_kn ? at * n + column : column * k + at, type);
            sum += a * b;
            magnitude += a * b < 0 ? -a * b : a * b;
        }
        // The rounding of the result, and of an fp32 sum of k products in any order (Higham 2002, eq. 3.5).
        const double size = sum < 0 ? -sum : sum;
        const double allowed = out_roundoff * size + (k + 2) * (1.0 / 16777216) * magnitude + 1e-30;
        const double got = widened(y, row * y_stride + column, type);
        const double off = got < sum ? sum - got : got - sum;
        const bool unwritten = !(got == got);  // the poison is NaN
        const double share = unwritten ? 1e12 : off / allowed;
        if (unwritten) atomicAdd(&counts[2], 1ull);
        if (!(share <= 1.0)) atomicAdd(&counts[1], 1ull);
        atomicMax(&counts[0], (unsigned long long)(share < 1e12 ? share * 1e6 : 1e18));
    }
}

__global__ void changed_kernel(const unsigned char* memory, int64_t rows, int64_t bytes, int64_t pitch, unsigned char byte,
                               unsigned long long* changed) {
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < rows * bytes; i += (int64_t)gridDim.x * blockDim.x)
        if (memory[i / bytes * pitch + i % bytes] != byte) atomicAdd(changed, 1ull);
}

// Runs a kernel that fills a few counters, and brings them back.
template <class Launch>
cudaError_t counted(unsigned long long* counts, int size, void* stream, Launch launch) {
    unsigned long long* device = nullptr;
    const size_t bytes = sizeof *counts * (size_t)size;
    cudaError_t error = cudaMalloc((void**)&device, bytes);
    if (error == cudaSuccess) error = cudaMemsetAsync(device, 0, bytes, (cudaStream_t)stream);
    if (error == cudaSuccess) error = launch(device);
    if (error == cudaSuccess)
        error = cudaMemcpyAsync(counts, device, bytes, cudaMemcpyDeviceToHost, (cudaStream_t)stream);
    if (error == cudaSuccess) error = cudaStreamSynchronize((cudaStream_t)stream);
    if (device != nullptr) cudaFree(device);
    return error;
}

int64_t blocks_for(int64_t count) {
    const int64_t blocks = (count + kThreads - 1) / kThreads;
    return blocks < 1 ? 1 : blocks < kBlocks ? blocks : kBlocks;
}

}  // namespace

PROBE_API int probe_fill(void* memory, int64_t count, int type, int pattern, uint32_t seed, void* stream) {
    return probe_launch(fill_kernel, blocks_for(count), kThreads, stream, memory, count, type, pattern, seed);
}

PROBE_API int probe_compare(const void* x, const void* w, const void* y, int m, int n, int k, int x_stride, int y_stride,
                            int type, int weight_is_kn, ProbeVerdict* verdict, void* stream) {
    unsigned long long counts[3] = {};
    const cudaError_t error = counted(counts, 3, stream, [&](unsigned long long* device) {
        return probe_launch(compare_kernel, blocks_for((int64_t)m * n), kThreads, stream, x, w, y, m, n, k, x_stride,
                            y_stride, type, weight_is_kn, device);
    });
    verdict->max_error = (double)counts[0] / 1e6;
    verdict->wrong = (int64_t)counts[1];
    verdict->unwritten = (int64_t)counts[2];
    return error;
}

PROBE_API int probe_changed(const void* memory, int64_t rows, int64_t bytes, int64_t pitch, int byte, int64_t* changed,
                            void* stream) {
    unsigned long long count = 0;
    const cudaError_t error = counted(&count, 1, stream, [&](unsigned long long* device) {
        return probe_launch(changed_kernel, blocks_for(rows * bytes), kThreads, stream, (const unsigned char*)memory, rows,
                            bytes, pitch, (unsigned char)byte, device);
    });
    *changed = (int64_t)count;
    return error;
}
