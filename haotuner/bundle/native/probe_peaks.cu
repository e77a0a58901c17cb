// Ceilings, measured: FMA issue, mma.sync issue, memory. All on fresh non-zero data, for zeros draw less power and clock higher.
#include "probe_launch.h"

namespace {

constexpr int kChains = 16;       // independent FMAs a thread: 4 cycles latency x 1 FMA a cycle, with room
constexpr int kFmaThreads = 256;  // 8 warps a block, 4 blocks an SM
constexpr int kTensorThreads = 256;
constexpr int kTensorChains = 8;  // independent accumulator tiles a warp
constexpr int kBlocksPerUnit = 4;
constexpr int kMemoryThreads = 512;

__global__ void fma_kernel(int rounds, float scale, float* out) {
    float sums[kChains];
    for (int i = 0; i < kChains; i++) sums[i] = 0.5f + 0.001f * (float)(threadIdx.x + i);
    const float factor = 0.9999f * scale, shift = 0.0001f * scale;
    for (int round = 0; round < rounds; round++)
#pragma unroll
        for (int i = 0; i < kChains; i++) sums[i] = sums[i] * factor + shift;
    float total = 0;
    for (int i = 0; i < kChains; i++) total += sums[i];
    out[(int64_t)blockIdx.x * blockDim.x + threadIdx.x] = total;
}

__device__ __forceinline__ void mma_fp16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// m16n8k16 exists from sm_80 on; before, the kernel does nothing and probe_tensor_peak says so.
template <bool bf16>
__global__ void tensor_kernel(int rounds, uint32_t seed, float* out) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    // Pairs of elements with exponents around 1 in either format, different in every lane.
    const uint32_t base = bf16 ? 0x3f803f80u : 0x3c003c00u, mixed = (uint32_t)threadIdx.x * 0x00050003u + seed;
    uint32_t a[4], b[2];
    for (int i = 0; i < 4; i++) a[i] = base ^ ((mixed >> i) & 0x003f003fu);
    for (int i = 0; i < 2; i++) b[i] = base ^ ((mixed >> (i + 4)) & 0x803f003fu);
    float sums[kTensorChains][4] = {};
    for (int round = 0; round < rounds; round++)
#pragma unroll
        for (int i = 0; i < kTensorChains; i++) {
            if (bf16)
                mma_bf16(sums[i], a, b);
            else
                mma_fp16(sums[i], a, b);
        }
    float total = 0;
    for (int i = 0; i < kTensorChains; i++) total += sums[i][0] + sums[i][1] + sums[i][2] + sums[i][3];
    out[(int64_t)blockIdx.x * blockDim.x + threadIdx.x] = total;
#endif
}

