/* See model/backend.h: of a GPU. All steps of a call are queued on its stream; a steady call allocates nothing and waits for nothing. */
#include <stdlib.h>
#include <string.h>

#include "cuda/weight_cache.h"
#include "cuda/loaded.h"
#include "model/backend.h"

enum { THREADS = 256, WARP = 32, ROUNDS = 32, WORDS = 500 }; /* of a block; blocks of a multiprocessor; of a group's parameters */

typedef struct {
  const ht_cu* cu;
  const ht_cuda_loaded* loaded;
  CUdeviceptr weights;
  char* bound; /* of all packed */
  int kept;    /* a graph may replay a call: what it reads is never freed */
} on_device;

const DLDeviceType ht_where_type = kDLCUDA;

static CUstream plain(void* stream) { return stream == (void*)1 ? NULL : stream; } /* two names of the legacy stream */

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static int upload(ht_model* m, on_device* d, ht_error* error) {
  if (m->weights_bytes == 0) return 0;
  CUresult result = d->cu->MemAlloc(&d->weights, (size_t)m->weights_bytes);
  if (result != CUDA_SUCCESS) return ht_cu_refuse(error, result, "memory for a model's weights");
  m->base = (const char*)(uintptr_t)d->weights;
  m->packed_bytes = (size_t)m->weights_bytes;
  result = d->cu->MemcpyHtoD(d->weights, m->weights, (size_t)m->weights_bytes);
  if (result == CUDA_SUCCESS) result = d->cu->StreamSynchronize(NULL); /* the last bytes may still be on their way */
  return result == CUDA_SUCCESS ? 0 : ht_cu_refuse(error, result, "copying a model's weights");
}

static DLTensor on(const ht_model* m, int32_t tensor) {
  const ht_model_tensor* t = &m->tensors[tensor];
  return (DLTensor){(void*)(m->base + t->weight), {kDLCUDA, m->device}, t->rank, {t->code, t->bits, 1}, (int64_t*)t->shape, NULL, 0};
}

/* What the step's op binds of a weight and of channels, each once however many steps read them. Returns the bytes of a new one, 0, or -1. */
static int64_t listed(ht_model* m, const ht_model_step* step, ht_error* error) {
  const ht_op* op = &ht_ops[step->index];
  const int64_t bytes = op->kind->placed->bound_bytes(op);
  ht_model_operand* weight = NULL;
  ht_model_packed wanted = {.op = step->index, .shape = {bytes}, .rank = 1, .code = kDLUInt, .bits = 8};
  if (bytes == 0) return 0; /* both factors come with the call */
  memset(wanted.bound, -1, sizeof wanted.bound);
  int sound = 1;
  for (int32_t i = step->first; i < step->first + step->count; ++i) {
    ht_model_operand* o = &m->operands[i];
    const int is_weight = o->place == 1;
    if (is_weight) weight = o, wanted.tensor = o->tensor;
    if (o->bound > 0) wanted.bound[o->bound - 1] = o->tensor, ++wanted.bound_count;
    if (is_weight || o->bound > 0) sound &= o->tensor >= 0 && m->tensors[o->tensor].weight >= 0 && o->rank < 0 && o->order == NULL;
  }
  for (int32_t c = 0; c < wanted.bound_count; ++c) sound &= wanted.bound[c] >= 0;
  if (!sound)
    return ht_refuse(error, "RuntimeError", "the model's schedule is damaged: %s is given another weight than it takes", op->name);
  for (weight->packed = 0; weight->packed < m->packed_count; ++weight->packed) {
    const ht_model_packed* one = &m->packed[weight->packed];
    if (one->op == step->index && one->tensor == wanted.tensor && memcmp(one->bound, wanted.bound, sizeof wanted.bound) == 0) return 0;
  }
  m->packed[m->packed_count++] = wanted;
  return bytes;
}

/* What calls would lay out of a weight each time lies beside it, once. */
static int keep(ht_model* m, const ht_op* op, void* bound, ht_error* error) {
  const ht_placed* placed = op->kind->placed;
  if (placed->keep == NULL) return 0;
  if (placed->keep(op, bound, error) != 0) return -1;
  const ht_cuda_kept* kept = placed->kept(op, bound);
  if (kept != NULL) m->packed_bytes += (size_t)kept->bytes;
  return 0;
}

