/* Opens models and runs them: one request uses one context, which holds an arena and the plans of the sizes seen last. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "model/backend.h"

static void drop_arena(const ht_model* m, ht_model_context* c) {
  for (int i = 0; i < HT_MODEL_PLANS; ++i) c->plans[i].used = 0; /* their addresses lie in it */
  ht_where_drop(m, c);
  c->arena = NULL;
  c->arena_bytes = 0;
}

static void free_context(const ht_model* m, ht_model_context* c) {
  if (c == NULL) return;
  drop_arena(m, c);
  for (int i = 0; i < HT_MODEL_PLANS; ++i) free(c->blocks[i]);
  free(c->seen.data);
  free(c->sent.data);
  free(c->words);
  free(c);
}

static ht_model_context* new_context(const ht_model* m) {
  ht_model_context* c = calloc(1, sizeof *c);
  size_t words = (size_t)m->dim_count + 1 + (size_t)m->size_count + (size_t)m->slot_count + (size_t)ht_model_scratch(m) + 1;
  if (c == NULL || (c->words = calloc(words, 8)) == NULL) return free(c), NULL;
  c->dims = c->words;
  c->sizes = c->dims + m->dim_count + 1; /* dims: and the capacity of caches */
  c->offsets = c->sizes + m->size_count;
  c->scratch = c->offsets + m->slot_count;
  return c;
}

void ht_context_give_back(ht_model* m, int place) { atomic_store_explicit(&m->places[place].busy, 0, memory_order_release); }

/* A new context for the calls of this stream; NULL with *error filled. */
static ht_model_context* begin(ht_model* m, int place, const ht_model_queue* q, ht_error* error) {
  ht_model_context* c = new_context(m);
  if (c == NULL) return ht_refuse(error, "RuntimeError", "%s: no memory for another request at the same time", m->name), NULL;
  c->stream = q->stream;
  c->thread = q->thread;
  if (ht_where_begin(m, c, q, error) != 0) return free_context(m, c), NULL;
  atomic_store_explicit(&m->places[place].context, c, memory_order_release);
  return c;
}

static ht_model_context* begin_in(ht_model* m, int place, const ht_model_queue* q, ht_error* error) {
  ht_model_context* c = begin(m, place, q, error);
  if (c == NULL) ht_context_give_back(m, place);
  return c;
}

/* Gives up the context of a stream that rests, once its work is done; its place is then the caller's. */
static int make_room(ht_model* m, int* place) {
  for (int i = 0; i < HT_MODEL_CONTEXTS; ++i) {
    int idle = 0;
    if (!atomic_compare_exchange_strong_explicit(&m->places[i].busy, &idle, 1, memory_order_acquire, memory_order_relaxed)) continue;
    ht_model_context* c = atomic_load_explicit(&m->places[i].context, memory_order_relaxed);
    *place = i;
    if (c == NULL || !c->captured) return free_context(m, atomic_exchange(&m->places[i].context, NULL)), 1;
    ht_context_give_back(m, i);
  }
  return 0;
}

/* Made where there is none. No lock: a child may be forked while another thread would hold it. */
ht_model_context* ht_context_take(ht_model* m, int* place, const ht_model_queue* q, ht_error* error) {
  for (int i = *place; i < HT_MODEL_CONTEXTS; ++i) {
    int idle = 0;
    if (!atomic_compare_exchange_strong_explicit(&m->places[i].busy, &idle, 1, memory_order_acquire, memory_order_relaxed)) continue;
    ht_model_context* c = atomic_load_explicit(&m->places[i].context, memory_order_relaxed);
    *place = i;
    if (c == NULL && !q->capturing) return begin_in(m, i, q, error);
    if (c != NULL && ht_where_suits(c, q)) return c;
    ht_context_give_back(m, i);
  }
  if (!q->capturing && make_room(m, place)) return begin_in(m, *place, q, error);
  if (q->capturing)
    ht_refuse(error, "RuntimeError", "%s: a call that is captured may allocate nothing; call the model once at these sizes on this stream before", m->name);
  else ht_refuse(error, "RuntimeError", "%s: %d requests run already; wait for one of them", m->name, HT_MODEL_CONTEXTS);
  return NULL;
}

