/* A chain: a model cut where sizes or branches are known only from data. Its segments are models of their own; between them the host
 * finds places, counts and draws random numbers, whose results tell the dimensions of what follows, and asks which side of a branch is
 * taken: steps of the other side are skipped, whatever its sizes are. Tensors between segments lie in the arena of a
 * context, which grows by what is known next: offsets stay, addresses do not. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "model/host_ops.h"
#include "model/chain.h"

#define UNKNOWN HT_CHAIN_UNKNOWN
#define EXTERNAL HT_CHAIN_EXTERNAL

typedef ht_chain_call call;

int64_t ht_chain_bytes(const DLTensor* t) {
  int64_t bytes = t->dtype.bits / 8;
  for (int a = 0; a < t->ndim; ++a) bytes *= t->shape[a];
  return bytes;
}

/* Every line whose dimensions are known; of one that cannot be computed nothing can be made. */
static void resize(const ht_model* m, const int64_t* dims, int64_t* sizes) {
  for (int32_t i = 0; i < m->size_count; ++i) {
    const ht_size_line* line = &m->sizes[i];
    int binary = line->op != SIZE_DIM && line->op != SIZE_NUMBER;
    int unknown = (line->op == SIZE_DIM && dims[line->a] < 0) || (binary && (sizes[line->a] == UNKNOWN || sizes[line->b] == UNKNOWN));
    if (unknown || ht_size_value(line, dims, sizes, &sizes[i])) sizes[i] = UNKNOWN;
  }
}

int ht_chain_damaged(call* k) { return ht_refuse(k->error, "RuntimeError", "%s: the model's schedule is damaged; restore the pack or tune again", k->m->name); }

int ht_chain_there(const call* k, int32_t tensor) { return k->tensors[tensor].dtype.lanes != 0; }

/* Refused where the arena, the outputs and the segments that ran take more than a request may. */
static int within(call* k) {
  int64_t bytes = ht_where_holds(k->used) + k->given_out;
  for (int32_t i = 0; i < k->m->segment_count; ++i) bytes += k->theirs[i];
  return ht_model_within(k->m, bytes, k->error);
}

static int place_output(call* k, int32_t output, const DLTensor* wanted) {
  k->asked[output] = 1;
  k->given_out += ht_chain_bytes(wanted);
  if (k->theirs != NULL && within(k) != 0) return -1;
  k->placed[output] = k->place(k->arg, output, wanted);
  if (k->placed[output] == NULL && ht_chain_bytes(wanted) > 0)
    return ht_refuse(k->error, "RuntimeError", "%s: there is no memory for the output %s of %lld bytes", k->m->name, k->m->outputs[output].name, (long long)ht_chain_bytes(wanted));
  return 0;
}

int ht_chain_make(call* k, int32_t tensor) {
  const ht_model_tensor* t = &k->m->tensors[tensor];
  DLTensor* out = &k->tensors[tensor];
  int64_t* shape = k->shapes + (size_t)tensor * HT_MODEL_AXES;
  int64_t count;
  if (ht_model_extents(k->m, t, k->c->sizes, shape, &count, k->error) != 0) return -1;
  *out = (DLTensor){NULL, {ht_where_type, k->m->device}, t->rank, {t->code, t->bits, 1}, shape, NULL, 0};
  k->c->offsets[tensor] = EXTERNAL;
  for (int32_t i = 0; i < k->m->output_count; ++i) {
    if (k->m->outputs[i].tensor != tensor) continue;
    if (place_output(k, i, out) != 0) return -1;
    out->data = k->placed[i];
    return 0;
  }
  k->c->offsets[tensor] = k->used;
  k->used += (count * (t->bits / 8) + HT_MODEL_ALIGNMENT - 1) / HT_MODEL_ALIGNMENT * HT_MODEL_ALIGNMENT;
  return 0;
}

int ht_chain_grow(call* k) {
  if (within(k) != 0) return -1;
  if ((size_t)k->used <= k->c->arena_bytes) return 0;
  return ht_where_extend(k->m, k->c, k->used, k->q, k->error);
}

DLTensor* ht_chain_at(call* k, int32_t tensor) {
  DLTensor* t = &k->tensors[tensor];
  if (k->c->offsets[tensor] != EXTERNAL) t->data = k->c->arena + k->c->offsets[tensor];
  return t;
}

