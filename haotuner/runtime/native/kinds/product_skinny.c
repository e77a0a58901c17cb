/* batch_matmul of few rows or few columns, both factors stored with the sum's terms side by side (nt): rows of the long factor are turned in
 * registers, four terms of as many rows as a vector has lanes (16 or 8), and multiplied there. A panel of it would be written and read for a
 * handful of products an element. Each sum has the order of its terms, as the programs compute it. */
#include "product_skinny.h"

#include "turn.h"

#define LANES 16 /* of the widest vector */

int ht_product_is_few(const ht_product* product, const ht_call* call) {
  const ht_view* views = call->product.views;
  const int64_t m = call->extents[HT_PRODUCT_M], n = call->extents[HT_PRODUCT_N], k = call->extents[HT_PRODUCT_K];
  return product->lanes >= 8 && min_i64(m, n) <= product->lanes / 2 && k > 1 && views[HT_PRODUCT_X].strides[1] == 1 &&
         views[HT_PRODUCT_W].strides[0] == 1;
}

int ht_product_few(const ht_product* product, const ht_call* call, const int64_t* offsets, ht_product_box at, int beside) {
  const ht_view *x = &call->product.views[HT_PRODUCT_X], *w = &call->product.views[HT_PRODUCT_W], *y = &call->product.views[HT_PRODUCT_Y];
  const float* rows = (const float*)x->data + offsets[HT_PRODUCT_X] + at.row * x->strides[0];
  const float* columns = (const float*)w->data + offsets[HT_PRODUCT_W] + at.column * w->strides[1];
  float* to = (float*)y->data + offsets[HT_PRODUCT_Y] + at.row * y->strides[0] + at.column;
  const int by_columns = at.columns >= at.rows; /* a vector holds columns of a row; else rows of a column, which are turned back */
  const int64_t down = by_columns ? w->strides[1] : x->strides[0], other_down = by_columns ? x->strides[0] : w->strides[1];
  const int64_t extent = by_columns ? at.columns : at.rows, few = by_columns ? at.rows : at.columns, k = call->extents[HT_PRODUCT_K];
  const int lanes = product->lanes;
  const ht_product_few_sums sums = (lanes == LANES ? ht_product_few_16 : ht_product_few_8)[few - 1];
  for (int64_t i = 0; i < extent; i += lanes) {
    if (i + lanes > extent && extent > lanes) i = extent - lanes; /* some again */
    const int64_t count = min_i64(lanes, extent - i);
    if (by_columns) {
      sums(columns + i * down, down, count, rows, other_down, k, to + i, y->strides[0]);
      continue;
    }
    _Alignas(64) float turned[LANES / 2 * LANES];
    sums(rows + i * down, down, count, columns, other_down, k, turned, lanes);
    ht_square(lanes, turned, lanes, few, count, to + i * y->strides[0], y->strides[0], few);
  }
  if (!beside) return 0;
  const ht_product_beside more = ht_product_beside_of(call, offsets, at.row, at.column);
  return ht_product_after(to, y->strides[0], at.rows, at.columns, &more, product);
}
