/* The pack's side of door.h, and what TVM's kernels need from the world when tvm-ffi is not in the process. */
#include "door.h"

#include <stdio.h>

#include "ht_pack.h"

static void describe(int op, ht_door_op* out) {
  const ht_op* o = &ht_ops[op];
  *out = (ht_door_op){o->name, o->n, o->k, o->panels, o->pw, o->weight_kn};
}

static int64_t setting(int op, int threads) {
  const ht_op* o = &ht_ops[op];
  int best = 0;
  for (int i = 1; i < o->plan_count; ++i) {
    int away = o->plans[i].threads - threads, least = o->plans[best].threads - threads;
    away = away < 0 ? -away : away;
    least = least < 0 ? -least : least;
    if (away < least || (away == least && o->plans[i].threads < o->plans[best].threads)) best = i;
  }
  return best + 256 * (int64_t)threads;
}

static int call(int op, const DLTensor* x, const DLTensor* w, const DLTensor* y, const DLTensor* bias, int64_t setting,
                const char** kind, char* text, size_t size) {
  ht_error error;
  if (ht_call_op(op, x, w, y, bias, setting, &error) == 0) return 0;
  *kind = error.kind;
  snprintf(text, size, "%s: %s", ht_ops[op].name, error.text);
  return -1;
}

HT_EXPORT const ht_door* ht_pack_door(void) {
  static ht_door door = {HT_DOOR_VERSION, 0, describe, setting, call, ht_counts, ht_pool_inject};
  door.op_count = ht_op_count; /* the same value for every caller */
  return &door;
}
