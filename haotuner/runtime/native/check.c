/* Validation of what a caller hands in. TVM's kernels check none of: row strides, aliases, extents over 2^31, NULL. */
#include <stdarg.h>
#include <stdio.h>

#include "ht.h"

int ht_refuse(ht_error* error, const char* kind, const char* format, ...) {
  va_list args;
  va_start(args, format);
  error->kind = kind;
  vsnprintf(error->text, sizeof error->text, format, args);
  va_end(args);
  return -1;
}

static const char* type_name(int code, int bits) {
  if (code == kDLFloat) return bits == 64 ? "float64" : bits == 16 ? "float16" : "float32";
  if (code == kDLBfloat) return "bfloat16";
  return code == kDLInt && bits == 8 ? "int8" : code == kDLUInt && bits == 8 ? "uint8" : code == kDLInt && bits == 32 ? "int32" : "int64";
}

int ht_check_type(const char* name, const DLTensor* t, int code, int bits, ht_error* error) {
  if (t->device.device_type != kDLCPU)
    return ht_refuse(error, "ValueError", "%s lives on device type %d; this pack computes on the CPU: copy it there first", name,
                     (int)t->device.device_type);
  /* Of bfloat16 the bits, too, from those whose arrays know none. */
  const int as_bits = code == kDLBfloat && t->dtype.code == kDLUInt;
  if ((t->dtype.code != code && !as_bits) || t->dtype.bits != bits || t->dtype.lanes != 1)
    return ht_refuse(error, "TypeError", "%s has dtype code %d with %d bits x %d lanes; expected %s", name, (int)t->dtype.code,
                     (int)t->dtype.bits, (int)t->dtype.lanes, type_name(code, bits));
  if (t->ndim < 1 || t->ndim > HT_MAX_RANK)
    return ht_refuse(error, "ValueError", "%s has rank %d; expected 1 to %d axes", name, (int)t->ndim, HT_MAX_RANK);
  if (t->shape == NULL) return ht_refuse(error, "ValueError", "%s has no shape", name);
  return 0;
}

int ht_check_addresses(const char* name, const DLTensor* t, ht_error* error) {
  if (ht_addressable(t)) return 0;
  return ht_refuse(error, "ValueError", HT_NOT_ADDRESSABLE, name);
}

int ht_contiguous(const DLTensor* t) {
  int64_t expected = 1;
  for (int i = t->ndim - 1; t->strides != NULL && i >= 0; --i) {
    if (t->shape[i] != 1 && t->strides[i] != expected) return 0;
    expected *= t->shape[i];
  }
  return 1;
}

/* The stride of the first `folded` axes as one, which holds `count` rows. */
static int fold_strides(const char* name, const DLTensor* t, int folded, int64_t* stride, ht_error* error) {
  int64_t run = 1; /* rows folded so far, innermost first */
  int found = 0;
  for (int i = folded - 1; i >= 0; --i) {
    if (t->shape[i] == 1) continue;
    if (!found) {
      *stride = t->strides[i];
      found = 1;
    } else if (t->strides[i] != (__int128)*stride * run) { /* a hostile stride times rows needs more than 64 bits */
      return ht_refuse(error, "ValueError",
                       "%s: axis %d has stride %lld, so its rows are not evenly spaced: pass a contiguous copy", name, i,
                       (long long)t->strides[i]);
    }
    run *= t->shape[i];
  }
  return 0;
}

