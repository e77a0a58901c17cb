/* Products of few rows by vectors of 8 floats, by AVX2. */
#include <immintrin.h>
#include <stdint.h>

#define HT_TARGET __attribute__((target("avx2,fma")))
#define HT_WIDE(name) name##_8
#define HT_N 8
#define HT_V __m256
#define HT_ZERO _mm256_setzero_ps()
#define HT_EVERY(p) _mm256_broadcast_ss(p)
#define HT_FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define HT_LOW(a, b) _mm256_unpacklo_ps(a, b)
#define HT_HIGH(a, b) _mm256_unpackhi_ps(a, b)
#define HT_PAIRS(a, b, which) _mm256_shuffle_ps(a, b, which)
#define HT_JOINED(row) _mm256_insertf128_ps(_mm256_castps128_ps256(row(0)), row(1), 1)
#define HT_TERMS(p, n) _mm_maskload_ps(p, _mm_cmpgt_epi32(_mm_set1_epi32((int)(n)), _mm_setr_epi32(0, 1, 2, 3)))
#define HT_STORE(p, v, n) store(p, v, n)

HT_TARGET static inline __attribute__((always_inline)) void store(float* p, __m256 v, int64_t n) {
  if (n == 8) _mm256_storeu_ps(p, v);
  else _mm256_maskstore_ps(p, _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)), v);
}

#include "product_skinny_lanes.h"
