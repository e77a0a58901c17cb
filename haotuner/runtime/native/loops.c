/* Runs a group of a model: threads share one axis of its output. */
#include "loops.h"

#include <string.h>

#include "ht_pack.h"

#define LEAST_POINTS 4096 /* fewer of an output are done before a thread wakes */

typedef struct {
  const ht_group* group;
  const int64_t* sizes;
  void* const* tensors;
  int64_t extents[HT_GROUP_AXES];
  int axis;
  int64_t chunks;
} job;

static void run_chunk(void* arg, int64_t index) {
  const job* j = arg;
  int64_t lo[HT_GROUP_AXES] = {0}, hi[HT_GROUP_AXES];
  memcpy(hi, j->extents, sizeof hi);
  if (j->axis >= 0) {
    lo[j->axis] = j->extents[j->axis] * index / j->chunks;
    hi[j->axis] = j->extents[j->axis] * (index + 1) / j->chunks;
  }
  j->group->run(j->sizes, j->tensors, lo, hi);
}

static void run_group(const ht_group* group, const int64_t* sizes, void* const* tensors, int threads) {
  job j = {.group = group, .sizes = sizes, .tensors = tensors, .axis = -1, .chunks = 1};
  int64_t points = 1;
  for (int a = 0; a < group->rank; ++a) points *= j.extents[a] = sizes[group->extents[a]];
  if (points <= 0) return;
  if (threads > 1 && points >= LEAST_POINTS) { /* the outermost axis that is long enough, else the longest */
    for (int a = 0; a < group->rank && (j.axis < 0 || j.extents[j.axis] < 2 * threads); ++a)
      if (j.axis < 0 || j.extents[a] > j.extents[j.axis]) j.axis = a;
    if (j.axis >= 0) j.chunks = j.extents[j.axis] < 4 * (int64_t)threads ? j.extents[j.axis] : 4 * (int64_t)threads;
  }
  ht_pool_run(run_chunk, &j, j.chunks, threads);
}

/* loops(group, address of the sizes, address of the tensors' addresses, threads): all that is behind the addresses was made
 * and checked by haotuner/runtime/model.py. */
HT_EXPORT int __tvm_ffi_ht_loops(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  (void)self;
  for (int i = 0; i < 4; ++i)
    if (count != 4 || args[i].type_index != kTVMFFIInt) return ht_ffi_raise("TypeError", "loops", "expected four whole numbers");
  int64_t index = args[0].v_int64, threads = args[3].v_int64;
  if (index < 0 || index >= ht_group_count || threads < 1 || threads > HT_MAX_THREADS)
    return ht_ffi_raise("ValueError", "loops", "no such group, or thread count");
  run_group(&ht_groups[index], (const int64_t*)(uintptr_t)args[1].v_int64, (void* const*)(uintptr_t)args[2].v_int64, (int)threads);
  result->type_index = kTVMFFINone;
  return 0;
}
