/* See backend.h: of the host. Weights lie a second time as the loops of its ops read them. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "c_api.h"
#include "model/backend.h"
#include "programs.h"

#define HUGE ((size_t)2 << 20)
#define PAGE ((uintptr_t)4096)
/* Which weights have to be packed, each once however often it is read; returns the bytes that takes. */
static int64_t list(ht_model* m, ht_error* error) {
  int64_t bytes = 0;
  m->packed = calloc((size_t)m->op_steps + 1, sizeof *m->packed);
  if (m->packed == NULL) return ht_refuse(error, "RuntimeError", "no memory to open a model");
  for (int32_t s = 0; s < m->step_count; ++s) {
    const ht_model_step* step = &m->steps[s];
    if (step->kind != STEP_OP) continue;
    const ht_op* op = &ht_ops[step->index];
    const int64_t floats = op->kind->packed_floats == NULL ? 0 : op->kind->packed_floats(op);
    if (floats == 0) continue; /* both factors come with the call */
    ht_model_operand* weight = NULL;
    for (int32_t i = step->first; i < step->first + step->count; ++i)
      if (m->operands[i].place == 1) weight = &m->operands[i];
    const ht_model_tensor* t = weight == NULL ? NULL : &m->tensors[weight->tensor];
    if (t == NULL || t->weight < 0 || weight->rank >= 0 || weight->order != NULL)
      return ht_refuse(error, "RuntimeError", "the model's schedule is damaged: %s is given another weight than it takes", op->name);
    for (weight->packed = 0; weight->packed < m->packed_count; ++weight->packed)
      if (m->packed[weight->packed].op == step->index && m->packed[weight->packed].tensor == weight->tensor) break;
    if (weight->packed < m->packed_count) continue;
    ht_model_packed* one = &m->packed[m->packed_count++];
    *one = (ht_model_packed){.op = step->index, .tensor = weight->tensor, .shape = {floats}, .rank = 1, .code = kDLFloat, .bits = 32};
    const int64_t need = 4 * floats;
    one->data = (void*)(uintptr_t)bytes; /* its offset, until there is memory */
    bytes += (need + HT_MODEL_ALIGNMENT - 1) / HT_MODEL_ALIGNMENT * HT_MODEL_ALIGNMENT;
  }
  return bytes;
}

typedef struct {
  ht_model* model;
  ht_error error;
  atomic_int failed;
} job;

static void fail(job* j, const ht_error* error) {
  int none = 0;
  if (atomic_compare_exchange_strong(&j->failed, &none, 1)) j->error = *error;
}

/* A weight of fp32 that lies as bytes; to be freed. NULL: no memory. */
static float* in_full(const ht_model_tensor* t, const char* from, int64_t count) {
  float* made = malloc((size_t)(count > 0 ? count : 1) * sizeof *made);
  const int8_t* bytes = (const int8_t*)from;
  const float* scales = (const float*)(const void*)(from + (count + 3) / 4 * 4);
  const int64_t rows = t->shape[0], row = rows > 0 ? count / rows : 0;
  for (int64_t i = 0; made != NULL && i < rows; ++i)
    for (int64_t k = 0; k < row; ++k) made[i * row + k] = (float)bytes[i * row + k] * scales[i];
  return made;
}

