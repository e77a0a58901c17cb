/* Validation of what a caller hands in. TVM's kernels check none of: row strides, aliases, extents over 2^31, NULL. */
#include <stdarg.h>
#include <stdio.h>

#include "ht.h"

#define HT_EXTENT_LIMIT 2147483647 /* also the tuner's limit; products of three extents stay inside 64 bits below it */
#define HT_STRIDE_LIMIT 1073741824 /* 2^30: times 2^31 rows and 4 bytes stays inside 64 bits */

__attribute__((format(printf, 3, 4))) static int refuse(ht_error* error, const char* kind, const char* format, ...) {
  va_list args;
  va_start(args, format);
  error->kind = kind;
  vsnprintf(error->text, sizeof error->text, format, args);
  va_end(args);
  return -1;
}

static int check_kind(const char* name, const DLTensor* t, ht_error* error) {
  if (t->device.device_type != kDLCPU)
    return refuse(error, "ValueError", "%s lives on device type %d; this pack computes on the CPU: copy it there first", name,
                  (int)t->device.device_type);
  if (t->dtype.code != kDLFloat || t->dtype.bits != 32 || t->dtype.lanes != 1)
    return refuse(error, "TypeError", "%s has dtype code %d with %d bits x %d lanes; expected float32", name,
                  (int)t->dtype.code, (int)t->dtype.bits, (int)t->dtype.lanes);
  if (t->ndim < 1 || t->ndim > 32)
    return refuse(error, "ValueError", "%s has rank %d; expected 1 to 32 axes", name, (int)t->ndim);
  if (t->shape == NULL) return refuse(error, "ValueError", "%s has no shape", name);
  return 0;
}

/* Fold all leading axes into rows: *rows rows of `inner` elements, `*stride` elements apart. */
static int fold(const char* name, const DLTensor* t, int64_t inner, int64_t* rows, int64_t* stride, ht_error* error) {
  int last = t->ndim - 1;
  int64_t count = 1;
  int empty = 0;
  for (int i = 0; i < t->ndim; ++i) {
    if (t->shape[i] < 0 || t->shape[i] > HT_EXTENT_LIMIT)
      return refuse(error, "ValueError", "%s: extent %lld of axis %d is not in 0..2^31-1", name, (long long)t->shape[i], i);
    if (i < last) {
      empty |= t->shape[i] == 0;
      if (!empty && count > HT_EXTENT_LIMIT / t->shape[i])
        return refuse(error, "ValueError", "%s: its leading axes hold over 2^31-1 rows", name);
      count = empty ? 0 : count * t->shape[i];
    }
  }
  if (t->shape[last] != inner)
    return refuse(error, "ValueError", "%s has last extent %lld; expected %lld", name, (long long)t->shape[last],
                  (long long)inner);
  *rows = count;
  *stride = inner;
  if (count == 0 || t->strides == NULL) return 0;
  if (inner > 1 && t->strides[last] != 1)
    return refuse(error, "ValueError", "%s has inner stride %lld; expected 1: pass a copy that is contiguous in its last axis",
                  name, (long long)t->strides[last]);
  int64_t run = 1; /* rows folded so far, innermost first */
  int found = 0;
  for (int i = last - 1; i >= 0; --i) {
    if (t->shape[i] == 1) continue;
    if (!found) {
      *stride = t->strides[i];
      found = 1;
    } else if (t->strides[i] != (__int128)*stride * run) { /* a hostile stride times rows needs more than 64 bits */
      return refuse(error, "ValueError", "%s: axis %d has stride %lld, so its rows are not evenly spaced: pass a contiguous copy",
                    name, i, (long long)t->strides[i]);
    }
    run *= t->shape[i];
  }
  if (*stride > HT_STRIDE_LIMIT || *stride < -HT_STRIDE_LIMIT)
    return refuse(error, "ValueError", "%s: row stride %lld is beyond any memory", name, (long long)*stride);
  return 0;
}

