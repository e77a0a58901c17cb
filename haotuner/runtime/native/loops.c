/* Runs a group of a model: threads share one axis of its output. */
#include "loops.h"

#include <string.h>

#include "ht_pack.h"
#include "programs.h"

#define LEAST_POINTS 4096 /* fewer of an output are done before a thread wakes */

typedef struct {
  const ht_group* group;
  const int64_t* sizes;
  void* const* tensors;
  int64_t extents[HT_GROUP_AXES];
  int axis;
  int64_t chunks;
  atomic_int failed;
} job;

static void run_chunk(void* arg, int64_t index) {
  job* j = arg;
  int64_t lo[HT_GROUP_AXES] = {0}, hi[HT_GROUP_AXES];
  memcpy(hi, j->extents, sizeof hi);
  if (j->axis >= 0) {
    lo[j->axis] = j->extents[j->axis] * index / j->chunks;
    hi[j->axis] = j->extents[j->axis] * (index + 1) / j->chunks;
  }
  if (j->group->program == NULL) {
    j->group->run(j->sizes, j->tensors, lo, hi);
    return;
  }
  const int failed = ht_program_run(j->group->program, j->group->tensors, j->sizes, j->tensors, lo, hi);
  if (failed != 0) atomic_store_explicit(&j->failed, failed, memory_order_relaxed);
}

int ht_group_run(const ht_group* group, const int64_t* sizes, void* const* tensors, int threads) {
  job j = {.group = group, .sizes = sizes, .tensors = tensors, .axis = -1, .chunks = 1};
  int64_t points = 1;
  for (int a = 0; a < group->rank; ++a) points *= j.extents[a] = sizes[group->extents[a]];
  if (points <= 0) return 0;
  atomic_init(&j.failed, 0);
  if (threads > 1 && points >= LEAST_POINTS) { /* the outermost axis that is long enough, else the longest */
    for (int a = 0; a < group->rank && (j.axis < 0 || j.extents[j.axis] < 2 * threads); ++a)
      if ((group->shared >> a & 1) && (j.axis < 0 || j.extents[a] > j.extents[j.axis])) j.axis = a;
    if (j.axis >= 0) j.chunks = j.extents[j.axis] < 4 * (int64_t)threads ? j.extents[j.axis] : 4 * (int64_t)threads;
  }
  ht_pool_run(run_chunk, &j, j.chunks, threads);
  return atomic_load_explicit(&j.failed, memory_order_relaxed);
}