static int segment(call* k, const ht_model_step* step) {
  ht_model* of = k->m->segments[step->at];
  const int32_t* tensors = k->m->loops + step->first;
  for (int32_t i = 0; i < step->given; ++i)
    if (!ht_chain_there(k, tensors[i])) return ht_chain_damaged(k);
  for (int32_t i = step->given; i < step->count; ++i)
    if (ht_chain_make(k, tensors[i]) != 0) return -1;
  if (ht_chain_grow(k) != 0) return -1;
  for (int32_t i = 0; i < step->given; ++i) k->given[i] = *ht_chain_at(k, tensors[i]);
  for (int32_t i = step->given; i < step->count; ++i) k->made[i - step->given] = *ht_chain_at(k, tensors[i]);
  if (atomic_load_explicit(&k->m->most_bytes, memory_order_relaxed) != 0) {
    int64_t need = 0;
    if (ht_model_need(of, k->given, &need, k->error) != 0) return -1;
    if (need > k->theirs[step->at]) k->theirs[step->at] = need;
    if (within(k) != 0) return -1;
  }
  return ht_model_run(of, k->given, k->made, k->q->stream, k->error);
}

int ht_chain_seen(call* k, int32_t tensor, int64_t first, int64_t count, DLTensor* out) {
  const DLTensor* t = ht_chain_at(k, tensor);
  const int64_t bytes = t->dtype.bits / 8;
  *out = *t;
  out->device = (DLDevice){kDLCPU, 0};
  if (count == 0) return 0;
  const void* at = ht_where_seen(k->m, k->c, (const char*)t->data + first * bytes, count * bytes, k->q, k->error);
  out->data = (void*)at;
  return at == NULL ? -1 : 0;
}

int ht_chain_element(call* k, int32_t tensor, int64_t place, const char* words, int64_t* out) {
  DLTensor one;
  const DLTensor* of = ht_chain_at(k, tensor);
  if (place < 0 || place >= ht_chain_bytes(of) / (of->dtype.bits / 8)) return ht_refuse(k->error, "ValueError", "%s: %s has no element %lld", k->m->name, words, (long long)place);
  if (ht_chain_seen(k, tensor, place, 1, &one) != 0) return -1;
  one.ndim = 0;
  return ht_between_element(&one, 0, out);
}

int ht_chain_making(call* k, int32_t tensor, DLTensor* out) {
  *out = *ht_chain_at(k, tensor);
  const int64_t bytes = ht_chain_bytes(out);
  if (bytes == 0) return 0;
  out->data = ht_where_room(k->m, k->c, out->data, bytes, k->q, k->error);
  return out->data == NULL ? -1 : 0;
}

int ht_chain_send(call* k, int32_t tensor) {
  const DLTensor* t = ht_chain_at(k, tensor);
  const int64_t bytes = ht_chain_bytes(t);
  return bytes == 0 ? 0 : ht_where_send(k->m, k->c, t->data, bytes, k->q, k->error);
}

int ht_chain_range(call* k, int32_t tensor, int64_t count) {
  DLTensor out;
  if (ht_chain_making(k, tensor, &out) != 0) return -1;
  for (int64_t i = 0; i < count && i < out.shape[0]; ++i) ((int64_t*)out.data)[i] = i;
  return ht_chain_send(k, tensor);
}

int ht_chain_copy(call* k, void* to, const void* from, int64_t bytes) {
  return bytes == 0 ? 0 : ht_where_copy(k->m, to, from, bytes, k->q->stream, k->error);
}

int ht_chain_told(call* k, int32_t dim, int64_t size) {
  k->c->dims[dim] = size;
  resize(k->m, k->c->dims, k->c->sizes);
  return 0;
}

/* A dimension that the data tell, and the tensor that has so many elements along its last axis. */
static int told(call* k, const ht_model_step* step, int64_t count) {
  if (ht_chain_told(k, step->index, count) != 0 || ht_chain_make(k, step->out) != 0 || ht_chain_grow(k) != 0) return -1;
  const DLTensor* out = ht_chain_at(k, step->out);
  int64_t axes = out->ndim == 2 ? (k->tensors[step->first].ndim == 0 ? 1 : k->tensors[step->first].ndim) : 1;
  return out->shape[out->ndim - 1] != count || (out->ndim == 2 && out->shape[0] != axes) ? ht_chain_damaged(k) : 0;
}

