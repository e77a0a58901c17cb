/* Reads a schedule. Nothing in it is trusted: every index is held against its table, every tensor is made once and before it is
 * read, and weights lie inside their file. */
#include <stdlib.h>
#include <string.h>

#include "model/reader.h"
#include "model/backend.h"

#define RESIDUAL "residual"

static void read_sizes(ht_reader* r, ht_model* m) {
  m->dim_count = count_of(r, 2);
  if ((m->dims = table(r, m->dim_count, sizeof *m->dims)) == NULL) return;
  for (int32_t i = 0; i < m->dim_count; ++i) m->dims[i] = text(r);
  m->size_count = count_of(r, 3);
  if ((m->sizes = table(r, m->size_count, sizeof *m->sizes)) == NULL) return;
  for (int32_t i = 0; i < m->size_count && !r->bad; ++i) {
    ht_size_line* line = &m->sizes[i];
    line->op = below(r, SIZE_OPS);
    if (line->op == SIZE_NUMBER) {
      line->number = word(r, INT64_MIN, INT64_MAX);
      word(r, 0, 0);
    } else if (line->op == SIZE_DIM) {
      line->a = below(r, m->dim_count);
      word(r, 0, 0);
    } else {
      line->a = below(r, i);
      line->b = below(r, i);
    }
  }
  m->equal_count = count_of(r, 2);
  if ((m->equal = table(r, 2 * (int64_t)m->equal_count, sizeof *m->equal)) == NULL) return;
  for (int32_t i = 0; i < 2 * m->equal_count; ++i) m->equal[i] = below(r, m->size_count);
}

static int sound_type(int code, int bits) {
  if (code == kDLFloat) return bits == 16 || bits == 32 || bits == 64;
  if (code == kDLBfloat) return bits == 16;
  if (code == kDLBool) return bits == 8;
  return (code == kDLInt || code == kDLUInt) && (bits == 8 || bits == 16 || bits == 32 || bits == 64);
}

static void read_weight(ht_reader* r, const ht_model* m, ht_model_tensor* t) {
  int64_t bytes = t->bits / 8, rest = m->weights_bytes - t->weight;
  t->shape = many(r, t->rank, 0, HT_MODEL_EXTENT);
  for (int32_t a = 0; a < t->rank && !r->bad; ++a)
    if (__builtin_mul_overflow(bytes, t->shape[a], &bytes) || bytes > HT_MODEL_BYTES) fail(r, "a weight is larger than any memory");
  const int scaled = t->code == HT_MODEL_SCALED;
  if (!r->bad && scaled && (t->rank < 1 || ht_where_type != kDLCPU)) fail(r, "no weight lies as bytes here");
  if (!r->bad && scaled) bytes = (bytes + 3) / 4 * 4 + 4 * t->shape[0];
  if (!r->bad && (bytes > rest || t->weight % (scaled ? 4 : t->bits / 8) != 0)) fail(r, "a weight lies outside the file of weights");
}

static void read_tensors(ht_reader* r, ht_model* m) {
  m->tensor_count = count_of(r, 6);
  if ((m->tensors = table(r, m->tensor_count, sizeof *m->tensors)) == NULL) return;
  for (int32_t i = 0; i < m->tensor_count && !r->bad; ++i) {
    ht_model_tensor* t = &m->tensors[i];
    t->name = text(r);
    t->code = (uint8_t)below(r, 256);
    t->bits = (uint8_t)below(r, 256);
    t->weight = word(r, -1, m->weights_bytes);
    const int scaled = t->code == HT_MODEL_SCALED && t->bits == 8 && t->weight >= 0;
    if (!r->bad && !scaled && !sound_type(t->code, t->bits)) fail(r, "no such element type");
    t->rank = (int32_t)word(r, 0, HT_MODEL_AXES);
    t->root = i;
    t->external = t->slot = -1;
    if (t->weight < 0) t->shape = many(r, t->rank, 0, (int64_t)m->size_count - 1);
    else if (!r->bad) read_weight(r, m, t);
  }
}