static void pack_one(void* arg, int64_t index) {
  job* j = arg;
  ht_error error;
  const ht_model_packed* one = &j->model->packed[index];
  const ht_model_tensor* t = &j->model->tensors[one->tensor];
  const ht_op* op = &ht_ops[one->op];
  const char* from = j->model->weights + t->weight;
  int64_t count = 1;
  for (int32_t a = 0; a < t->rank; ++a) count *= t->shape[a];
  const int scaled = t->code == HT_MODEL_SCALED;
  ht_model_compare(j->model, t->weight, t->weight + count * (t->bits / 8));
  float* made = scaled ? in_full(t, from, count) : NULL;
  if (scaled && made == NULL) {
    ht_refuse(&error, "RuntimeError", "no memory for %lld elements of a weight", (long long)count);
    return fail(j, &error);
  }
  const void* plain = scaled ? (const void*)made : from;
  const DLDataType type = {scaled ? kDLFloat : t->code, scaled ? 32 : t->bits, 1};
  const DLTensor weight = {(void*)(uintptr_t)plain, {kDLCPU, 0}, t->rank, type, (int64_t*)t->shape, NULL, 0};
  if (op->kind->pack(op, &weight, one->data, &error) != 0) {
    ht_error damage;
    ht_refuse(&damage, "RuntimeError", "the model's schedule is damaged: %s is given another weight than it takes: %s", op->name, error.text);
    fail(j, &damage);
  }
  free(made);
  int64_t bytes = count * (t->bits / 8);
  uintptr_t low = ((uintptr_t)from + PAGE - 1) / PAGE * PAGE, high = ((uintptr_t)from + (uintptr_t)bytes) / PAGE * PAGE;
  if (high > low) madvise((void*)low, high - low, MADV_DONTNEED); /* nobody reads it again; if somebody does, it is in the file */
}