// wgmma exists on sm_90a alone; elsewhere the kernel does nothing and probe_warpgroup_peak says so.
constexpr int kWarpgroupThreads = 256;  // two warpgroups, one block an SM: the accumulators fill the register file
constexpr int kWarpgroupBatch = 8;      // wgmmas between waits

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
__device__ __forceinline__ void warpgroup_multiply(float (&s)[128], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
        "%128, %129, 1, 1, 1, 0, 0;"
        : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3]), "+f"(s[4]), "+f"(s[5]), "+f"(s[6]), "+f"(s[7]),
          "+f"(s[8]), "+f"(s[9]), "+f"(s[10]), "+f"(s[11]), "+f"(s[12]), "+f"(s[13]), "+f"(s[14]), "+f"(s[15]),
          "+f"(s[16]), "+f"(s[17]), "+f"(s[18]), "+f"(s[19]), "+f"(s[20]), "+f"(s[21]), "+f"(s[22]), "+f"(s[23]),
          "+f"(s[24]), "+f"(s[25]), "+f"(s[26]), "+f"(s[27]), "+f"(s[28]), "+f"(s[29]), "+f"(s[30]), "+f"(s[31]),
          "+f"(s[32]), "+f"(s[33]), "+f"(s[34]), "+f"(s[35]), "+f"(s[36]), "+f"(s[37]), "+f"(s[38]), "+f"(s[39]),
          "+f"(s[40]), "+f"(s[41]), "+f"(s[42]), "+f"(s[43]), "+f"(s[44]), "+f"(s[45]), "+f"(s[46]), "+f"(s[47]),
          "+f"(s[48]), "+f"(s[49]), "+f"(s[50]), "+f"(s[51]), "+f"(s[52]), "+f"(s[53]), "+f"(s[54]), "+f"(s[55]),
          "+f"(s[56]), "+f"(s[57]), "+f"(s[58]), "+f"(s[59]), "+f"(s[60]), "+f"(s[61]), "+f"(s[62]), "+f"(s[63]),
          "+f"(s[64]), "+f"(s[65]), "+f"(s[66]), "+f"(s[67]), "+f"(s[68]), "+f"(s[69]), "+f"(s[70]), "+f"(s[71]),
          "+f"(s[72]), "+f"(s[73]), "+f"(s[74]), "+f"(s[75]), "+f"(s[76]), "+f"(s[77]), "+f"(s[78]), "+f"(s[79]),
          "+f"(s[80]), "+f"(s[81]), "+f"(s[82]), "+f"(s[83]), "+f"(s[84]), "+f"(s[85]), "+f"(s[86]), "+f"(s[87]),
          "+f"(s[88]), "+f"(s[89]), "+f"(s[90]), "+f"(s[91]), "+f"(s[92]), "+f"(s[93]), "+f"(s[94]), "+f"(s[95]),
          "+f"(s[96]), "+f"(s[97]), "+f"(s[98]), "+f"(s[99]), "+f"(s[100]), "+f"(s[101]), "+f"(s[102]), "+f"(s[103]),
          "+f"(s[104]), "+f"(s[105]), "+f"(s[106]), "+f"(s[107]), "+f"(s[108]), "+f"(s[109]), "+f"(s[110]), "+f"(s[111]),
          "+f"(s[112]), "+f"(s[113]), "+f"(s[114]), "+f"(s[115]), "+f"(s[116]), "+f"(s[117]), "+f"(s[118]), "+f"(s[119]),
          "+f"(s[120]), "+f"(s[121]), "+f"(s[122]), "+f"(s[123]), "+f"(s[124]), "+f"(s[125]), "+f"(s[126]), "+f"(s[127])
        : "l"(a), "l"(b));
}
#endif

__global__ void __launch_bounds__(kWarpgroupThreads, 1) warpgroup_kernel(int rounds, uint32_t seed, float* out) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    // Operands in the 128-byte swizzle: rows of 64 halves, X slabs of 64 rows for each warpgroup, then 256 rows of W.
    __shared__ alignas(1024) uint32_t operands[(2 * 64 + 256) * 64 / 2];
    for (int i = threadIdx.x; i < (int)(sizeof operands / 4); i += kWarpgroupThreads)
        operands[i] = 0x3c003c00u ^ (((uint32_t)i * 0x9e3779b9u + seed) & 0x803f803fu);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    const uint32_t start = (uint32_t)__cvta_generic_to_shared(operands);
    const uint64_t fixed = (1ull << 16) | (64ull << 32) | (1ull << 62);
    const uint64_t a = fixed | (uint64_t)((start + threadIdx.x / 128 * 8192) >> 4), b = fixed | (uint64_t)((start + 16384) >> 4);
    float sums[128] = {};
    for (int round = 0; round < rounds; round++) {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int i = 0; i < kWarpgroupBatch; i++) warpgroup_multiply(sums, a + i % 4 * 2, b + i % 4 * 2);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    }
    float total = 0;
    for (int i = 0; i < 128; i++) total += sums[i];
    out[(int64_t)blockIdx.x * blockDim.x + threadIdx.x] = total;
#endif
}

__global__ void memory_kernel(int kind, const float4* from, float4* to, int64_t count) {
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    float total = 0;
#pragma unroll 4
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        if (kind == 1) {
            to[i] = make_float4(1.0f, 2.0f, 3.0f, (float)i);
        } else {
            const float4 four = from[i];
            if (kind == 2)
                to[i] = four;
            else
                total += four.x + four.y + four.z + four.w;
        }
    }
    if (kind == 0 && total == 1.2345e-30f) to[0] = make_float4(total, 0, 0, 0);  // keeps the reads; never happens
}

int units() {
    int device = 0, found = 1;
    cudaGetDevice(&device);
    cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, device) == cudaSuccess) found = properties.multiProcessorCount;
    return found;
}