static ht_model_end* read_ends(ht_reader* r, ht_model* m, int32_t* count, char* made) {
  *count = count_of(r, 3);
  if (*count > HT_MODEL_ENDS) fail(r, "more inputs or outputs than any model has");
  ht_model_end* ends = table(r, *count * (int64_t)(made == NULL ? HT_MODEL_WAYS : 1), sizeof *ends);
  for (int32_t i = 0; ends != NULL && i < *count && !r->bad; ++i) {
    ends[i].name = text(r);
    ends[i].tensor = below(r, m->tensor_count);
    if (r->bad || made == NULL) continue;
    if (made[ends[i].tensor]) fail(r, "an input is given twice, or is a weight");
    made[ends[i].tensor] = 1;
  }
  return ends;
}

/* A layer of a device is called as x, what was bound of its weight and of channels, the output, and what is added to it. */
static int placed_layer(const ht_op* op) { return op->kind->placed != NULL && op->kind->placed->bound_bytes(op) > 0; }

/* 1 + the place of an operand among what is bound beside the weight of a device's layer: values of a channel, in the op's order; 0: it is passed. */
static int32_t bound_of(const ht_op* op, int role, const char* name) {
  if (!placed_layer(op) || role != ROLE_NAMED || strcmp(name, RESIDUAL) == 0) return 0;
  const int first = op->optional_count > 0 ? op->operand_count : HT_FIRST_EXTRA, end = op->optional_count > 0 ? first + op->optional_count : op->operand_count - 1;
  for (int32_t i = first, found = 0; i < end; ++i) {
    found += strcmp(op->operands[i].name, RESIDUAL) != 0;
    if (strcmp(op->operands[i].name, name) == 0) return found;
  }
  return 0;
}

/* The place of an operand in a call of the op; -1: it has none of that name. Of a layer the output is third. */
static int32_t place_of(const ht_op* op, int role, const char* name) {
  if (placed_layer(op)) {
    if (role != ROLE_NAMED) return role == ROLE_X ? 0 : role == ROLE_WEIGHT ? 1 : 2;
    const int32_t bound = bound_of(op, role, name);
    return bound > 0 ? HT_MAX_OPERANDS - bound : strcmp(name, RESIDUAL) == 0 ? 3 : -1;
  }
  int last = op->operand_count - 1, found = role == ROLE_X ? 0 : role == ROLE_WEIGHT ? 1 : role == ROLE_OUT ? last : -1;
  for (int i = 0; role == ROLE_NAMED && i < op->operand_count + op->optional_count; ++i)
    if (i != last && strcmp(op->operands[i].name, name) == 0) found = i;
  if (op->kind->look_up == NULL || found < 2 || found > last) return found;
  return found == last ? 2 : found + 1;
}

/* A part of the rows of a tensor that a call makes. */
static void read_part(ht_reader* r, const ht_model* m, ht_model_operand* o) {
  o->first = word(r, 0, HT_MODEL_EXTENT);
  o->width = word(r, 2, HT_MODEL_EXTENT); /* rows of the part have elements side by side */
  if (r->bad) return;
  if (o->tensor < 0 || o->rank < 1 || m->tensors[o->tensor].rank < 1 || m->tensors[o->tensor].weight >= 0 || ht_where_type != kDLCPU)
    fail(r, "a part of what has no rows");
}

