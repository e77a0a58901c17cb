/* Reads the steps of a chain (bytecode.h), as read.c does those of other models. */
#include "model/chain.h"
#include "model/reader.h"

#define INSIDE 127 /* of a tensor: made, but there in the turns of a loop alone */

/* What a step of a chain makes: int64 of so many axes; 0: anything. */
static int32_t read_made(ht_reader* r, ht_model* m, char* made, int32_t rank) {
  int32_t out = below(r, m->tensor_count);
  if (r->bad) return 0;
  const ht_model_tensor* t = &m->tensors[out];
  if (t->weight >= 0 || made[out]) fail(r, "a tensor is made twice");
  else if (rank > 0 && (t->code != kDLInt || t->bits != 64 || t->rank != rank)) fail(r, "places and counts are int64");
  else made[out] = (char)(m->way_count + 2);
  return out;
}

static void read_segment(ht_reader* r, ht_model* m, ht_model_step* step, char* made) {
  step->called = text(r);
  step->at = m->segment_count++;
  step->first = m->loop_count;
  step->given = count_of(r, 1);
  for (int32_t i = 0; i < step->given && !r->bad; ++i) {
    int32_t tensor = m->loops[m->loop_count++] = below(r, m->tensor_count);
    if (!r->bad && !there(m, made, tensor)) fail(r, "a tensor is read before it is made");
  }
  int32_t count = count_of(r, 1);
  step->count = step->given + count;
  if (!r->bad && (step->count > m->tensor_count || count < 1)) fail(r, "a segment has other inputs or outputs than any");
  for (int32_t i = 0; i < count && !r->bad; ++i) step->out = m->loops[m->loop_count++] = read_made(r, m, made, 0);
}

/* A step of a chain other than a segment. */
static void read_between(ht_reader* r, ht_model* m, ht_model_step* step, char* made) {
  if (step->kind == STEP_RANDOM) {
    step->out = read_made(r, m, made, 0);
    step->more = r->at;
    below(r, LAW_UNIFORM + 1);
    many(r, 1, 0, INT32_MAX);
    below(r, 2);
    many(r, 3, INT64_MIN, INT64_MAX);
    if (!r->bad && (m->tensors[step->out].code != kDLFloat || m->tensors[step->out].bits < 32)) fail(r, "random numbers are float32 or float64");
    return;
  }
  step->first = below(r, m->tensor_count);
  if (!r->bad && !there(m, made, step->first)) fail(r, "a tensor is read before it is made");
  if (step->kind == STEP_COUNTED) step->setting = word(r, 0, HT_MODEL_EXTENT);
  step->index = below(r, m->dim_count);
  if (r->bad) return;
  const ht_model_tensor* of = &m->tensors[step->first];
  if (step->kind == STEP_COUNTED && of->code != kDLInt && of->code != kDLUInt) fail(r, "a size is a whole number");
  step->out = read_made(r, m, made, step->kind == STEP_COUNTED ? 1 : 2); /* 2: (axes of the tensor, how many) */
}

static void read_decided(ht_reader* r, ht_model* m, ht_model_step* step, const char* made) {
  step->first = (int32_t)word(r, -1, (int64_t)m->tensor_count - 1);
  step->at = (int32_t)word(r, -1, (int64_t)m->size_count - 1);
  step->index = below(r, m->dim_count);
  if (!r->bad && (step->first < 0) == (step->at < 0)) fail(r, "a branch has one condition");
  if (!r->bad && step->first >= 0 && !there(m, made, step->first)) fail(r, "a tensor is read before it is made");
}

/* Both tensors lie behind each other in the table of groups; `more`: pairs of an axis and the dimension that it tells. */
static void read_chosen(ht_reader* r, ht_model* m, ht_model_step* step, char* made) {
  step->first = m->loop_count;
  for (int32_t i = 0; i < 2; ++i) {
    int32_t tensor = m->loops[m->loop_count++] = below(r, m->tensor_count);
    if (!r->bad && !there(m, made, tensor)) fail(r, "a tensor is read before it is made");
  }
  step->index = below(r, m->dim_count);
  step->out = read_made(r, m, made, 0);
  step->count = count_of(r, 2);
  step->more = r->at;
  if (r->bad) return;
  const ht_model_tensor* out = &m->tensors[step->out];
  for (int32_t i = 0; i < 2; ++i) {
    const ht_model_tensor* t = &m->tensors[m->loops[step->first + i]];
    if (t->weight >= 0 || t->code != out->code || t->bits != out->bits || t->rank != out->rank) return (void)fail(r, "both sides of a branch make tensors of one type");
  }
  for (int32_t i = 0; i < step->count && !r->bad; ++i) {
    below(r, out->rank);
    below(r, m->dim_count);
  }
}