/* An arena is kept for calls like those of the last WINDOW; one that is SLACK times what they needed is given back, and the next call gets
 * what it needs: page faults once, for memory that a single large request would hold for ever. Small ones are not worth it. */
enum { WINDOW = 64, SLACK = 4 };
#define SMALL ((size_t)4 << 20)

void ht_context_rest(ht_model* m, ht_model_context* c, int64_t need) {
  if (need > c->recent) c->recent = need;
  if (++c->calls < WINDOW) return;
  /* On a device a call allocates nothing once its stream had one of such sizes, and graphs replay addresses. */
  int large = ht_where_type == kDLCPU && c->arena_bytes > SMALL && c->arena_bytes / SLACK > (size_t)ht_where_holds(c->recent);
  c->calls = c->recent = 0;
  if (large) drop_arena(m, c);
}

void ht_model_limit(ht_model* m, int64_t most_bytes) { atomic_store_explicit(&m->most_bytes, most_bytes < 0 ? 0 : most_bytes, memory_order_relaxed); }

int ht_model_within(const ht_model* m, int64_t bytes, ht_error* error) {
  const int64_t most = atomic_load_explicit(&m->most_bytes, memory_order_relaxed);
  if (most == 0 || bytes <= most) return 0;
  return ht_refuse(error, "ValueError", "%s: this request takes %lld bytes of working memory and outputs, at most %lld a request were allowed when the pack was opened; send a smaller one, or allow more",
                   m->name, (long long)bytes, (long long)most);
}

/* The same of a request whose sizes are known; *bytes: with its outputs. */
static int within(const ht_model* m, const int64_t* sizes, int64_t need, int64_t* bytes, ht_error* error) {
  int64_t shape[HT_MODEL_AXES], count;
  *bytes = ht_where_holds(need);
  for (int32_t i = 0; i < m->output_count; ++i) {
    const ht_model_tensor* t = &m->tensors[m->outputs[i].tensor];
    if (ht_model_extents(m, t, sizes, shape, &count, error) != 0) return -1;
    *bytes += count * (t->bits / 8);
  }
  return ht_model_within(m, *bytes, error);
}

static int grow(const ht_model* m, ht_model_context* c, int64_t need, const ht_model_queue* q, ht_error* error) {
  if ((size_t)need <= c->arena_bytes) return 0;
  for (int i = 0; i < HT_MODEL_PLANS; ++i) c->plans[i].used = 0; /* their addresses lie in it */
  if (ht_where_grow(m, c, need, q, error) == 0) return 0;
  if (!q->capturing) drop_arena(m, c);
  return -1;
}

/* The plan of the context's dims: kept from before, or made in place of the one that was wanted least lately. */
static ht_model_plan* plan_of(ht_model* m, ht_model_context* c, const ht_model_queue* q, ht_error* error) {
  size_t bytes = (size_t)(m->dim_count + 1) * sizeof *c->dims;
  for (int i = 0; i < HT_MODEL_PLANS; ++i)
    if (c->plans[i].used != 0 && memcmp(c->plans[i].dims, c->dims, bytes) == 0)
      return ht_model_within(m, c->plans[i].bytes, error) != 0 ? NULL : (c->plans[i].used = ++c->tick, &c->plans[i]);
  if (ht_model_sizes(m, c->dims, c->sizes, error) != 0) return NULL;
  const ht_model_way* way = ht_model_way_of(m, c->sizes);
  int64_t need = ht_model_place(m, way, c->sizes, c->offsets, c->scratch);
  int64_t whole = 0;
  if (need < 0 || within(m, c->sizes, need, &whole, error) != 0 || grow(m, c, need, q, error) != 0) return NULL;
  int oldest = 0;
  for (int i = 1; i < HT_MODEL_PLANS; ++i)
    if (c->plans[i].used < c->plans[oldest].used) oldest = i;
  ht_model_plan* plan = &c->plans[oldest];
  if (c->blocks[oldest] == NULL) {
    if ((c->blocks[oldest] = malloc(ht_plan_bytes(m))) == NULL) return ht_refuse(error, "RuntimeError", "%s: no memory for a plan", m->name), NULL;
    ht_plan_lay(m, plan, c->blocks[oldest]);
  }
  plan->used = 0;
  plan->way = way;
  plan->need = need;
  plan->bytes = whole;
  memcpy(plan->dims, c->dims, bytes);
  memcpy(plan->sizes, c->sizes, (size_t)m->size_count * sizeof *c->sizes);
  if (ht_plan_fill(m, plan, c->arena, c->offsets, error) != 0) return NULL;
  atomic_fetch_add_explicit(&m->plans_made, 1, memory_order_relaxed);
  plan->used = ++c->tick;
  return plan;
}

