/* dense: its check, and its place among the kinds. */
#include "dense.h"

#include "c_api.h"
#include "panels.h"

static int check_bias(const ht_dense* dense, const DLTensor* bias, ht_dense_call* call, ht_error* error) {
  call->bias = NULL;
  if (bias == NULL) return 0;
  if (ht_check_type("bias", bias, kDLFloat, 32, error) != 0) return -1;
  if (bias->ndim != 1 || bias->shape[0] != dense->n)
    return ht_refuse(error, "ValueError", "bias has rank %d and extent %lld; expected one axis of %lld", (int)bias->ndim,
                     (long long)bias->shape[0], (long long)dense->n);
  if (bias->data == NULL || !ht_contiguous(bias))
    return ht_refuse(error, "ValueError", "bias must be contiguous and have data: pass a contiguous copy");
  if (ht_check_addresses("bias", bias, error) != 0) return -1;
  call->bias = (const float*)ht_data(bias);
  return 0;
}

static const ht_element FP32 = {kDLFloat, 32};

/* The first byte of rows and the one behind the last. Every call comes by here, with extents and strides inside their limits. */
static inline int reach(const char* name, const DLTensor* t, int size, int64_t rows, int64_t stride, int64_t inner, uintptr_t* low, uintptr_t* high,
                        ht_error* error) {
  const int64_t span = (rows - 1) * stride;
  uintptr_t first;
  const int wraps = __builtin_add_overflow((uintptr_t)t->data, t->byte_offset, &first);
  *low = first + (uintptr_t)((span < 0 ? span : 0) * size);
  *high = first + (uintptr_t)(((span > 0 ? span : 0) + inner) * size);
  if (!wraps && (*low | first | *high) <= HT_LAST_ADDRESS) return 0; /* the spans are below 2^63 bytes */
  return ht_refuse(error, "ValueError", HT_NOT_ADDRESSABLE, name);
}

/* Whether rows whose spans overlap share no byte. */
static int rows_apart(const void* one, int size, int64_t stride, int64_t inner, const void* other, int other_size, int64_t other_stride,
                      int64_t other_inner, int64_t rows) {
  const int64_t extents[2] = {rows, inner}, other_extents[2] = {rows, other_inner};
  const int64_t strides[2] = {stride, 1}, other_strides[2] = {other_stride, 1};
  const ht_layout first = {(uintptr_t)one, 2, size, extents, strides};
  const ht_layout second = {(uintptr_t)other, 2, other_size, other_extents, other_strides};
  return ht_interleaved(&first, &second);
}

static int y_size(const ht_dense* dense) { return ht_types(dense) == NULL ? (int)sizeof(float) : ht_types(dense)->y.bits / 8; }

/* The usual call costs a few nanoseconds: two axes, or a weight as it was packed. What is not usual goes the general way. */
static inline int plain(const DLTensor* t, ht_element type) {
  return t->device.device_type == kDLCPU && t->dtype.code == type.code && t->dtype.bits == type.bits && t->dtype.lanes == 1 &&
         t->ndim > 0 && t->ndim <= HT_MAX_RANK && t->shape != NULL;
}

static inline int check_type(const char* name, const DLTensor* t, ht_element type, ht_error* error) {
  if (plain(t, type)) return 0;
  return ht_check_type(name, t, type.code, type.bits, error);
}

static inline int fold(const char* name, const DLTensor* t, int64_t inner, int64_t* rows, int64_t* stride, ht_error* error) {
  if (t->ndim == 2 && t->shape[0] > 1 && t->shape[0] <= HT_EXTENT_LIMIT && t->shape[1] == inner && t->strides != NULL &&
      t->strides[1] == 1 && t->strides[0] >= inner && t->strides[0] <= HT_STRIDE_LIMIT) {
    *rows = t->shape[0];
    *stride = t->strides[0];
    return 0;
  }
  if (t->ndim == 2 && t->shape[0] == 1 && t->shape[1] == inner && (t->strides == NULL || t->strides[1] == 1)) {
    *rows = 1;
    *stride = inner;
    return 0;
  }
  const int64_t expected[2] = {0, inner};
  ht_view view;
  if (ht_fold(name, t, 2, expected, &view, error) != 0) return -1;
  *rows = view.extents[0];
  *stride = view.strides[0];
  return 0;
}

