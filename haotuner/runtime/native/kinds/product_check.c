/* batch_matmul: what a caller hands in, against the op. Matrices are the last two axes, all before them count matrices: they are
 * aligned from the last one on, and one of a single element, or one that is not there, is broadcast, as in torch.matmul. */
#include "product.h"

typedef struct {
  const char* name;
  const DLTensor* t;
  int64_t strides[HT_MAX_RANK];
} tensor;

/* Type, extents and strides; `least` axes. */
static int examine(const ht_op* op, int place, const char* name, const DLTensor* t, int least, tensor* out, ht_error* error) {
  const ht_product* product = op->data;
  if (t == NULL) return ht_refuse(error, "TypeError", "%s is missing", name);
  DLTensor scalar = *t; /* a number has no axes */
  int64_t one = 1;
  if (least == 0 && t->ndim == 0) {
    scalar.ndim = 1;
    scalar.shape = &one;
    scalar.strides = NULL;
  }
  if (product->check_type != NULL ? product->check_type(op, name, &scalar, error) != 0 : ht_check_type(name, &scalar, op->operands[place].code, op->operands[place].bits, error) != 0)
    return -1;
  if (t->ndim < least) return ht_refuse(error, "ValueError", "%s has rank %d; expected %d axes or more", name, (int)t->ndim, least);
  out->name = name;
  out->t = t;
  int empty = 0;
  for (int i = 0; i < t->ndim; ++i) {
    if (t->shape[i] < 0 || t->shape[i] > HT_EXTENT_LIMIT)
      return ht_refuse(error, "ValueError", "%s: extent %lld of axis %d is not in 0..2^31-1", name, (long long)t->shape[i], i);
    empty |= t->shape[i] == 0;
  }
  int64_t run = 1;
  __int128 reach = 0;
  for (int i = t->ndim - 1; i >= 0; --i) {
    int64_t stride = t->strides != NULL ? t->strides[i] : run;
    if (empty || t->shape[i] == 1) stride = t->shape[i] == 1 ? 0 : run;
    out->strides[i] = stride;
    if (empty) continue;
    if (run > HT_ELEMENTS_LIMIT / t->shape[i])
      return ht_refuse(error, "ValueError", "%s: its axes hold more elements than any memory", name);
    run *= t->shape[i];
    __int128 span = (__int128)stride * (t->shape[i] - 1);
    reach += span < 0 ? -span : span;
    if (reach > HT_ELEMENTS_LIMIT) return ht_refuse(error, "ValueError", "%s: stride %lld is beyond any memory", name, (long long)stride);
  }
  if (!empty && t->data == NULL) return ht_refuse(error, "ValueError", "%s has no data", name);
  return ht_check_addresses(name, t, error);
}

static int64_t extent_at(const tensor* t, int from_last) {
  int place = t->t->ndim - 1 - from_last;
  return place < 0 ? 1 : t->t->shape[place];
}

static int64_t stride_at(const tensor* t, int from_last) {
  int place = t->t->ndim - 1 - from_last;
  return place < 0 || t->t->shape[place] == 1 ? 0 : t->strides[place];
}

static int same(const char* axis, int64_t found, const tensor* of, int64_t wanted, const char* says, ht_error* error) {
  if (found == wanted) return 0;
  return ht_refuse(error, "ValueError", "%s has extent %lld on axis %s, %s has %lld; they must be equal", of->name, (long long)found, axis,
                   says, (long long)wanted);
}

static void reach_of(const tensor* t, uintptr_t* low, uintptr_t* high) {
  int64_t first = 0, end = 1;
  for (int i = 0; i < t->t->ndim; ++i) {
    int64_t span = (t->t->shape[i] - 1) * t->strides[i];
    if (span < 0) first += span;
    else end += span;
  }
  const int64_t element = t->t->dtype.bits / 8;
  *low = (uintptr_t)ht_data(t->t) + (uintptr_t)(first * element);
  *high = (uintptr_t)ht_data(t->t) + (uintptr_t)(end * element);
}

/* No two elements of the output are one: from the smallest stride on, each axis steps over all that is inside it. */
static int check_apart(const tensor* y, ht_error* error) {
  int done[HT_MAX_RANK] = {0};
  int64_t inner = 0; /* from the first element to the last of the axes so far */
  for (;;) {
    int least = -1;
    for (int i = 0; i < y->t->ndim; ++i) {
      int64_t stride = y->strides[i] < 0 ? -y->strides[i] : y->strides[i];
      if (done[i] || y->t->shape[i] == 1) continue;
      if (least < 0 || stride < (y->strides[least] < 0 ? -y->strides[least] : y->strides[least])) least = i;
    }
    if (least < 0) return 0;
    int64_t stride = y->strides[least] < 0 ? -y->strides[least] : y->strides[least];
    if (stride <= inner) return ht_refuse(error, "ValueError", "%s: its elements overlap; pass another one", y->name);
    inner += stride * (y->t->shape[least] - 1);
    done[least] = 1;
  }
}

