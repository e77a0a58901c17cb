/* One call of a pack: check, count, look the shape up, run. Counters and the choice of a plan.
 *
 * Counters are relaxed and sharded by stack address, so that many threads do not share a cache line. */
#include <string.h>

#include "ht_pack.h"

#define HT_SHARDS 16

typedef struct {
  _Alignas(64) atomic_llong calls;
  atomic_llong out_of_range;
  atomic_llong fallbacks;
} counters;

static counters stats[HT_MAX_OPS][HT_SHARDS];

static counters* shard(int op) {
  int here; /* thread stacks lie megabytes apart */
  return &stats[op][((uintptr_t)&here >> 16) * 2654435761u >> 8 & (HT_SHARDS - 1)];
}

static void count(atomic_llong* counter) { atomic_fetch_add_explicit(counter, 1, memory_order_relaxed); }

/* Shapes seen while somebody captures. An extent is exact up to HT_EXACT_EXTENT, then in 64 steps an octave (at most 1.6 %
 * apart). An op with one dynamic axis has a slot for each; one with several has a table of the shapes that came, and those that
 * find it full are not counted. Zero pages until they are touched. */
static atomic_llong seen[HT_MAX_OPS][HT_SHAPE_SLOTS];
static atomic_ullong shapes[HT_MAX_OPS][HT_SHAPE_SLOTS]; /* of several axes: 1 + their slots as the digits of a number */
static atomic_int capturing;

static int slot_of(int64_t extent) {
  if (extent <= HT_EXACT_EXTENT) return (int)extent;
  int octave = 63 - __builtin_clzll((unsigned long long)extent); /* 12 and up: 2^12 = HT_EXACT_EXTENT */
  return HT_EXACT_EXTENT + (octave - 12) * 64 + (int)((extent >> (octave - 6)) & 63);
}

static int64_t extent_of(int slot) { /* the smallest extent that falls into a slot */
  if (slot <= HT_EXACT_EXTENT) return slot;
  int octave = 12 + (slot - HT_EXACT_EXTENT) / 64;
  return ((int64_t)1 << octave) + (((int64_t)(slot - HT_EXACT_EXTENT) & 63) << (octave - 6));
}

void ht_capture(int step) { atomic_fetch_add_explicit(&capturing, step, memory_order_relaxed); }

int64_t ht_seen(int op, int slot, int64_t extents[HT_MAX_DYNAMIC]) {
  int count = ht_ops[op].dynamic_count;
  unsigned long long key = atomic_load_explicit(&shapes[op][slot], memory_order_relaxed);
  if (count == 1) extents[0] = extent_of(slot);
  if (count > 1 && key == 0) return 0;
  for (int i = count - 1; i >= 0 && count > 1; --i) {
    unsigned long long digits = i == count - 1 ? key - 1 : key;
    extents[i] = extent_of((int)(digits % HT_EXTENT_SLOTS));
    key = digits / HT_EXTENT_SLOTS;
  }
  return atomic_load_explicit(&seen[op][slot], memory_order_relaxed);
}

__attribute__((noinline)) static void note(int index, const ht_op* op, const int64_t* extents) {
  int count_axes = op->dynamic_count, slot = slot_of(extents[op->dynamic[0]]);
  if (count_axes > 1) {
    unsigned long long key = 0;
    for (int i = 0; i < count_axes; ++i) key = key * HT_EXTENT_SLOTS + (unsigned long long)slot_of(extents[op->dynamic[i]]);
    ++key;
    slot = (int)((key * 0x9e3779b97f4a7c15u >> 32) % HT_SHAPE_SLOTS);
    for (int tries = 0;; ++tries, slot = (slot + 1) % HT_SHAPE_SLOTS) {
      unsigned long long held = atomic_load_explicit(&shapes[index][slot], memory_order_relaxed);
      if (held == 0 && atomic_compare_exchange_strong_explicit(&shapes[index][slot], &held, key, memory_order_relaxed,
                                                               memory_order_relaxed))
        break;
      if (held == key) break;
      if (tries == 64) return; /* full, or near enough */
    }
  }
  count(&seen[index][slot]);
}

static int out_of_range(const ht_op* op, const int64_t* extents) {
  for (int i = 0; i < op->dynamic_count; ++i) {
    const ht_axis* axis = &op->axes[op->dynamic[i]];
    if (extents[op->dynamic[i]] < axis->first || extents[op->dynamic[i]] > axis->last) return 1;
  }
  return 0;
}

int ht_call_op(int index, const DLTensor* const* tensors, int32_t count_tensors, int64_t setting, void* stream,
               ht_error* error) {
  const ht_op* op = &ht_ops[index];
  ht_call call;
  if (op->kind->check(op, tensors, count_tensors, &call, error) != 0) return -1;
  int64_t plan_index = setting & (HT_MAX_THREADS - 1), threads = setting / HT_MAX_THREADS;
  if (plan_index >= op->plan_count || threads < 1 || threads > HT_MAX_THREADS)
    return ht_refuse(error, "ValueError", "setting %lld names no plan of this pack", (long long)setting);
  counters* mine = shard(index);
  count(&mine->calls);
  if (call.empty) return 0;
  if (atomic_load_explicit(&capturing, memory_order_relaxed) != 0) note(index, op, call.extents);
  if (out_of_range(op, call.extents)) count(&mine->out_of_range);
  const ht_plan* plan = &op->plans[plan_index];
  if (plan->threads != threads) count(&mine->fallbacks); /* the nearest plan serves a count, or a device, nobody tuned */
  if (op->kind->placed != NULL) {
    ht_queue queue = {stream, 0};
    int rc = op->kind->placed->launch(op, plan, &call, &queue, error);
    if (queue.fallback && plan->threads == threads) count(&mine->fallbacks);
    return rc;
  }
  if (op->kind->run(op, plan, &call, (int)threads) == 0) return 0;
  return ht_refuse(error, "RuntimeError", "a micro-kernel refused its arguments; the pack is damaged: run haotuner verify");
}

void ht_counts(int op, int64_t out[3]) {
  memset(out, 0, 3 * sizeof *out);
  for (int i = 0; i < HT_SHARDS; ++i) {
    counters* one = &stats[op][i];
    out[0] += atomic_load_explicit(&one->calls, memory_order_relaxed);
    out[1] += atomic_load_explicit(&one->fallbacks, memory_order_relaxed);
    out[2] += atomic_load_explicit(&one->out_of_range, memory_order_relaxed);
  }
}