static int fold_axes(const char* name, const DLTensor* t, int rank, const int64_t* expected, ht_view* view, ht_error* error) {
  int folded = t->ndim - rank + 1, empty = 0, last = t->ndim - 1;
  int64_t count = 1;
  if (folded < 0 || (rank == 1 && folded != 1))
    return ht_refuse(error, "ValueError", "%s has rank %d; expected %d axes", name, (int)t->ndim, rank);
  for (int i = 0; i < t->ndim; ++i) {
    if (t->shape[i] < 0 || t->shape[i] > HT_EXTENT_LIMIT)
      return ht_refuse(error, "ValueError", "%s: extent %lld of axis %d is not in 0..2^31-1", name, (long long)t->shape[i], i);
    if (i < folded) {
      empty |= t->shape[i] == 0;
      if (!empty && count > HT_EXTENT_LIMIT / t->shape[i])
        return ht_refuse(error, "ValueError", "%s: its leading axes hold over 2^31-1 rows", name);
      count = empty ? 0 : count * t->shape[i];
    }
  }
  view->extents[0] = count;
  for (int i = 1; i < rank; ++i) {
    view->extents[i] = t->shape[t->ndim - rank + i];
    empty |= view->extents[i] == 0;
  }
  for (int i = rank - 1; i >= 0; --i) {
    if (expected[i] == 0 || view->extents[i] == expected[i]) continue;
    if (i == rank - 1)
      return ht_refuse(error, "ValueError", "%s has last extent %lld; expected %lld", name, (long long)view->extents[i],
                       (long long)expected[i]);
    return ht_refuse(error, "ValueError", "%s has extent %lld in axis %d; expected %lld", name, (long long)view->extents[i],
                     t->ndim - rank + i, (long long)expected[i]);
  }
  int64_t run = 1; /* contiguous, unless strides say otherwise */
  for (int i = rank - 1; i >= 0; --i) {
    view->strides[i] = run;
    if (!empty && run > HT_ELEMENTS_LIMIT / view->extents[i])
      return ht_refuse(error, "ValueError", "%s: its axes hold more elements than any memory", name);
    if (!empty) run *= view->extents[i];
  }
  if (empty || t->strides == NULL) return 0;
  if (t->shape[last] > 1 && t->strides[last] != 1)
    return ht_refuse(error, "ValueError",
                     "%s has inner stride %lld; expected 1: pass a copy that is contiguous in its last axis", name,
                     (long long)t->strides[last]);
  for (int i = 1; i < rank - 1; ++i)
    if (view->extents[i] > 1) view->strides[i] = t->strides[t->ndim - rank + i];
  if (fold_strides(name, t, folded, &view->strides[0], error) != 0) return -1;
  if (rank == 2 && (view->strides[0] > HT_STRIDE_LIMIT || view->strides[0] < -HT_STRIDE_LIMIT))
    return ht_refuse(error, "ValueError", "%s: row stride %lld is beyond any memory", name, (long long)view->strides[0]);
  for (int i = 0; i < rank; ++i) {
    __int128 span = (__int128)view->strides[i] * (view->extents[i] - 1);
    if (span > HT_ELEMENTS_LIMIT || span < -HT_ELEMENTS_LIMIT)
      return ht_refuse(error, "ValueError", "%s: stride %lld is beyond any memory", name, (long long)view->strides[i]);
  }
  return 0;
}

int ht_fold(const char* name, const DLTensor* t, int rank, const int64_t* expected, ht_view* view, ht_error* error) {
  if (fold_axes(name, t, rank, expected, view, error) != 0 || ht_check_addresses(name, t, error) != 0) return -1;
  view->data = t->data == NULL ? NULL : ht_data(t);
  return 0;
}

static void reach(const ht_view* view, int rank, int64_t bytes, uintptr_t* low, uintptr_t* high) {
  __int128 first = 0, end = 1;
  for (int i = 0; i < rank; ++i) {
    __int128 span = (__int128)(view->extents[i] - 1) * view->strides[i];
    if (span < 0) first += span;
    else end += span;
  }
  *low = (uintptr_t)view->data + (uintptr_t)(first * bytes);
  *high = (uintptr_t)view->data + (uintptr_t)(end * bytes);
}

/* The part of a period that a tensor's bytes lie in: axes that step by whole periods come back to it. */
static int within(const ht_layout* t, __int128 period, __int128* low, __int128* width) {
  *low = (__int128)t->data;
  *width = t->bytes;
  for (int i = 0; i < t->rank; ++i) {
    __int128 step = (__int128)t->strides[i] * t->bytes;
    if (t->extents[i] <= 1 || step % period == 0) continue;
    __int128 span = (t->extents[i] - 1) * step;
    if (span < 0) *low += span;
    *width += span < 0 ? -span : span;
    if (*width > period) return 0;
  }
  return *width <= period;
}

int ht_interleaved(const ht_layout* one, const ht_layout* other) {
  for (int i = 0; i < one->rank; ++i) {
    __int128 period = (__int128)one->strides[i] * one->bytes, low, width, other_low, other_width;
    if (period < 0) period = -period;
    if (one->extents[i] <= 1 || period == 0) continue;
    if (!within(one, period, &low, &width) || !within(other, period, &other_low, &other_width)) continue;
    __int128 between = (other_low - low) % period;
    if (between < 0) between += period;
    if (between >= width && between + other_width <= period) return 1;
  }
  return 0;
}

static ht_layout layout_of(const ht_view* view, const ht_operand* operand) {
  return (ht_layout){(uintptr_t)view->data, operand->rank, operand->bits / 8, view->extents, view->strides};
}

static int is_empty(const ht_view* view, int rank) {
  for (int i = 0; i < rank; ++i)
    if (view->extents[i] == 0) return 1;
  return 0;
}

static __int128 step_of(const ht_view* view, int axis) {
  return view->strides[axis] < 0 ? -(__int128)view->strides[axis] : view->strides[axis];
}

/* Whether each axis steps over all that lies inside it, in whatever order the axes are. */
static int is_nested(const ht_view* view, int rank) {
  __int128 inner = 1;
  for (unsigned seen = 0, every = (1u << rank) - 1; seen != every;) {
    int next = -1;
    for (int i = rank - 1; i >= 0; --i) /* of equal ones the later axis lies inside */
      if (!(seen >> i & 1) && (next < 0 || step_of(view, i) < step_of(view, next))) next = i;
    seen |= 1u << next;
    if (view->extents[next] == 1) continue;
    if (step_of(view, next) < inner) return 0;
    inner = step_of(view, next) * view->extents[next];
  }
  return 1;
}