static ht_layout layout_of(const tensor* t) {
  return (ht_layout){(uintptr_t)ht_data(t->t), t->t->ndim, t->t->dtype.bits / 8, t->t->shape, t->strides};
}

static int check_aliases(const tensor* y, const tensor* const* inputs, int count, ht_error* error) {
  uintptr_t low, high, in_low, in_high;
  reach_of(y, &low, &high);
  for (int i = 0; i < count; ++i) {
    int empty = 0;
    for (int a = 0; a < inputs[i]->t->ndim; ++a) empty |= inputs[i]->t->shape[a] == 0;
    if (empty) continue;
    reach_of(inputs[i], &in_low, &in_high);
    const ht_layout written = layout_of(y), other = layout_of(inputs[i]);
    if (in_low < high && low < in_high && !ht_interleaved(&written, &other))
      return ht_refuse(error, "ValueError", "%s shares memory with %s, which is read meanwhile; pass another %s", y->name,
                       inputs[i]->name, y->name);
  }
  return 0;
}

/* The batch axes of all tensors as few as there can be: those of one matrix are left out, and two that all step over evenly are one. */
static int fold_batch(const tensor* y, const tensor* const* each, const int* matrix_axes, int count, ht_call* call, ht_error* error) {
  ht_product_call* product = &call->product;
  int axes = 0;
  for (int i = 0; i < y->t->ndim - 2; ++i) { /* outermost first */
    int from_last = y->t->ndim - 1 - i;
    int64_t extent = y->t->shape[i], strides[HT_MAX_OPERANDS];
    if (extent == 1) continue;
    int joins = axes > 0;
    for (int o = 0; o < count; ++o) {
      if (each[o] == NULL) continue;
      strides[o] = stride_at(each[o], from_last - 2 + matrix_axes[o]);
      joins = joins && (__int128)strides[o] * extent == product->views[o].strides[1 + axes];
    }
    if (!joins && axes == HT_BATCH_AXES)
      return ht_refuse(error, "ValueError", "its batch axes fold into no fewer than %d; pass contiguous copies", HT_BATCH_AXES + 1);
    if (!joins) product->batch[axes++] = 1;
    product->batch[axes - 1] *= extent;
    for (int o = 0; o < count; ++o)
      if (each[o] != NULL) product->views[o].strides[1 + axes] = strides[o];
  }
  product->batch_axes = axes;
  return 0;
}

static const char* const names[6] = {"x", "w", "out", "bias", "scale", "mask"};

/* Bias and mask have the output's axes or one element there, aligned from the last; scale has its batch axes so. */
static int check_beside(const tensor* y, const tensor* t, int skip, ht_error* error) {
  if (t->t->ndim > y->t->ndim - skip)
    return ht_refuse(error, "ValueError", "%s has rank %d, over the %d axes that the output has for it", t->name, (int)t->t->ndim,
                     (int)y->t->ndim - skip);
  for (int i = 0; i < t->t->ndim; ++i) {
    int64_t extent = extent_at(t, i), wanted = extent_at(y, i + skip);
    if (extent != wanted && extent != 1)
      return ht_refuse(error, "ValueError", "%s has extent %lld in axis %d, where the output has %lld; give that or 1", t->name,
                       (long long)extent, (int)t->t->ndim - 1 - i, (long long)wanted);
  }
  return 0;
}