/* One axis of all its floats, or the three of an fp32 weight's panels. */
static inline int has_packed_shape(const ht_dense* dense, const DLTensor* w) {
  if (ht_types(dense) == NULL && w->ndim == 3) return w->shape[0] == dense->panels && w->shape[1] == dense->k && w->shape[2] == dense->pw;
  return w->ndim == 1 && w->shape[0] == ht_dense_packed(dense);
}

static inline int as_packed(const ht_dense* dense, const DLTensor* w) {
  if (w->ndim == 1) return ht_contiguous(w);
  const int64_t* s = w->strides;
  return s == NULL || (s[2] == 1 && s[1] == dense->pw && s[0] == dense->k * dense->pw) || ht_contiguous(w);
}

int ht_dense_check(const char* name, const ht_dense* dense, const DLTensor* x, const DLTensor* w, const DLTensor* y,
                   const DLTensor* bias, ht_dense_call* call, ht_error* error) {
  int64_t y_rows;
  const ht_typed* typed = ht_types(dense);
  if (check_type("x", x, typed == NULL ? FP32 : typed->x, error) != 0 || check_type("out", y, typed == NULL ? FP32 : typed->y, error) != 0 ||
      check_type("weight", w, FP32, error) != 0)
    return -1;
  if (!has_packed_shape(dense, w) || w->data == NULL)
    return ht_refuse(error, "ValueError", "weight was not packed by this pack for %s: bind the weight again", name);
  if (!as_packed(dense, w)) /* the kernels step through it by its extents alone */
    return ht_refuse(error, "ValueError",
                     "weight has strides of its own; pass the packed weight itself, or a contiguous copy of it");
  if (ht_check_addresses("weight", w, error) != 0) return -1;
  if (check_bias(dense, bias, call, error) != 0) return -1;
  if (fold("x", x, dense->k, &call->m, &call->ldx, error) != 0) return -1;
  if (y->ndim != x->ndim)
    return ht_refuse(error, "ValueError", "out has rank %d, x has rank %d; they must be equal", (int)y->ndim, (int)x->ndim);
  for (int i = 0; i < x->ndim - 1; ++i)
    if (x->shape[i] != y->shape[i])
      return ht_refuse(error, "ValueError", "out has extent %lld in axis %d, x has %lld; they must be equal",
                       (long long)y->shape[i], i, (long long)x->shape[i]);
  if (fold("out", y, dense->n, &y_rows, &call->ldy, error) != 0) return -1;
  if (call->m == 0) return 0;
  if (x->data == NULL || y->data == NULL)
    return ht_refuse(error, "ValueError", "%s has no data", x->data == NULL ? "x" : "out");
  call->x = (const float*)ht_data(x); /* of a typed op: its first byte, as out's */
  call->w = (const float*)ht_data(w);
  call->y = (float*)ht_data(y);
  if (call->m > 1 && (call->ldy < 0 ? -call->ldy : call->ldy) < dense->n)
    return ht_refuse(error, "ValueError", "rows of out overlap: row stride %lld is under n = %lld", (long long)call->ldy,
                     (long long)dense->n);
  uintptr_t x_low, x_high, y_low, y_high;
  const int x_size = typed == NULL ? (int)sizeof(float) : typed->x.bits / 8;
  if (reach("x", x, x_size, call->m, call->ldx, dense->k, &x_low, &x_high, error) != 0 ||
      reach("out", y, y_size(dense), call->m, call->ldy, dense->n, &y_low, &y_high, error) != 0)
    return -1;
  if (x_low < y_high && y_low < x_high &&
      !rows_apart(call->y, y_size(dense), call->ldy, dense->n, call->x, x_size, call->ldx, dense->k, call->m))
    return ht_refuse(error, "ValueError",
                     "out shares memory with x: rows are written before all of x is read; pass another out");
  uintptr_t w_low = (uintptr_t)call->w, w_high = (uintptr_t)(call->w + ht_dense_packed(dense));
  uintptr_t b_low = (uintptr_t)call->bias, b_high = (uintptr_t)(call->bias + (call->bias == NULL ? 0 : dense->n));
  if ((w_low < y_high && y_low < w_high) || (b_low < y_high && y_low < b_high && call->bias != NULL))
    return ht_refuse(error, "ValueError", "out shares memory with the packed weight or the bias; pass another out");
  return 0;
}

