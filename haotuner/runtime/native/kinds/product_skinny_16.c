/* Products of few rows by vectors of 16 floats. */
#include <immintrin.h>

#define HT_TARGET __attribute__((target("avx512f,avx512vl")))
#define HT_WIDE(name) name##_16
#define HT_N 16
#define HT_V __m512
#define HT_ZERO _mm512_setzero_ps()
#define HT_EVERY(p) _mm512_set1_ps(*(p))
#define HT_FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define HT_LOW(a, b) _mm512_unpacklo_ps(a, b)
#define HT_HIGH(a, b) _mm512_unpackhi_ps(a, b)
#define HT_PAIRS(a, b, which) _mm512_shuffle_ps(a, b, which)
#define HT_JOINED(row) joined(row(0), row(1), row(2), row(3))
#define HT_TERMS(p, n) _mm_maskz_loadu_ps((__mmask8)((1u << (n)) - 1), p)
#define HT_STORE(p, v, n) _mm512_mask_storeu_ps(p, (__mmask16)((1u << (n)) - 1), v)

HT_TARGET static inline __attribute__((always_inline)) __m512 joined(__m128 a, __m128 b, __m128 c, __m128 d) {
  const __m512 two = _mm512_insertf32x4(_mm512_castps128_ps512(a), b, 1);
  return _mm512_insertf32x4(_mm512_insertf32x4(two, c, 2), d, 3);
}

#include "product_skinny_lanes.h"
