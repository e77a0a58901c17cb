/* A loop of a chain: the steps of its body, turn by turn. What a turn makes lies in the arena behind what the loop keeps, where the
 * next turn's lies, too; carried values are copied to where the body reads them, rows to their stacks. A stack whose height nobody
 * knows before lies in pieces, each twice the one before it, until its place is known. A carried value that outgrows its room gets
 * one of twice its bytes, behind what the turn made: that is kept then, so all rooms together are at most some times the last one. */
#include "model/chain.h"

#define FIRST 4 /* rows of the first piece */

typedef struct {
  ht_chain_loop is;
  ht_chain_stack* stacks;
  int64_t kept; /* where in the arena a turn's tensors begin */
} loop;

/* The piece of a row, whose first row is FIRST * (2^piece - 1), and how many rows lie before it there. */
static int piece_of(int64_t row, int64_t* before) {
  int piece = 63 - __builtin_clzll((uint64_t)(row / FIRST + 1));
  *before = row - FIRST * (((int64_t)1 << piece) - 1);
  return piece;
}

static int64_t aligned(int64_t bytes) { return (bytes + HT_MODEL_ALIGNMENT - 1) / HT_MODEL_ALIGNMENT * HT_MODEL_ALIGNMENT; }

ht_chain_loop ht_chain_loop_of(const ht_model_step* step) {
  const int64_t *w = step->more, *carried = w + 6, *rows = carried + 1 + 4 * carried[0], *made = rows + 1 + 2 * rows[0], *changed = made + 1 + 2 * made[0];
  return (ht_chain_loop){(int32_t)w[0], (int32_t)w[1],       (int32_t)w[2],    (int32_t)w[3],       (int32_t)w[4], (int32_t)w[5], (int32_t)carried[0],
                         (int32_t)rows[0], (int32_t)made[0], (int32_t)changed[0], carried + 1, rows + 1, made + 1, changed + 1};
}

/* Whether a tensor holds something other than 0 or false; 1 where there is none. */
static int holds(ht_chain_call* k, int32_t tensor, int* out) {
  int64_t found = 1;
  if (tensor >= 0 && ht_chain_element(k, tensor, 0, "the condition of a loop", &found) != 0) return -1;
  return *out = found != 0, 0;
}

/* The most turns that the limit and the rows allow. */
static int most_turns(ht_chain_call* k, const ht_chain_loop* loop, int64_t* out) {
  *out = INT64_MAX;
  if (loop->limit >= 0 && ht_chain_element(k, loop->limit, 0, "the limit of a loop", out) != 0) return -1;
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
  return ht_chain_copy(k, to->data, from->data, ht_chain_bytes(from));
}

/* Sizes of the next turn, as those tensors have them of which the `end`-th of four is a carried value's; what is `last` has its own. */
static int tell_changes(ht_chain_call* k, const loop* l, int end, int last) {
  for (int32_t i = 0; i < l->is.changes; ++i) {
    const int64_t* one = l->is.changed + (ptrdiff_t)4 * i;
    int32_t tensor = (int32_t)l->is.carried_ends[4 * one[0] + end];
    if (!ht_chain_there(k, tensor)) return ht_chain_damaged(k);
    int64_t size = ht_chain_at(k, tensor)->shape[one[1]];
    if (one[2 + last] >= 0 && ht_chain_told(k, (int32_t)one[2 + last], size) != 0) return -1;
  }
  return 0;
}

/* Whether a size of a carried value changes. */
static int changes(const loop* l, int32_t number) {
  for (int32_t i = 0; i < l->is.changes; ++i)
    if (l->is.changed[4 * i] == number) return 1;
  return 0;
}

/* A carried value of its new size: where it lies, or in a larger room. */
static int resize(ht_chain_call* k, loop* l, int32_t number) {
  ht_chain_stack* room = &l->stacks[l->is.made + number];
  int32_t tensor = (int32_t)l->is.carried_ends[4 * number + 1];
  int64_t used = k->used;
  if (k->c->offsets[tensor] == HT_CHAIN_EXTERNAL) return ht_chain_damaged(k);
  if (ht_chain_make(k, tensor) != 0) return -1;
  int64_t bytes = k->used - used;
  if (bytes > HT_MODEL_BYTES / 2) return ht_refuse(k->error, "ValueError", "%s: a value that a loop carries is larger than any memory", k->m->name);
  if (bytes <= room->bytes) {
    k->c->offsets[tensor] = room->pieces[0];
    k->used = used;
    return 0;
  }
  room->bytes = 2 * bytes;
  room->pieces[0] = used;
  k->used = used + room->bytes;
  l->kept = k->used;
  return ht_chain_grow(k);
}

