/* dense: its check, and its place among the kinds. */
#include "dense.h"

static int check_bias(const ht_dense* dense, const DLTensor* bias, ht_dense_call* call, ht_error* error) {
  call->bias = NULL;
  if (bias == NULL) return 0;
  if (ht_check_type("bias", bias, kDLFloat, 32, error) != 0) return -1;
  if (bias->ndim != 1 || bias->shape[0] != dense->n)
    return ht_refuse(error, "ValueError", "bias has rank %d and extent %lld; expected one axis of %lld", (int)bias->ndim,
                     (long long)bias->shape[0], (long long)dense->n);
  if (bias->data == NULL || !ht_contiguous(bias))
    return ht_refuse(error, "ValueError", "bias must be contiguous and have data: pass a contiguous copy");
  call->bias = (const float*)ht_data(bias);
  return 0;
}

static void reach(const float* data, int64_t rows, int64_t stride, int64_t inner, uintptr_t* low, uintptr_t* high) {
  int64_t span = (rows - 1) * stride;
  *low = (uintptr_t)(data + (span < 0 ? span : 0));
  *high = (uintptr_t)(data + (span > 0 ? span : 0) + inner);
}

int ht_dense_check(const char* name, const ht_dense* dense, const DLTensor* x, const DLTensor* w, const DLTensor* y,
                   const DLTensor* bias, ht_dense_call* call, ht_error* error) {
  ht_view view;
  const int64_t x_expected[2] = {0, dense->k}, y_expected[2] = {0, dense->n};
  if (ht_check_type("x", x, kDLFloat, 32, error) != 0 || ht_check_type("out", y, kDLFloat, 32, error) != 0 ||
      ht_check_type("weight", w, kDLFloat, 32, error) != 0)
    return -1;
  if (w->ndim != 3 || w->shape[0] != dense->panels || w->shape[1] != dense->k || w->shape[2] != dense->pw || w->data == NULL)
    return ht_refuse(error, "ValueError", "weight was not packed by this pack for %s: bind the weight again", name);
  if (!ht_contiguous(w)) /* the kernels step through it by its extents alone */
    return ht_refuse(error, "ValueError",
                     "weight has strides of its own; pass the packed weight itself, or a contiguous copy of it");
  if (check_bias(dense, bias, call, error) != 0) return -1;
  if (ht_fold("x", x, 2, x_expected, &view, error) != 0) return -1;
  call->m = view.extents[0];
  call->ldx = view.strides[0];
  if (y->ndim != x->ndim)
    return ht_refuse(error, "ValueError", "out has rank %d, x has rank %d; they must be equal", (int)y->ndim, (int)x->ndim);
  for (int i = 0; i < x->ndim - 1; ++i)
    if (x->shape[i] != y->shape[i])
      return ht_refuse(error, "ValueError", "out has extent %lld in axis %d, x has %lld; they must be equal",
                       (long long)y->shape[i], i, (long long)x->shape[i]);
  if (ht_fold("out", y, 2, y_expected, &view, error) != 0) return -1;
  call->ldy = view.strides[0];
  if (call->m == 0) return 0;
  if (x->data == NULL || y->data == NULL)
    return ht_refuse(error, "ValueError", "%s has no data", x->data == NULL ? "x" : "out");
  call->x = (const float*)ht_data(x);
  call->w = (const float*)ht_data(w);
  call->y = (float*)ht_data(y);
  if (call->m > 1 && (call->ldy < 0 ? -call->ldy : call->ldy) < dense->n)
    return ht_refuse(error, "ValueError", "rows of out overlap: row stride %lld is under n = %lld", (long long)call->ldy,
                     (long long)dense->n);
  uintptr_t x_low, x_high, y_low, y_high;
  reach(call->x, call->m, call->ldx, dense->k, &x_low, &x_high);
  reach(call->y, call->m, call->ldy, dense->n, &y_low, &y_high);
  if (x_low < y_high && y_low < x_high)
    return ht_refuse(error, "ValueError",
                     "out shares memory with x: rows are written before all of x is read; pass another out");
  uintptr_t w_low = (uintptr_t)call->w, w_high = (uintptr_t)(call->w + dense->panels * dense->k * dense->pw);
  uintptr_t b_low = (uintptr_t)call->bias, b_high = (uintptr_t)(call->bias + (call->bias == NULL ? 0 : dense->n));
  if ((w_low < y_high && y_low < w_high) || (b_low < y_high && y_low < b_high && call->bias != NULL))
    return ht_refuse(error, "ValueError", "out shares memory with the packed weight or the bias; pass another out");
  return 0;
}

static int check(const ht_op* op, const DLTensor* const* tensors, int32_t count, ht_call* call, ht_error* error) {
  const ht_dense* dense = op->data;
  if (count < 3 || count > 4) return ht_refuse(error, "TypeError", "expected x, weight, out and perhaps a bias");
  if (ht_dense_check(op->name, dense, tensors[0], tensors[1], tensors[2], count == 4 ? tensors[3] : NULL, &call->dense, error) != 0)
    return -1;
  call->extents[HT_AXIS_M] = call->dense.m;
  call->extents[HT_AXIS_N] = dense->n;
  call->extents[HT_AXIS_K] = dense->k;
  return 0;
}

static int run(const ht_op* op, const ht_plan* plan, const ht_call* call, int threads) {
  ht_composition composition;
  ht_dense_look_up(op->data, plan, call->dense.m, &composition);
  return ht_dense_run(op->data, &composition, &call->dense, threads);
}

static const char* kernel_name(const ht_op* op, int32_t index) { return ((const ht_dense*)op->data)->kernels[index].name; }

const ht_kind ht_dense_kind = {"dense", check, run, kernel_name};
