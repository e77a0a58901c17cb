/* A region of a typed dense call. A tile's sums lie in a block of the program's, where bias and epilogue follow as on fp32 outputs while
 * they are in L1; then they are stored as the result's type. What is computed past n stays in the block. */
#include "dense.h"
#include "epilogue.h"
#include "typed.h"

typedef struct { /* of a call: what its tiles' sums become, from row and column `row`, `first` on, up to column `last` */
  const ht_typed* typed;
  const ht_dense_call* call;
  const ht_kernel* kernel;
  int64_t row, first, last;
  int failed;
} region;

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

static void add_row(float* sums, const float* bias, int64_t columns) {
  typedef float quad __attribute__((vector_size(16), aligned(4), may_alias)); /* every x86-64 has four lanes */
  int64_t c = 0;
  for (; c + 4 <= columns; c += 4) *(quad*)(sums + c) += *(const quad*)(bias + c);
  for (; c < columns; ++c) sums[c] += bias[c];
}

/* Bias, epilogue and the result's type. */
static void finish(void* with, const ht_typed_part* part) {
  region* r = with;
  const ht_typed* typed = r->typed;
  const ht_dense_call* call = r->call;
  const int64_t column = r->first + part->column, left = r->last - column, stride = part->stride;
  const ht_place at = {r->row + part->row, part->rows, column, left < part->columns ? left : part->columns};
  float* sums = part->sums;
  if (at.columns <= 0) return; /* a tile is made of smaller ones where there is no AMX */
  const int64_t size = typed->y.bits / 8;
  char* y = (char*)call->y + (at.row * call->ldy + at.column) * size;
  if (r->kernel->stepped != NULL && call->bias == NULL) {
    const float* given[HT_MAX_EXTRA];
    for (int32_t i = 0; i < call->extras; ++i) given[i] = call->extra[i].data + at.column;
    r->kernel->stepped(sums, stride, y, call->ldy * size, at.rows, at.columns, given);
    return;
  }
  if (typed->floats != NULL && !typed->raw) typed->floats(sums, stride, (char*)sums, stride * 4, at.rows, at.columns);
  for (int64_t i = 0; i < at.rows && call->bias != NULL; ++i) add_row(sums + i * stride, call->bias + at.column, at.columns);
  if (r->kernel->epilogue != NULL) {
    ht_extra extra[HT_MAX_EXTRA];
    float wide[HT_TYPED_TILE]; /* one step reads a tensor like y: the residual */
    for (int32_t i = 0; i < call->extras; ++i) extra_at(typed, &call->extra[i], at, stride, wide, &extra[i]);
    r->failed |= ht_epilogue_run(r->kernel->epilogue, r->kernel->lanes, sums, stride, extra, call->extras, 0, 0, at.rows, at.columns) != 0;
  }
  typed->store(sums, stride, y, call->ldy * size, at.rows, at.columns);
}

int ht_typed_region(const ht_dense* op, const ht_dense_call* call, const ht_kernel* kernel, int64_t row, int64_t tiles, int64_t first,
                    int64_t last) {
  const ht_typed* typed = ht_types(op);
  const int64_t columns = kernel->nr, x_size = typed->x.bits / 8;
  const int64_t panel = ht_typed_depth(typed, op->k) * op->pw * typed->column;
  const int32_t* begin = ht_typed_first(typed, call->w, op->panels, op->k, op->pw);
  region r = {typed, call, kernel, row, first, last, 0};
  const ht_typed_tile job = {.x = (const char*)call->x + row * call->ldx * x_size,
                             .x_stride = call->ldx * x_size,
                             .w = (const char*)call->w + first / op->pw * panel,
                             .panel = panel,
                             .k = op->k,
                             .tiles = tiles,
                             .groups = (last - first + columns - 1) / columns,
                             .first = begin == NULL ? NULL : begin + first,
                             .finish = finish,
                             .with = &r};
  ((ht_typed_fn)(void (*)(void))kernel->fn)(&job); /* as the pack says of the op */
  return r.failed ? -1 : 0;
}