static void read_operand(ht_reader* r, ht_model* m, ht_model_step* step, const ht_op* op, const char* made) {
  ht_model_operand* o = &m->operands[m->operand_count];
  int role = below(r, ROLE_PART + ROLE_COUNT), part = role >= ROLE_PART;
  if (part) role -= ROLE_PART;
  if (!r->bad && (role >= ROLE_COUNT || (part && role == ROLE_OUT))) return (void)fail(r, "an operand of no role");
  const char* name = role == ROLE_NAMED ? text(r) : "";
  o->place = place_of(op, role, name);
  o->bound = bound_of(op, role, name);
  o->tensor = (int32_t)word(r, -1, (int64_t)m->tensor_count - 1);
  o->packed = -1;
  if (o->tensor < 0) {
    int32_t bits = (int32_t)word(r, INT32_MIN, INT32_MAX);
    memcpy(&o->number, &bits, sizeof bits);
  }
  o->rank = (int32_t)word(r, -1, HT_MODEL_AXES);
  o->shape = many(r, o->rank, 0, (int64_t)m->size_count - 1);
  int32_t turned = (int32_t)word(r, 0, HT_MODEL_AXES);
  o->order = turned == 0 ? NULL : many(r, turned, 0, turned - 1);
  if (part) read_part(r, m, o);
  if (r->bad) return;
  if (o->place < 0 || o->place >= HT_MAX_OPERANDS) return (void)fail(r, "an op has no such operand");
  for (int32_t i = step->first; i < m->operand_count; ++i)
    if (m->operands[i].place == o->place) return (void)fail(r, "an operand is given twice");
  int32_t rank = o->tensor < 0 ? 0 : o->rank < 0 ? m->tensors[o->tensor].rank : o->rank, seen = 0;
  if (o->tensor < 0 && (o->rank > 0 || role != ROLE_NAMED)) return (void)fail(r, "a number has no axes");
  if (turned != 0 && turned != rank) return (void)fail(r, "axes are reordered that are not there");
  for (int32_t i = 0; i < turned; ++i) seen |= 1 << o->order[i];
  if (turned != 0 && seen != (1 << turned) - 1) return (void)fail(r, "axes are reordered twice");
  if (role == ROLE_OUT) {
    if (o->tensor < 0 || m->tensors[o->tensor].weight >= 0 || made[o->tensor]) return (void)fail(r, "a tensor is made twice");
    step->out = o->tensor;
  } else if (o->tensor >= 0 && !there(m, made, o->tensor)) {
    return (void)fail(r, "a tensor is read before it is made");
  }
  if (o->place + 1 > step->given && o->bound == 0) step->given = o->place + 1;
  m->axes += rank;
  ++m->operand_count;
}

static void read_op(ht_reader* r, ht_model* m, ht_model_step* step, const char* made) {
  const char* name = text(r);
  int32_t count = (int32_t)word(r, 2, HT_MAX_OPERANDS);
  for (step->index = 0; !r->bad && step->index < ht_op_count; ++step->index)
    if (strcmp(ht_ops[step->index].name, name) == 0) break;
  if (!r->bad && step->index == ht_op_count) fail(r, "it names an op that the pack has not");
  if (r->bad) return;
  const ht_op* op = &ht_ops[step->index];
  if ((op->kind->placed != NULL) != (ht_where_type != kDLCPU)) return (void)fail(r, "an op of another device");
  step->first = m->operand_count;
  step->out = -1;
  step->at = m->op_steps++;
  for (int32_t i = 0; i < count && !r->bad; ++i) read_operand(r, m, step, op, made);
  step->count = count;
  const int32_t wanted = placed_layer(op) ? HT_LAYER_OPERANDS : op->operand_count;
  if (!r->bad && (step->out < 0 || step->given < wanted)) fail(r, "an op's call lacks an operand");
  int32_t places = 0;
  for (int32_t i = 0; i < count && !r->bad; ++i) places |= 1 << m->operands[step->first + i].place;
  for (int32_t i = 0; i < wanted && !r->bad; ++i)
    if (!(places >> i & 1)) fail(r, "an op's call lacks an operand");
}

