/* The pack's side of c_api.h, and what TVM's kernels need from the world when tvm-ffi is not in the process. */
#include "c_api.h"

#include <stdio.h>

#include "ht_pack.h"

static void describe(int op, ht_door_op* out) {
  const ht_op* o = &ht_ops[op];
  *out = (ht_door_op){.name = o->name, .kind = o->kind->name, .operands = o->operand_count};
  for (int i = 2; i + 1 < o->operand_count; ++i) out->constants += o->operands[i].role == HT_CONSTANT; /* behind x and weight */
  if (o->kind->describe != NULL) o->kind->describe(o, out);
  if (o->kind->placed != NULL) out->bound_bytes = o->kind->placed->bound_bytes(o);
}

int64_t ht_setting(int op, int threads) {
  const ht_op* o = &ht_ops[op];
  int best = 0;
  for (int i = 1; i < o->plan_count; ++i) {
    int away = o->plans[i].threads - threads, least = o->plans[best].threads - threads;
    away = away < 0 ? -away : away;
    least = least < 0 ? -least : least;
    if (away < least || (away == least && o->plans[i].threads < o->plans[best].threads)) best = i;
  }
  return best + HT_MAX_THREADS * (int64_t)threads;
}

static int said(int rc, int op, const ht_error* error, const char** kind, char* text, size_t size) {
  if (rc == 0) return 0;
  *kind = error->kind;
  snprintf(text, size, "%s: %s", ht_ops[op].name, error->text);
  return -1;
}

static int run_on(int op, const DLTensor* const* tensors, int32_t count, int64_t setting, void* stream, const char** kind, char* text,
                  size_t size) {
  ht_error error;
  return said(ht_call_op(op, tensors, count, setting, stream, &error), op, &error, kind, text, size);
}

static int run(int op, const DLTensor* const* tensors, int32_t count, int64_t setting, const char** kind, char* text,
               size_t size) {
  return run_on(op, tensors, count, setting, NULL, kind, text, size);
}

static int call(int op, const DLTensor* x, const DLTensor* w, const DLTensor* y, const DLTensor* bias, int64_t setting,
                const char** kind, char* text, size_t size) {
  const DLTensor* tensors[4] = {x, w, y, bias};
  return run(op, tensors, bias == NULL ? 3 : 4, setting, kind, text, size);
}

static int open_device(int device, const char** kind, char* text, size_t size) {
  ht_error error;
  if (ht_op_count == 0 || ht_ops[0].kind->placed == NULL) return said(ht_refuse(&error, "ValueError", "holds no code for devices"), 0, &error, kind, text, size);
  return said(ht_ops[0].kind->placed->open(device, &error), 0, &error, kind, text, size);
}

static int bind_fused(int op, const DLTensor* w, const DLTensor* const* channels, int32_t count, void* bound, const char** kind, char* text,
                      size_t size) {
  ht_error error;
  return said(ht_ops[op].kind->placed->bind(&ht_ops[op], w, channels, count, bound, &error), op, &error, kind, text, size);
}

static int bind(int op, const DLTensor* w, const DLTensor* bias, void* bound, const char** kind, char* text, size_t size) {
  return bind_fused(op, w, &bias, 1, bound, kind, text, size);
}

static int prepare(int op, const void* bound, void* stream, const char** kind, char* text, size_t size) {
  ht_error error;
  return said(ht_ops[op].kind->placed->prepare(&ht_ops[op], bound, stream, &error), op, &error, kind, text, size);
}

static int queue_fused(int op, const DLTensor* x, const void* bound, const DLTensor* y, const DLTensor* const* more, int32_t count,
                       int64_t setting, void* stream, const char** kind, char* text, size_t size) {
  enum { MORE = 2 };
  int64_t bytes = ht_ops[op].kind->placed->bound_bytes(&ht_ops[op]);
  const DLTensor as_bytes = {(void*)bound, {kDLCPU, 0}, 1, {kDLUInt, 8, 1}, &bytes, NULL, 0};
  const DLTensor* tensors[HT_LAYER_OPERANDS + MORE] = {x, &as_bytes, y};
  ht_error error;
  if (count < 0 || count > MORE) return said(ht_refuse(&error, "ValueError", "a call brings no %d operands", (int)count), op, &error, kind, text, size);
  for (int32_t i = 0; i < count; ++i) tensors[HT_LAYER_OPERANDS + i] = more[i];
  return said(ht_call_op(op, tensors, HT_LAYER_OPERANDS + count, setting, stream, &error), op, &error, kind, text, size);
}

static int queue_groups(int op, const DLTensor* x, const void* bound, const DLTensor* y, const DLTensor* offsets, int64_t setting,
                        void* stream, const char** kind, char* text, size_t size) {
  return queue_fused(op, x, bound, y, &offsets, offsets != NULL, setting, stream, kind, text, size);
}

static int queue(int op, const DLTensor* x, const void* bound, const DLTensor* y, int64_t setting, void* stream, const char** kind,
                 char* text, size_t size) {
  return queue_groups(op, x, bound, y, NULL, setting, stream, kind, text, size);
}

static int64_t packed_floats(int op) {
  const ht_op* o = &ht_ops[op];
  return o->kind->packed_floats == NULL ? 0 : o->kind->packed_floats(o);
}

static int pack(int op, const DLTensor* w, float* packed, const char** kind, char* text, size_t size) {
  ht_error error;
  return said(ht_ops[op].kind->pack(&ht_ops[op], w, packed, &error), op, &error, kind, text, size);
}

static int call_fused(int op, const DLTensor* x, const DLTensor* w, const DLTensor* y, const DLTensor* const* extra, int32_t count,
                      int64_t setting, const char** kind, char* text, size_t size) {
  const DLTensor* tensors[HT_MAX_OPERANDS];
  ht_error error;
  if (count < 0 || count + HT_LAYER_OPERANDS > HT_MAX_OPERANDS)
    return said(ht_refuse(&error, "ValueError", "an epilogue reads no %d operands", (int)count), op, &error, kind, text, size);
  const int layer = ht_ops[op].kind->look_up != NULL; /* its output comes before what the epilogue reads */
  tensors[0] = x;
  tensors[1] = w;
  for (int32_t i = 0; i < count; ++i) tensors[2 + layer + i] = extra[i];
  tensors[layer ? 2 : 2 + count] = y;
  return run(op, tensors, HT_LAYER_OPERANDS + count, setting, kind, text, size);
}

static ht_door door = {HT_DOOR_VERSION, 0, describe, ht_setting, call, ht_counts, ht_pool_inject, run, open_device, bind, prepare, queue,
                       queue_groups, packed_floats, pack, call_fused, run_on, bind_fused, queue_fused};

__attribute__((constructor)) static void count_ops(void) { door.op_count = ht_op_count; } /* no constant of this file */

HT_EXPORT const ht_door* ht_pack_door(void) { return &door; }
