/* One call of a pack: check, count, look the shape up, run. Counters and the choice of a plan.
 *
 * Counters are relaxed and sharded by stack address, so that many threads do not share a cache line. */
#include <stdio.h>
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

/* Shapes seen while somebody captures: exact up to HT_EXACT_M rows, then 64 steps an octave (at most 1.6 % apart). Zero pages
 * until they are touched. */
#define HT_EXACT_M 4096
static atomic_llong seen[HT_MAX_OPS][HT_SHAPE_SLOTS];
static atomic_int capturing;

static int slot_of(int64_t m) {
  if (m <= HT_EXACT_M) return (int)m;
  int octave = 63 - __builtin_clzll((unsigned long long)m); /* 12 and up: 2^12 = HT_EXACT_M */
  return HT_EXACT_M + (octave - 12) * 64 + (int)((m >> (octave - 6)) & 63);
}

int64_t ht_slot_rows(int slot) { /* the fewest rows that fall into a slot */
  if (slot <= HT_EXACT_M) return slot;
  int octave = 12 + (slot - HT_EXACT_M) / 64;
  return ((int64_t)1 << octave) + (((int64_t)(slot - HT_EXACT_M) & 63) << (octave - 6));
}

void ht_capture(int step) { atomic_fetch_add_explicit(&capturing, step, memory_order_relaxed); }

int64_t ht_seen(int op, int slot) { return atomic_load_explicit(&seen[op][slot], memory_order_relaxed); }

int ht_call_op(int index, const DLTensor* x, const DLTensor* w, const DLTensor* y, const DLTensor* bias,
               int64_t setting, ht_error* error) {
  const ht_op* op = &ht_ops[index];
  ht_call call;
  if (ht_check(op, x, w, y, bias, &call, error) != 0) return -1;
  int64_t plan_index = setting & 255, threads = setting >> 8;
  if (plan_index >= op->plan_count || threads < 1 || threads > HT_MAX_THREADS) {
    error->kind = "ValueError";
    snprintf(error->text, sizeof error->text, "setting %lld names no plan of this pack", (long long)setting);
    return -1;
  }
  counters* mine = shard(index);
  count(&mine->calls);
  if (call.m == 0) return 0;
  if (atomic_load_explicit(&capturing, memory_order_relaxed) != 0) count(&seen[index][slot_of(call.m)]);
  if (call.m < op->first_m || call.m > op->last_m) count(&mine->out_of_range);
  const ht_plan* plan = &op->plans[plan_index];
  if (plan->threads != threads) count(&mine->fallbacks); /* the nearest plan serves a thread count nobody tuned */
  ht_composition composition;
  ht_plan_look_up(op, plan, call.m, &composition);
  if (ht_run(op, &composition, &call, (int)threads) == 0) return 0;
  error->kind = "RuntimeError";
  snprintf(error->text, sizeof error->text, "a micro-kernel refused its arguments; the pack is damaged: run haotuner verify");
  return -1;
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