static void read_loops(ht_reader* r, ht_model* m, ht_model_step* step, char* made) {
  const char* name = text(r);
  for (step->index = 0; !r->bad && step->index < ht_group_count; ++step->index)
    if (strcmp(ht_groups[step->index].name, name) == 0) break;
  if (!r->bad && step->index == ht_group_count) fail(r, "it names a group that the pack has not");
  step->count = count_of(r, 1);
  step->first = m->loop_count;
  if (r->bad) return;
  const ht_group* group = &ht_groups[step->index];
  if (group->sizes > m->size_count) return (void)fail(r, "a group reads more sizes than there are");
  if (step->count != group->tensors || step->count < group->outputs || group->outputs < 1) return (void)fail(r, "a group takes another number of tensors");
  const int32_t reads = step->count - group->outputs, *extents = group->shapes;
  int same = 1; /* so that it writes nowhere else */
  for (int32_t a = 0; a < group->rank; ++a) same &= group->extents[a] < m->size_count;
  for (int32_t i = 0; i < step->count && !r->bad; ++i) {
    int32_t tensor = below(r, m->tensor_count);
    if (r->bad) return;
    m->loops[m->loop_count++] = step->out = tensor;
    if (i < reads) {
      if (!there(m, made, tensor)) fail(r, "a tensor is read before it is made");
      if (m->tensors[tensor].code == HT_MODEL_SCALED) fail(r, "a group reads a weight of a product");
      continue;
    }
    const ht_model_tensor* out = &m->tensors[tensor];
    if (out->weight >= 0 || made[tensor]) return (void)fail(r, "a tensor is made twice");
    made[tensor] = (char)(m->way_count + 2);
    same &= out->rank == group->ranks[i - reads];
    for (int32_t a = 0; same && a < out->rank; ++a) same = out->shape[a] == extents[a];
    extents += group->ranks[i - reads];
  }
  if (!same) fail(r, "a group makes a tensor of another shape");
}

static void read_append(ht_reader* r, ht_model* m, ht_model_step* step, const char* made) {
  step->first = m->operand_count;
  step->count = 3;
  for (int i = 0; i < 3; ++i) m->operands[m->operand_count++] = (ht_model_operand){.tensor = below(r, m->tensor_count), .place = i, .rank = -1, .packed = -1};
  ht_model_operand* operands = &m->operands[step->first];
  step->index = below(r, AXIS_PART + HT_MODEL_AXES);
  const int part = step->index >= AXIS_PART;
  if (part) step->index -= AXIS_PART;
  operands[1].rank = (int32_t)word(r, 0, HT_MODEL_AXES);
  operands[1].shape = many(r, operands[1].rank, 0, (int64_t)m->size_count - 1);
  operands[1].order = many(r, word(r, operands[1].rank, operands[1].rank), 0, (int64_t)operands[1].rank - 1);
  if (part) read_part(r, m, &operands[1]);
  if (r->bad) return;
  int32_t seen = 0, rank = operands[1].rank;
  for (int32_t a = 0; a < rank; ++a) seen |= 1 << operands[1].order[a];
  const ht_model_tensor *past = &m->tensors[operands[0].tensor], *new = &m->tensors[operands[1].tensor], *out = &m->tensors[operands[2].tensor];
  if (seen != (1 << rank) - 1) return (void)fail(r, "axes are reordered twice");
  if (!there(m, made, operands[0].tensor) || !there(m, made, operands[1].tensor)) return (void)fail(r, "a tensor is read before it is made");
  if (out->weight >= 0 || made[operands[2].tensor]) return (void)fail(r, "a tensor is made twice");
  if (past->weight >= 0 || past->rank != rank || out->rank != rank || step->index >= rank || past->bits != out->bits || past->code != out->code || new->bits != out->bits ||
      new->code != out->code || new->weight >= 0 || ht_where_type != kDLCPU)
    return (void)fail(r, "rows are put behind others that are unlike them");
  step->out = operands[2].tensor;
  m->axes += 3 * rank;
}