/* Carried values for the next turn. */
static int carry(ht_chain_call* k, loop* l) {
  if (tell_changes(k, l, 2, 0) != 0) return -1;
  for (int32_t i = 0; i < l->is.carried; ++i)
    if (changes(l, i) && resize(k, l, i) != 0) return -1;
  for (int32_t i = 0; i < l->is.carried; ++i) {
    const int64_t* ends = l->is.carried_ends + (ptrdiff_t)4 * i;
    if (copy(k, ht_chain_at(k, (int32_t)ends[1]), ht_chain_at(k, (int32_t)ends[2])) != 0) return -1;
  }
  return 0;
}

/* What is known of stacks of unknown height. */
static int begin_stacks(ht_chain_call* k, loop* l) {
  for (int32_t i = 0; i < l->is.made; ++i) {
    const ht_model_tensor* row = &k->m->tensors[l->is.made_ends[2 * i]];
    int64_t shape[HT_MODEL_AXES], count;
    if (ht_model_extents(k->m, row, k->c->sizes, shape, &count, k->error) != 0) return -1;
    l->stacks[i].bytes = count * (row->bits / 8);
  }
  return 0;
}

/* Where the body reads the turn and carried values, and where what it makes is kept. */
static int begin(ht_chain_call* k, loop* l) {
  if (ht_chain_make(k, l->is.turn) != 0 || tell_changes(k, l, 0, 0) != 0) return -1;
  for (int32_t i = 0; i < l->is.carried; ++i) {
    int32_t tensor = (int32_t)l->is.carried_ends[4 * i + 1];
    int64_t used = k->used;
    if (ht_chain_make(k, tensor) != 0) return -1;
    if (l->is.changes > 0) l->stacks[l->is.made + i] = (ht_chain_stack){.bytes = k->used - used, .pieces = {used}};
  }
  for (int32_t i = 0; i < l->is.made && l->is.dim < 0; ++i)
    if (ht_chain_make(k, (int32_t)l->is.made_ends[2 * i + 1]) != 0) return -1;
  if (ht_chain_grow(k) != 0 || (l->is.dim >= 0 && begin_stacks(k, l) != 0)) return -1;
  for (int32_t i = 0; i < l->is.carried; ++i) {
    const int64_t* end = l->is.carried_ends + (ptrdiff_t)4 * i;
    if (copy(k, ht_chain_at(k, (int32_t)end[1]), ht_chain_at(k, (int32_t)end[0])) != 0) return -1;
  }
  l->kept = k->used;
  return 0;
}