typedef struct {
  const char *low, *high;
} span;

static span span_of(const DLTensor* t) {
  int64_t bytes = t->dtype.bits / 8, last = 0;
  for (int a = 0; a < t->ndim; ++a) bytes *= t->shape[a];
  for (int a = 0; a < t->ndim && t->strides != NULL; ++a) last += (t->shape[a] - 1) * t->strides[a];
  if (bytes != 0 && t->strides != NULL) bytes = (last + 1) * (t->dtype.bits / 8); /* rows of a buffer: what lies between them, too */
  const char* low = bytes == 0 ? NULL : ht_data(t);
  return (span){low, low + bytes};
}

static int meet(span a, span b) { return a.low < b.high && b.low < a.high; }

int ht_model_fits(const ht_model* m, int32_t output, const DLTensor* wanted, const DLTensor* given, ht_error* error) {
  const char* name = m->outputs[output].name;
  int64_t count = 1;
  int right = given->device.device_type == wanted->device.device_type && given->device.device_id == wanted->device.device_id && given->dtype.code == wanted->dtype.code &&
              given->dtype.bits == wanted->dtype.bits && given->dtype.lanes == 1 && given->ndim == wanted->ndim && (given->shape != NULL || wanted->ndim == 0);
  for (int32_t a = 0; right && a < wanted->ndim; ++a) right = given->shape[a] == wanted->shape[a], count *= wanted->shape[a];
  if (!right) return ht_refuse(error, "ValueError", "%s: out[%s] is of another type or shape than this request makes", m->name, name);
  const int32_t cache = m->outputs[output].cache;
  int64_t capacity;
  if (!(cache > 0 ? ht_cache_lies(given, m->caches[cache - 1].axis, &capacity) : ht_contiguous(given)) || (count > 0 && (given->data == NULL || (uintptr_t)ht_data(given) % (wanted->dtype.bits / 8) != 0)))
    return ht_refuse(error, "ValueError", "%s: out[%s] must be contiguous, aligned to its elements, and have data", m->name, name);
  if (!ht_addressable(given)) return ht_refuse(error, "ValueError", "%s: " HT_NOT_ADDRESSABLE, m->name, name);
  return 0;
}

/* Outputs of the right types and shapes, apart from each other and from the inputs: steps write them while inputs are read. */
static int check_outputs(const ht_model* m, const ht_model_plan* plan, const DLTensor* inputs, const DLTensor* outputs, ht_error* error) {
  int64_t shape[HT_MODEL_AXES], count;
  for (int32_t i = 0; i < m->output_count; ++i) {
    const ht_model_tensor* t = &m->tensors[m->outputs[i].tensor];
    if (ht_model_extents(m, t, plan->sizes, shape, &count, error) != 0) return -1;
    const DLTensor wanted = {NULL, {ht_where_type, m->device}, t->rank, {t->code, t->bits, 1}, shape, NULL, 0};
    if (ht_model_fits(m, i, &wanted, &outputs[i], error) != 0) return -1;
    span mine = span_of(&outputs[i]);
    for (int32_t k = 0; k < m->input_count + i; ++k)
      if ((k >= m->input_count || !ht_cache_shared(m, k, i, inputs, outputs)) &&
          meet(mine, span_of(k < m->input_count ? &inputs[k] : &outputs[k - m->input_count])))
        return ht_refuse(error, "ValueError", "%s: out[%s] shares memory with another array of the call; pass one apart", m->name, m->outputs[i].name);
  }
  return 0;
}

