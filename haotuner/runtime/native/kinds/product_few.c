/* batch_matmul of few rows or few columns, both factors stored with the sum's terms side by side (nt): rows of the long factor are turned in
 * registers, four terms of as many rows as a vector has lanes, and multiplied there. A panel of it would be written and read for a
 * handful of products an element. Each sum has the order of its terms, as the programs compute it. */
#include <immintrin.h>

#include "product.h"
#include "turn.h"

#define LANES 16

/* Four terms of 16 rows, row i + 4 j in lane j of vector i, times those of `few` rows from `other` on; of the terms there are `depth`. */
HT_TARGET_16 static inline __attribute__((always_inline)) void multiply(__m512 a, __m512 b, __m512 c, __m512 d, const float* other, int64_t other_down,
                                                                        const int few, int64_t depth, __m512* sum) {
  const __m512 ab = _mm512_unpacklo_ps(a, b), ab_high = _mm512_unpackhi_ps(a, b);
  const __m512 cd = _mm512_unpacklo_ps(c, d), cd_high = _mm512_unpackhi_ps(c, d);
#define HT_TERM(t, v)                                                             \
  if (depth > t) {                                                                \
    const __m512 term = v;                                                        \
    _Pragma("GCC unroll 8") for (int i = 0; i < few; ++i) sum[i] = _mm512_fmadd_ps(_mm512_set1_ps(other[i * other_down + t]), term, sum[i]); \
  }
  HT_TERM(0, _mm512_shuffle_ps(ab, cd, 0x44))
  HT_TERM(1, _mm512_shuffle_ps(ab, cd, 0xee))
  HT_TERM(2, _mm512_shuffle_ps(ab_high, cd_high, 0x44))
  HT_TERM(3, _mm512_shuffle_ps(ab_high, cd_high, 0xee))
}

HT_TARGET_16 static inline __attribute__((always_inline)) __m512 joined(__m128 a, __m128 b, __m128 c, __m128 d) {
  const __m512 two = _mm512_insertf32x4(_mm512_castps128_ps512(a), b, 1);
  return _mm512_insertf32x4(_mm512_insertf32x4(two, c, 2), d, 3);
}

/* The first terms of `count` rows, which may be fewer than 16. */
HT_TARGET_16 static inline __attribute__((always_inline)) __m512 some(const float* from, int64_t down, int64_t count, __mmask8 terms, int64_t i) {
#define HT_LOAD(j) ((j) < count ? _mm_maskz_loadu_ps(terms, from + (j) * down) : _mm_setzero_ps())
  return joined(HT_LOAD(i), HT_LOAD(i + 4), HT_LOAD(i + 8), HT_LOAD(i + 12));
}

HT_TARGET_16 static inline __attribute__((always_inline)) void sums(const float* from, int64_t down, int64_t count, const float* other,
                                                                    int64_t other_down, int64_t k, const int few, float* to, int64_t to_down) {
  __m512 sum[HT_PRODUCT_FEW];
  _Pragma("GCC unroll 8") for (int i = 0; i < few; ++i) sum[i] = _mm512_setzero_ps();
  int64_t t = 0;
  if (count == LANES) { /* four pointers and a stride: sixteen would not stay in registers */
    const float *p = from, *q = from + 4 * down, *r = from + 8 * down, *s = from + 12 * down, *next = from + 16 * down;
    for (; t + 4 <= k; t += 4, p += 4, q += 4, r += 4, s += 4) {
#define HT_ROWS(i) joined(_mm_loadu_ps(p + (i) * down), _mm_loadu_ps(q + (i) * down), _mm_loadu_ps(r + (i) * down), _mm_loadu_ps(s + (i) * down))
      multiply(HT_ROWS(0), HT_ROWS(1), HT_ROWS(2), HT_ROWS(3), other + t, other_down, few, 4, sum);
      const float* ahead = next + (t / 4 % 4) * down + t; /* a line of four of the next rows, if there are any */
      _mm_prefetch((const char*)ahead, _MM_HINT_T0);
      _mm_prefetch((const char*)(ahead + 4 * down), _MM_HINT_T0);
      _mm_prefetch((const char*)(ahead + 8 * down), _MM_HINT_T0);
      _mm_prefetch((const char*)(ahead + 12 * down), _MM_HINT_T0);
    }
  }
  for (; t < k; t += 4) {
    const float* at = from + t;
    const __mmask8 terms = (__mmask8)((1u << least(4, k - t)) - 1);
    multiply(some(at, down, count, terms, 0), some(at, down, count, terms, 1), some(at, down, count, terms, 2), some(at, down, count, terms, 3),
             other + t, other_down, few, k - t, sum);
  }
  const __mmask16 there = (__mmask16)((1u << count) - 1);
  _Pragma("GCC unroll 8") for (int i = 0; i < few; ++i) _mm512_mask_storeu_ps(to + i * to_down, there, sum[i]);
}