static void read_steps(ht_reader* r, ht_model* m, char* made) {
  const int64_t* begin = r->at;
  int32_t first = m->step_count, count = count_of(r, 3);
  m->chained |= first == 0 && count > 0 && !r->bad && r->at < r->end && *r->at >= STEP_SEGMENT && *r->at < STEP_KINDS;
  if (m->chained) {
    r->at = begin;
    return ht_read_chain(r, m, made, 0);
  }
  m->step_count += count;
  for (int32_t i = first; i < first + count && !r->bad; ++i) {
    ht_model_step* step = &m->steps[i];
    step->kind = below(r, STEP_SEGMENT); /* a chain has steps of its own */
    if (step->kind == STEP_LOOPS) read_loops(r, m, step, made);
    if (step->kind == STEP_OP) read_op(r, m, step, made);
    if (step->kind == STEP_APPEND) read_append(r, m, step, made);
    if (step->kind == STEP_ALIAS) {
      step->out = below(r, m->tensor_count);
      step->index = below(r, m->tensor_count);
      if (r->bad) return;
      ht_model_tensor *out = &m->tensors[step->out], *of = &m->tensors[step->index];
      if (!there(m, made, step->index) || made[step->out] || out->weight >= 0 || out->bits != of->bits) return (void)fail(r, "a shape of what is not there");
      out->root = of->root;
    }
    if (!r->bad) made[step->out] = (char)(m->way_count + 2);
  }
}

/* The outputs of a way: of the same types and shapes as the first's, whose names they have. */
static void read_outputs(ht_reader* r, ht_model* m, ht_model_end* outputs) {
  for (int32_t i = 0; i < m->output_count && !r->bad; ++i) {
    const ht_model_tensor* first = &m->tensors[m->outputs[i].tensor];
    outputs[i] = (ht_model_end){m->outputs[i].name, below(r, m->tensor_count), 0, 0};
    if (r->bad) return;
    const ht_model_tensor* t = &m->tensors[outputs[i].tensor];
    int same = t->code == first->code && t->bits == first->bits && t->rank == first->rank && (t->weight < 0) == (first->weight < 0);
    for (int32_t a = 0; same && a < t->rank; ++a) same = t->shape[a] == first->shape[a];
    if (!same) fail(r, "two ways make an output of different types or shapes");
  }
}

static void read_ways(ht_reader* r, ht_model* m, char* made) {
  int64_t rest = r->end - r->at; /* a step takes three words, an operand two or more, a tensor of a group one */
  int32_t count = (int32_t)word(r, 1, HT_MODEL_WAYS);
  m->ways = table(r, count, sizeof *m->ways);
  m->steps = table(r, rest / 3, sizeof *m->steps);
  m->operands = table(r, rest / 2, sizeof *m->operands);
  m->loops = table(r, rest, sizeof *m->loops);
  for (; m->way_count < count && !r->bad; ++m->way_count) {
    int32_t own = m->way_count, last = own + 1 == count;
    ht_model_way* way = &m->ways[own];
    way->line = last ? (int32_t)word(r, -1, -1) : below(r, m->size_count);
    way->most = last ? word(r, 0, 0) : word(r, INT64_MIN, INT64_MAX);
    way->outputs = m->outputs + (size_t)own * (size_t)m->output_count;
    if (own > 0 && !r->bad) read_outputs(r, m, way->outputs);
    way->first = m->step_count;
    read_steps(r, m, made);
    way->end = m->step_count;
    for (int32_t i = 0; i < m->output_count && !r->bad; ++i)
      if (!there(m, made, way->outputs[i].tensor)) fail(r, "an output is never made");
  }
}