/* Extents of inputs that follow from those of others. */
static int check_inputs(const ht_model* m, const ht_model_plan* plan, const DLTensor* inputs, ht_error* error) {
  for (int32_t i = 0; i < m->input_count; ++i) {
    const ht_model_tensor* t = &m->tensors[m->inputs[i].tensor];
    for (int32_t a = 0; a < t->rank; ++a)
      if (m->sizes[t->shape[a]].op > SIZE_NUMBER && plan->sizes[t->shape[a]] != inputs[i].shape[a])
        return ht_refuse(error, "ValueError", "%s: input %s has %lld elements along axis %d; with these other inputs it must have %lld", m->name, m->inputs[i].name,
                         (long long)inputs[i].shape[a], (int)a, (long long)plan->sizes[t->shape[a]]);
  }
  return 0;
}

static void connect(const ht_model* m, ht_model_plan* plan, const DLTensor* inputs, const DLTensor* outputs) {
  for (int32_t i = plan->way->first_fix; i < plan->way->fix_end; ++i) {
    const ht_model_fix* fix = &m->fixes[i];
    const DLTensor* given = fix->external < m->input_count ? &inputs[fix->external] : &outputs[fix->external - m->input_count];
    DLTensor* operand = &plan->tensors[fix->at];
    if (fix->loops) plan->loops[fix->at] = ht_data(given);
    else operand->data = ht_data(given);
    if (fix->external < m->input_count && m->inputs[fix->external].cache > 0) /* an append alone reads it */
      operand->strides = given->strides != NULL ? given->strides : operand->shape + operand->ndim;
  }
}

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* `ns`: NULL, or what each step took. */
static int run_steps(const ht_model* m, ht_model_plan* plan, void* stream, int64_t* ns, ht_error* error) {
  if (ns != NULL) memset(ns, 0, (size_t)m->step_count * sizeof *ns);
  for (int32_t s = plan->way->first; s < plan->way->end; ++s) {
    const ht_model_step* step = &m->steps[s];
    if (plan->skipped[s]) continue;
    int64_t begin = ns == NULL ? 0 : now_ns();
    int rc = step->kind == STEP_LOOPS    ? ht_where_group(m, plan, step, stream, error)
             : step->kind == STEP_APPEND ? ht_cache_append(m, plan, step, error)
                                         : ht_call_op(step->index, plan->given + (size_t)step->at * HT_MAX_OPERANDS, step->given, step->setting, stream, error);
    if (rc != 0) {
      char text[sizeof error->text]; /* the step's words, behind whose they are */
      memcpy(text, error->text, sizeof text);
      return ht_refuse(error, error->kind, "%s: step %d, %.60s: %s", m->name, (int)s,
                       step->kind != STEP_OP ? m->tensors[step->out].name : ht_ops[step->index].name, text);
    }
    if (ns != NULL && ht_where_wait(m, stream, error) != 0) return -1;
    if (ns != NULL) ns[s] = now_ns() - begin;
  }
  return 0;
}

static int deliver(const ht_model* m, const ht_model_plan* plan, const DLTensor* inputs, const DLTensor* outputs, void* stream, ht_error* error) {
  const ht_model_end* made = plan->way->outputs;
  for (int32_t i = 0; i < m->output_count; ++i) {
    if (made[i].direct) continue;
    int32_t external = m->tensors[m->tensors[made[i].tensor].root].external;
    const char* from = external < 0                 ? plan->results[i]
                       : external < m->input_count ? ht_data(&inputs[external])
                                                    : ht_data(&outputs[external - m->input_count]);
    span to = span_of(&outputs[i]);
    if (to.low != NULL && ht_where_copy(m, (char*)to.low, from, to.high - to.low, stream, error) != 0) return -1;
  }
  return 0;
}

