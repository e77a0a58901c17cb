/* batch_matmul of few rows or few columns, both factors stored with the sum's terms side by side (nt): rows of the long factor are turned in
 * registers, four terms of as many rows as a vector has lanes, and multiplied there. A panel of it would be written and read for a
 * handful of products an element. Each sum has the order of its terms, as the programs compute it. */
#include <immintrin.h>

#include "product.h"
#include "turn.h"

#define LANES 16

/* Terms [0, 4) of `count` rows, or the first of them. */
#define HT_LOAD(j) ((j) < count ? (all ? _mm_loadu_ps(from + (j) * down) : _mm_maskz_loadu_ps(terms, from + (j) * down)) : _mm_setzero_ps())
HT_TARGET_16 static inline __attribute__((always_inline)) __m512 pieces(const float* from, int64_t down, int64_t count, __mmask8 terms, int all,
                                                                        int64_t i) {
  const __m512 two = _mm512_insertf32x4(_mm512_castps128_ps512(HT_LOAD(i)), HT_LOAD(i + 4), 1);
  return _mm512_insertf32x4(_mm512_insertf32x4(two, HT_LOAD(i + 8), 2), HT_LOAD(i + 12), 3);
}

/* Four terms, or the first of them, of `few` rows times `count`. */
HT_TARGET_16 static inline __attribute__((always_inline)) void add(const float* from, int64_t down, int64_t count, int64_t depth, int all,
                                                                   const float* short_from, int64_t short_down, const int few, __m512* sum) {
  const __mmask8 terms = (__mmask8)((1u << depth) - 1);
  const __m512 a = pieces(from, down, count, terms, all, 0), b = pieces(from, down, count, terms, all, 1);
  const __m512 c = pieces(from, down, count, terms, all, 2), d = pieces(from, down, count, terms, all, 3);
  const __m512 ab = _mm512_unpacklo_ps(a, b), ab_high = _mm512_unpackhi_ps(a, b);
  const __m512 cd = _mm512_unpacklo_ps(c, d), cd_high = _mm512_unpackhi_ps(c, d);
  const __m512 first = _mm512_shuffle_ps(ab, cd, 0x44), second = _mm512_shuffle_ps(ab, cd, 0xee);
  const __m512 third = _mm512_shuffle_ps(ab_high, cd_high, 0x44), fourth = _mm512_shuffle_ps(ab_high, cd_high, 0xee);
#define HT_TERM(t, v)                                                     \
  if (all || depth > t)                                                   \
    _Pragma("GCC unroll 8") for (int i = 0; i < few; ++i) sum[i] = _mm512_fmadd_ps(_mm512_set1_ps(short_from[i * short_down + t]), v, sum[i]);
  HT_TERM(0, first)
  HT_TERM(1, second)
  HT_TERM(2, third)
  HT_TERM(3, fourth)
}

HT_TARGET_16 static inline __attribute__((always_inline)) void sums(const float* from, int64_t down, int64_t count, const float* short_from,
                                                                    int64_t short_down, int64_t k, const int few, float* to, int64_t to_down) {
  __m512 sum[HT_PRODUCT_FEW];
  _Pragma("GCC unroll 8") for (int i = 0; i < few; ++i) sum[i] = _mm512_setzero_ps();
  int64_t t = 0;
  for (; t + 4 <= k; t += 4) add(from + t, down, count, 4, 1, short_from + t, short_down, few, sum);
  if (t < k) add(from + t, down, count, k - t, 0, short_from + t, short_down, few, sum);
  const __mmask16 there = (__mmask16)((1u << count) - 1);
  _Pragma("GCC unroll 8") for (int i = 0; i < few; ++i) _mm512_mask_storeu_ps(to + i * to_down, there, sum[i]);
}

#define HT_FEW(few)                                                                                                                   \
  HT_TARGET_16 static void sums_##few(const float* from, int64_t down, int64_t count, const float* short_from, int64_t short_down, int64_t k, \
                                      float* to, int64_t to_down) {                                                                   \
    if (count == LANES) sums(from, down, LANES, short_from, short_down, k, few, to, to_down);                                         \
    else sums(from, down, count, short_from, short_down, k, few, to, to_down);                                                        \
  }
HT_FEW(1) HT_FEW(2) HT_FEW(3) HT_FEW(4) HT_FEW(5) HT_FEW(6) HT_FEW(7) HT_FEW(8)
static void (*const sums_of[HT_PRODUCT_FEW])(const float*, int64_t, int64_t, const float*, int64_t, int64_t, float*, int64_t) = {
    sums_1, sums_2, sums_3, sums_4, sums_5, sums_6, sums_7, sums_8};

int ht_product_is_few(const ht_product* product, const ht_call* call) {
  const ht_view* views = call->product.views;
  const int64_t m = call->extents[HT_PRODUCT_M], n = call->extents[HT_PRODUCT_N], k = call->extents[HT_PRODUCT_K];
  return product->lanes == LANES && k > 1 && views[HT_PRODUCT_X].strides[1] == 1 && views[HT_PRODUCT_W].strides[0] == 1 && least(m, n) <= HT_PRODUCT_FEW;
}

void ht_product_few(const ht_call* call, const int64_t* offsets, ht_product_box at) {
  const ht_view *x = &call->product.views[HT_PRODUCT_X], *w = &call->product.views[HT_PRODUCT_W], *y = &call->product.views[HT_PRODUCT_Y];
  const float* rows = (const float*)x->data + offsets[HT_PRODUCT_X] + at.row * x->strides[0];
  const float* columns = (const float*)w->data + offsets[HT_PRODUCT_W] + at.column * w->strides[1];
  float* to = (float*)y->data + offsets[HT_PRODUCT_Y] + at.row * y->strides[0] + at.column;
  const int by_columns = at.columns >= at.rows; /* a vector holds columns of a row; else rows of a column, which are turned back */
  const int64_t down = by_columns ? w->strides[1] : x->strides[0], short_down = by_columns ? x->strides[0] : w->strides[1];
  const int64_t extent = by_columns ? at.columns : at.rows, few = by_columns ? at.rows : at.columns, k = call->extents[HT_PRODUCT_K];
  for (int64_t i = 0; i < extent; i += LANES) {
    if (i + LANES > extent && extent > LANES) i = extent - LANES; /* some again */
    const int64_t count = least(LANES, extent - i);
    if (by_columns) {
      sums_of[few - 1](columns + i * down, down, count, rows, short_down, k, to + i, y->strides[0]);
      continue;
    }
    _Alignas(64) float turned[HT_PRODUCT_FEW * LANES];
    sums_of[few - 1](rows + i * down, down, count, columns, short_down, k, turned, LANES);
    ht_square(LANES, turned, LANES, few, count, to + i * y->strides[0], y->strides[0], few);
  }
}