static int counted(call* k, const ht_model_step* step) {
  int64_t count;
  if (!ht_chain_there(k, step->first)) return ht_chain_damaged(k);
  if (ht_chain_element(k, step->first, step->setting, "the tensor that tells a size", &count) != 0) return -1;
  if (count < 0) return ht_refuse(k->error, "ValueError", "%s: the data make a size of %lld; the model takes no such request", k->m->name, (long long)count);
  if (count > HT_MODEL_EXTENT) return ht_refuse(k->error, "ValueError", "%s: the data make a size of %lld, more than any memory", k->m->name, (long long)count);
  return told(k, step, count) != 0 ? -1 : ht_chain_range(k, step->out, count);
}

static int nonzero(call* k, const ht_model_step* step) {
  DLTensor of, out;
  if (!ht_chain_there(k, step->first)) return ht_chain_damaged(k);
  const DLTensor* there = ht_chain_at(k, step->first);
  if (ht_chain_seen(k, step->first, 0, ht_chain_bytes(there) / (there->dtype.bits / 8), &of) != 0) return -1;
  const int in_place = of.data == there->data;
  if (told(k, step, ht_between_nonzero(&of, NULL)) != 0) return -1;
  if (in_place) of.data = ht_chain_at(k, step->first)->data; /* the arena may have moved */
  if (ht_chain_making(k, step->out, &out) != 0) return -1;
  ht_between_nonzero(&of, out.data);
  return ht_chain_send(k, step->out);
}

static int drawn(call* k, const ht_model_step* step) {
  DLTensor out;
  if (ht_chain_make(k, step->out) != 0 || ht_chain_grow(k) != 0 || ht_chain_making(k, step->out, &out) != 0) return -1;
  ht_between_random(&out, step->more, k->seed);
  return ht_chain_send(k, step->out);
}

/* Outputs that are inputs, or that another output is already. */
static int deliver(call* k, int32_t output) {
  if (k->asked[output]) return 0;
  if (!ht_chain_there(k, k->m->outputs[output].tensor)) return ht_chain_damaged(k);
  const DLTensor* from = ht_chain_at(k, k->m->outputs[output].tensor);
  if (place_output(k, output, from) != 0) return -1;
  return ht_chain_copy(k, k->placed[output], from->data, ht_chain_bytes(from));
}

static int do_step(call* k, const ht_model_step* step, int32_t next) {
  switch (step->kind) {
    case STEP_SEGMENT: return segment(k, step);
    case STEP_NONZERO: return nonzero(k, step);
    case STEP_COUNTED: return counted(k, step);
    case STEP_TURNS: return ht_chain_turns(k, step, next);
    case STEP_DECIDED: return ht_chain_decided(k, step);
    case STEP_CHOSEN: return ht_chain_chosen(k, step);
    case STEP_REQUIRED: return ht_chain_required(k, step);
    default: return drawn(k, step);
  }
}

int ht_chain_steps(call* k, int32_t first, int32_t end) {
  for (int32_t s = first; s < end; ++s) {
    const ht_model_step* step = &k->m->steps[s];
    int skipped = step->kind == STEP_WHEN && k->c->dims[step->index] != step->setting;
    if (step->kind != STEP_WHEN && do_step(k, step, s + 1) != 0) return -1;
    if (step->kind == STEP_TURNS || skipped) s = step->at - 1; /* its body's steps were run; those of a side that is not taken are not */
  }
  return 0;
}

static int walk(call* k, const DLTensor* inputs) {
  const ht_model* m = k->m;
  if (ht_model_given(m, inputs, k->c->dims, k->error) != 0) return -1;
  resize(m, k->c->dims, k->c->sizes);
  for (int32_t i = 0; i < m->input_count; ++i) {
    int32_t tensor = m->inputs[i].tensor;
    k->tensors[tensor] = inputs[i];
    k->tensors[tensor].data = ht_data(&inputs[i]);
    k->tensors[tensor].byte_offset = 0;
    k->c->offsets[tensor] = EXTERNAL;
  }
  if (ht_chain_steps(k, 0, m->step_count) != 0) return -1;
  for (int32_t i = 0; i < m->output_count; ++i)
    if (deliver(k, i) != 0) return -1;
  return 0;
}