/* One call in a context of the model. `made`: NULL, or what makes the outputs. *small: only its arena is too small, while a graph is captured. */
static int run_in(ht_model* m, ht_model_context* c, const ht_model_queue* q, const DLTensor* inputs, const DLTensor* outputs, const ht_model_outputs* made,
                  int64_t* ns, int* small, ht_error* error) {
  *small = 0;
  if (ht_model_dims(m, inputs, c->dims, error) != 0) return -1;
  c->dims[m->dim_count] = 0;
  if (made == NULL && ht_cache_capacities(m, outputs, c->dims, error) != 0) return -1;
  ht_model_plan* plan = plan_of(m, c, q, error);
  *small = plan == NULL && q->capturing;
  if (plan != NULL && made != NULL && (outputs = made->of(made->arg, plan->sizes, error)) == NULL) return -1;
  if (plan == NULL || check_inputs(m, plan, inputs, error) != 0 || check_outputs(m, plan, inputs, outputs, error) != 0) return -1;
  if (ht_where_type == kDLCPU && ht_model_indices_in(m, inputs, plan->sizes, error) != 0) return -1;
  connect(m, plan, inputs, outputs);
  if (q->capturing) c->captured = 1;
  if (run_steps(m, plan, q->stream, ns, error) != 0 || deliver(m, plan, inputs, outputs, q->stream, error) != 0) return -1;
  return ht_context_rest(m, c, plan->need), 0;
}

static int run_on(ht_model* m, const DLTensor* inputs, const DLTensor* outputs, const ht_model_outputs* made, void* stream, int64_t* ns, ht_error* error) {
  ht_model_queue q;
  if (m->chained) return ht_refuse(error, "ValueError", "%s: shapes of its outputs are known only from data; call it so that it asks where they are to lie", m->name);
  if (ht_where_queue(m, stream, &q, error) != 0) return -1;
  atomic_fetch_add_explicit(&m->calls, 1, memory_order_relaxed);
  ht_error none;
  for (int place = 0, small = 0;; ++place) {
    ht_model_context* c = ht_context_take(m, &place, &q, small ? &none : error); /* the words of the first are better */
    if (c == NULL) return -1;
    int rc = run_in(m, c, &q, inputs, outputs, made, ns, &small, small ? &none : error);
    ht_context_give_back(m, place);
    if (rc == 0 || !small) return rc;
  }
}

int ht_model_times(ht_model* m, const DLTensor* inputs, const DLTensor* outputs, int64_t* ns, ht_error* error) {
  return run_on(m, inputs, outputs, NULL, NULL, ns, error);
}

int ht_model_run(ht_model* m, const DLTensor* inputs, const DLTensor* outputs, void* stream, ht_error* error) {
  return run_on(m, inputs, outputs, NULL, stream, NULL, error);
}

int ht_model_run_into(ht_model* m, const DLTensor* inputs, const ht_model_outputs* made, void* stream, ht_error* error) {
  return run_on(m, inputs, NULL, made, stream, NULL, error);
}

/* Sizes of a request, in a context of its own: what there is of them may serve a stream. */
static int with_sizes(ht_model* m, const DLTensor* inputs, const int64_t* dims, int64_t* bytes, int64_t* shapes, ht_error* error) {
  int rc = 0;
  if (m->chained) return ht_refuse(error, "ValueError", "%s: shapes of its outputs are known only from data", m->name);
  ht_model_context* c = new_context(m);
  if (c == NULL) return ht_refuse(error, "RuntimeError", "%s: no memory for a request's sizes", m->name);
  for (int32_t i = 0; dims != NULL && i < m->dim_count && rc == 0; ++i)
    if ((c->dims[i] = dims[i]) < 0 || dims[i] > HT_MODEL_EXTENT) rc = ht_refuse(error, "ValueError", "%s: %s=%lld is no extent", m->name, m->dims[i], (long long)dims[i]);
  if (inputs != NULL) rc = ht_model_dims(m, inputs, c->dims, error);
  if (rc == 0) rc = ht_model_sizes(m, c->dims, c->sizes, error);
  const int bounded = inputs != NULL && atomic_load_explicit(&m->most_bytes, memory_order_relaxed) != 0;
  if (rc == 0 && (bytes != NULL || bounded)) {
    const int64_t need = ht_model_place(m, ht_model_way_of(m, c->sizes), c->sizes, c->offsets, c->scratch);
    if (bytes != NULL) *bytes = ht_where_holds(need);
    int64_t whole;
    if (bounded) rc = within(m, c->sizes, need, &whole, error);
  }
  for (int32_t i = 0; i < m->output_count && shapes != NULL && rc == 0; ++i) {
    const ht_model_tensor* t = &m->tensors[m->outputs[i].tensor];
    int64_t count;
    rc = ht_model_extents(m, t, c->sizes, shapes, &count, error);
    shapes += t->rank;
  }
  free_context(m, c);
  return rc;
}