static int bind_all(ht_model* m, on_device* d, ht_error* error) {
  int64_t whole = 0;
  m->packed = calloc((size_t)m->op_steps + 1, sizeof *m->packed);
  if (m->packed == NULL) return ht_refuse(error, "RuntimeError", "no memory to open a model");
  for (int32_t s = 0; s < m->step_count; ++s) {
    const int64_t bytes = m->steps[s].kind == STEP_OP ? listed(m, &m->steps[s], error) : 0;
    if (bytes < 0) return -1;
    if (bytes == 0) continue;
    m->packed[m->packed_count - 1].data = (void*)(uintptr_t)whole; /* its offset, until there is memory */
    whole += ceil_div(bytes, HT_BOUND_ALIGNMENT) * HT_BOUND_ALIGNMENT;
  }
  if (whole == 0) return 0;
  if ((d->bound = aligned_alloc(HT_BOUND_ALIGNMENT, (size_t)whole)) == NULL) return ht_refuse(error, "RuntimeError", "no memory to open a model");
  memset(d->bound, 0, (size_t)whole); /* nothing is kept yet */
  for (int32_t i = 0; i < m->packed_count; ++i) m->packed[i].data = d->bound + (uintptr_t)m->packed[i].data;
  for (int32_t i = 0; i < m->packed_count; ++i) {
    ht_model_packed* one = &m->packed[i];
    const ht_op* op = &ht_ops[one->op];
    DLTensor weight = on(m, one->tensor), bound[HT_MAX_EXTRA];
    const DLTensor* channels[HT_MAX_EXTRA];
    for (int32_t c = 0; c < one->bound_count; ++c) bound[c] = on(m, one->bound[c]), channels[c] = &bound[c];
    if (op->kind->placed->bind(op, &weight, channels, one->bound_count, one->data, error) == 0 && keep(m, op, one->data, error) == 0) continue;
    char text[sizeof error->text];
    memcpy(text, error->text, sizeof text);
    return ht_refuse(error, error->kind, "%.60s: %.180s", op->name, text);
  }
  return 0;
}

/* That every group has a kernel, whose launch takes its words; read.c compares the lines that it reads. */
static int check_groups(const ht_model* m, ht_error* error) {
  const ht_cuda_groups_code* code = ht_cuda_pack_code.groups;
  for (int32_t s = 0; s < m->step_count; ++s) {
    if (m->steps[s].kind != STEP_LOOPS) continue;
    const ht_group* group = &ht_groups[m->steps[s].index];
    const ht_cuda_group* one = code == NULL || m->steps[s].index >= code->count ? NULL : &code->groups[m->steps[s].index];
    const int sound = one != NULL && group->tensors + one->count <= WORDS && one->points <= group->rank;
    if (!sound) return ht_refuse(error, "RuntimeError", "the model's schedule is damaged: step %d has no kernel; restore the pack or tune again", (int)s);
  }
  return 0;
}

int ht_where_open(ht_model* m, ht_error* error) {
  on_device* d = m->there = calloc(1, sizeof *d);
  ht_cuda_scope scope;
  if (d == NULL) return ht_refuse(error, "RuntimeError", "no memory to open a model");
  if (check_groups(m, error) != 0) return -1;
  if ((d->cu = ht_cu_load(error)) == NULL || (d->loaded = ht_cuda_load(m->device, error)) == NULL ||
      ht_cuda_enter(d->loaded->device, &scope, error) != 0)
    return -1;
  int rc = ht_model_compared(m, error); /* before they are copied */
  if (rc == 0) rc = upload(m, d, error);
  if (rc == 0) rc = bind_all(m, d, error);
  ht_cuda_leave(&scope);
  return rc;
}

static void free_later(const ht_model* m, CUdeviceptr address) {
  if (address != 0) ht_cuda_give_back(((const on_device*)m->there)->loaded->device, address);
}

void ht_where_close(ht_model* m) {
  on_device* d = m->there;
  if (d == NULL) return;
  if (!d->kept) free_later(m, d->weights);
  for (int32_t i = 0; d->bound != NULL && i < m->packed_count; ++i) {
    const ht_model_packed* one = &m->packed[i];
    const ht_placed* placed = ht_ops[one->op].kind->placed;
    if (placed->kept != NULL) ht_cuda_let_go(placed->kept(&ht_ops[one->op], one->data));
  }
  free(d->bound);
  free(d);
}

