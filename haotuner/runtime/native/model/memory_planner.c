/* Offsets in the arena by first fit, the largest first: tensors that are not needed together share bytes. */
#include <stdlib.h>

#include "model/model.h"

typedef struct {
  int64_t bytes;
  int64_t slot;
} need;

static int larger_first(const void* a, const void* b) {
  const need *x = a, *y = b;
  if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
  return x->slot < y->slot ? -1 : x->slot > y->slot;
}

int64_t ht_model_scratch(const ht_model* m) { return 4 * (int64_t)m->slot_count + 2 * (int64_t)m->most_beside + 2; }

int64_t ht_model_place(const ht_model* m, const ht_model_way* way, const int64_t* sizes, int64_t* offsets, int64_t* scratch) {
  need* needs = (need*)scratch;             /* by size */
  int64_t* ends = scratch + 2 * (int64_t)m->slot_count; /* by slot: 0 until it has its place */
  int64_t* taken = ends + m->slot_count;    /* begin and end of each neighbour, in order */
  int64_t whole = 0, extents[HT_MODEL_AXES], count;
  ht_error unused;
  for (int32_t i = 0; i < m->slot_count; ++i) {
    const ht_model_tensor* t = &m->tensors[m->slots[i]];
    if (ht_model_extents(m, t, sizes, extents, &count, &unused) != 0) return -1; /* ht_model_sizes has refused it already */
    int64_t bytes = t->first < way->first || t->first >= way->end ? 0 : count * (t->bits / 8);
    needs[i] = (need){(bytes + HT_MODEL_ALIGNMENT - 1) / HT_MODEL_ALIGNMENT * HT_MODEL_ALIGNMENT, i};
    ends[i] = offsets[i] = 0;
  }
  qsort(needs, (size_t)m->slot_count, sizeof *needs, larger_first);
  for (int32_t i = 0; i < m->slot_count && needs[i].bytes > 0; ++i) { /* what has no bytes lies anywhere */
    int32_t slot = (int32_t)needs[i].slot, known = 0;
    for (int32_t b = m->beside_at[slot]; b < m->beside_at[slot + 1]; ++b) {
      int32_t other = m->beside[b], at = known;
      if (ends[other] == 0) continue;
      for (; at > 0 && taken[2 * (at - 1)] > offsets[other]; --at) {
        taken[2 * at] = taken[2 * (at - 1)];
        taken[2 * at + 1] = taken[2 * (at - 1) + 1];
      }
      taken[2 * at] = offsets[other];
      taken[2 * at + 1] = ends[other];
      ++known;
    }
    int64_t from = 0;
    for (int32_t k = 0; k < known && from + needs[i].bytes > taken[2 * k]; ++k)
      if (taken[2 * k + 1] > from) from = taken[2 * k + 1];
    offsets[slot] = from;
    ends[slot] = from + needs[i].bytes;
    if (ends[slot] > whole) whole = ends[slot];
  }
  return whole;
}