static int pack_all(ht_model* m, ht_error* error) {
  int64_t bytes = list(m, error);
  if (bytes <= 0) return bytes < 0 ? -1 : 0;
  m->packed_bytes = (size_t)bytes + HUGE;
  m->packed_block = mmap(NULL, m->packed_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (m->packed_block == MAP_FAILED) {
    m->packed_block = NULL;
    return ht_refuse(error, "RuntimeError", "no memory for %lld bytes of packed weights", (long long)bytes);
  }
  char* block = m->packed_block + (HUGE - (uintptr_t)m->packed_block % HUGE) % HUGE;
  if ((size_t)bytes >= HUGE) madvise(block, (size_t)bytes, MADV_HUGEPAGE); /* as runtime/host_memory.py: fewer entries of the address translation */
  for (int32_t i = 0; i < m->packed_count; ++i) m->packed[i].data = block + (uintptr_t)m->packed[i].data;
  job j = {.model = m};
  ht_pool_run(pack_one, &j, m->packed_count, m->threads);
  if (atomic_load(&j.failed)) *error = j.error;
  return atomic_load(&j.failed) ? -1 : 0;
}

const DLDeviceType ht_where_type = kDLCPU;

int ht_where_open(ht_model* m, ht_error* error) {
  m->base = m->weights;
  return pack_all(m, error);
}

void ht_where_close(ht_model* m) {
  if (m->packed_block != NULL) munmap(m->packed_block, m->packed_bytes);
}

int ht_where_queue(const ht_model* m, void* stream, ht_model_queue* out, ht_error* error) {
  (void)m, (void)error;
  *out = (ht_model_queue){stream, NULL, 0};
  return 0;
}

int ht_where_suits(const ht_model_context* c, const ht_model_queue* queue) {
  (void)c, (void)queue;
  return 1;
}

int ht_where_begin(const ht_model* m, ht_model_context* c, const ht_model_queue* queue, ht_error* error) {
  (void)m, (void)c, (void)queue, (void)error;
  return 0;
}

/* From a quarter of one on, whole huge pages, which are zeroed for half of what it costs to be given as many bytes in small ones. */
int64_t ht_where_holds(int64_t need) {
  return need < (int64_t)(HUGE / 4) ? need : (need + (int64_t)HUGE - 1) / (int64_t)HUGE * (int64_t)HUGE;
}

/* A mapping of `bytes`, from a huge page on where it holds any. 0; -1: there is no memory. */
static int map_arena(ht_model_context* c, size_t bytes) {
  const size_t spare = bytes < HUGE ? 0 : HUGE; /* of addresses alone */
  char* found = mmap(NULL, bytes + spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (found == MAP_FAILED) return -1;
  c->block = found;
  c->block_bytes = bytes + spare;
  if (spare != 0) madvise(found += (HUGE - (uintptr_t)found % HUGE) % HUGE, bytes, MADV_HUGEPAGE);
  c->arena = found;
  c->arena_bytes = bytes;
  return 0;
}

/* A larger arena keeps its pages, huge ones as they are: only what is new of it will be paid for with page faults. What small pages held is copied
 * among huge ones: each of them would keep one away. */
static int widen(ht_model_context* c, size_t bytes) {
  const ht_model_context old = *c;
  if (old.arena == NULL) return map_arena(c, bytes);
  if (bytes < HUGE) {
    void* found = mremap(old.arena, old.arena_bytes, bytes, MREMAP_MAYMOVE);
    if (found == MAP_FAILED) return -1;
    c->arena = c->block = found;
    c->arena_bytes = c->block_bytes = bytes;
    return 0;
  }
  if (map_arena(c, bytes) != 0) return -1;
  if (old.arena_bytes < HUGE) memcpy(c->arena, old.arena, old.arena_bytes);
  else if (mremap(old.arena, old.arena_bytes, old.arena_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, c->arena) == MAP_FAILED) {
    munmap(c->block, c->block_bytes);
    *c = old;
    return -1;
  }
  munmap(old.block, old.block_bytes);
  return 0;
}

int ht_where_grow(const ht_model* m, ht_model_context* c, int64_t need, const ht_model_queue* queue, ht_error* error) {
  (void)queue;
  const int64_t bytes = ht_where_holds(need);
  if (widen(c, (size_t)bytes) == 0) return 0;
  return ht_refuse(error, "ValueError", "%s: a call of these sizes needs %lld bytes of working memory, which cannot be had", m->name, (long long)bytes);
}

int ht_where_extend(const ht_model* m, ht_model_context* c, int64_t need, const ht_model_queue* queue, ht_error* error) {
  return ht_where_grow(m, c, need, queue, error);
}

void ht_where_drop(const ht_model* m, ht_model_context* c) {
  (void)m;
  if (c->arena != NULL) munmap(c->block, c->block_bytes);
}

int ht_where_group(const ht_model* m, const ht_model_plan* plan, const ht_model_step* step, void* stream, ht_error* error) {
  (void)stream;
  const int failed = ht_group_run(&ht_groups[step->index], plan->sizes, plan->loops + step->first, m->threads);
  if (failed == 0) return 0;
  if (failed == HT_PROGRAM_LARGE) return ht_refuse(error, "ValueError", "an axis of the group has more than 2^31-1 elements; send a smaller request");
  return ht_refuse(error, "RuntimeError", "%s: the kernel of a group refused its tensors; the pack is damaged, tune it again", m->name);
}

int ht_where_copy(const ht_model* m, void* to, const void* from, int64_t bytes, void* stream, ht_error* error) {
  (void)m, (void)stream, (void)error;
  memcpy(to, from, (size_t)bytes);
  return 0;
}

/* The host makes and reads tensors where they lie. */
const void* ht_where_seen(const ht_model* m, ht_model_context* c, const void* from, int64_t bytes, const ht_model_queue* queue, ht_error* error) {
  (void)m, (void)c, (void)bytes, (void)queue, (void)error;
  return from;
}

void* ht_where_room(const ht_model* m, ht_model_context* c, void* to, int64_t bytes, const ht_model_queue* queue, ht_error* error) {
  (void)m, (void)c, (void)bytes, (void)queue, (void)error;
  return to;
}

int ht_where_send(const ht_model* m, ht_model_context* c, void* to, int64_t bytes, const ht_model_queue* queue, ht_error* error) {
  (void)m, (void)c, (void)to, (void)bytes, (void)queue, (void)error;
  return 0;
}

int ht_where_number(const ht_model* m, int64_t* to, int64_t number, const ht_model_queue* queue, ht_error* error) {
  (void)m, (void)queue, (void)error;
  return *to = number, 0;
}

int ht_where_wait(const ht_model* m, void* stream, ht_error* error) {
  (void)m, (void)stream, (void)error;
  return 0;
}