int ht_where_queue(const ht_model* m, void* stream, ht_model_queue* out, ht_error* error) {
  static _Thread_local char own; /* its address tells threads apart */
  const on_device* d = m->there;
  ht_cuda_scope scope;
  int status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (ht_cu_load(error) == NULL) return -1; /* the process was forked since */
  *out = (ht_model_queue){plain(stream), stream == (void*)2 ? &own : NULL, 0};
  if (out->stream == NULL) return 0; /* the legacy stream is never captured */
  if (ht_cuda_enter(d->loaded->device, &scope, error) != 0) return -1;
  const CUresult result = d->cu->StreamIsCapturing(out->stream, &status);
  ht_cuda_leave(&scope);
  out->capturing = status != CU_STREAM_CAPTURE_STATUS_NONE;
  return result == CUDA_SUCCESS ? 0 : ht_cu_refuse(error, result, "asking whether the stream is captured");
}

int ht_where_suits(const ht_model_context* c, const ht_model_queue* q) {
  return c->stream == q->stream && c->thread == q->thread && (q->capturing || !c->captured);
}

/* What its products, and folds that blocks share, may want of their own on this stream. */
int ht_where_begin(const ht_model* m, ht_model_context* c, const ht_model_queue* q, ht_error* error) {
  (void)c;
  for (int32_t i = 0; i < m->packed_count; ++i) {
    const ht_op* op = &ht_ops[m->packed[i].op];
    if (op->kind->placed->prepare(op, m->packed[i].data, q->stream, error) != 0) return -1;
  }
  const int device = ((const on_device*)m->there)->loaded->device->ordinal;
  for (int i = 0; i < ht_op_count; ++i)
    if (ht_ops[i].kind->placed->bound_bytes(&ht_ops[i]) == 0 && ht_ops[i].kind->placed->prepare(&ht_ops[i], &device, q->stream, error) != 0) return -1;
  return 0;
}

/* The new arena, where it was had. */
static int had(const ht_model* m, ht_model_context* c, CUresult result, CUdeviceptr found, int64_t need, ht_error* error) {
  if (result == CUDA_ERROR_OUT_OF_MEMORY)
    return ht_refuse(error, "ValueError", "%s: a call of these sizes needs %lld bytes of working memory on cuda:%d, which cannot be had: free some, or pass less",
                     m->name, (long long)need, (int)m->device);
  if (result != CUDA_SUCCESS) return ht_cu_refuse(error, result, "working memory of a model");
  c->arena = (char*)(uintptr_t)found;
  c->arena_bytes = (size_t)need;
  return 0;
}

int64_t ht_where_holds(int64_t need) { return need; }

int ht_where_grow(const ht_model* m, ht_model_context* c, int64_t need, const ht_model_queue* q, ht_error* error) {
  const on_device* d = m->there;
  ht_cuda_scope scope;
  CUdeviceptr found = 0;
  CUresult result = CUDA_SUCCESS;
  if (q->capturing)
    return ht_refuse(error, "RuntimeError", "%s: a call that is captured may allocate nothing, and one of these sizes needs %lld bytes; call the model once at "
                     "these sizes on this stream before", m->name, (long long)need);
  if (ht_cuda_enter(d->loaded->device, &scope, error) != 0) return -1;
  if (c->arena != NULL && (result = d->cu->StreamSynchronize(q->stream)) == CUDA_SUCCESS) d->cu->MemFree((CUdeviceptr)(uintptr_t)c->arena);
  if (result == CUDA_SUCCESS) {
    c->arena = NULL;
    c->arena_bytes = 0;
    result = d->cu->MemAlloc(&found, (size_t)need);
  }
  ht_cuda_leave(&scope);
  return had(m, c, result, found, need, error);
}

