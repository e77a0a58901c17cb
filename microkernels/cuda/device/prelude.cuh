// What every unit of kernels begins with. No header is included: NVRTC alone compiles it.
#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
#else
#include <stdint.h>
#endif
typedef unsigned char uchar;
typedef unsigned int uint;
#define HT_DEVICE __device__ __forceinline__

struct alignas(128) ht_tensor_map {  // a CUtensorMap; only its address is used
    uint64_t opaque[16];
};

// ---- element types: conversions round to nearest, ties to even
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define HT_OLD_CONVERSIONS  // no instruction for bf16, none for pairs
#endif

HT_DEVICE uint32_t ht_bits(float value) { return __float_as_uint(value); }

struct ht_half {
    uint16_t bits;
    HT_DEVICE ht_half() {}
    HT_DEVICE explicit ht_half(float value) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value)); }
    HT_DEVICE operator float() const {
        float value;
        asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
        return value;
    }
};

struct ht_bf16 {
    uint16_t bits;
    HT_DEVICE ht_bf16() {}
    HT_DEVICE explicit ht_bf16(float value) {
#ifdef HT_OLD_CONVERSIONS
        const uint32_t wide = ht_bits(value);
        bits = value != value ? 0x7fff : (wide + 0x7fff + (wide >> 16 & 1)) >> 16;
#else
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
#endif
    }
    HT_DEVICE operator float() const { return __uint_as_float((uint32_t)bits << 16); }
};

HT_DEVICE uint32_t ht_pair(ht_half, float low, float high) {
#ifdef HT_OLD_CONVERSIONS
    return ht_half(low).bits | (uint32_t)ht_half(high).bits << 16;
#else
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#endif
}
HT_DEVICE uint32_t ht_pair(ht_bf16, float low, float high) {
#ifdef HT_OLD_CONVERSIONS
    return ht_bf16(low).bits | (uint32_t)ht_bf16(high).bits << 16;
#else
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#endif
}

// ---- 16 bytes of elements as floats
template <class T>
struct ht_wide {
    enum { elements = 8 };
    static HT_DEVICE void load(float* to, const T* from) {
        const uint4 raw = *(const uint4*)from;
        const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            T one;
            one.bits = (uint16_t)(words[i / 2] >> i % 2 * 16);
            to[i] = one;
        }
    }
    static HT_DEVICE void store(T* to, const float* from) {
        const uint4 raw = {ht_pair(T(), from[0], from[1]), ht_pair(T(), from[2], from[3]), ht_pair(T(), from[4], from[5]),
                           ht_pair(T(), from[6], from[7])};
        *(uint4*)to = raw;
    }
};
template <>
struct ht_wide<float> {
    enum { elements = 4 };
    static HT_DEVICE void load(float* to, const float* from) {
        const float4 raw = *(const float4*)from;
        to[0] = raw.x, to[1] = raw.y, to[2] = raw.z, to[3] = raw.w;
    }
    static HT_DEVICE void store(float* to, const float* from) {
        const float4 raw = {from[0], from[1], from[2], from[3]};
        *(float4*)to = raw;
    }
};

// ---- a block's share of k, in whole steps; a late share may be empty
// What comes of a shuffle from one lane is the same for the warp, and the compiler knows it: it keeps to uniform registers.
HT_DEVICE int ht_uniform(int value) { return __shfl_sync(0xffffffffu, value, 0); }
// Of a whole sum without a division: those of a block's first lines wait for each other, and its first load for them.
HT_DEVICE int ht_steps_before(const ht_cuda_args& a, int steps, int parts) {
    if (a.splits == 1) return parts ? steps : 0;
    return min(((steps + a.splits - 1) / a.splits) * parts, steps);
}
HT_DEVICE int ht_first_step(const ht_cuda_args& a, int steps) { return ht_uniform(ht_steps_before(a, steps, (int)blockIdx.y)); }
HT_DEVICE int ht_last_step(const ht_cuda_args& a, int steps) { return ht_uniform(ht_steps_before(a, steps, (int)blockIdx.y + 1)); }

// ---- row and column of a block's tile: `band` row tiles, a power of two, run down before the next column
HT_DEVICE void ht_tile(int* place, int block, int row_tiles, int column_tiles, int band) {
    uint32_t first = 0, left = block, rows = row_tiles;
    if (row_tiles > band) {
        const uint32_t bands = left / (uint32_t)(column_tiles * band);
        first = bands * band, left -= bands * (column_tiles * band), rows = min(row_tiles - (int)first, band);
    }
    // A division is the longest that a block computes before its first load.
    const uint32_t column = rows == 1 ? left : rows == (uint32_t)band ? left / (uint32_t)band : left / rows;
    place[0] = (int)(first + left - column * rows), place[1] = (int)column;
}

// ---- pieces of programs
HT_DEVICE int ht_warp() { return ht_uniform((int)threadIdx.x / 32); }
HT_DEVICE void ht_sync_some(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" : : "r"(barrier), "r"(threads) : "memory");
}
// The same number, of which the compiler no longer knows how it came about: it keeps it instead of computing it anew.
HT_DEVICE int ht_held(int value) {
    int kept;
    asm volatile("mov.b32 %0, %1;" : "=r"(kept) : "r"(value));
    return kept;
}
// The thread's and the block's number, read anew: what is computed of them after a loop need not live through it.
HT_DEVICE int ht_thread_again() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}
HT_DEVICE int ht_block_again() {
    int block;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
    return block;
}
// A wgmma operand in the 128-byte swizzle; leading and stride offsets in 16-byte units (PTX ISA, matrix-descriptor).
// The low word moves with the operand, in 16-byte units of 14 bits that never carry; the high word is a constant.
HT_DEVICE uint32_t ht_descriptor_low(const void* at, int leading) {
    return ht_uniform(((uint32_t)__cvta_generic_to_shared(at) & 0x3ffff) >> 4 | (uint32_t)leading << 16);
}
HT_DEVICE uint64_t ht_descriptor(uint32_t low, int stride) {
    return (uint64_t)((uint32_t)stride | 1u << 30) << 32 | low;
}