/* What a call needs beside its arena, kept by the context: it is the first block of those that plans have in other models. */
static int lay(call* k) {
  const ht_model* m = k->m;
  size_t tensors = (size_t)m->tensor_count + 1;
  size_t bytes = tensors * (3 * sizeof(DLTensor) + HT_MODEL_AXES * 8) + ((size_t)m->output_count + 1) * (sizeof(void*) + 1) + (size_t)m->stack_count * sizeof(ht_chain_stack) +
                 (size_t)m->segment_count * 8;
  if (k->c->blocks[0] == NULL && (k->c->blocks[0] = malloc(bytes)) == NULL) return ht_refuse(k->error, "RuntimeError", "%s: no memory for a call", m->name);
  memset(k->c->blocks[0], 0, bytes);
  k->tensors = k->c->blocks[0];
  k->given = k->tensors + tensors;
  k->made = k->given + tensors;
  k->stacks = (ht_chain_stack*)(void*)(k->made + tensors);
  k->theirs = (int64_t*)(void*)(k->stacks + m->stack_count);
  k->shapes = k->theirs + m->segment_count;
  k->placed = (void**)(void*)(k->shapes + tensors * HT_MODEL_AXES);
  k->asked = (char*)(k->placed + m->output_count);
  return 0;
}

static int run_chain(ht_model* m, const DLTensor* inputs, const uint64_t* seed, ht_model_place_fn place, void* arg, void* stream, int64_t* dims,
                     ht_error* error) {
  call k = {.m = m, .place = place, .arg = arg, .error = error};
  ht_model_queue q;
  int slot = 0;
  for (int32_t i = 0; i < m->segment_count; ++i)
    if (m->segments[i] == NULL) return ht_refuse(error, "RuntimeError", "%s: its segments are not open", m->name);
  if (seed != NULL) k.seed = *seed;
  else if (getrandom(&k.seed, sizeof k.seed, 0) != (ssize_t)sizeof k.seed) return ht_refuse(error, "RuntimeError", "%s: this host gives no random seed; pass one", m->name);
  if (ht_where_queue(m, stream, &q, error) != 0) return -1;
  if (q.capturing) return ht_refuse(error, "RuntimeError", "%s asks the device for sizes in the midst of a call, which no graph can hold: call it outside of a capture", m->name);
  k.q = &q;
  if ((k.c = ht_context_take(m, &slot, &q, error)) == NULL) return -1;
  atomic_fetch_add_explicit(&m->calls, 1, memory_order_relaxed);
  int rc = lay(&k) == 0 ? walk(&k, inputs) : -1;
  if (rc == 0 && dims != NULL) memcpy(dims, k.c->dims, (size_t)m->dim_count * sizeof *dims);
  if (rc == 0) ht_context_rest(m, k.c, k.used);
  ht_context_give_back(m, slot);
  return rc;
}

/* All outputs of a model whose shapes follow from its inputs, as ht_model_run_into asks for them. */
static const DLTensor* place_outputs(void* arg, const int64_t* sizes, ht_error* error) {
  call* k = arg;
  const ht_model* m = k->m;
  int64_t *shape = k->shapes, count;
  for (int32_t i = 0; i < m->output_count; ++i) {
    const ht_model_tensor* t = &m->tensors[m->outputs[i].tensor];
    if (ht_model_extents(m, t, sizes, shape, &count, error) != 0) return NULL;
    k->made[i] = (DLTensor){NULL, {ht_where_type, m->device}, t->rank, {t->code, t->bits, 1}, shape, NULL, 0};
    if (place_output(k, i, &k->made[i]) != 0) return NULL;
    k->made[i].data = k->placed[i];
    shape += t->rank;
  }
  return k->made;
}

static int run_whole(ht_model* m, const DLTensor* inputs, ht_model_place_fn place, void* arg, void* stream, int64_t* dims, ht_error* error) {
  call k = {.m = m, .place = place, .arg = arg, .error = error};
  size_t count = (size_t)m->output_count;
  char* block = calloc(count + 1, sizeof(DLTensor) + sizeof(void*) + HT_MODEL_AXES * 8 + 1);
  if (block == NULL) return ht_refuse(error, "RuntimeError", "%s: no memory for a call", m->name);
  k.made = (DLTensor*)(void*)block;
  k.placed = (void**)(void*)(k.made + count);
  k.shapes = (int64_t*)(void*)(k.placed + count);
  k.asked = (char*)(k.shapes + count * HT_MODEL_AXES);
  const ht_model_outputs made = {place_outputs, &k};
  int rc = ht_model_run_into(m, inputs, &made, stream, error);
  if (rc == 0 && dims != NULL) rc = ht_model_dims(m, inputs, dims, error);
  free(block);
  return rc;
}

int ht_model_run_placed(ht_model* m, const DLTensor* inputs, const uint64_t* seed, ht_model_place_fn place, void* arg, void* stream, int64_t* dims,
                        ht_error* error) {
  return m->chained ? run_chain(m, inputs, seed, place, arg, stream, dims, error) : run_whole(m, inputs, place, arg, stream, dims, error);
}

