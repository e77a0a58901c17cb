/* The calls of a request: every operand as a tensor of its actual extents, every address that does not change from call to call. */
#include <string.h>

#include "model/backend.h"

static size_t round_up_64(size_t bytes) { return (bytes + 63) / 64 * 64; }

size_t ht_plan_bytes(const ht_model* m) {
  return round_up_64((size_t)(m->dim_count + 1) * 8) + round_up_64((size_t)m->size_count * 8) + round_up_64((size_t)m->operand_count * sizeof(DLTensor)) +
         round_up_64((size_t)m->axes * 2 * 8) + round_up_64((size_t)m->op_steps * HT_MAX_OPERANDS * sizeof(void*)) + round_up_64((size_t)m->loop_count * sizeof(void*)) +
         round_up_64((size_t)m->step_count) + round_up_64((size_t)m->output_count * sizeof(void*)) + 64;
}

void ht_plan_lay(const ht_model* m, ht_model_plan* plan, void* block) {
  char* at = block;
  plan->used = 0;
#define TAKE(member, bytes) plan->member = (void*)at, at += round_up_64(bytes)
  TAKE(dims, (size_t)(m->dim_count + 1) * 8); /* and the capacity of caches */
  TAKE(sizes, (size_t)m->size_count * 8);
  TAKE(tensors, (size_t)m->operand_count * sizeof(DLTensor));
  TAKE(extents, (size_t)m->axes * 2 * 8);
  TAKE(given, (size_t)m->op_steps * HT_MAX_OPERANDS * sizeof(void*));
  TAKE(loops, (size_t)m->loop_count * sizeof(void*));
  TAKE(skipped, (size_t)m->step_count);
  TAKE(results, (size_t)m->output_count * sizeof(void*));
#undef TAKE
}

/* Where a tensor begins; NULL where the caller says so with each call. */
static char* address(const ht_model* m, int32_t tensor, char* arena, const int64_t* offsets) {
  const ht_model_tensor* root = &m->tensors[m->tensors[tensor].root];
  if (root->weight >= 0) return (char*)m->base + root->weight;
  return root->slot < 0 ? NULL : arena + offsets[root->slot];
}

static int fill_operand(const ht_model* m, ht_model_plan* plan, const ht_model_operand* o, DLTensor* out, int64_t* extents, char* arena,
                        const int64_t* offsets, ht_error* error) {
  *out = (DLTensor){(void*)&o->number, {kDLCPU, 0}, 0, {kDLFloat, 32, 1}, extents, extents, 0};
  if (o->tensor < 0) return 0;
  const ht_model_tensor* t = &m->tensors[o->tensor];
  int64_t shape[HT_MODEL_AXES], strides[HT_MODEL_AXES], count, seen = 1;
  if (ht_model_extents(m, t, plan->sizes, shape, &count, error) != 0) return -1;
  int32_t rank = t->rank;
  const int64_t row = rank > 0 ? shape[rank - 1] : 1;
  if (o->width > 0 && (o->first > row || o->width > row - o->first))
    return ht_refuse(error, "RuntimeError", "%s: the model's schedule is damaged: rows of %.60s have no elements %lld and on", m->name, t->name, (long long)o->first);
  if (o->width > 0) count = count / row * o->width;
  if (o->rank >= 0) {
    ht_model_tensor view = *t;
    view.weight = -1;
    view.rank = rank = o->rank;
    view.shape = o->shape;
    if (ht_model_extents(m, &view, plan->sizes, shape, &seen, error) != 0) return -1;
    if (seen != count)
      return ht_refuse(error, "ValueError", "%s: tensor %.60s has %lld elements and is read as one of %lld", m->name, t->name, (long long)count, (long long)seen);
  }
  int64_t run = 1, part = count == 0 ? 0 : o->width; /* elements behind which the next row of the tensor is met; 0: all rows lie behind one another */
  for (int32_t a = rank - 1; a >= 0; --a) {
    if (part > 0 && run == part) run = row, part = 0;
    strides[a] = run;
    run *= count == 0 ? 1 : shape[a];
  }
  if (part > 0 && run != part)
    return ht_refuse(error, "RuntimeError", "%s: the model's schedule is damaged: %.60s is no shape of a part of rows", m->name, t->name);
  if (m->tensors[t->root].cache > 0 && count > 0 && (o->width > 0 || ht_cache_strides(m, &m->tensors[t->root], plan->sizes, rank, shape, strides) != 0))
    return ht_refuse(error, "RuntimeError", "%s: the model's schedule is damaged: %.60s is no shape of a cache in a buffer", m->name, t->name);
  for (int32_t a = 0; a < rank; ++a) {
    int64_t from = o->order == NULL ? a : o->order[a];
    extents[a] = shape[from];
    extents[rank + a] = strides[from];
  }
  *out = (DLTensor){address(m, o->tensor, arena, offsets), {ht_where_type, m->device}, rank, {t->code, t->bits, 1}, extents, extents + rank, (uint64_t)(o->first * (t->bits / 8))};
  if (o->packed < 0) return 0;
  ht_model_packed* packed = &m->packed[o->packed];
  *out = (DLTensor){packed->data, {kDLCPU, 0}, packed->rank, {packed->code, packed->bits, 1}, packed->shape, NULL, 0};
  return 0;
}