static void reach(const float* data, int64_t rows, int64_t stride, int64_t inner, uintptr_t* low, uintptr_t* high) {
  int64_t span = (rows - 1) * stride;
  *low = (uintptr_t)(data + (span < 0 ? span : 0));
  *high = (uintptr_t)(data + (span > 0 ? span : 0) + inner);
}

static const float* start(const DLTensor* t) { return (const float*)((const char*)t->data + t->byte_offset); }

static int check_bias(const ht_op* op, const DLTensor* bias, ht_call* call, ht_error* error) {
  call->bias = NULL;
  if (bias == NULL) return 0;
  if (check_kind("bias", bias, error) != 0) return -1;
  if (bias->ndim != 1 || bias->shape[0] != op->n)
    return refuse(error, "ValueError", "bias has rank %d and extent %lld; expected one axis of %lld", (int)bias->ndim,
                  (long long)bias->shape[0], (long long)op->n);
  if (bias->data == NULL || (op->n > 1 && bias->strides != NULL && bias->strides[0] != 1))
    return refuse(error, "ValueError", "bias must be contiguous and have data: pass a contiguous copy");
  call->bias = start(bias);
  return 0;
}

int ht_check(const ht_op* op, const DLTensor* x, const DLTensor* w, const DLTensor* y, const DLTensor* bias, ht_call* call,
             ht_error* error) {
  int64_t y_rows;
  if (check_kind("x", x, error) != 0 || check_kind("out", y, error) != 0 || check_kind("weight", w, error) != 0) return -1;
  if (w->ndim != 3 || w->shape[0] != op->panels || w->shape[1] != op->k || w->shape[2] != op->pw || w->data == NULL)
    return refuse(error, "ValueError", "weight was not packed by this pack for %s: bind the weight again", op->name);
  if (check_bias(op, bias, call, error) != 0) return -1;
  if (fold("x", x, op->k, &call->m, &call->ldx, error) != 0) return -1;
  if (y->ndim != x->ndim)
    return refuse(error, "ValueError", "out has rank %d, x has rank %d; they must be equal", (int)y->ndim, (int)x->ndim);
  for (int i = 0; i < x->ndim - 1; ++i)
    if (x->shape[i] != y->shape[i])
      return refuse(error, "ValueError", "out has extent %lld in axis %d, x has %lld; they must be equal",
                    (long long)y->shape[i], i, (long long)x->shape[i]);
  if (fold("out", y, op->n, &y_rows, &call->ldy, error) != 0) return -1;
  if (call->m == 0) return 0;
  if (x->data == NULL || y->data == NULL)
    return refuse(error, "ValueError", "%s has no data", x->data == NULL ? "x" : "out");
  call->x = start(x);
  call->w = start(w);
  call->y = (float*)start(y);
  if (call->m > 1 && (call->ldy < 0 ? -call->ldy : call->ldy) < op->n)
    return refuse(error, "ValueError", "rows of out overlap: row stride %lld is under n = %lld", (long long)call->ldy,
                  (long long)op->n);
  uintptr_t x_low, x_high, y_low, y_high;
  reach(call->x, call->m, call->ldx, op->k, &x_low, &x_high);
  reach(call->y, call->m, call->ldy, op->n, &y_low, &y_high);
  if (x_low < y_high && y_low < x_high)
    return refuse(error, "ValueError", "out shares memory with x: rows are written before all of x is read; pass another out");
  uintptr_t w_low = (uintptr_t)call->w, w_high = (uintptr_t)(call->w + op->panels * op->k * op->pw);
  uintptr_t b_low = (uintptr_t)call->bias, b_high = (uintptr_t)(call->bias + (call->bias == NULL ? 0 : op->n));
  if ((w_low < y_high && y_low < w_high) || (b_low < y_high && y_low < b_high && call->bias != NULL))
    return refuse(error, "ValueError", "out shares memory with the packed weight or the bias; pass another out");
  return 0;
}