const char* ht_chain_segment(ht_model* m, int index, ht_model* given) {
  for (int32_t s = 0; s < m->step_count && m->chained; ++s) {
    const ht_model_step* step = &m->steps[s];
    if (step->kind != STEP_SEGMENT || step->at != index) continue;
    int fits = given != NULL && !given->chained && given->input_count == step->given && given->output_count == step->count - step->given;
    if (fits) m->segments[index] = given; /* no chain: two that name each other would never end */
    return step->called;
  }
  return NULL;
}

/* What a tensor takes of the arena. */
static int takes(const ht_model* m, int32_t tensor, const int64_t* sizes, int64_t* bytes, ht_error* error) {
  const ht_model_tensor* t = &m->tensors[tensor];
  int64_t shape[HT_MODEL_AXES], count;
  if (ht_model_extents(m, t, sizes, shape, &count, error) != 0) return -1;
  *bytes += (count * (t->bits / 8) + HT_MODEL_ALIGNMENT - 1) / HT_MODEL_ALIGNMENT * HT_MODEL_ALIGNMENT;
  return 0;
}

/* The same of a segment's own arena. `theirs`: room for its dimensions. */
static int segment_takes(const ht_model* m, ht_model* of, const int64_t* dims, int64_t* theirs, int64_t* bytes, ht_error* error) {
  int64_t need = 0;
  if (of == NULL || of->dim_count > m->dim_count) return 0;
  memset(theirs, 0, (size_t)m->dim_count * sizeof *theirs);
  for (int32_t d = 0; d < of->dim_count; ++d)
    for (int32_t e = 0; e < m->dim_count; ++e)
      if (strcmp(of->dims[d], m->dims[e]) == 0) theirs[d] = dims[e];
  if (ht_model_memory(of, theirs, &need, error) != 0) return -1;
  *bytes += need;
  return 0;
}

/* What a loop keeps beside what its body makes: values of a turn and the last ones, stacks of rows. */
static int loop_takes(const ht_model* m, const ht_model_step* step, const int64_t* sizes, int64_t* bytes, ht_error* error) {
  const ht_chain_loop loop = ht_chain_loop_of(step);
  int rc = 0;
  for (int32_t i = 0; i < loop.carried && rc == 0; ++i) {
    const int64_t* end = loop.carried_ends + (ptrdiff_t)4 * i;
    int64_t own = 0;
    rc = takes(m, (int32_t)end[1], sizes, &own, error);
    *bytes += loop.changes > 0 ? 4 * own : own; /* rooms of a value that grows */
    if (rc == 0 && end[3] >= 0) rc = takes(m, (int32_t)end[3], sizes, bytes, error);
  }
  for (int32_t i = 0; i < loop.made && rc == 0; ++i) {
    int64_t own = 0;
    rc = takes(m, (int32_t)loop.made_ends[2 * i + 1], sizes, &own, error);
    *bytes += loop.dim < 0 ? own : 3 * own; /* in pieces, before it is one */
  }
  return rc;
}

/* The arenas of all segments, and what lies between them. */
int ht_chain_memory(ht_model* m, const int64_t* dims, int64_t* bytes, ht_error* error) {
  int64_t* own = malloc(((size_t)m->dim_count + (size_t)m->size_count + 1) * sizeof *own);
  if (own == NULL) return ht_refuse(error, "RuntimeError", "%s: no memory for a request's sizes", m->name);
  int rc = 0;
  int64_t segments = 0;
  resize(m, dims, own);
  *bytes = 0;
  for (int32_t s = 0; s < m->step_count && rc == 0; ++s) {
    const ht_model_step* step = &m->steps[s];
    if (step->kind == STEP_WHEN && dims[step->index] != step->setting) s = step->at - 1;
    if (step->kind >= STEP_DECIDED) continue; /* makes nothing */
    if (step->kind == STEP_TURNS) rc = loop_takes(m, step, own, bytes, error);
    else if (step->kind != STEP_SEGMENT) rc = takes(m, step->out, own, bytes, error);
    for (int32_t i = step->given; step->kind == STEP_SEGMENT && i < step->count && rc == 0; ++i) rc = takes(m, m->loops[step->first + i], own, bytes, error);
    if (step->kind == STEP_SEGMENT && rc == 0) rc = segment_takes(m, m->segments[step->at], dims, own + m->size_count, &segments, error);
  }
  *bytes = ht_where_holds(*bytes) + segments;
  free(own);
  return rc;
}
