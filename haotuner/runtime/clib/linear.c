/* An op with its weight: packed once, called many times. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "addressable.h"
#include "files.h"
#include "kinds/panels.h"
#include "ht_limits.h"
#include "open.h"

struct ht_linear {
  ht_op* op;
  int64_t setting;
  DLTensor weight, bias;
  ht_chunk* chunk; /* the weight lies in it */
  int64_t weight_shape[3], weight_strides[3], bias_shape[1], bias_strides[1];
  int has_bias;
  DLTensor constants[HT_MAX_EXTRA]; /* of an epilogue, in the order of its operands */
  int constant_count;
  void* bound; /* of a pack on a device: what its library worked out for the weight, which stays the caller's */
};

/* HT_OK, or the code of what a pack refused. */
static ht_status answer(int rc, const char* kind, const char* text, ht_error* error) {
  if (rc == 0) return HT_OK;
  ht_status code = strcmp(kind, "TypeError") == 0 ? HT_BAD_TYPE : strcmp(kind, "ValueError") == 0 ? HT_BAD_VALUE : HT_INTERNAL;
  return ht_refuse(error, code, "%s", text);
}

/* `typed`: it must be float32; what packs a weight itself knows its own types. */
static ht_status check(const char* name, const DLTensor* t, int ndim, int typed, ht_error* error) {
  if (t == NULL) return ht_refuse(error, HT_BAD_VALUE, "%s is NULL", name);
  if (t->device.device_type != kDLCPU)
    return ht_refuse(error, HT_BAD_VALUE, "%s lives on device type %d; expected the CPU", name, (int)t->device.device_type);
  if (typed && (t->dtype.code != kDLFloat || t->dtype.bits != 32 || t->dtype.lanes != 1))
    return ht_refuse(error, HT_BAD_TYPE, "%s is not float32 (code %d, %d bits)", name, (int)t->dtype.code, (int)t->dtype.bits);
  if (t->ndim != ndim || t->shape == NULL || t->data == NULL)
    return ht_refuse(error, HT_BAD_VALUE, "%s has rank %d; expected %d axes with data", name, (int)t->ndim, ndim);
  /* Of a weight with a rank of its own, the pack checks rank and addresses. */
  if (typed && !ht_addressable(t)) return ht_refuse(error, HT_BAD_VALUE, HT_NOT_ADDRESSABLE, name);
  return HT_OK;
}

static const float* start(const DLTensor* t) { return (const float*)((const char*)t->data + t->byte_offset); }

/* Of a pack whose library lays no fp32 weight out. */
static ht_status pack_weight(ht_linear* linear, const DLTensor* given, ht_error* error) {
  const ht_door_op* op = &linear->op->facts;
  int rows = op->weight_kn ? 1 : 0;
  if (given->shape[rows] != op->n || given->shape[1 - rows] != op->k)
    return ht_refuse(error, HT_BAD_VALUE, "weight has shape (%lld, %lld); expected (%lld, %lld)", (long long)given->shape[0],
                     (long long)given->shape[1], (long long)(rows ? op->k : op->n), (long long)(rows ? op->n : op->k));
  int64_t row_stride = given->strides == NULL ? (rows ? 1 : op->k) : given->strides[rows];
  int64_t k_stride = given->strides == NULL ? (rows ? op->n : 1) : given->strides[1 - rows];
  float* packed = ht_arena_take(&linear->op->pack->arena, (size_t)(op->panels * op->k * op->pw) * sizeof *packed, &linear->chunk);
  if (packed == NULL) return ht_refuse(error, HT_NO_MEMORY, "no memory for the packed weight of %s", op->name);
  ht_pack_panels(start(given), op->n, op->k, row_stride, k_stride, op->panels, op->pw, packed);
  const int64_t shape[3] = {op->panels, op->k, op->pw}, strides[3] = {op->k * op->pw, op->pw, 1};
  memcpy(linear->weight_shape, shape, sizeof shape);
  memcpy(linear->weight_strides, strides, sizeof strides);
  linear->weight = (DLTensor){packed, {kDLCPU, 0}, 3, {kDLFloat, 32, 1}, linear->weight_shape, linear->weight_strides, 0};
  return HT_OK;
}