/* A tensor like out that is read while out is written: they share no memory. */
static int check_whole(const ht_operand* operand, const ht_dense* dense, const DLTensor* t, const DLTensor* y, const ht_dense_call* call,
                       ht_extra* extra, ht_error* error) {
  int64_t rows;
  if (check_type(operand->name, t, (ht_element){operand->code, operand->bits}, error) != 0) return -1;
  if (t->ndim != y->ndim)
    return ht_refuse(error, "ValueError", "%s has rank %d, out has rank %d; they must be equal", operand->name, (int)t->ndim, (int)y->ndim);
  for (int i = 0; i < t->ndim - 1; ++i)
    if (t->shape[i] != y->shape[i])
      return ht_refuse(error, "ValueError", "%s has extent %lld in axis %d, out has %lld; they must be equal", operand->name,
                       (long long)t->shape[i], i, (long long)y->shape[i]);
  if (fold(operand->name, t, dense->n, &rows, &extra->row_stride, error) != 0) return -1;
  extra->column_stride = 1;
  if (call->m == 0) return 0;
  if (t->data == NULL) return ht_refuse(error, "ValueError", "%s has no data", operand->name);
  extra->data = (const float*)ht_data(t);
  uintptr_t low, high, y_low, y_high;
  if (reach(operand->name, t, operand->bits / 8, call->m, extra->row_stride, dense->n, &low, &high, error) != 0 ||
      reach("out", y, y_size(dense), call->m, call->ldy, dense->n, &y_low, &y_high, error) != 0)
    return -1;
  if (low < y_high && y_low < high &&
      !rows_apart(call->y, y_size(dense), call->ldy, dense->n, extra->data, operand->bits / 8, extra->row_stride, dense->n, call->m))
    return ht_refuse(error, "ValueError", "out shares memory with %s, which is read after sums are written to out; pass another out",
                     operand->name);
  return 0;
}

/* One value a column. */
static int check_channel(const ht_operand* operand, const ht_dense* dense, const DLTensor* t, const DLTensor* y, const ht_dense_call* call,
                         ht_extra* extra, ht_error* error) {
  if (ht_check_type(operand->name, t, operand->code, operand->bits, error) != 0) return -1;
  if (t->ndim != 1 || t->shape[0] != dense->n)
    return ht_refuse(error, "ValueError", "%s has rank %d and extent %lld; expected one axis of %lld", operand->name, (int)t->ndim,
                     (long long)t->shape[0], (long long)dense->n);
  if (t->data == NULL || !ht_contiguous(t))
    return ht_refuse(error, "ValueError", "%s must be contiguous and have data: pass a contiguous copy", operand->name);
  if (ht_check_addresses(operand->name, t, error) != 0) return -1;
  *extra = (ht_extra){(const float*)ht_data(t), 0, 1};
  uintptr_t low = (uintptr_t)extra->data, high = (uintptr_t)(extra->data + dense->n), y_low, y_high;
  if (call->m == 0) return 0;
  if (reach("out", y, y_size(dense), call->m, call->ldy, dense->n, &y_low, &y_high, error) != 0) return -1;
  if (low < y_high && y_low < high)
    return ht_refuse(error, "ValueError", "out shares memory with %s; pass another out", operand->name);
  return 0;
}