/* A branch, and what is said of one. */
static void read_branch(ht_reader* r, ht_model* m, ht_model_step* step, char* made) {
  if (step->kind == STEP_DECIDED) return read_decided(r, m, step, made);
  if (step->kind == STEP_CHOSEN) return read_chosen(r, m, step, made);
  if (step->kind == STEP_REQUIRED) {
    step->at = below(r, m->size_count);
    step->called = text(r);
    return;
  }
  step->index = below(r, m->dim_count);
  step->setting = below(r, 2);
  step->count = (int32_t)word(r, 0, INT32_MAX);
}

static int32_t none_or(ht_reader* r, const ht_model* m) { return (int32_t)word(r, -1, (int64_t)m->tensor_count - 1); }

/* Whether two tensors have the same elements and so many axes more. */
static int alike(const ht_model* m, int32_t one, int32_t other, int32_t more) {
  const ht_model_tensor *a = &m->tensors[one], *b = &m->tensors[other];
  return a->code == b->code && a->bits == b->bits && a->rank == b->rank + more;
}

static int of_type(const ht_model* m, int32_t tensor, int code, int bits) { return m->tensors[tensor].code == code && m->tensors[tensor].bits == bits; }

/* A tensor that the host makes; -1: none. */
static void host_makes(ht_reader* r, const ht_model* m, int64_t tensor, char* made) {
  if (r->bad || tensor < 0) return;
  if (m->tensors[tensor].weight >= 0 || made[tensor]) fail(r, "a tensor is made twice");
  made[tensor] = (char)(m->way_count + 2);
}

/* What a loop's words say before its body is read. */
static void read_turned(ht_reader* r, ht_model* m, const ht_chain_loop* loop, char* made) {
  if ((loop->limit >= 0 && (!there(m, made, loop->limit) || m->tensors[loop->limit].code != kDLInt)) ||
      (loop->asked >= 0 && (!there(m, made, loop->asked) || m->tensors[loop->asked].bits != 8)))
    fail(r, "a loop is told nothing of its turns");
  if (!of_type(m, loop->turn, kDLInt, 64) || m->tensors[loop->turn].rank != 0 || (loop->dim < 0) != (loop->turns < 0)) fail(r, "a turn is a number");
  host_makes(r, m, loop->turn, made);
  for (int32_t i = 0; i < loop->carried && !r->bad; ++i) {
    const int64_t* end = loop->carried_ends + (ptrdiff_t)4 * i;
    if (end[1] < 0 || end[2] < 0 || end[0] < 0 || !there(m, made, (int32_t)end[0])) return (void)fail(r, "a loop carries what is not there");
    if (!alike(m, (int32_t)end[0], (int32_t)end[1], 0) || !alike(m, (int32_t)end[0], (int32_t)end[2], 0) || (end[3] >= 0 && !alike(m, (int32_t)end[0], (int32_t)end[3], 0)))
      return (void)fail(r, "a loop carries another type");
    host_makes(r, m, end[1], made);
  }
  for (int32_t i = 0; i < loop->rows && !r->bad; ++i) {
    const int64_t* end = loop->row_ends + (ptrdiff_t)2 * i;
    if (end[0] < 0 || end[1] < 0 || !there(m, made, (int32_t)end[0]) || !alike(m, (int32_t)end[0], (int32_t)end[1], 1)) return (void)fail(r, "a turn has no such row");
    host_makes(r, m, end[1], made);
  }
  for (int32_t i = 0; i < loop->made && !r->bad; ++i) {
    const int64_t* end = loop->made_ends + (ptrdiff_t)2 * i;
    if (end[0] < 0 || end[1] < 0 || !alike(m, (int32_t)end[1], (int32_t)end[0], 1)) fail(r, "a row is of another type than its stack");
  }
}

