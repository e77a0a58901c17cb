/* batch_matmul of matrices with one element each, as attention has them at its first token: several sums are computed side by side,
 * each in the order of its terms, as the programs compute it. A tile for each would be mostly padding. */
#include <immintrin.h>
#include <string.h>

#include "product.h"

#define SIDE_BY_SIDE 8 /* sums that do not wait for one another: more than a multiply-add takes cycles, at two a cycle */

typedef __m128 (*multiply_add)(__m128 a, __m128 b, __m128 sum);

__attribute__((target("fma"))) static inline __m128 add_fused(__m128 a, __m128 b, __m128 sum) { return _mm_fmadd_ps(a, b, sum); }

static inline __m128 add_apart(__m128 a, __m128 b, __m128 sum) { return _mm_add_ps(_mm_mul_ps(a, b), sum); }

/* Terms [t, t + 4) of four matrices, side by side in each: found[i] has term t + i of all four. */
static inline __attribute__((always_inline)) void turned(const float* const* from, int64_t t, __m128* found) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) found[i] = _mm_loadu_ps(from[i] + t);
  _MM_TRANSPOSE4_PS(found[0], found[1], found[2], found[3]);
}

/* `add`: the programs of CPUs that can round once for a product and its sum; known when this is compiled. */
static inline __attribute__((always_inline)) void sums(const float* const* x, const float* const* w, int64_t x_right, int64_t w_down, int64_t k,
                                                       float* found, multiply_add add) {
  __m128 sum[SIDE_BY_SIDE / 4];
#pragma GCC unroll 4
  for (int i = 0; i < SIDE_BY_SIDE / 4; ++i) sum[i] = _mm_setzero_ps();
  int64_t t = 0;
  for (; x_right == 1 && w_down == 1 && t + 4 <= k; t += 4)
#pragma GCC unroll 4
    for (int i = 0; i < SIDE_BY_SIDE / 4; ++i) {
      __m128 a[4], b[4];
      turned(x + 4 * i, t, a);
      turned(w + 4 * i, t, b);
#pragma GCC unroll 4
      for (int term = 0; term < 4; ++term) sum[i] = add(a[term], b[term], sum[i]);
    }
  for (; t < k; ++t)
#pragma GCC unroll 4
    for (int i = 0; i < SIDE_BY_SIDE / 4; ++i) {
      const float *const *a = x + 4 * i, *const *b = w + 4 * i;
      const int64_t at = t * x_right, of = t * w_down;
      sum[i] = add(_mm_setr_ps(a[0][at], a[1][at], a[2][at], a[3][at]), _mm_setr_ps(b[0][of], b[1][of], b[2][of], b[3][of]), sum[i]);
    }
#pragma GCC unroll 4
  for (int i = 0; i < SIDE_BY_SIDE / 4; ++i) _mm_storeu_ps(found + 4 * i, sum[i]);
}

__attribute__((target("fma"))) static void sums_fused(const float* const* x, const float* const* w, int64_t x_right, int64_t w_down, int64_t k,
                                                      float* found) {
  sums(x, w, x_right, w_down, k, found, add_fused);
}

static void sums_apart(const float* const* x, const float* const* w, int64_t x_right, int64_t w_down, int64_t k, float* found) {
  sums(x, w, x_right, w_down, k, found, add_apart);
}

int ht_product_single(const ht_product* product, const ht_call* call, int64_t first, int64_t last, int beside) {
  const ht_view* views = call->product.views;
  const ht_view *x = &views[HT_PRODUCT_X], *w = &views[HT_PRODUCT_W], *y = &views[HT_PRODUCT_Y];
  for (int64_t matrix = first; matrix < last; matrix += SIDE_BY_SIDE) {
    const float *xs[SIDE_BY_SIDE], *ws[SIDE_BY_SIDE];
    int64_t offsets[SIDE_BY_SIDE][HT_MAX_OPERANDS];
    float found[SIDE_BY_SIDE];
    const int some = (int)(last - matrix < SIDE_BY_SIDE ? last - matrix : SIDE_BY_SIDE);
    for (int i = 0; i < SIDE_BY_SIDE; ++i) { /* the last one again where there are fewer */
      if (i < some) ht_product_offsets(call, matrix + i, offsets[i]);
      else memcpy(offsets[i], offsets[some - 1], sizeof offsets[i]);
      xs[i] = (const float*)x->data + offsets[i][HT_PRODUCT_X];
      ws[i] = (const float*)w->data + offsets[i][HT_PRODUCT_W];
    }
    (product->lanes >= 8 ? sums_fused : sums_apart)(xs, ws, x->strides[1], w->strides[0], call->extents[HT_PRODUCT_K], found);
    for (int i = 0; i < some; ++i) {
      float* to = (float*)y->data + offsets[i][HT_PRODUCT_Y];
      *to = found[i];
      if (!beside) continue;
      const ht_product_beside more = ht_product_beside_of(call, offsets[i], 0, 0);
      if (ht_product_after(to, 1, 1, 1, &more, product) != 0) return -1;
    }
  }
  return 0;
}
