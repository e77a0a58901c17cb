/* A region of a typed dense call. Sums of a few tiles lie in a block of the caller's stack, where bias and epilogue follow as on
 * fp32 outputs; then they are stored as the result's type. What is computed past n stays in the block. */
#include "dense.h"
#include "epilogue.h"
#include "typed.h"

#define HT_SUMS 4096 /* a third of the smallest L1; at least eight tiles */

typedef struct { /* part of the output: of rows [row, row + rows) the columns [column, column + columns) */
  int64_t row, rows, column, columns;
} ht_place;

/* What an epilogue reads there, as fp32: values of a channel and fp32 tensors where they lie, another type in `wide`. */
static void extra_at(const ht_typed* typed, const ht_extra* extra, ht_place at, int64_t stride, float* wide, ht_extra* out) {
  *out = *extra;
  if (extra->row_stride == 0 || typed->whole.bits == 32) {
    out->data += at.row * extra->row_stride + at.column * extra->column_stride;
    return;
  }
  const uint16_t* from = (const uint16_t*)extra->data + at.row * extra->row_stride + at.column;
  ht_typed_widen(typed->whole, from, extra->row_stride, 1, at.rows, at.columns, wide, stride);
  *out = (ht_extra){wide, stride, 1};
}

/* Bias, epilogue and the result's type. */
static int finish(const ht_typed* typed, const ht_dense_call* call, const ht_kernel* kernel, float* sums, int64_t stride, ht_place at) {
  if (typed->floats != NULL && !typed->raw) typed->floats(sums, stride, (char*)sums, stride * 4, at.rows, at.columns);
  if (call->bias != NULL)
    for (int64_t r = 0; r < at.rows; ++r)
      for (int64_t c = 0; c < at.columns; ++c) sums[r * stride + c] += call->bias[at.column + c];
  if (kernel->epilogue != NULL) {
    ht_extra extra[HT_MAX_EXTRA];
    float wide[HT_SUMS]; /* one step reads a tensor like y: the residual */
    for (int32_t i = 0; i < call->extras; ++i) extra_at(typed, &call->extra[i], at, stride, wide, &extra[i]);
    if (ht_epilogue_run(kernel->epilogue, kernel->lanes, sums, stride, extra, call->extras, 0, 0, at.rows, at.columns) != 0) return -1;
  }
  const int64_t size = typed->y.bits / 8;
  typed->store(sums, stride, (char*)call->y + (at.row * call->ldy + at.column) * size, call->ldy * size, at.rows, at.columns);
  return 0;
}

int ht_typed_region(const ht_dense* op, const ht_dense_call* call, const ht_kernel* kernel, int64_t row, int64_t tiles, int64_t first,
                    int64_t last) {
  _Alignas(64) float sums[HT_SUMS];
  const ht_typed* typed = ht_types(op);
  const int64_t most = HT_SUMS / (kernel->mr * kernel->nr), columns = kernel->nr, x_size = typed->x.bits / 8;
  const int64_t some = tiles < most ? tiles : most, beside = most / some > 0 ? most / some : 1;
  const int64_t panel = ht_typed_depth(typed, op->k) * op->pw * typed->column;
  const int32_t* begin = ht_typed_first(typed, call->w, op->panels, op->k, op->pw);
  for (int64_t column = first; column < last; column += beside * columns) {
    int64_t groups = (last - column + columns - 1) / columns;
    if (groups > beside) groups = beside;
    int64_t wide = last - column < groups * columns ? last - column : groups * columns;
    for (int64_t tile = 0; tile < tiles; tile += some) {
      int64_t count = tiles - tile < some ? tiles - tile : some, top = row + tile * kernel->mr;
      const ht_typed_tile job = {.x = (const char*)call->x + top * call->ldx * x_size,
                                 .x_stride = call->ldx * x_size,
                                 .w = (const char*)call->w + column / op->pw * panel,
                                 .panel = panel,
                                 .sums = sums,
                                 .stride = groups * columns,
                                 .k = op->k,
                                 .tiles = count,
                                 .groups = groups,
                                 .first = begin == NULL ? NULL : begin + column};
      ((ht_typed_fn)(void (*)(void))kernel->fn)(&job); /* as the pack says of the op */
      if (finish(typed, call, kernel, sums, job.stride, (ht_place){top, count * kernel->mr, column, wide}) != 0) return -1;
    }
  }
  return 0;
}