/* Whether an operand is the output: the same elements at the same places. */
static int is_output(const ht_op* op, const ht_call* call, int i) {
  const int last = op->operand_count - 1;
  const ht_operand *in = &op->operands[i], *out = &op->operands[last];
  const ht_view *one = &call->views[i], *other = &call->views[last];
  if (one->data != other->data || in->rank != out->rank || in->code != out->code || in->bits != out->bits) return 0;
  for (int a = 0; a < out->rank; ++a)
    if (in->axes[a] != out->axes[a] || (one->extents[a] > 1 && one->strides[a] != other->strides[a])) return 0;
  return 1;
}

/* An output is written in parts by several threads: its axes must be nested, and nothing else may lie in it but what every
 * kernel that will be chosen has read before. `at`: which operand it is; in place is the last one alone. */
static int check_output(const ht_op* op, int at, ht_call* call, ht_error* error) {
  const ht_operand* out = &op->operands[at];
  const ht_view* view = &call->views[at];
  if (!is_nested(view, out->rank))
    return ht_refuse(error, "ValueError", "%s: its rows overlap: pass a contiguous one", out->name);
  uintptr_t low, high, in_low, in_high;
  reach(view, out->rank, out->bits / 8, &low, &high);
  for (int i = 0; i < op->operand_count; ++i) {
    if (i == at || is_empty(&call->views[i], op->operands[i].rank)) continue;
    reach(&call->views[i], op->operands[i].rank, op->operands[i].bits / 8, &in_low, &in_high);
    if (!(in_low < high && low < in_high)) continue;
    const ht_layout written = layout_of(view, out), other = layout_of(&call->views[i], &op->operands[i]);
    if (ht_interleaved(&written, &other)) continue;
    if (op->operands[i].role >= HT_OUTPUT)
      return ht_refuse(error, "ValueError", "%s shares memory with %s, which is written, too; pass memory apart", out->name,
                       op->operands[i].name);
    if (op->operands[i].in_place && at == op->operand_count - 1) {
      if (!is_output(op, call, i))
        return ht_refuse(error, "ValueError", "%s shares memory with %s without being that very tensor; pass %s itself, or memory apart",
                         out->name, op->operands[i].name, op->operands[i].name);
      call->over |= (uint32_t)1 << i;
    } else {
      return ht_refuse(error, "ValueError", "%s shares memory with %s, which is read meanwhile; pass another %s", out->name,
                       op->operands[i].name, out->name);
    }
  }
  return 0;
}

int ht_check(const ht_op* op, const DLTensor* const* tensors, int32_t count, ht_call* call, ht_error* error) {
  if (count != op->operand_count)
    return ht_refuse(error, "TypeError", "takes %d tensors, got %d", (int)op->operand_count, (int)count);
  const char* from[HT_MAX_AXES] = {NULL}; /* the operand that gave each dynamic axis its extent */
  call->over = 0;
  for (int i = 0; i < op->axis_count; ++i) call->extents[i] = op->axes[i].extent;
  for (int i = 0; i < op->operand_count; ++i) {
    const ht_operand* o = &op->operands[i];
    const DLTensor* t = tensors[i];
    int64_t expected[HT_MAX_AXES];
    if (t == NULL) return ht_refuse(error, "TypeError", "%s is missing", o->name);
    for (int a = 0; a < o->rank; ++a) expected[a] = op->axes[o->axes[a]].extent;
    if (ht_check_type(o->name, t, o->code, o->bits, error) != 0) return -1;
    if (ht_fold(o->name, t, o->rank, expected, &call->views[i], error) != 0) return -1;
    for (int a = 0; a < o->rank; ++a) {
      int axis = o->axes[a];
      if (expected[a] != 0) continue;
      if (from[axis] != NULL && call->extents[axis] != call->views[i].extents[a])
        return ht_refuse(error, "ValueError", "%s has extent %lld on axis %s, %s has %lld; they must be equal", o->name,
                         (long long)call->views[i].extents[a], op->axes[axis].name, from[axis], (long long)call->extents[axis]);
      from[axis] = o->name;
      call->extents[axis] = call->views[i].extents[a];
    }
    int empty = is_empty(&call->views[i], o->rank);
    if (!empty && t->data == NULL) return ht_refuse(error, "ValueError", "%s has no data", o->name);
    if (!empty && o->compact && !ht_contiguous(t))
      return ht_refuse(error, "ValueError", "%s must be contiguous; pass a contiguous copy", o->name);
  }
  call->empty = 1;
  for (int i = op->operand_count - 1; i >= 0 && op->operands[i].role >= HT_OUTPUT; --i) {
    if (is_empty(&call->views[i], op->operands[i].rank)) continue;
    call->empty = 0;
    if (check_output(op, i, call, error) != 0) return -1;
  }
  return 0;
}