static int check(const ht_op* op, const DLTensor* const* tensors, int32_t count, ht_call* call, ht_error* error) {
  const ht_dense* dense = op->data;
  ht_dense_call* found = &call->dense;
  const int extras = op->operand_count - HT_LAYER_OPERANDS; /* of the epilogue; an op that has one takes no bias beside */
  if (extras == 0 && (count < 3 || count > 3 + op->optional_count))
    return ht_refuse(error, "TypeError", "expected x, weight, out and perhaps a bias");
  if (extras > 0 && count != 3 + extras)
    return ht_refuse(error, "TypeError", "expected x, weight, out and %d operands of its epilogue, got %d tensors", extras, (int)count);
  if (ht_dense_check(op->name, dense, tensors[0], tensors[1], tensors[2], extras == 0 && count == 4 ? tensors[3] : NULL, found, error) != 0)
    return -1;
  found->partial = 0;
  found->extras = extras;
  for (int i = 0; i < extras; ++i) {
    const ht_operand* operand = &op->operands[HT_FIRST_EXTRA + i];
    const DLTensor* t = tensors[3 + i];
    if (t == NULL) return ht_refuse(error, "TypeError", "%s is missing", operand->name);
    if ((operand->role == HT_CONSTANT ? check_channel(operand, dense, t, tensors[2], found, &found->extra[i], error)
                                      : check_whole(operand, dense, t, tensors[2], found, &found->extra[i], error)) != 0)
      return -1;
  }
  call->extents[HT_AXIS_M] = call->dense.m;
  call->extents[HT_AXIS_N] = dense->n;
  call->extents[HT_AXIS_K] = dense->k;
  call->empty = call->dense.m == 0;
  return 0;
}

static int run(const ht_op* op, const ht_plan* plan, const ht_call* call, int threads) {
  ht_composition composition;
  ht_dense_look_up(op->data, plan, call->dense.m, &composition);
  return ht_dense_run(op->data, &composition, &call->dense, threads);
}

static const char* kernel_name(const ht_op* op, int32_t index) { return ((const ht_dense*)op->data)->kernels[index].name; }

static void look_up(const ht_op* op, const ht_plan* plan, int64_t m, int64_t out[2 + 2 * HT_MAX_PARTS]) {
  const ht_dense* dense = op->data;
  ht_composition found;
  ht_dense_look_up(dense, plan, m, &found);
  out[0] = found.count;
  out[1] = found.split;
  for (int i = 0; i < found.count; ++i) {
    out[2 + 2 * i] = found.part[i].kernel - dense->kernels;
    out[3 + 2 * i] = found.part[i].tiles;
  }
}

static void describe(const ht_op* op, ht_door_op* out) {
  const ht_dense* dense = op->data;
  out->n = dense->n;
  out->k = dense->k;
  out->panels = dense->panels;
  out->pw = dense->pw;
  out->weight_kn = (dense->flags & HT_WEIGHT_KN) != 0;
}

static int64_t packed_floats(const ht_op* op) { return ht_dense_packed(op->data); }

static int pack(const ht_op* op, const DLTensor* weight, float* packed, ht_error* error) {
  const ht_dense* dense = op->data;
  const ht_typed* typed = ht_types(dense);
  if (check_type("weight", weight, typed == NULL ? FP32 : typed->weight, error) != 0) return -1;
  const int rows = (dense->flags & HT_WEIGHT_KN) != 0;
  if (weight->ndim != 2 || weight->shape[rows] != dense->n || weight->shape[1 - rows] != dense->k || weight->data == NULL)
    return ht_refuse(error, "ValueError", "weight has rank %d; expected (%lld, %lld) with data", (int)weight->ndim,
                     (long long)(rows ? dense->k : dense->n), (long long)(rows ? dense->n : dense->k));
  if (ht_check_addresses("weight", weight, error) != 0) return -1;
  const int64_t apart[2] = {weight->strides == NULL ? weight->shape[1] : weight->strides[0], weight->strides == NULL ? 1 : weight->strides[1]};
  if (typed == NULL) ht_pack_panels((const float*)ht_data(weight), dense->n, dense->k, apart[rows], apart[1 - rows], dense->panels, dense->pw, packed);
  else ht_typed_pack(typed, dense->n, dense->k, dense->pw, dense->panels, ht_data(weight), apart[rows], apart[1 - rows], (char*)packed);
  return 0;
}

const ht_kind ht_dense_kind = {.name = "dense", .check = check, .run = run, .kernel_name = kernel_name, .look_up = look_up,
                               .describe = describe, .packed_floats = packed_floats, .pack = pack};
