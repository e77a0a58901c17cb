/* Expected microseconds of a request: a grid of times over the model's dimensions, between whose nodes times are linear in every size. A call is a few
 * hundred multiplications at most, allocates nothing, and may come from any thread. */
#include "model/backend.h"
#include "model/reader.h"

#define MOST_AXES 6 /* with more than one node: 64 corners */
#define MOST_US 1e12

static double bits_of(int64_t word) {
  double real;
  memcpy(&real, &word, sizeof real);
  return real;
}

static double real(ht_reader* r, double low, double high) {
  const double found = bits_of(word(r, INT64_MIN, INT64_MAX));
  if (!r->bad && !(found >= low && found <= high)) fail(r, "an expected time is no time");
  return found;
}

/* Of one thread count; the table of the nearest one is kept. */
static void read_table(ht_reader* r, ht_model* m, int64_t* nearest) {
  ht_model_expected_times own = {.threads = (int32_t)word(r, 1, 1 << 20)};
  own.low = real(r, 0, 1);
  own.high = real(r, 1, 1e6);
  own.nodes = r->at;
  int64_t values = 1;
  int varying = 0;
  for (int32_t d = 0; d < m->dim_count && !r->bad; ++d) {
    const int32_t count = count_of(r, 1);
    if (count < 1) fail(r, "a dimension has no size with an expected time");
    const int64_t* nodes = many(r, count, 1, HT_MODEL_EXTENT);
    for (int32_t i = 1; i < count && !r->bad; ++i)
      if (nodes[i] <= nodes[i - 1]) fail(r, "sizes with an expected time do not ascend");
    varying += count > 1;
    if (!r->bad && (__builtin_mul_overflow(values, (int64_t)count, &values) || values > r->end - r->at)) fail(r, "its expected times are cut");
  }
  if (varying > MOST_AXES) fail(r, "its expected times have too many dimensions");
  own.us = r->at;
  for (int64_t i = 0; i < values && !r->bad; ++i) real(r, 0, MOST_US);
  const int64_t distance = own.threads > m->threads ? own.threads - m->threads : m->threads - own.threads;
  if (!r->bad && (*nearest < 0 || distance < *nearest)) *nearest = distance, m->expected = own;
}

void ht_read_expected_times(ht_reader* r, ht_model* m) {
  const int32_t count = r->at == r->end ? 0 : count_of(r, 4);
  int64_t nearest = -1;
  for (int32_t i = 0; i < count && !r->bad; ++i) read_table(r, m, &nearest);
}

typedef struct { /* of a size between two nodes: `share` of the way to the next one, which lies `stride` values further */
  int64_t stride;
  double share;
} ht_position;

int ht_model_expected(const ht_model* m, const int64_t* dims, double us[3], ht_error* error) {
  const ht_model_expected_times* own = &m->expected;
  if (own->us == NULL) return ht_refuse(error, "ValueError", "%s: the pack says no expected times of it; tune again with this haotuner", m->name);
  ht_position varying[MOST_AXES];
  int axes = 0;
  int64_t first = 0, stride = 1;
  double beyond = 1;
  int64_t strides[HT_MODEL_ENDS];
  const int64_t* at = own->nodes;
  const int64_t* rows[HT_MODEL_ENDS];
  if (m->dim_count > HT_MODEL_ENDS) return ht_refuse(error, "ValueError", "%s has too many dimensions for expected times", m->name);
  for (int32_t d = 0; d < m->dim_count; ++d) rows[d] = at, at += *at + 1;
  for (int32_t d = m->dim_count; d-- > 0; stride *= rows[d][0]) strides[d] = stride; /* the last dimension is the innermost */
  for (int32_t d = 0; d < m->dim_count; ++d) {
    const int64_t count = rows[d][0], *nodes = rows[d] + 1, size = dims[d];
    if (size < 0 || size > HT_MODEL_EXTENT)
      return ht_refuse(error, "ValueError", "%s: %s=%lld is no size of a tensor", m->name, m->dims[d], (long long)size);
    if (size >= nodes[count - 1]) { /* beyond what was tuned: in proportion */
      beyond *= (double)size / (double)nodes[count - 1];
      first += (count - 1) * strides[d];
      continue;
    }
    if (size <= nodes[0]) continue;
    int64_t low = 0, high = count - 1; /* nodes[low] <= size < nodes[high] */
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      if (nodes[middle] <= size) low = middle;
      else high = middle;
    }
    first += low * strides[d];
    if (nodes[low] != size) varying[axes++] = (ht_position){strides[d], (double)(size - nodes[low]) / (double)(nodes[high] - nodes[low])};
  }
  double sum = 0;
  for (int corner = 0; corner < 1 << axes; ++corner) {
    double weight = 1;
    int64_t position = first;
    for (int a = 0; a < axes; ++a) {
      const int upper = corner >> a & 1;
      weight *= upper ? varying[a].share : 1 - varying[a].share;
      position += upper ? varying[a].stride : 0;
    }
    sum += weight * bits_of(own->us[position]);
  }
  us[1] = sum * beyond;
  us[0] = us[1] * own->low;
  us[2] = us[1] * own->high * beyond; /* what lies beyond is known less well */
  return 0;
}
