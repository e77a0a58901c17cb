/* A loop of a chain: the steps of its body, turn by turn. What a turn makes lies in the arena behind what the loop keeps, where the
 * next turn's lies, too; carried values are copied to where the body reads them, rows to their stacks. */
#include <stdlib.h>
#include <string.h>

#include "model/between.h"
#include "model/chain.h"

typedef struct { /* rows of a loop whose turns nobody knows before */
  char* data;
  int64_t room;
} stack;

ht_chain_loop ht_chain_loop_of(const ht_model_step* step) {
  const int64_t *w = step->more, *carried = w + 6, *rows = carried + 1 + 4 * carried[0], *made = rows + 1 + 2 * rows[0];
  return (ht_chain_loop){(int32_t)w[0], (int32_t)w[1],       (int32_t)w[2],    (int32_t)w[3],    (int32_t)w[4], (int32_t)w[5],
                         (int32_t)carried[0], (int32_t)rows[0], (int32_t)made[0], carried + 1,      rows + 1,      made + 1};
}

/* Whether a tensor holds something other than 0 or false; 1 where there is none. */
static int holds(ht_chain_call* k, int32_t tensor, int* out) {
  int64_t found = 1;
  if (tensor >= 0 && ht_between_element(ht_chain_at(k, tensor), 0, &found) != 0) return ht_refuse(k->error, "ValueError", "%s: the condition of a loop has no element", k->m->name);
  return *out = found != 0, 0;
}

/* The most turns that the limit and the rows allow. */
static int most_turns(ht_chain_call* k, const ht_chain_loop* loop, int64_t* out) {
  *out = INT64_MAX;
  if (loop->limit >= 0 && ht_between_element(ht_chain_at(k, loop->limit), 0, out) != 0) return ht_refuse(k->error, "ValueError", "%s: the limit of a loop has no element", k->m->name);
  for (int32_t i = 0; i < loop->rows; ++i) {
    int64_t rows = ht_chain_at(k, (int32_t)loop->row_ends[2 * i])->shape[0];
    if (i > 0 && rows != ht_chain_at(k, (int32_t)loop->row_ends[0])->shape[0]) return ht_refuse(k->error, "ValueError", "%s: sequences that a loop goes through are of different lengths", k->m->name);
    if (rows < *out) *out = rows;
  }
  return 0;
}

static int copy(ht_chain_call* k, const DLTensor* to, const DLTensor* from) {
  int same = to->ndim == from->ndim;
  for (int a = 0; same && a < to->ndim; ++a) same = to->shape[a] == from->shape[a];
  if (!same) return ht_refuse(k->error, "ValueError", "%s: a value that a loop carries changes its shape", k->m->name);
  if (ht_chain_bytes(from) > 0) memcpy(to->data, from->data, (size_t)ht_chain_bytes(from));
  return 0;
}

/* Where the body reads the turn, carried values and its own rows. */
static int begin(ht_chain_call* k, const ht_chain_loop* loop) {
  if (ht_chain_make(k, loop->turn) != 0) return -1;
  for (int32_t i = 0; i < loop->carried; ++i)
    if (ht_chain_make(k, (int32_t)loop->carried_ends[4 * i + 1]) != 0) return -1;
  for (int32_t i = 0; i < loop->made && loop->dim < 0; ++i)
    if (ht_chain_make(k, (int32_t)loop->made_ends[2 * i + 1]) != 0) return -1;
  if (ht_chain_grow(k) != 0) return -1;
  for (int32_t i = 0; i < loop->carried; ++i) {
    const int64_t* end = loop->carried_ends + (ptrdiff_t)4 * i;
    if (copy(k, ht_chain_at(k, (int32_t)end[1]), ht_chain_at(k, (int32_t)end[0])) != 0) return -1;
  }
  return 0;
}

/* The row of a tensor that a turn gets, in place. */
static void give(ht_chain_call* k, const int64_t* end, int64_t turn) {
  const DLTensor* whole = ht_chain_at(k, (int32_t)end[0]);
  DLTensor* row = &k->tensors[end[1]];
  *row = (DLTensor){NULL, whole->device, whole->ndim - 1, whole->dtype, whole->shape + 1, NULL, 0};
  int64_t offset = k->c->offsets[end[0]], at = turn * ht_chain_bytes(row);
  k->c->offsets[end[1]] = offset == HT_CHAIN_EXTERNAL ? HT_CHAIN_EXTERNAL : offset + at;
  if (offset == HT_CHAIN_EXTERNAL) row->data = (char*)whole->data + at;
}