#define HT_FEW(few)                                                                                                                   \
  HT_TARGET_16 static void sums_##few(const float* from, int64_t down, int64_t count, const float* other, int64_t other_down, int64_t k, \
                                      float* to, int64_t to_down) {                                                                   \
    sums(from, down, count, other, other_down, k, few, to, to_down);                                                        \
  }
HT_FEW(1) HT_FEW(2) HT_FEW(3) HT_FEW(4) HT_FEW(5) HT_FEW(6) HT_FEW(7) HT_FEW(8)
static void (*const sums_of[HT_PRODUCT_FEW])(const float*, int64_t, int64_t, const float*, int64_t, int64_t, float*, int64_t) = {
    sums_1, sums_2, sums_3, sums_4, sums_5, sums_6, sums_7, sums_8};

int ht_product_is_few(const ht_product* product, const ht_call* call) {
  const ht_view* views = call->product.views;
  const int64_t m = call->extents[HT_PRODUCT_M], n = call->extents[HT_PRODUCT_N], k = call->extents[HT_PRODUCT_K];
  return product->lanes == LANES && k > 1 && views[HT_PRODUCT_X].strides[1] == 1 && views[HT_PRODUCT_W].strides[0] == 1 && least(m, n) <= HT_PRODUCT_FEW;
}

int ht_product_few(const ht_product* product, const ht_call* call, const int64_t* offsets, ht_product_box at, int beside) {
  const ht_view *x = &call->product.views[HT_PRODUCT_X], *w = &call->product.views[HT_PRODUCT_W], *y = &call->product.views[HT_PRODUCT_Y];
  const float* rows = (const float*)x->data + offsets[HT_PRODUCT_X] + at.row * x->strides[0];
  const float* columns = (const float*)w->data + offsets[HT_PRODUCT_W] + at.column * w->strides[1];
  float* to = (float*)y->data + offsets[HT_PRODUCT_Y] + at.row * y->strides[0] + at.column;
  const int by_columns = at.columns >= at.rows; /* a vector holds columns of a row; else rows of a column, which are turned back */
  const int64_t down = by_columns ? w->strides[1] : x->strides[0], other_down = by_columns ? x->strides[0] : w->strides[1];
  const int64_t extent = by_columns ? at.columns : at.rows, few = by_columns ? at.rows : at.columns, k = call->extents[HT_PRODUCT_K];
  for (int64_t i = 0; i < extent; i += LANES) {
    if (i + LANES > extent && extent > LANES) i = extent - LANES; /* some again */
    const int64_t count = least(LANES, extent - i);
    if (by_columns) {
      sums_of[few - 1](columns + i * down, down, count, rows, other_down, k, to + i, y->strides[0]);
      continue;
    }
    _Alignas(64) float turned[HT_PRODUCT_FEW * LANES];
    sums_of[few - 1](rows + i * down, down, count, columns, other_down, k, turned, LANES);
    ht_square(LANES, turned, LANES, few, count, to + i * y->strides[0], y->strides[0], few);
  }
  if (!beside) return 0;
  const ht_product_beside more = ht_product_beside_of(call, offsets, at.row, at.column);
  return ht_product_after(to, y->strides[0], at.rows, at.columns, &more, product);
}
