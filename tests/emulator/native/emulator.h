// A CUDA device of fibers: enough of the device language, of PTX and of the runtime to execute this project's generated
// CUDA C++ on a CPU. Included first in a translated unit; the machine itself is in libemulator.so, one for all units.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

// Their static functions are not inline: without an optimiser, which this gives them alone, each unit would hold them all.
#pragma GCC push_options
#pragma GCC optimize "O1"
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#pragma GCC pop_options

#include <math.h>  // the prelude of bf16 units names tanf and others unqualified

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <tuple>

#undef __shared__
#undef __global__
#undef __device__
#undef __launch_bounds__
#undef __forceinline__
#undef __grid_constant__
#define __shared__ static
#define __global__
#define __device__
#define __launch_bounds__(...)
#define __forceinline__ inline
#define __grid_constant__
using std::max;
using std::min;

namespace emu {

// ---- the machine (machine.cc)
struct Thread {
    uint3 index;
    int id;  // in its block
};
const Thread& thread();
const uint3& block();
const dim3& block_extent();
const dim3& grid_extent();
unsigned multiprocessor();
unsigned char* shared_memory();  // dynamic, 1024-byte aligned; poisoned before every block
void syncthreads();
void syncwarp(uint32_t mask = 0xffffffffu);
void sync_some(int barrier, int threads);  // bar.sync of a named barrier
uint64_t from_lane(uint64_t value, int lane, int width, uint32_t mask);
[[noreturn]] void die(const char* what);

inline uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(static_cast<const unsigned char*>(pointer) - shared_memory());
}
inline void* shared_pointer(uint32_t address) { return shared_memory() + static_cast<int32_t>(address); }

// ---- asynchronous copies and barriers in shared memory (async_copy.cc)
void copy_async(uint32_t to, const void* from, unsigned size, unsigned bytes);  // the rest of size is zeros
void copy_commit();
void copy_wait(int pending);
void copy_arrive(uint32_t address);  // at a barrier, when all copies of the thread are done
void barrier_init(uint32_t address, int arrivals);
void barrier_arrive(uint32_t address, int arrivals);
void barrier_expect(uint32_t address, int64_t bytes);
void barrier_wait(uint32_t address, int parity);
void tensor_load(uint32_t to, const void* map, const int* corner, uint32_t barrier);

// ---- tensor cores (tensor_core.cc)
void load_matrices(int count, bool transposed, uint32_t** registers, uint32_t address);
void multiply_168(int depth, bool bf16, float** d, const uint32_t* a, const uint32_t* b, const float* c);
void multiply_bytes(bool x_sign, bool w_sign, int** d, const uint32_t* a, const uint32_t* b, const int* c);  // m16n8k32
int dot_bytes(bool x_sign, bool w_sign, int x, int w, int sum);
int nearest(float value);
void warpgroup_multiply(bool bf16, int n, float** d, int values, uint64_t a, uint64_t b, bool add, bool a_transposed,
                        bool b_transposed);
void warpgroup_multiply_held(bool bf16, int n, float** d, int values, const uint32_t** a, uint64_t b, bool b_transposed);
uint16_t half_bits(float value);
uint16_t bf16_bits(float value);
float half_value(uint16_t bits);
void warpgroup_commit();
void warpgroup_wait(int pending);

// ---- launches (runtime.cc)
cudaError_t launch(const cudaLaunchConfig_t& config, std::function<void()> body);

}  // namespace emu

#define threadIdx (emu::thread().index)
#define blockIdx (emu::block())
// No macros: launch configurations have members of these names.
static const dim3& blockDim = emu::block_extent();
static const dim3& gridDim = emu::grid_extent();
inline void __syncthreads() { emu::syncthreads(); }
inline void __syncwarp(unsigned mask = 0xffffffffu) { emu::syncwarp(mask); }
inline uint32_t __cvta_generic_to_shared(const void* pointer) { return emu::shared_address(pointer); }
template <class T>
inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
    static_assert(sizeof(T) <= 8);
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof(T));
    bits = emu::from_lane(bits, lane, width, mask);
    std::memcpy(&value, &bits, sizeof(T));
    return value;
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
    return __shfl_sync(mask, value, (emu::thread().id % 32) ^ lanes, width);
}
// Fibers of one block run one at a time and blocks one after another, so a plain update is atomic.
template <class T>
inline T atomicAdd(T* at, T value) {
    T before = *at;
    *at = before + value;
    return before;
}
template <class T>
inline T atomicMax(T* at, T value) {
    T before = *at;
    *at = std::max(before, value);
    return before;
}
inline unsigned __float_as_uint(float value) {
    unsigned bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}
inline float __uint_as_float(unsigned bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}
inline long long __double_as_longlong(double value) {
    long long bits;
    std::memcpy(&bits, &value, 8);
    return bits;
}
inline double __longlong_as_double(long long bits) {
    double value;
    std::memcpy(&value, &bits, 8);
    return value;
}
namespace emu {
inline float power_of_two(float x) { return exp2f(x); }  // ex2.approx is within two of the last digit of it
}  // namespace emu
inline float __fdividef(float a, float b) { return std::fabs(b) > 0x1p126f && std::fabs(b) < INFINITY ? 0.0f : a / b; }
namespace emu {
template <class... Parameters, class... Arguments>
inline cudaError_t launch_kernel(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...), Arguments... arguments) {
    std::tuple<Parameters...> values(static_cast<Parameters>(arguments)...);
    return launch(*config, [=] { std::apply(kernel, values); });
}
}  // namespace emu
#define cudaLaunchKernelEx emu::launch_kernel