/* Of a kind whose weight the pack itself lays out. */
static int packs_itself(const ht_op* op) { return op->pack->door->version >= 5 && op->pack->door->packed_floats(op->index) > 0; }

static ht_status pack_behind_door(ht_linear* linear, const DLTensor* given, ht_error* error) {
  const ht_op* op = linear->op;
  int64_t floats = op->pack->door->packed_floats(op->index);
  float* packed = ht_arena_take(&op->pack->arena, (size_t)floats * sizeof *packed, &linear->chunk);
  if (packed == NULL) return ht_refuse(error, HT_NO_MEMORY, "no memory for the packed weight of %s", op->facts.name);
  const char* kind = NULL;
  char text[sizeof error->text];
  int rc = op->pack->door->pack(op->index, given, packed, &kind, text, sizeof text);
  linear->weight_shape[0] = floats;
  linear->weight_strides[0] = 1;
  linear->weight = (DLTensor){packed, {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, linear->weight_shape, linear->weight_strides, 0};
  return answer(rc, kind, text, error);
}

/* A copy of one value a channel. */
static ht_status copy_row(ht_linear* linear, const char* name, const DLTensor* given, DLTensor* out, ht_error* error) {
  int64_t n = linear->op->facts.n;
  if (given->shape[0] != n)
    return ht_refuse(error, HT_BAD_VALUE, "%s has %lld elements; expected %lld", name, (long long)given->shape[0], (long long)n);
  float* row = malloc((size_t)n * sizeof *row);
  if (row == NULL) return ht_refuse(error, HT_NO_MEMORY, "no memory for %s of %s", name, linear->op->facts.name);
  int64_t stride = given->strides == NULL ? 1 : given->strides[0];
  for (int64_t i = 0; i < n; ++i) row[i] = start(given)[i * stride];
  linear->bias_shape[0] = n;
  linear->bias_strides[0] = 1;
  *out = (DLTensor){row, {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, linear->bias_shape, linear->bias_strides, 0};
  return HT_OK;
}

static ht_status copy_bias(ht_linear* linear, const DLTensor* given, ht_error* error) {
  ht_status status = copy_row(linear, "bias", given, &linear->bias, error);
  linear->has_bias = status == HT_OK;
  return status;
}

#define BOUND_ALIGNMENT 128

static ht_status bind_placed(ht_linear* linear, const DLTensor* weight, const DLTensor* const* channels, int count, ht_error* error) {
  const ht_op* op = linear->op;
  const char* kind = NULL;
  char text[sizeof error->text];
  size_t bytes = ((size_t)op->facts.bound_bytes + BOUND_ALIGNMENT - 1) / BOUND_ALIGNMENT * BOUND_ALIGNMENT;
  if (weight == NULL) return ht_refuse(error, HT_BAD_VALUE, "weight is NULL");
  if ((linear->bound = aligned_alloc(BOUND_ALIGNMENT, bytes)) == NULL)
    return ht_refuse(error, HT_NO_MEMORY, "no memory to bind %s", op->facts.name);
  if (weight->device.device_type == kDLCUDA && weight->device.device_id != op->pack->device)
    return ht_refuse(error, HT_BAD_VALUE, "weight lives on cuda:%d, the pack is open on cuda:%d", (int)weight->device.device_id,
                     op->pack->device);
  const ht_door* door = op->pack->door;
  int rc = count <= 1 ? door->bind(op->index, weight, count > 0 ? channels[0] : NULL, linear->bound, &kind, text, sizeof text)
                      : door->bind_fused(op->index, weight, channels, count, linear->bound, &kind, text, sizeof text);
  return answer(rc, kind, text, error);
}

ht_status ht_prepare(const ht_linear* linear, void* stream, ht_error* error) {
  if (linear == NULL) return ht_refuse(error, HT_BAD_VALUE, "linear is NULL");
  if (linear->bound == NULL) return HT_OK;
  const char* kind = NULL;
  char text[sizeof error->text];
  const ht_op* op = linear->op;
  int rc = op->pack->door->prepare(op->index, linear->bound, stream, &kind, text, sizeof text);
  return answer(rc, kind, text, error);
}

/* With a bias, or on a device all that has one value a channel. */
static ht_status bind_with(ht_op* op, const DLTensor* weight, const DLTensor* const* channels, int count, ht_linear** out, ht_error* error) {
  const DLTensor* bias = count > 0 ? channels[0] : NULL;
  if (op == NULL || out == NULL) return ht_refuse(error, HT_BAD_VALUE, "op or out is NULL");
  *out = NULL;
  int itself = packs_itself(op);
  if (strcmp(op->facts.kind, "dense") != 0 && strcmp(op->facts.kind, "grouped") != 0 && !itself)
    return ht_refuse(error, HT_BAD_VALUE, "%s binds no weight; call it with ht_run", op->facts.name);
  if (atomic_load_explicit(&op->pack->closed, memory_order_acquire)) return ht_refuse(error, HT_CLOSED, "the pack was closed");
  int placed = op->pack->device >= 0;
  ht_status status = placed ? HT_OK : check("weight", weight, itself && weight != NULL ? weight->ndim : 2, !itself, error);
  if (status == HT_OK && bias != NULL && !placed) status = check("bias", bias, 1, 1, error);
  if (status != HT_OK) return status;
  ht_linear* linear = calloc(1, sizeof *linear);
  if (linear == NULL) return ht_refuse(error, HT_NO_MEMORY, "no memory to bind %s", op->facts.name);
  linear->op = op;
  linear->setting = op->pack->door->setting(op->index, placed && !op->pack->planned ? 2 : op->pack->threads);
  atomic_fetch_add_explicit(&op->pack->holders, 1, memory_order_relaxed);
  if (placed) status = bind_placed(linear, weight, channels, count, error);
  else status = itself ? pack_behind_door(linear, weight, error) : pack_weight(linear, weight, error);
  if (status == HT_OK && bias != NULL && !placed) status = copy_bias(linear, bias, error);
  if (status == HT_OK) *out = linear;
  else ht_linear_free(linear);
  return status;
}

ht_status ht_bind(ht_op* op, const DLTensor* weight, const DLTensor* bias, ht_linear** out, ht_error* error) {
  return bind_with(op, weight, &bias, 1, out, error);
}

void ht_linear_free(ht_linear* linear) {
  if (linear == NULL) return;
  ht_chunk_release(linear->chunk);
  free(linear->bias.data);
  for (int i = 0; i < linear->constant_count; ++i) free(linear->constants[i].data);
  free(linear->bound);
  ht_pack_release(linear->op->pack);
  free(linear);
}

ht_status ht_op_prepare(ht_op* op, void* stream, ht_error* error) {
  if (op == NULL) return ht_refuse(error, HT_BAD_VALUE, "op is NULL");
  ht_pack* pack = op->pack;
  if (atomic_load_explicit(&pack->closed, memory_order_acquire)) return ht_refuse(error, HT_CLOSED, "the pack was closed");
  if (pack->device < 0) return HT_OK;
  if (op->facts.bound_bytes != 0) return ht_refuse(error, HT_BAD_VALUE, "%s takes a weight; bind it with ht_bind and call ht_prepare", op->facts.name);
  const char* kind = NULL;
  char text[sizeof error->text];
  int rc = pack->door->prepare(op->index, &pack->device, stream, &kind, text, sizeof text);
  return answer(rc, kind, text, error);
}

ht_status ht_run(ht_op* op, const DLTensor* const* operands, int count, void* stream, ht_error* error) {
  if (op == NULL || operands == NULL) return ht_refuse(error, HT_BAD_VALUE, "op or operands is NULL");
  ht_pack* pack = op->pack;
  if (atomic_load_explicit(&pack->closed, memory_order_acquire)) return ht_refuse(error, HT_CLOSED, "the pack was closed");
  const int placed = pack->device >= 0;
  if (stream != NULL && !placed) return ht_refuse(error, HT_BAD_VALUE, "this pack computes on the CPU, which has no streams: pass NULL");
  if (strcmp(op->facts.kind, "dense") == 0 || strcmp(op->facts.kind, "grouped") == 0 || packs_itself(op))
    return ht_refuse(error, HT_BAD_VALUE, "%s takes a packed weight; bind it with ht_bind", op->facts.name);
  if (count < op->facts.operands || count > HT_MAX_OPERANDS) /* behind the output may come what the op can do without */
    return ht_refuse(error, HT_BAD_VALUE, "%s takes %d tensors, the output last; got %d", op->facts.name,
                     (int)op->facts.operands, count);
  const char* kind = NULL;
  char text[sizeof error->text];
  int rc;
  if (!placed) {
    rc = pack->door->run(op->index, operands, count, pack->door->setting(op->index, pack->threads), &kind, text, sizeof text);
  } else { /* packs of devices hold no such op before version 7 of the door */
    const int64_t setting = pack->door->setting(op->index, pack->planned ? pack->threads : 2);
    for (int i = 0; i < op->facts.operands; ++i)
      if (operands[i] != NULL && operands[i]->device.device_type == kDLCUDA && operands[i]->device.device_id != pack->device)
        return ht_refuse(error, HT_BAD_VALUE, "tensor %d lives on cuda:%d, the pack is open on cuda:%d", i,
                         (int)operands[i]->device.device_id, pack->device);
    rc = pack->door->run_on(op->index, operands, count, setting, stream, &kind, text, sizeof text);
  }
  return answer(rc, kind, text, error);
}

static ht_status call(const ht_linear* linear, const DLTensor* x, const DLTensor* out, void* stream, int64_t setting,
                      ht_error* error) {
  ht_pack* pack = linear->op->pack;
  if (atomic_load_explicit(&pack->closed, memory_order_acquire)) return ht_refuse(error, HT_CLOSED, "the pack was closed");
  const char* kind = NULL;
  char text[sizeof error->text];
  int rc;
  if (linear->bound != NULL) {
    rc = pack->door->queue(linear->op->index, x, linear->bound, out, setting, stream, &kind, text, sizeof text);
    return answer(rc, kind, text, error);
  }
  if (stream != NULL) return ht_refuse(error, HT_BAD_VALUE, "this pack computes on the CPU, which has no streams: pass NULL");
  rc = pack->door->call(linear->op->index, x, &linear->weight, out, linear->has_bias ? &linear->bias : NULL, setting, &kind,
                            text, sizeof text);
  return answer(rc, kind, text, error);
}

ht_status ht_bind_fused(ht_op* op, const DLTensor* weight, const DLTensor* const* constants, int count, ht_linear** out, ht_error* error) {
  if (op == NULL || out == NULL || (count > 0 && constants == NULL)) return ht_refuse(error, HT_BAD_VALUE, "op, constants or out is NULL");
  *out = NULL;
  if (op->pack->door->version < 6) return ht_refuse(error, HT_BAD_VALUE, "%s binds no epilogue: use ht_bind", op->facts.name);
  if (count != op->facts.constants || count > HT_MAX_EXTRA)
    return ht_refuse(error, HT_BAD_VALUE, "%s binds %d tensors of one value a channel, got %d", op->facts.name, (int)op->facts.constants, count);
  if (op->pack->device >= 0) { /* nothing is copied */
    for (int i = 0; i < count; ++i)
      if (constants[i] == NULL) return ht_refuse(error, HT_BAD_VALUE, "a value of a channel is NULL");
    return bind_with(op, weight, constants, count, out, error);
  }
  for (int i = 0; i < count; ++i) {
    ht_status status = check("a value of a channel", constants[i], 1, 1, error);
    if (status != HT_OK) return status;
  }
  ht_linear* linear;
  ht_status status = ht_bind(op, weight, NULL, &linear, error);
  for (int i = 0; i < count && status == HT_OK; ++i) {
    status = copy_row(linear, "a value of a channel", constants[i], &linear->constants[i], error);
    linear->constant_count += status == HT_OK;
    if (status != HT_OK) ht_linear_free(linear);
  }
  if (status == HT_OK) *out = linear;
  return status;
}

ht_status ht_call_fused(const ht_linear* linear, const DLTensor* x, const DLTensor* const* inputs, int count, const DLTensor* out,
                        void* stream, ht_error* error) {
  if (linear == NULL || x == NULL || out == NULL || (count > 0 && inputs == NULL))
    return ht_refuse(error, HT_BAD_VALUE, "linear, x, inputs or out is NULL");
  const ht_op* op = linear->op;
  const int wanted = op->facts.operands - 3 - op->facts.constants;
  if (op->pack->door->version < 6 || (linear->bound == NULL && linear->constant_count != op->facts.constants))
    return ht_refuse(error, HT_BAD_VALUE, "%s was not bound with ht_bind_fused", op->facts.name);
  if (count != wanted || count + linear->constant_count > HT_MAX_EXTRA)
    return ht_refuse(error, HT_BAD_VALUE, "%s reads %d tensors like its output beside x, got %d", op->facts.name, wanted, count);
  if (atomic_load_explicit(&op->pack->closed, memory_order_acquire)) return ht_refuse(error, HT_CLOSED, "the pack was closed");
  const char* kind = NULL;
  char text[sizeof error->text];
  int rc;
  if (linear->bound != NULL) {
    for (int i = 0; i < count; ++i)
      if (inputs[i] == NULL) return ht_refuse(error, HT_BAD_VALUE, "inputs[%d] is NULL", i);
    const ht_door* door = op->pack->door;
    rc = count <= 1 ? door->queue_groups(op->index, x, linear->bound, out, count > 0 ? inputs[0] : NULL, linear->setting, stream, &kind, text,
                                         sizeof text)
                    : door->queue_fused(op->index, x, linear->bound, out, inputs, count, linear->setting, stream, &kind, text, sizeof text);
    return answer(rc, kind, text, error);
  }
  if (stream != NULL) return ht_refuse(error, HT_BAD_VALUE, "this pack computes on the CPU, which has no streams: pass NULL");
  const DLTensor* extra[HT_MAX_EXTRA];
  for (int i = 0; i < linear->constant_count; ++i) extra[i] = &linear->constants[i];
  for (int i = 0; i < count; ++i)
    if ((extra[linear->constant_count + i] = inputs[i]) == NULL) return ht_refuse(error, HT_BAD_VALUE, "inputs[%d] is NULL", i);
  rc = op->pack->door->call_fused(op->index, x, &linear->weight, out, extra, linear->constant_count + count, linear->setting, &kind,
                                      text, sizeof text);
  return answer(rc, kind, text, error);
}

ht_status ht_call(const ht_linear* linear, const DLTensor* x, const DLTensor* out, void* stream, ht_error* error) {
  if (linear == NULL || x == NULL || out == NULL) return ht_refuse(error, HT_BAD_VALUE, "linear, x or out is NULL");
  return call(linear, x, out, stream, linear->setting, error);
}

ht_status ht_call_grouped(const ht_linear* linear, const DLTensor* x, const DLTensor* offsets, const DLTensor* out, void* stream,
                          ht_error* error) {
  if (linear == NULL || x == NULL || offsets == NULL || out == NULL)
    return ht_refuse(error, HT_BAD_VALUE, "linear, x, offsets or out is NULL");
  const ht_op* op = linear->op;
  if (strcmp(op->facts.kind, "grouped") != 0 || linear->bound == NULL)
    return ht_refuse(error, HT_BAD_VALUE, "%s takes no offsets: use ht_call", op->facts.name);
  if (atomic_load_explicit(&op->pack->closed, memory_order_acquire)) return ht_refuse(error, HT_CLOSED, "the pack was closed");
  const char* kind = NULL;
  char text[sizeof error->text];
  int rc = op->pack->door->queue_groups(op->index, x, linear->bound, out, offsets, linear->setting, stream, &kind, text, sizeof text);
  return answer(rc, kind, text, error);
}

ht_status ht_call_threads(const ht_linear* linear, const DLTensor* x, const DLTensor* out, void* stream, int threads,
                          ht_error* error) {
  if (linear == NULL || x == NULL || out == NULL) return ht_refuse(error, HT_BAD_VALUE, "linear, x or out is NULL");
  if (linear->bound != NULL) return ht_refuse(error, HT_BAD_VALUE, "a device has no thread counts: use ht_call");
  if (threads < 1 || threads > HT_MAX_THREADS) return ht_refuse(error, HT_BAD_VALUE, "threads=%d is not in 1..%d", threads, HT_MAX_THREADS);
  return call(linear, x, out, stream, linear->op->pack->door->setting(linear->op->index, threads), error);
}