/* An input of a cache is read by appends to its output alone, whatever way runs: so it may lie in the same buffer. */
static void read_caches(ht_reader* r, ht_model* m) {
  m->cache_count = count_of(r, 3);
  m->capacity = (int32_t)word(r, m->cache_count > 0 ? 0 : -1, m->cache_count > 0 ? (int64_t)m->size_count - 1 : -1);
  if ((m->caches = table(r, m->cache_count, sizeof *m->caches)) == NULL) return;
  if (m->cache_count > 0 && !r->bad && m->sizes[m->capacity].op != SIZE_CAPACITY) fail(r, "caches have another capacity");
  for (int32_t i = 0; i < m->cache_count && !r->bad; ++i) {
    ht_model_cache* cache = &m->caches[i];
    cache->input = below(r, m->input_count);
    cache->output = below(r, m->output_count);
    cache->axis = below(r, HT_MODEL_AXES);
    if (r->bad) return;
    if (m->inputs[cache->input].cache != 0 || m->outputs[cache->output].cache != 0) return (void)fail(r, "a cache is given twice");
    m->inputs[cache->input].cache = i + 1;
    int32_t reads = 0, appends = 0;
    for (const ht_model_way* way = m->ways; way < m->ways + m->way_count; ++way) {
      way->outputs[cache->output].cache = i + 1;
      m->tensors[way->outputs[cache->output].tensor].cache = i + 1;
      for (int32_t s = way->first; s < way->end; ++s) {
        const ht_model_step* step = &m->steps[s];
        const ht_model_operand* past_operand = step->kind == STEP_APPEND ? &m->operands[step->first] : NULL;
        appends += past_operand != NULL && past_operand->tensor == m->inputs[cache->input].tensor && step->out == way->outputs[cache->output].tensor && step->index == cache->axis;
        for (int32_t k = 0; k < step->count; ++k)
          reads += (step->kind == STEP_LOOPS ? m->loops[step->first + k] : m->operands[step->first + k].tensor) == m->inputs[cache->input].tensor;
        reads += step->kind == STEP_ALIAS && step->index == m->inputs[cache->input].tensor;
      }
    }
    for (int32_t k = 0; k < m->output_count * m->way_count; ++k) reads += m->outputs[k].tensor == m->inputs[cache->input].tensor;
    if (appends != m->way_count || reads != appends) fail(r, "a cache is read where no rows are put behind it");
  }
}

static void read_indices(ht_reader* r, ht_model* m) {
  m->index_count = r->at == r->end ? 0 : count_of(r, 6);
  if ((m->indices = table(r, m->index_count, sizeof *m->indices)) == NULL) return;
  for (int32_t i = 0; i < m->index_count && !r->bad; ++i) {
    ht_model_indices* own = &m->indices[i];
    own->input = below(r, m->input_count);
    own->first = below(r, m->size_count);
    own->rank = (int32_t)word(r, 0, HT_MODEL_AXES);
    own->axes = many(r, 2 * (int64_t)own->rank, 0, (int64_t)m->size_count - 1);
    own->line = below(r, m->size_count);
    own->reader = text(r);
    if (r->bad) return;
    const ht_model_tensor* t = &m->tensors[m->inputs[own->input].tensor];
    if (t->code != kDLInt && t->code != kDLUInt) fail(r, "indices are whole numbers");
  }
}

static void read_required(ht_reader* r, ht_model* m) {
  m->required_count = r->at == r->end ? 0 : count_of(r, 3);
  if ((m->required = table(r, m->required_count, sizeof *m->required)) == NULL) return;
  for (int32_t i = 0; i < m->required_count && !r->bad; ++i) {
    m->required[i].line = below(r, m->size_count);
    m->required[i].words = text(r);
  }
}

static void read_checks(ht_reader* r, ht_model* m) {
  m->check_count = m->weights_bytes == 0 ? 0 : count_of(r, 1);
  if (!r->bad && m->check_count != (m->weights_bytes + HT_MODEL_CHUNK - 1) / HT_MODEL_CHUNK) fail(r, "its checksums are not those of all weights");
  m->checks = many(r, m->check_count, 0, UINT32_MAX);
}