int ht_product_check(const ht_op* op, const DLTensor* const* tensors, int32_t count, ht_call* call, ht_error* error) {
  const ht_product* product = op->data;
  static const int least[6] = {2, 2, 2, 1, 0, 1}, matrix_axes[6] = {2, 2, 2, 2, 0, 2};
  tensor found[6];
  const tensor* each[6] = {NULL};
  if (count < op->operand_count || count > op->operand_count + op->optional_count || count > 6)
    return ht_refuse(error, "TypeError", "takes %d to %d tensors, got %d", (int)op->operand_count,
                     (int)(op->operand_count + op->optional_count), (int)count);
  for (int i = 0; i < count; ++i) {
    if (tensors[i] == NULL && i > HT_PRODUCT_Y) continue;
    if (examine(op, i, names[i], tensors[i], least[i], &found[i], error) != 0) return -1;
    each[i] = &found[i];
  }
  const tensor *x = each[0], *w = each[1], *y = each[2];
  int x_k = product->x_across ? 1 : 0, w_k = product->w_across ? 0 : 1; /* places from the last */
  int64_t extents[4] = {1, extent_at(x, 1 - x_k), extent_at(w, 1 - w_k), extent_at(x, x_k)};
  if (same("k", extent_at(w, w_k), w, extents[HT_PRODUCT_K], "x", error) != 0) return -1;
  if (same("m", extent_at(y, 1), y, extents[HT_PRODUCT_M], "x", error) != 0) return -1;
  if (same("n", extent_at(y, 0), y, extents[HT_PRODUCT_N], "w", error) != 0) return -1;
  int rank = x->t->ndim > w->t->ndim ? x->t->ndim : w->t->ndim, none = 0;
  if (y->t->ndim != rank)
    return ht_refuse(error, "ValueError", "out has rank %d, the product has %d axes", (int)y->t->ndim, rank);
  for (int i = 2; i < rank; ++i) {
    int64_t a = extent_at(x, i), b = extent_at(w, i), extent = a == 1 ? b : a;
    if (b != extent && b != 1)
      return ht_refuse(error, "ValueError", "x has %lld matrices in axis %d from the last, w has %lld; they must be equal, or one of them 1",
                       (long long)a, i + 1, (long long)b);
    if (extent_at(y, i) != extent)
      return ht_refuse(error, "ValueError", "out has extent %lld in axis %d, the product has %lld there", (long long)extent_at(y, i),
                       rank - 1 - i, (long long)extent);
    none |= extent == 0;
    if (!none && extents[0] > HT_EXTENT_LIMIT / extent)
      return ht_refuse(error, "ValueError", "its batch axes hold over 2^31-1 matrices");
    extents[0] = none ? 0 : extents[0] * extent;
  }
  for (int i = 0; i < 4; ++i) {
    call->extents[i] = extents[i];
    if (op->axes[i].extent != 0 && op->axes[i].extent != extents[i])
      return ht_refuse(error, "ValueError", "axis %s has extent %lld; the op was made for %lld", op->axes[i].name, (long long)extents[i],
                       (long long)op->axes[i].extent);
  }
  for (int i = HT_PRODUCT_BIAS; i < count; ++i)
    if (each[i] != NULL && check_beside(y, each[i], i == HT_PRODUCT_SCALE ? 2 : 0, error) != 0) return -1;
  if (each[HT_PRODUCT_BIAS] != NULL && each[HT_PRODUCT_BIAS]->t->ndim != 1)
    return ht_refuse(error, "ValueError", "bias has rank %d; expected one axis", (int)each[HT_PRODUCT_BIAS]->t->ndim);
  call->empty = extents[0] == 0 || extents[1] == 0 || extents[2] == 0;
  if (call->empty) return 0;
  if (extents[HT_PRODUCT_N] > 1 && stride_at(y, 0) != 1)
    return ht_refuse(error, "ValueError", "out has inner stride %lld; expected 1: pass one that is contiguous in its last axis",
                     (long long)stride_at(y, 0));
  if (check_apart(y, error) != 0) return -1;
  const tensor* inputs[5];
  int inputs_count = 0;
  for (int i = 0; i < 6; ++i) {
    ht_view* view = &call->product.views[i];
    view->data = NULL;
    if (each[i] == NULL) continue;
    if (i != HT_PRODUCT_Y) inputs[inputs_count++] = each[i];
    view->data = ht_data(each[i]->t);
    view->strides[0] = i == HT_PRODUCT_SCALE ? 0 : stride_at(each[i], 1);
    view->strides[1] = i == HT_PRODUCT_SCALE ? 0 : stride_at(each[i], 0);
  }
  if (product->x_across) { /* as (m, k), as every x */
    int64_t* s = call->product.views[HT_PRODUCT_X].strides;
    int64_t down = s[0];
    s[0] = s[1];
    s[1] = down;
  }
  if (product->w_across) { /* as (k, n) */
    int64_t* s = call->product.views[HT_PRODUCT_W].strides;
    int64_t down = s[0];
    s[0] = s[1];
    s[1] = down;
  }
  if (check_aliases(y, inputs, inputs_count, error) != 0) return -1;
  return fold_batch(y, each, matrix_axes, 6, call, error);
}

int ht_product_sized(const ht_op* op, const DLTensor* const* inputs, int64_t shape[HT_MAX_RANK]) {
  const ht_product* product = op->data;
  const DLTensor *x = inputs[HT_PRODUCT_X], *w = inputs[HT_PRODUCT_W];
  if (x == NULL || w == NULL || x->ndim < 2 || w->ndim < 2 || x->ndim > HT_MAX_RANK || w->ndim > HT_MAX_RANK) return 0;
  const int rank = x->ndim > w->ndim ? x->ndim : w->ndim;
  for (int i = 2; i < rank; ++i) { /* from the last axis */
    const int64_t of_x = i < x->ndim ? x->shape[x->ndim - 1 - i] : 1, of_w = i < w->ndim ? w->shape[w->ndim - 1 - i] : 1;
    shape[rank - 1 - i] = of_x == 1 ? of_w : of_x;
  }
  shape[rank - 2] = x->shape[x->ndim - (product->x_across ? 1 : 2)];
  shape[rank - 1] = w->shape[w->ndim - (product->w_across ? 2 : 1)];
  return rank;
}