/* The old arena is read until its copy is done; a refusal leaves it. */
int ht_where_extend(const ht_model* m, ht_model_context* c, int64_t need, const ht_model_queue* q, ht_error* error) {
  const on_device* d = m->there;
  const CUdeviceptr before = (CUdeviceptr)(uintptr_t)c->arena;
  ht_cuda_scope scope;
  CUdeviceptr found = 0;
  if (before == 0) return ht_where_grow(m, c, need, q, error);
  if (ht_cuda_enter(d->loaded->device, &scope, error) != 0) return -1;
  CUresult result = d->cu->MemAlloc(&found, (size_t)need);
  if (result == CUDA_SUCCESS) {
    result = d->cu->MemcpyDtoDAsync(found, before, c->arena_bytes, q->stream);
    if (result == CUDA_SUCCESS) result = d->cu->StreamSynchronize(q->stream);
    if (result == CUDA_SUCCESS) d->cu->MemFree(before);
    else free_later(m, found);
  }
  ht_cuda_leave(&scope);
  return had(m, c, result, found, need, error);
}

/* Until the device is done, for a copy may read what the host made and what is freed then. The stream may be gone. */
static void settle(const on_device* d) {
  ht_error unused;
  ht_cuda_scope scope;
  if (ht_cu_load(&unused) == NULL || ht_cuda_enter(d->loaded->device, &scope, &unused) != 0) return; /* NULL: the process was forked since */
  d->cu->CtxSynchronize();
  ht_cuda_leave(&scope);
}

void ht_where_drop(const ht_model* m, ht_model_context* c) {
  if (c->captured) ((on_device*)m->there)->kept = 1;
  else if (c->arena != NULL) free_later(m, (CUdeviceptr)(uintptr_t)c->arena);
  else if (c->sending) settle(m->there);
}

/* One launch. Few points: blocks are smaller, so that all multiprocessors have some. */
int ht_where_group(const ht_model* m, const ht_model_plan* plan, const ht_model_step* step, void* stream, ht_error* error) {
  const on_device* d = m->there;
  const ht_group* group = &ht_groups[step->index];
  const ht_cuda_group* code = &ht_cuda_pack_code.groups->groups[step->index];
  uint64_t words[WORDS];
  ht_cuda_scope scope;
  int64_t points = 1, threads = THREADS;
  for (int32_t a = 0; a < code->points; ++a) points *= plan->sizes[group->extents[a]];
  for (int32_t i = 0; i < group->tensors; ++i) words[i] = (uint64_t)(uintptr_t)plan->loops[step->first + i];
  for (int32_t i = 0; i < code->count; ++i) words[group->tensors + i] = (uint64_t)plan->sizes[code->sizes[i]];
  while (threads > WARP && threads > code->lanes && ceil_div(points * code->lanes, threads) < d->loaded->device->units) threads /= 2;
  int64_t blocks = ceil_div(points * code->lanes, threads);
  if (blocks > (int64_t)d->loaded->device->units * ROUNDS) blocks = (int64_t)d->loaded->device->units * ROUNDS;
  void* params[1] = {words};
  if (ht_cuda_enter(d->loaded->device, &scope, error) != 0) return -1;
  const CUresult result = d->cu->LaunchKernel(d->loaded->groups[step->index], (unsigned)blocks, 1, 1, (unsigned)threads, 1, 1, 0, stream, params, NULL);
  ht_cuda_leave(&scope);
  return result == CUDA_SUCCESS ? 0 : ht_cu_refuse(error, result, "launching a group of a model");
}

int ht_where_copy(const ht_model* m, void* to, const void* from, int64_t bytes, void* stream, ht_error* error) {
  const on_device* d = m->there;
  ht_cuda_scope scope;
  if (ht_cuda_enter(d->loaded->device, &scope, error) != 0) return -1;
  const CUresult result = d->cu->MemcpyDtoDAsync((CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)from, (size_t)bytes, stream);
  ht_cuda_leave(&scope);
  return result == CUDA_SUCCESS ? 0 : ht_cu_refuse(error, result, "copying an output");
}

int ht_where_wait(const ht_model* m, void* stream, ht_error* error) {
  const on_device* d = m->there;
  ht_cuda_scope scope;
  if (ht_cuda_enter(d->loaded->device, &scope, error) != 0) return -1;
  const CUresult result = d->cu->StreamSynchronize(stream);
  ht_cuda_leave(&scope);
  return result == CUDA_SUCCESS ? 0 : ht_cu_refuse(error, result, "waiting for a step");
}
