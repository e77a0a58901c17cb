/* batch_matmul of matrices with one element each, as attention has them at its first token: several sums are computed side by side,
 * each in the order of its terms, as the programs compute it. A tile for each would be mostly padding. */
#include "product.h"

#define SIDE_BY_SIDE 8 /* sums that do not wait for one another: more than a multiply-add takes cycles, at two a cycle */

/* `fused`: the programs of such CPUs round once for a product and its sum. */
static inline __attribute__((always_inline)) void sums(const float* const* x, const float* const* w, int64_t x_right, int64_t w_down, int64_t k,
                                                       float* found, int fused) {
  float sum[SIDE_BY_SIDE] = {0};
  for (int64_t t = 0; t < k; ++t)
    for (int i = 0; i < SIDE_BY_SIDE; ++i) {
      const float a = x[i][t * x_right], b = w[i][t * w_down];
      if (fused) {
        sum[i] = __builtin_fmaf(a, b, sum[i]);
      } else {
        float product = a * b;
        __asm__("" : "+x"(product)); /* a rounding of its own */
        sum[i] += product;
      }
    }
  for (int i = 0; i < SIDE_BY_SIDE; ++i) found[i] = sum[i];
}

__attribute__((target("fma"))) static void sums_fused(const float* const* x, const float* const* w, int64_t x_right, int64_t w_down, int64_t k,
                                                      float* found) {
  sums(x, w, x_right, w_down, k, found, 1);
}

static void sums_apart(const float* const* x, const float* const* w, int64_t x_right, int64_t w_down, int64_t k, float* found) {
  sums(x, w, x_right, w_down, k, found, 0);
}

void ht_product_single(const ht_product* product, const ht_call* call, int64_t first, int64_t last, int beside) {
  const ht_view* views = call->product.views;
  const ht_view *x = &views[HT_PRODUCT_X], *w = &views[HT_PRODUCT_W], *y = &views[HT_PRODUCT_Y];
  for (int64_t matrix = first; matrix < last; matrix += SIDE_BY_SIDE) {
    const float *xs[SIDE_BY_SIDE], *ws[SIDE_BY_SIDE];
    int64_t offsets[SIDE_BY_SIDE][HT_MAX_OPERANDS];
    float found[SIDE_BY_SIDE];
    const int some = (int)(last - matrix < SIDE_BY_SIDE ? last - matrix : SIDE_BY_SIDE);
    for (int i = 0; i < SIDE_BY_SIDE; ++i) { /* the last one again where there are fewer */
      ht_product_offsets(call, matrix + (i < some ? i : some - 1), offsets[i]);
      xs[i] = (const float*)x->data + offsets[i][HT_PRODUCT_X];
      ws[i] = (const float*)w->data + offsets[i][HT_PRODUCT_W];
    }
    (product->lanes >= 8 ? sums_fused : sums_apart)(xs, ws, x->strides[1], w->strides[0], call->extents[HT_PRODUCT_K], found);
    for (int i = 0; i < some; ++i) {
      float* to = (float*)y->data + offsets[i][HT_PRODUCT_Y];
      *to = found[i];
      if (!beside) continue;
      const ht_product_beside more = ht_product_beside_of(call, offsets[i], 0, 0);
      ht_product_after(to, 1, 1, 1, &more, product->lanes);
    }
  }
}