/* Pieces for the rows of a turn, before what the turn makes. */
static int room(ht_chain_call* k, loop* l, int64_t turn) {
  int64_t before;
  int piece = piece_of(turn, &before);
  k->used = l->kept;
  if (l->is.dim < 0 || before != 0) return 0;
  for (int32_t i = 0; i < l->is.made; ++i) {
    ht_chain_stack* own = &l->stacks[i];
    if (piece >= HT_CHAIN_PIECES || own->bytes * ((int64_t)FIRST << piece) > HT_MODEL_BYTES) return ht_refuse(k->error, "ValueError", "%s: the results of %lld turns of a loop are larger than any memory", k->m->name, (long long)turn + 1);
    own->pieces[piece] = k->used;
    k->used += aligned(own->bytes * ((int64_t)FIRST << piece));
  }
  l->kept = k->used;
  return ht_chain_grow(k);
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

static int odd_row(ht_chain_call* k, int64_t turn) {
  return ht_refuse(k->error, "ValueError", "%s: turn %lld of a loop makes a row that its sizes do not say", k->m->name, (long long)turn);
}

/* What a turn made of a row joins its stack. */
static int keep(ht_chain_call* k, const loop* l, int32_t place, int64_t turn) {
  const DLTensor* row = ht_chain_at(k, (int32_t)l->is.made_ends[2 * place]);
  int64_t bytes = ht_chain_bytes(row), before;
  if (l->is.dim >= 0) {
    const ht_chain_stack* own = &l->stacks[place];
    if (bytes != own->bytes) return odd_row(k, turn);
    char* to = k->c->arena + own->pieces[piece_of(turn, &before)];
    return ht_chain_copy(k, to + before * bytes, row->data, bytes);
  }
  const DLTensor* whole = ht_chain_at(k, (int32_t)l->is.made_ends[2 * place + 1]);
  int same = turn < whole->shape[0];
  for (int a = 0; same && a < row->ndim; ++a) same = row->shape[a] == whole->shape[a + 1];
  if (!same) return odd_row(k, turn);
  return ht_chain_copy(k, (char*)whole->data + turn * bytes, row->data, bytes);
}

static int turn_of(ht_chain_call* k, loop* l, int32_t first, int32_t end, int64_t turn) {
  if (room(k, l, turn) != 0) return -1;
  if (ht_where_number(k->m, ht_chain_at(k, l->is.turn)->data, turn, k->q, k->error) != 0) return -1;
  for (int32_t i = 0; i < l->is.rows; ++i) give(k, l->is.row_ends + (ptrdiff_t)2 * i, turn);
  if (ht_chain_steps(k, first, end) != 0) return -1;
  for (int32_t i = 0; i < l->is.made; ++i)
    if (keep(k, l, i, turn) != 0) return -1;
  return carry(k, l);
}

/* The pieces of a stack where it belongs. */
static int joined(ht_chain_call* k, const loop* l, int32_t place, int64_t turns) {
  const DLTensor* whole = ht_chain_at(k, (int32_t)l->is.made_ends[2 * place + 1]);
  const ht_chain_stack* own = &l->stacks[place];
  if (ht_chain_bytes(whole) != turns * own->bytes) return odd_row(k, turns - 1);
  for (int64_t row = 0, rows = FIRST; row < turns; row += rows, rows *= 2) {
    int64_t before, count = rows < turns - row ? rows : turns - row;
    const char* from = k->c->arena + own->pieces[piece_of(row, &before)];
    if (ht_chain_copy(k, (char*)whole->data + row * own->bytes, from, count * own->bytes) != 0) return -1;
  }
  return 0;
}

/* The number of turns as a dimension, and the stacks. */
static int told(ht_chain_call* k, const loop* l, int64_t turns) {
  if (ht_chain_told(k, l->is.dim, turns) != 0 || ht_chain_make(k, l->is.turns) != 0) return -1;
  for (int32_t i = 0; i < l->is.made; ++i)
    if (ht_chain_make(k, (int32_t)l->is.made_ends[2 * i + 1]) != 0) return -1;
  if (ht_chain_grow(k) != 0) return -1;
  if (ht_chain_range(k, l->is.turns, turns) != 0) return -1;
  for (int32_t i = 0; i < l->is.made; ++i)
    if (joined(k, l, i, turns) != 0) return -1;
  return 0;
}

static int finish(ht_chain_call* k, const loop* l, int64_t turns) {
  k->used = l->kept;
  if (tell_changes(k, l, 1, 1) != 0 || (l->is.dim >= 0 && told(k, l, turns) != 0)) return -1;
  for (int32_t i = 0; i < l->is.made && l->is.dim < 0; ++i)
    if (ht_chain_at(k, (int32_t)l->is.made_ends[2 * i + 1])->shape[0] != turns)
      return ht_refuse(k->error, "ValueError", "%s: a loop ends after %lld turns, and its sizes say others", k->m->name, (long long)turns);
  for (int32_t i = 0; i < l->is.carried; ++i) {
    const int64_t* end = l->is.carried_ends + (ptrdiff_t)4 * i;
    if (end[3] < 0) continue;
    if (ht_chain_make(k, (int32_t)end[3]) != 0 || ht_chain_grow(k) != 0) return -1;
    if (copy(k, ht_chain_at(k, (int32_t)end[3]), ht_chain_at(k, (int32_t)end[1])) != 0) return -1;
  }
  return 0;
}

int ht_chain_turns(ht_chain_call* k, const ht_model_step* step, int32_t first) {
  loop l = {.is = ht_chain_loop_of(step), .stacks = k->stacks + step->setting};
  int64_t most, turn = 0;
  int goes_on;
  if (most_turns(k, &l.is, &most) != 0 || holds(k, l.is.asked, &goes_on) != 0 || begin(k, &l) != 0) return -1;
  for (; goes_on && turn < most; ++turn)
    if (turn_of(k, &l, first, step->at, turn) != 0 || holds(k, l.is.goes_on, &goes_on) != 0) return -1;
  return finish(k, &l, turn);
}
