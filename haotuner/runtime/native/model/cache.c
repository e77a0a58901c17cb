/* Caches of keys and values: past and present rows may be one buffer, which has room for more rows than there are (its capacity).
 * Of such a buffer only new rows are written. Tensors say by their strides which capacity they have. */
#include <string.h>

#include "model/model.h"

#define SMALL ((int64_t)1 << 18) /* bytes that one thread copies */

static int64_t stride_of(const DLTensor* t, int32_t axis) {
  int64_t stride = 1;
  if (t->strides != NULL) return t->strides[axis];
  for (int32_t a = axis + 1; a < t->ndim; ++a) stride *= t->shape[a];
  return stride;
}

/* Capacity -1: the tensor has no elements, or no axis outside of the rows. */
int ht_cache_lies(const DLTensor* t, int32_t axis, int64_t* capacity) {
  int64_t run = 1, inner = 1;
  *capacity = -1;
  if (axis >= t->ndim) return 0;
  for (int32_t a = 0; a < t->ndim; ++a)
    if (t->shape[a] <= 0) return t->shape[a] == 0;
  for (int32_t a = t->ndim - 1; a >= 0; --a) {
    const int64_t stride = stride_of(t, a);
    if (t->shape[a] == 1) continue;
    if (a < axis && *capacity < 0) {
      if (stride <= 0 || stride % inner != 0 || stride / inner < t->shape[axis]) return 0;
      *capacity = stride / inner;
    } else if (stride != run) return 0;
    if (__builtin_mul_overflow(stride, t->shape[a], &run) || run > HT_MODEL_BYTES) return 0;
    if (a > axis) inner = run;
  }
  return 1;
}

int ht_cache_capacities(const ht_model* m, const DLTensor* outputs, int64_t* dims, ht_error* error) {
  int64_t known = -1;
  for (int32_t i = 0; i < m->cache_count; ++i) {
    const ht_model_cache* cache = &m->caches[i];
    const DLTensor* out = &outputs[cache->output];
    int64_t capacity;
    if (out->ndim != m->tensors[m->outputs[cache->output].tensor].rank || out->shape == NULL || !ht_cache_lies(out, cache->axis, &capacity) || capacity < 0)
      continue; /* a wrong output is refused where outputs are checked */
    if (known >= 0 && known != capacity)
      return ht_refuse(error, "ValueError", "%s: out[%s] lies in a buffer of %lld rows, another cache in one of %lld; pass buffers of one capacity", m->name,
                       m->outputs[cache->output].name, (long long)capacity, (long long)known);
    known = capacity;
    dims[m->dim_count] = capacity > out->shape[cache->axis] ? capacity : 0;
  }
  return 0;
}

int ht_cache_shared(const ht_model* m, int32_t input, int32_t output, const DLTensor* inputs, const DLTensor* outputs) {
  const DLTensor *past = &inputs[input], *out = &outputs[output];
  if (m->inputs[input].cache == 0 || m->inputs[input].cache != m->outputs[output].cache || ht_data(past) != ht_data(out)) return 0;
  for (int32_t a = 0; a < past->ndim; ++a)
    if (past->shape[a] > 1 && stride_of(past, a) != stride_of(out, a)) return 0;
  return 1;
}

int ht_cache_strides(const ht_model* m, const ht_model_tensor* root, const int64_t* sizes, int32_t rank, const int64_t* shape, int64_t* strides) {
  const int32_t axis = m->caches[root->cache - 1].axis;
  const int64_t capacity = sizes[m->capacity], rows = sizes[root->shape[axis]];
  int64_t inner = 1, run = 1;
  int passed = 0; /* all axes of the rows */
  if (capacity == rows) return 0;
  for (int32_t a = axis + 1; a < root->rank; ++a) inner *= sizes[root->shape[a]];
  for (int32_t a = rank - 1; a >= 0; --a) {
    if (!passed && run == inner * rows) run = inner * capacity, passed = 1;
    strides[a] = run;
    run *= shape[a];
  }
  return passed || run == inner * rows ? 0 : -1;
}

typedef struct {
  const char* from;
  char* to;
  const int64_t *shape, *from_strides, *to_strides;
  int64_t bytes, run, rows, chunks; /* of an element; side by side; how many such runs; parts of them */
  int32_t rank;                     /* axes outside of a run */
} job;

static void copy_chunk(void* arg, int64_t chunk) {
  const job* j = arg;
  const int64_t first = j->rows * chunk / j->chunks, end = j->rows * (chunk + 1) / j->chunks;
  int64_t at[HT_MODEL_AXES], from = 0, to = 0, rest = first;
  for (int32_t a = j->rank - 1; a >= 0; --a) {
    at[a] = rest % j->shape[a];
    rest /= j->shape[a];
    from += at[a] * j->from_strides[a];
    to += at[a] * j->to_strides[a];
  }
  for (int64_t row = first; row < end; ++row) {
    memcpy(j->to + to * j->bytes, j->from + from * j->bytes, (size_t)j->run);
    for (int32_t a = j->rank - 1; a >= 0; --a) {
      from += j->from_strides[a];
      to += j->to_strides[a];
      if (++at[a] < j->shape[a]) break;
      from -= at[a] * j->from_strides[a];
      to -= at[a] * j->to_strides[a];
      at[a] = 0;
    }
  }
}

/* `rows` of the axis of `to` on, as many as `from` has. */
static void copy(const DLTensor* from, const DLTensor* to, int32_t axis, int64_t first, int threads) {
  const int64_t bytes = from->dtype.bits / 8;
  job j = {ht_data(from), (char*)ht_data(to) + first * stride_of(to, axis) * bytes, from->shape, from->strides, to->strides, bytes, bytes, 1, 1, from->ndim};
  while (j.rank > 0) {
    const int32_t a = j.rank - 1;
    if (from->shape[a] != 1 && (from->strides[a] * bytes != j.run || to->strides[a] * bytes != j.run)) break;
    j.run *= from->shape[a];
    --j.rank;
  }
  for (int32_t a = 0; a < j.rank; ++a) j.rows *= from->shape[a];
  if (j.rows * j.run > SMALL && threads > 1) j.chunks = j.rows < 4 * (int64_t)threads ? j.rows : 4 * (int64_t)threads;
  if (j.rows > 0 && j.run > 0) ht_pool_run(copy_chunk, &j, j.chunks, threads);
}

int ht_cache_append(const ht_model* m, const ht_model_plan* plan, const ht_model_step* step, ht_error* error) {
  const DLTensor *past = &plan->tensors[step->first], *new = past + 1, *out = past + 2;
  const int32_t axis = step->index;
  int right = past->shape[axis] + new->shape[axis] == out->shape[axis];
  for (int32_t a = 0; a < out->ndim; ++a) right &= a == axis || (past->shape[a] == out->shape[a] && new->shape[a] == out->shape[a]);
  if (!right) return ht_refuse(error, "ValueError", "the rows of a cache and those that come to it are of other sizes");
  if (past->data != out->data) copy(past, out, axis, 0, m->threads);
  copy(new, out, axis, past->shape[axis], m->threads);
  return 0;
}