// Times one launch per sample by events; the first launch warms up and is not kept.
template <class Launch>
cudaError_t timed(int samples, float* microseconds, void* stream, Launch launch) {
    cudaEvent_t start = nullptr, stop = nullptr;
    cudaError_t error = cudaEventCreate(&start);
    if (error == cudaSuccess) error = cudaEventCreate(&stop);
    if (error == cudaSuccess) error = launch();
    for (int i = 0; i < samples && error == cudaSuccess; i++) {
        error = cudaEventRecord(start, (cudaStream_t)stream);
        if (error == cudaSuccess) error = launch();
        if (error == cudaSuccess) error = cudaEventRecord(stop, (cudaStream_t)stream);
        if (error == cudaSuccess) error = cudaEventSynchronize(stop);
        float milliseconds = 0;
        if (error == cudaSuccess) error = cudaEventElapsedTime(&milliseconds, start, stop);
        microseconds[i] = milliseconds * 1000.0f;
    }
    if (start != nullptr) cudaEventDestroy(start);
    if (stop != nullptr) cudaEventDestroy(stop);
    return error;
}

template <class Launch>
cudaError_t rated(int samples, int threads, int blocks_of_a_unit, double operations_of_a_thread, float* rates, void* stream,
                  Launch launch) {
    const int64_t blocks = (int64_t)units() * blocks_of_a_unit;
    float* out = nullptr;
    cudaError_t error = cudaMalloc((void**)&out, (size_t)(blocks * threads) * sizeof(float));
    if (error == cudaSuccess) error = timed(samples, rates, stream, [&] { return launch(blocks, out); });
    if (out != nullptr) cudaFree(out);
    for (int i = 0; i < samples && error == cudaSuccess; i++)
        rates[i] = (float)(operations_of_a_thread * (double)(blocks * threads) / (rates[i] * 1e6));  // per us to per ps
    return error;
}

}  // namespace

PROBE_API int probe_fma_peak(int samples, int rounds, float* tflops, void* stream) {
    return rated(samples, kFmaThreads, kBlocksPerUnit, 2.0 * kChains * rounds, tflops, stream, [&](int64_t blocks, float* out) {
        return probe_launch(fma_kernel, blocks, kFmaThreads, stream, rounds, 1.0f, out);
    });
}

PROBE_API int probe_tensor_peak(int type, int samples, int rounds, float* tflops, void* stream) {
    const double per_thread = 2.0 * 16 * 8 * 16 * kTensorChains * rounds / 32;
    return rated(samples, kTensorThreads, kBlocksPerUnit, per_thread, tflops, stream, [&](int64_t blocks, float* out) {
        return probe_launch(type == PROBE_BF16 ? tensor_kernel<true> : tensor_kernel<false>, blocks, kTensorThreads, stream,
                            rounds, 12345u, out);
    });
}

PROBE_API int probe_warpgroup_peak(int samples, int rounds, float* tflops, void* stream) {
    cudaDeviceProp properties;
    cudaError_t error = cudaGetDeviceProperties(&properties, 0);
    if (error != cudaSuccess) return error;
    if (properties.major != 9) return cudaErrorNotSupported;
    const double per_thread = 2.0 * 64 * 256 * 16 * kWarpgroupBatch * rounds / 128;
    return rated(samples, kWarpgroupThreads, 1, per_thread, tflops, stream, [&](int64_t blocks, float* out) {
        return probe_launch(warpgroup_kernel, blocks, kWarpgroupThreads, stream, rounds, 12345u, out);
    });
}

PROBE_API int probe_memory_peak(int kind, int64_t bytes, int samples, float* gbps, void* stream) {
    float4 *from = nullptr, *to = nullptr;
    const int64_t count = bytes / (int64_t)sizeof(float4);
    cudaError_t error = cudaMalloc((void**)&from, (size_t)bytes);
    if (error == cudaSuccess) error = cudaMalloc((void**)&to, (size_t)bytes);
    if (error == cudaSuccess) error = (cudaError_t)probe_fill(from, count * 4, PROBE_FP32, 0, 1, stream);
    if (error == cudaSuccess)
        error = timed(samples, gbps, stream, [&] {
            return probe_launch(memory_kernel, (int64_t)units() * kBlocksPerUnit, kMemoryThreads, stream, kind,
                                (const float4*)from, to, count);
        });
    if (from != nullptr) cudaFree(from);
    if (to != nullptr) cudaFree(to);
    for (int i = 0; i < samples && error == cudaSuccess; i++)
        gbps[i] = (float)((kind == 2 ? 2.0 : 1.0) * (double)bytes / (gbps[i] * 1e3));  // per us to per ns
    return error;
}
