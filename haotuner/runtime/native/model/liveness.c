/* Where each tensor lies and how long: what does not depend on a request's sizes. */
#include <stdlib.h>

#include "model/model.h"

static ht_model_tensor* root_of(const ht_model* m, int32_t tensor) { return &m->tensors[m->tensors[tensor].root]; }

/* Inputs lie where the caller has them, and outputs that are no shape of an input or of a weight are made in the caller's arrays. */
static void settle_ends(ht_model* m) {
  for (int32_t i = 0; i < m->input_count; ++i) root_of(m, m->inputs[i].tensor)->external = i;
  for (int32_t i = 0; i < m->output_count * m->way_count; ++i) {
    ht_model_tensor* root = root_of(m, m->outputs[i].tensor);
    m->outputs[i].direct = root->weight < 0 && root->external < 0;
    if (m->outputs[i].direct) root->external = m->input_count + i % m->output_count;
  }
}

static void touch(ht_model* m, int32_t tensor, int32_t step) {
  ht_model_tensor* root = root_of(m, tensor);
  if (root->first < 0) root->first = step;
  root->last = step;
}

static void live_through(ht_model* m) {
  for (int32_t i = 0; i < m->tensor_count; ++i) m->tensors[i].first = m->tensors[i].last = -1;
  for (int32_t s = 0; s < m->step_count; ++s) {
    const ht_model_step* step = &m->steps[s];
    if (step->kind == STEP_ALIAS) touch(m, step->index, s);
    for (int32_t i = 0; i < step->count; ++i) {
      int32_t tensor = step->kind == STEP_LOOPS ? m->loops[step->first + i] : m->operands[step->first + i].tensor;
      if (tensor >= 0) touch(m, tensor, s);
    }
  }
  for (const ht_model_way* way = m->ways; way < m->ways + m->way_count; ++way)
    for (int32_t i = 0; i < m->output_count; ++i) touch(m, way->outputs[i].tensor, way->end);
}

static int together(const ht_model_tensor* a, const ht_model_tensor* b) { return a->first <= b->last && b->first <= a->last; }

static int settle_arena(ht_model* m) {
  m->slots = calloc((size_t)m->tensor_count + 1, sizeof *m->slots);
  m->beside_at = calloc((size_t)m->tensor_count + 2, sizeof *m->beside_at);
  if (m->slots == NULL || m->beside_at == NULL) return -1;
  for (int32_t i = 0; i < m->tensor_count; ++i) {
    ht_model_tensor* t = &m->tensors[i];
    if (t->root != i || t->weight >= 0 || t->external >= 0 || t->first < 0) continue;
    t->slot = m->slot_count;
    m->slots[m->slot_count++] = i;
  }
  int32_t found = 0;
  for (int pass = 0; pass < 2; ++pass) { /* count, then write */
    if (pass == 1 && (m->beside = calloc((size_t)found + 1, sizeof *m->beside)) == NULL) return -1;
    found = 0;
    for (int32_t i = 0; i < m->slot_count; ++i) {
      m->beside_at[i] = found;
      for (int32_t j = 0; j < m->slot_count; ++j) {
        if (i == j || !together(&m->tensors[m->slots[i]], &m->tensors[m->slots[j]])) continue;
        if (pass == 1) m->beside[found] = j;
        if (found++ == INT32_MAX - 1) return -1;
      }
      if (found - m->beside_at[i] > m->most_beside) m->most_beside = found - m->beside_at[i];
    }
    m->beside_at[m->slot_count] = found;
  }
  return 0;
}

static int settle_fixes(ht_model* m) {
  m->fixes = calloc((size_t)(m->operand_count + m->loop_count) + 1, sizeof *m->fixes);
  if (m->fixes == NULL) return -1;
  for (ht_model_way* way = m->ways; way < m->ways + m->way_count; ++way) {
    way->first_fix = m->fix_count;
    for (int32_t s = way->first; s < way->end; ++s) {
      const ht_model_step* step = &m->steps[s];
      int loops = step->kind == STEP_LOOPS;
      for (int32_t i = step->first; step->kind != STEP_ALIAS && i < step->first + step->count; ++i) {
        int32_t tensor = loops ? m->loops[i] : m->operands[i].tensor, external = tensor < 0 ? -1 : root_of(m, tensor)->external;
        if (external >= 0) m->fixes[m->fix_count++] = (ht_model_fix){loops, i, external};
      }
    }
    way->fix_end = m->fix_count;
  }
  return 0;
}

int ht_model_live(ht_model* m, ht_error* error) {
  settle_ends(m);
  live_through(m);
  if (settle_arena(m) == 0 && settle_fixes(m) == 0) return 0;
  return ht_refuse(error, "RuntimeError", "no memory to open a model");
}