/* What its body has made, and what the loop then makes of it. */
static void read_turned_ends(ht_reader* r, ht_model* m, const ht_chain_loop* loop, const char* inside, char* made) {
  if (loop->goes_on >= 0 && (!there(m, inside, loop->goes_on) || m->tensors[loop->goes_on].bits != 8)) fail(r, "a loop does not know whether it goes on");
  for (int32_t i = 0; i < loop->carried && !r->bad; ++i) {
    const int64_t* end = loop->carried_ends + (ptrdiff_t)4 * i;
    if (!there(m, inside, (int32_t)end[2])) fail(r, "a turn does not make what the next one is given");
    host_makes(r, m, end[3], made);
  }
  for (int32_t i = 0; i < loop->made && !r->bad; ++i) {
    const int64_t* end = loop->made_ends + (ptrdiff_t)2 * i;
    if (!there(m, inside, (int32_t)end[0])) fail(r, "a turn does not make its row");
    host_makes(r, m, end[1], made);
  }
  if (loop->turns >= 0 && (!of_type(m, loop->turns, kDLInt, 64) || m->tensors[loop->turns].rank != 1)) fail(r, "places and counts are int64");
  host_makes(r, m, loop->turns, made);
}

static int sound_changes(const ht_model* m, const ht_chain_loop* loop) {
  for (int32_t i = 0; i < loop->changes; ++i) {
    const int64_t* one = loop->changed + (ptrdiff_t)4 * i;
    if (one[0] < 0 || one[0] >= loop->carried || one[2] < 0 || one[2] >= m->dim_count || one[3] >= m->dim_count) return 0;
    int64_t tensor = loop->carried_ends[4 * one[0] + 1];
    if (tensor < 0 || one[1] < 0 || one[1] >= m->tensors[tensor].rank) return 0;
  }
  return 1;
}

static void read_loop(ht_reader* r, ht_model* m, int32_t own, char* made, int depth) {
  if (depth >= HT_CHAIN_DEEPEST) return (void)fail(r, "loops lie too deep in each other");
  m->steps[own].more = r->at;
  m->steps[own].setting = m->stack_count;
  for (int i = 0; i < 2; ++i) none_or(r, m);
  below(r, m->tensor_count);
  none_or(r, m);
  word(r, -1, (int64_t)m->dim_count - 1);
  none_or(r, m);
  for (int kind = 0; kind < 3 && !r->bad; ++kind) {
    int64_t count = count_of(r, kind == 0 ? 4 : 2);
    many(r, count * (kind == 0 ? 4 : 2), -1, (int64_t)m->tensor_count - 1);
  }
  int64_t changes = count_of(r, 4);
  many(r, changes * 4, -1, INT32_MAX);
  if (r->bad) return;
  const ht_chain_loop loop = ht_chain_loop_of(&m->steps[own]);
  m->stack_count += loop.made + (loop.changes > 0 ? loop.carried : 0);
  if (!sound_changes(m, &loop)) return (void)fail(r, "what changes its size is no axis of a carried value");
  char* inside = table(r, m->tensor_count, 1);
  if (inside == NULL) return;
  memcpy(inside, made, (size_t)m->tensor_count);
  read_turned(r, m, &loop, inside);
  ht_read_chain(r, m, inside, depth + 1);
  m->steps[own].at = m->step_count;
  for (int32_t i = 0; i < m->tensor_count; ++i)
    if (!made[i] && inside[i]) made[i] = INSIDE; /* only a turn has it */
  if (!r->bad) read_turned_ends(r, m, &loop, inside, made);
  free(inside);
}

void ht_read_chain(ht_reader* r, ht_model* m, char* made, int depth) {
  int32_t count = count_of(r, 3);
  int32_t* begins = table(r, (int64_t)count + 1, sizeof *begins); /* where in the table each of them lies, and what is behind them */
  for (int32_t i = 0; begins != NULL && i < count && !r->bad; ++i) {
    int32_t own = begins[i] = m->step_count++;
    ht_model_step* step = &m->steps[own];
    step->kind = (int32_t)word(r, STEP_SEGMENT, STEP_KINDS - 1);
    if (r->bad) break;
    if (step->kind == STEP_SEGMENT) read_segment(r, m, step, made);
    else if (step->kind == STEP_TURNS) read_loop(r, m, own, made, depth);
    else if (step->kind >= STEP_DECIDED) read_branch(r, m, step, made);
    else read_between(r, m, step, made);
    if (!r->bad && step->kind == STEP_WHEN && step->count > count - i - 1) fail(r, "a side of a branch has more steps than there are");
  }
  if (begins != NULL && !r->bad) begins[count] = m->step_count;
  for (int32_t i = 0; begins != NULL && i < count && !r->bad; ++i) {
    ht_model_step* step = &m->steps[begins[i]];
    if (step->kind == STEP_WHEN) step->at = begins[i + step->count + 1];
  }
  free(begins);
}