/* What a turn made of a row joins its stack. */
static int keep(ht_chain_call* k, const ht_chain_loop* loop, int32_t place, stack* rows, int64_t turn) {
  const DLTensor* row = ht_chain_at(k, (int32_t)loop->made_ends[2 * place]);
  int64_t bytes = ht_chain_bytes(row), need = (turn + 1) * bytes;
  if (loop->dim >= 0) {
    if (need > rows->room) {
      int64_t room = 2 * need;
      char* found = need > HT_MODEL_BYTES ? NULL : realloc(rows->data, (size_t)room);
      if (found == NULL) return ht_refuse(k->error, "RuntimeError", "%s: no memory for the results of %lld turns of a loop", k->m->name, (long long)turn + 1);
      rows->data = found;
      rows->room = room;
    }
    if (bytes > 0) memcpy(rows->data + turn * bytes, row->data, (size_t)bytes);
    return 0;
  }
  const DLTensor* whole = ht_chain_at(k, (int32_t)loop->made_ends[2 * place + 1]);
  int same = turn < whole->shape[0];
  for (int a = 0; same && a < row->ndim; ++a) same = row->shape[a] == whole->shape[a + 1];
  if (!same) return ht_refuse(k->error, "ValueError", "%s: turn %lld of a loop makes a row that its sizes do not say", k->m->name, (long long)turn);
  if (bytes > 0) memcpy((char*)whole->data + turn * bytes, row->data, (size_t)bytes);
  return 0;
}

static int turn_of(ht_chain_call* k, const ht_chain_loop* loop, int32_t first, int32_t end, stack* stacks, int64_t turn) {
  *(int64_t*)ht_chain_at(k, loop->turn)->data = turn;
  for (int32_t i = 0; i < loop->rows; ++i) give(k, loop->row_ends + (ptrdiff_t)2 * i, turn);
  if (ht_chain_steps(k, first, end) != 0) return -1;
  for (int32_t i = 0; i < loop->made; ++i)
    if (keep(k, loop, i, &stacks[i], turn) != 0) return -1;
  for (int32_t i = 0; i < loop->carried; ++i) {
    const int64_t* ends = loop->carried_ends + (ptrdiff_t)4 * i;
    if (copy(k, ht_chain_at(k, (int32_t)ends[1]), ht_chain_at(k, (int32_t)ends[2])) != 0) return -1;
  }
  return 0;
}

/* The number of turns as a dimension, and the stacks where they belong. */
static int told(ht_chain_call* k, const ht_chain_loop* loop, const stack* stacks, int64_t turns) {
  if (ht_chain_told(k, loop->dim, turns) != 0 || ht_chain_make(k, loop->turns) != 0) return -1;
  for (int32_t i = 0; i < loop->made; ++i)
    if (ht_chain_make(k, (int32_t)loop->made_ends[2 * i + 1]) != 0) return -1;
  if (ht_chain_grow(k) != 0) return -1;
  const DLTensor* counts = ht_chain_at(k, loop->turns);
  for (int64_t i = 0; i < turns && i < counts->shape[0]; ++i) ((int64_t*)counts->data)[i] = i;
  for (int32_t i = 0; i < loop->made; ++i) {
    const DLTensor* whole = ht_chain_at(k, (int32_t)loop->made_ends[2 * i + 1]);
    int64_t bytes = turns == 0 ? 0 : turns * ht_chain_bytes(ht_chain_at(k, (int32_t)loop->made_ends[2 * i]));
    if (bytes != ht_chain_bytes(whole)) return ht_refuse(k->error, "ValueError", "%s: a loop makes rows that its sizes do not say", k->m->name);
    if (bytes > 0) memcpy(whole->data, stacks[i].data, (size_t)bytes);
  }
  return 0;
}

static int finish(ht_chain_call* k, const ht_chain_loop* loop, const stack* stacks, int64_t turns) {
  if (loop->dim >= 0 && told(k, loop, stacks, turns) != 0) return -1;
  for (int32_t i = 0; i < loop->made && loop->dim < 0; ++i)
    if (ht_chain_at(k, (int32_t)loop->made_ends[2 * i + 1])->shape[0] != turns)
      return ht_refuse(k->error, "ValueError", "%s: a loop ends after %lld turns, and its sizes say others", k->m->name, (long long)turns);
  for (int32_t i = 0; i < loop->carried; ++i) {
    const int64_t* end = loop->carried_ends + (ptrdiff_t)4 * i;
    if (end[3] < 0) continue;
    if (ht_chain_make(k, (int32_t)end[3]) != 0 || ht_chain_grow(k) != 0) return -1;
    if (copy(k, ht_chain_at(k, (int32_t)end[3]), ht_chain_at(k, (int32_t)end[1])) != 0) return -1;
  }
  return 0;
}

int ht_chain_turns(ht_chain_call* k, const ht_model_step* step, int32_t first) {
  const ht_chain_loop loop = ht_chain_loop_of(step);
  int64_t most, turn = 0;
  int goes_on;
  if (most_turns(k, &loop, &most) != 0 || holds(k, loop.asked, &goes_on) != 0 || begin(k, &loop) != 0) return -1;
  stack* stacks = calloc((size_t)loop.made + 1, sizeof *stacks);
  if (stacks == NULL) return ht_refuse(k->error, "RuntimeError", "%s: no memory for a call", k->m->name);
  int64_t kept = k->used;
  int rc = 0;
  for (; rc == 0 && goes_on && turn < most; ++turn) {
    k->used = kept; /* what the turn before made is no longer read */
    rc = turn_of(k, &loop, first, step->at, stacks, turn);
    if (rc == 0) rc = holds(k, loop.goes_on, &goes_on);
  }
  k->used = kept;
  if (rc == 0) rc = finish(k, &loop, stacks, turn);
  for (int32_t i = 0; i < loop.made; ++i) free(stacks[i].data);
  free(stacks);
  return rc;
}
