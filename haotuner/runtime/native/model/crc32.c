/* CRC-32 as zlib computes it (IEEE 802.3, reflected). Where the CPU multiplies without carries, 64 or 128 bytes are folded at a time, after
 * "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction" (Gopal et al., Intel, 2009), whose constants these are. */
#include "model/crc32.h"

#include <immintrin.h>

#define AHEAD 2048 /* bytes that are fetched before they are read */
#define BY_16 _mm_set_epi64x(0x0ccaa009e, 0x1751997d0)

static uint32_t bytewise(uint32_t crc, const unsigned char* data, size_t size) {
  static const uint32_t nibble[16] = {0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4, 0x4db26158, 0x5005713c,
                                      0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c, 0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c};
  for (size_t i = 0; i < size; ++i) {
    crc = nibble[(crc ^ data[i]) & 15] ^ crc >> 4;
    crc = nibble[(crc ^ data[i] >> 4) & 15] ^ crc >> 4;
  }
  return crc;
}

__attribute__((target("sse4.1,pclmul"))) static __m128i fold(__m128i sum, __m128i next, __m128i by) {
  __m128i low = _mm_clmulepi64_si128(sum, by, 0x00), high = _mm_clmulepi64_si128(sum, by, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

static __m128i load(const unsigned char* data) { return _mm_loadu_si128((const __m128i*)(const void*)data); }

/* What is left of a sum of 16 bytes, to which whole 16 bytes are added first. */
__attribute__((target("sse4.1,pclmul"))) static uint32_t reduced(__m128i a, const unsigned char* data, size_t size) {
  const __m128i by_16 = BY_16, by_8 = _mm_set_epi64x(0, 0x163cd6124), barrett = _mm_set_epi64x(0x1f7011641, 0x1db710641);
  const __m128i low_32 = _mm_setr_epi32(-1, 0, -1, 0);
  for (; size >= 16; data += 16, size -= 16) a = fold(a, load(data), by_16);
  a = _mm_xor_si128(_mm_srli_si128(a, 8), _mm_clmulepi64_si128(a, by_16, 0x10)); /* 128 bits to 64 */
  a = _mm_xor_si128(_mm_srli_si128(a, 4), _mm_clmulepi64_si128(_mm_and_si128(a, low_32), by_8, 0x00));
  __m128i quotient = _mm_clmulepi64_si128(_mm_and_si128(a, low_32), barrett, 0x10); /* Barrett's reduction, to 32 */
  a = _mm_xor_si128(a, _mm_clmulepi64_si128(_mm_and_si128(quotient, low_32), barrett, 0x00));
  return (uint32_t)_mm_extract_epi32(a, 1);
}

/* `size`: a multiple of 16, from 64 on. */
__attribute__((target("sse4.1,pclmul"))) static uint32_t folded(uint32_t crc, const unsigned char* data, size_t size) {
  const __m128i by_64 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4), by_16 = BY_16;
  __m128i a = _mm_xor_si128(load(data), _mm_cvtsi32_si128((int)crc)), b = load(data + 16), c = load(data + 32), d = load(data + 48);
  for (data += 64, size -= 64; size >= 64; data += 64, size -= 64) {
    a = fold(a, load(data), by_64);
    b = fold(b, load(data + 16), by_64);
    c = fold(c, load(data + 32), by_64);
    d = fold(d, load(data + 48), by_64);
  }
  return reduced(fold(fold(fold(a, b, by_16), c, by_16), d, by_16), data, size);
}

#define WIDE "avx2,pclmul,vpclmulqdq"

__attribute__((target(WIDE))) static __m256i fold_wide(__m256i sum, const unsigned char* data, __m256i by) {
  const __m256i low = _mm256_clmulepi64_epi128(sum, by, 0x00), high = _mm256_clmulepi64_epi128(sum, by, 0x11);
  return _mm256_xor_si256(_mm256_xor_si256(low, high), _mm256_loadu_si256((const __m256i*)(const void*)data));
}

/* The same, 128 bytes at a time, which `size` is at least. */
__attribute__((target(WIDE))) static uint32_t folded_wide(uint32_t crc, const unsigned char* data, size_t size) {
  const __m256i by_128 = _mm256_set_epi64x(0x14a7fe880, 0x1e88ef372, 0x14a7fe880, 0x1e88ef372);
  const __m128i by_16 = BY_16;
  __m256i sums[4];
  for (int i = 0; i < 4; ++i) sums[i] = _mm256_loadu_si256((const __m256i*)(const void*)(data + 32 * i));
  sums[0] = _mm256_xor_si256(sums[0], _mm256_setr_epi32((int)crc, 0, 0, 0, 0, 0, 0, 0));
  for (data += 128, size -= 128; size >= 128; data += 128, size -= 128) {
    _mm_prefetch((const char*)data + AHEAD, _MM_HINT_T0);
    _mm_prefetch((const char*)data + AHEAD + 64, _MM_HINT_T0);
    for (int i = 0; i < 4; ++i) sums[i] = fold_wide(sums[i], data + 32 * i, by_128);
  }
  __m128i sum = _mm256_castsi256_si128(sums[0]);
  for (int i = 1; i < 8; ++i)
    sum = fold(sum, i % 2 ? _mm256_extracti128_si256(sums[i / 2], 1) : _mm256_castsi256_si128(sums[i / 2]), by_16);
  return reduced(sum, data, size);
}

uint32_t ht_crc32(const void* data, size_t size) {
  const unsigned char* at = data;
  uint32_t crc = 0xffffffffu;
  size_t whole = size / 16 * 16;
  if (whole >= 128 && __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("avx2")) {
    crc = folded_wide(crc, at, whole);
    at += whole;
    size -= whole;
  } else if (whole >= 64 && __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1")) {
    crc = folded(crc, at, whole);
    at += whole;
    size -= whole;
  }
  return ~bytewise(crc, at, size);
}