static int fill_op(const ht_model* m, ht_model_plan* plan, const ht_model_step* step, int64_t** extents, char* arena, const int64_t* offsets,
                   ht_error* error) {
  const DLTensor** given = plan->given + (size_t)step->at * HT_MAX_OPERANDS;
  memset(given, 0, HT_MAX_OPERANDS * sizeof *given);
  for (int32_t i = step->first; i < step->first + step->count; ++i) {
    const ht_model_operand* o = &m->operands[i];
    if (fill_operand(m, plan, o, &plan->tensors[i], *extents, arena, offsets, error) != 0) return -1;
    *extents += 2 * (o->tensor < 0 ? 0 : o->rank < 0 ? m->tensors[o->tensor].rank : o->rank);
    given[o->place] = &plan->tensors[i];
  }
  return 0;
}

int ht_plan_fill(const ht_model* m, ht_model_plan* plan, char* arena, const int64_t* offsets, ht_error* error) {
  int64_t *extents = plan->extents, shape[HT_MODEL_AXES], count, of;
  for (int32_t s = plan->way->first; s < plan->way->end; ++s) {
    const ht_model_step* step = &m->steps[s];
    if (ht_model_extents(m, &m->tensors[step->out], plan->sizes, shape, &count, error) != 0) return -1;
    plan->skipped[s] = step->kind == STEP_ALIAS || count == 0;
    if (step->kind == STEP_OP && fill_op(m, plan, step, &extents, arena, offsets, error) != 0) return -1;
    for (int32_t i = step->first; step->kind == STEP_APPEND && i < step->first + step->count; ++i) {
      if (fill_operand(m, plan, &m->operands[i], &plan->tensors[i], extents, arena, offsets, error) != 0) return -1;
      extents += 2 * plan->tensors[i].ndim;
    }
    for (int32_t i = 0; step->kind == STEP_LOOPS && i < step->count; ++i)
      plan->loops[step->first + i] = address(m, m->loops[step->first + i], arena, offsets);
    if (step->kind != STEP_ALIAS) continue;
    if (ht_model_extents(m, &m->tensors[step->index], plan->sizes, shape, &of, error) != 0) return -1;
    if (of != count)
      return ht_refuse(error, "ValueError", "%s: tensor %.60s has %lld elements and is read as one of %lld", m->name, m->tensors[step->index].name,
                       (long long)of, (long long)count);
  }
  const ht_model_end* outputs = plan->way->outputs;
  for (int32_t i = 0; i < m->output_count; ++i) plan->results[i] = outputs[i].direct ? NULL : address(m, outputs[i].tensor, arena, offsets);
  return 0;
}