static void read_defaults(ht_reader* r, ht_model* m) {
  m->default_count = r->at == r->end ? 0 : count_of(r, 3);
  if ((m->defaults = table(r, m->default_count, sizeof *m->defaults)) == NULL) return;
  for (int32_t i = 0; i < m->default_count && !r->bad; ++i) {
    ht_model_default* own = &m->defaults[i];
    own->input = below(r, m->input_count);
    if (r->bad) return;
    const ht_model_tensor* t = &m->tensors[m->inputs[own->input].tensor];
    own->rank = (int32_t)word(r, t->rank, t->rank);
    own->shape = many(r, own->rank, 0, HT_MODEL_EXTENT);
    int64_t rest = (r->end - r->at) * 8, bytes = word(r, 0, rest), count = t->bits / 8;
    for (int32_t a = 0; a < own->rank && !r->bad; ++a)
      if (__builtin_mul_overflow(count, own->shape[a], &count)) fail(r, "a default is larger than any memory");
    if (!r->bad && count != bytes) fail(r, "a default has other elements than its shape says");
    own->elements = r->at;
    if (!r->bad && (bytes + 7) / 8 > r->end - r->at) fail(r, "a default is cut");
    if (!r->bad) r->at += (bytes + 7) / 8;
  }
}

static uint64_t checksum(const int64_t* words, int64_t count) {
  uint64_t sum = 0xcbf29ce484222325u;
  for (int64_t i = 0; i < count; ++i) sum = (sum ^ (uint64_t)words[i]) * 0x100000001b3u;
  return sum;
}

int ht_model_read(ht_model* m, const int64_t* words, int64_t count, ht_error* error) {
  ht_reader r = {words, words, words + count, error, 0};
  if (count < HT_MODEL_HEAD || words[0] != HT_MODEL_MAGIC || words[1] != HT_MODEL_VERSION || words[2] != count ||
      (uint64_t)words[3] != checksum(words + HT_MODEL_HEAD, count - HT_MODEL_HEAD))
    return fail(&r, "its head or its checksum is wrong"), -1;
  r.at += HT_MODEL_HEAD;
  m->name = text(&r);
  m->weights_bytes = word(&r, 0, HT_MODEL_BYTES);
  read_sizes(&r, m);
  read_tensors(&r, m);
  char* made = table(&r, m->tensor_count, 1);
  for (int32_t i = 0; made != NULL && i < m->tensor_count && !r.bad; ++i) made[i] = m->tensors[i].weight >= 0;
  m->inputs = read_ends(&r, m, &m->input_count, made);
  m->outputs = read_ends(&r, m, &m->output_count, NULL);
  if (!r.bad) read_ways(&r, m, made);
  if (!r.bad && !m->chained) read_caches(&r, m);
  if (!r.bad && !m->chained) read_indices(&r, m);
  if (!r.bad && !m->chained) read_required(&r, m);
  if (!r.bad && !m->chained) read_checks(&r, m);
  if (!r.bad) read_defaults(&r, m);
  if (!r.bad && !m->chained) ht_read_expected_times(&r, m);
  m->segments = table(&r, m->segment_count, sizeof *m->segments);
  if (!r.bad && m->chained && (m->way_count != 1 || m->weights_bytes != 0)) fail(&r, "a chain has one way and no weights");
  if (m->chained) m->slot_count = m->tensor_count; /* a context has an offset of each */
  free(made);
  if (!r.bad && r.at != r.end) fail(&r, "something follows its end");
  return r.bad ? -1 : 0;
}

void ht_model_clear(ht_model* m) {
  void* const all[] = {m->dims, m->sizes, m->equal, m->indices, m->required, m->defaults, m->caches, m->tensors, m->inputs, m->outputs, m->ways, m->steps, m->operands, m->loops,
                       m->fixes, m->packed, m->segments, m->slots, m->beside_at, m->beside, m->compared};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) free(all[i]);
}
