/* Sums of few rows of one factor with as many rows of the other as a vector has lanes, included once a width. It says before:
 * HT_TARGET, HT_WIDE(name), HT_N; HT_V, HT_ZERO, HT_EVERY(p), HT_FMA(a, b, c); HT_LOW and HT_HIGH, two vectors woven by four lanes,
 * HT_PAIRS(a, b, which), _mm_shuffle_ps of every four; HT_JOINED(row), of row(0), row(1), ... of four terms each; HT_TERMS(p, n), n terms
 * and zeros; HT_STORE(p, v, n), the first n. */
#include "product_skinny.h"

/* Four terms of HT_N rows, row i + 4 j in lane j of vector i, times those of `few` rows from `other` on; of the terms there are `depth`. */
HT_TARGET static inline __attribute__((always_inline)) void multiply(HT_V a, HT_V b, HT_V c, HT_V d, const float* other, int64_t other_down,
                                                                     const int few, int64_t depth, HT_V* sum) {
  const HT_V ab = HT_LOW(a, b), ab_high = HT_HIGH(a, b), cd = HT_LOW(c, d), cd_high = HT_HIGH(c, d);
#define HT_TERM(t, v)                                                             \
  if (depth > t) {                                                                \
    const HT_V term = v;                                                          \
    _Pragma("GCC unroll 8") for (int i = 0; i < few; ++i) sum[i] = HT_FMA(HT_EVERY(other + i * other_down + t), term, sum[i]); \
  }
  HT_TERM(0, HT_PAIRS(ab, cd, 0x44))
  HT_TERM(1, HT_PAIRS(ab, cd, 0xee))
  HT_TERM(2, HT_PAIRS(ab_high, cd_high, 0x44))
  HT_TERM(3, HT_PAIRS(ab_high, cd_high, 0xee))
}

/* The first `terms` terms of rows i, i + 4, ... of `count`, which may be fewer than HT_N. */
HT_TARGET static inline __attribute__((always_inline)) HT_V some(const float* from, int64_t down, int64_t count, int64_t terms, int64_t i) {
#define HT_ROW(j) (i + 4 * (j) < count ? HT_TERMS(from + (i + 4 * (j)) * down, terms) : _mm_setzero_ps())
  return HT_JOINED(HT_ROW);
#undef HT_ROW
}

HT_TARGET static inline __attribute__((always_inline)) void sums(const float* from, int64_t down, int64_t count, const float* other,
                                                                 int64_t other_down, int64_t k, const int few, float* to, int64_t to_down) {
  HT_V sum[HT_N / 2];
  _Pragma("GCC unroll 8") for (int i = 0; i < few; ++i) sum[i] = HT_ZERO;
  int64_t t = 0;
  if (count == HT_N) { /* a pointer to every fourth row and a stride: one to each would not stay in registers */
    const float *row_0 = from, *row_1 = from + 4 * down, *row_2 = from + 8 * down, *row_3 = from + 12 * down, *next = from + HT_N * down;
    for (; t + 4 <= k; t += 4, row_0 += 4, row_1 += 4, row_2 += 4, row_3 += 4) {
#define HT_ROW_0(j) _mm_loadu_ps(row_##j)
#define HT_ROW_1(j) _mm_loadu_ps(row_##j + down)
#define HT_ROW_2(j) _mm_loadu_ps(row_##j + 2 * down)
#define HT_ROW_3(j) _mm_loadu_ps(row_##j + 3 * down)
      multiply(HT_JOINED(HT_ROW_0), HT_JOINED(HT_ROW_1), HT_JOINED(HT_ROW_2), HT_JOINED(HT_ROW_3), other + t, other_down, few, 4, sum);
      const float* ahead = next + (t / 4 % 4) * down + t; /* a line of every fourth of the next rows, if there are any */
      _Pragma("GCC unroll 4") for (int j = 0; j < HT_N / 4; ++j) _mm_prefetch((const char*)(ahead + 4 * j * down), _MM_HINT_T0);
    }
  }
  for (; t < k; t += 4) {
    const float* at = from + t;
    const int64_t terms = min_i64(4, k - t);
    multiply(some(at, down, count, terms, 0), some(at, down, count, terms, 1), some(at, down, count, terms, 2), some(at, down, count, terms, 3),
             other + t, other_down, few, k - t, sum);
  }
  _Pragma("GCC unroll 8") for (int i = 0; i < few; ++i) HT_STORE(to + i * to_down, sum[i], count);
}

#define HT_FEW(few)                                                                                                                   \
  HT_TARGET static void sums_##few(const float* from, int64_t down, int64_t count, const float* other, int64_t other_down, int64_t k, \
                                   float* to, int64_t to_down) {                                                                      \
    sums(from, down, count, other, other_down, k, few, to, to_down);                                                                  \
  }
HT_FEW(1) HT_FEW(2) HT_FEW(3) HT_FEW(4)
#if HT_N == 16
HT_FEW(5) HT_FEW(6) HT_FEW(7) HT_FEW(8)
#define HT_MORE , sums_5, sums_6, sums_7, sums_8
#else
#define HT_MORE
#endif
const ht_product_few_sums HT_WIDE(ht_product_few)[HT_N / 2] = {sums_1, sums_2, sums_3, sums_4 HT_MORE};