int ht_model_memory(ht_model* m, const int64_t* dims, int64_t* bytes, ht_error* error) {
  return m->chained ? ht_chain_memory(m, dims, bytes, error) : with_sizes(m, NULL, dims, bytes, NULL, error);
}

int ht_model_need(ht_model* m, const DLTensor* inputs, int64_t* bytes, ht_error* error) { return with_sizes(m, inputs, NULL, bytes, NULL, error); }

int ht_model_shapes(ht_model* m, const DLTensor* inputs, int64_t* shapes, ht_error* error) { return with_sizes(m, inputs, NULL, NULL, shapes, error); }

ht_model* ht_model_open(const int64_t* words, int64_t count, int file, int check, int device, int threads, ht_error* error) {
  ht_model* m = calloc(1, sizeof *m);
  if (m == NULL) return ht_refuse(error, "RuntimeError", "no memory to open a model"), NULL;
  m->device = device;
  m->capacity = -1;
  m->threads = threads < 1 ? 1 : threads > HT_MAX_THREADS ? HT_MAX_THREADS : threads;
  int read = ht_model_read(m, words, count, error) == 0;
  if (read && (m->chained || (ht_model_live(m, error) == 0 && ht_model_weights(m, file, check, error) == 0)) && ht_where_open(m, error) == 0 &&
      ht_model_compared(m, error) == 0) {
    for (int32_t s = 0; s < m->step_count; ++s)
      if (m->steps[s].kind == STEP_OP) m->steps[s].setting = ht_setting(m->steps[s].index, m->threads);
    return m;
  }
  ht_model_close(m);
  return NULL;
}

void ht_model_close(ht_model* m) {
  for (int i = 0; i < HT_MODEL_CONTEXTS; ++i) free_context(m, atomic_load(&m->places[i].context));
  ht_where_close(m);
  if (m->weights_mapped != 0) munmap((void*)m->weights, m->weights_mapped);
  ht_model_clear(m);
  free(m);
}

void ht_model_trim(ht_model* m) {
  for (int i = 0; i < HT_MODEL_CONTEXTS; ++i) {
    int idle = 0;
    if (!atomic_compare_exchange_strong(&m->places[i].busy, &idle, 1)) continue;
    ht_model_context* c = atomic_load(&m->places[i].context);
    if (c != NULL && !c->captured) free_context(m, atomic_exchange(&m->places[i].context, NULL));
    ht_context_give_back(m, i);
  }
}

void ht_model_held(ht_model* m, int64_t out[HT_MODEL_FACTS]) {
  memset(out, 0, HT_MODEL_FACTS * sizeof *out);
  out[0] = atomic_load_explicit(&m->calls, memory_order_relaxed);
  out[1] = atomic_load_explicit(&m->plans_made, memory_order_relaxed);
  for (int i = 0; i < HT_MODEL_CONTEXTS; ++i) {
    int idle = 0; /* one that runs now is not asked: its arena may move */
    if (!atomic_compare_exchange_strong(&m->places[i].busy, &idle, 1)) continue;
    const ht_model_context* c = atomic_load(&m->places[i].context);
    if (c != NULL) ++out[2], out[3] += (int64_t)c->arena_bytes;
    ht_context_give_back(m, i);
  }
  out[4] = (int64_t)m->packed_bytes;
}
