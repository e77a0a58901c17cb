/* Extents of a request: its dimensions from its inputs, then every line of the size table. And whether indices lie in them. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/host_ops.h"
#include "model/backend.h"

static const char* type_name(int code, int bits) {
  static const char* const names[3][4] = {{"int8", "int16", "int32", "int64"}, {"uint8", "uint16", "uint32", "uint64"}, {"", "float16", "float32", "float64"}};
  if (code == kDLBool) return "bool";
  if (code == kDLBfloat && bits == 16) return "bfloat16";
  if (code > kDLFloat || (bits != 8 && bits != 16 && bits != 32 && bits != 64)) return "another type";
  return names[code][bits == 8 ? 0 : bits == 16 ? 1 : bits == 32 ? 2 : 3];
}

void ht_model_words(const ht_model* m, const ht_model_tensor* t, char* text, size_t room) {
  size_t used = (size_t)snprintf(text, room, "(");
  for (int32_t a = 0; a < t->rank && used < room; ++a) {
    const ht_size_line* line = &m->sizes[t->shape[a]];
    const char* comma = a == 0 ? "" : ", ";
    if (line->op == SIZE_DIM) used += (size_t)snprintf(text + used, room - used, "%s%s", comma, m->dims[line->a]);
    else if (line->op == SIZE_NUMBER) used += (size_t)snprintf(text + used, room - used, "%s%lld", comma, (long long)line->number);
    else used += (size_t)snprintf(text + used, room - used, "%s?", comma);
  }
  if (used < room) snprintf(text + used, room - used, ")");
}

static void add_words(char* text, size_t room, const char* more) { snprintf(text + strlen(text), room - strlen(text), "%s", more); }

/* A line of the size table as people write it, as far as there is room; lines are made of lines before them. */
static void size_words(const ht_model* m, int32_t place, char* text, size_t room) {
  static const char* const signs[] = {" + ", " - ", " * ", " // ", " % "};
  const ht_size_line* line = &m->sizes[place];
  char number[32];
  snprintf(number, sizeof number, "%lld", (long long)line->number);
  if (strlen(text) + 2 > room) return;
  if (line->op == SIZE_DIM || line->op == SIZE_NUMBER) {
    add_words(text, room, line->op == SIZE_DIM ? m->dims[line->a] : number);
    return;
  }
  const int between = line->op >= SIZE_ADD && line->op <= SIZE_MOD;
  add_words(text, room, between ? "(" : line->op == SIZE_MAXIMUM ? "max(" : line->op == SIZE_MINIMUM ? "min(" : "a size of (");
  size_words(m, line->a, text, room);
  add_words(text, room, between ? signs[line->op - SIZE_ADD] : ", ");
  size_words(m, line->b, text, room);
  add_words(text, room, ")");
}

static void shape_words(const DLTensor* t, char* text, size_t room) {
  size_t used = (size_t)snprintf(text, room, "(");
  for (int a = 0; a < t->ndim && t->shape != NULL && used < room; ++a) used += (size_t)snprintf(text + used, room - used, "%s%lld", a == 0 ? "" : ", ", (long long)t->shape[a]);
  if (used < room) snprintf(text + used, room - used, ")");
}

static int refuse_shape(const ht_model* m, int input, const DLTensor* given, const char* dim, int64_t before, ht_error* error) {
  const ht_model_end* end = &m->inputs[input];
  const ht_model_tensor* t = &m->tensors[end->tensor];
  char wanted[96], found[96];
  ht_model_words(m, t, wanted, sizeof wanted);
  shape_words(given, found, sizeof found);
  if (dim != NULL)
    return ht_refuse(error, "ValueError", "%s: input %s is %s, but %s is %lld before", m->name, end->name, found, dim, (long long)before);
  if (given->ndim != t->rank)
    return ht_refuse(error, "ValueError", "%s: input %s has %d axes %s, got %s", m->name, end->name, (int)t->rank, wanted, found);
  return ht_refuse(error, "ValueError", "%s: input %s must be %s, got %s", m->name, end->name, wanted, found);
}

static int refuse_place(const ht_model* m, int input, const DLTensor* given, ht_error* error) {
  const ht_model_tensor* t = &m->tensors[m->inputs[input].tensor];
  char where[32] = "the CPU", found[32] = "the CPU";
  if (ht_where_type != kDLCPU) snprintf(where, sizeof where, "cuda:%d", (int)m->device);
  if (given->device.device_type == kDLCUDA) snprintf(found, sizeof found, "cuda:%d", (int)given->device.device_id);
  else if (given->device.device_type != kDLCPU) snprintf(found, sizeof found, "device type %d", (int)given->device.device_type);
  return ht_refuse(error, "TypeError", "%s: input %s must be an array of %s on %s, got %s on %s", m->name, m->inputs[input].name,
                   type_name(t->code, t->bits), where, type_name(given->dtype.code, given->dtype.bits), found);
}

int ht_model_given(const ht_model* m, const DLTensor* inputs, int64_t* dims, ht_error* error) {
  for (int32_t i = 0; i < m->dim_count; ++i) dims[i] = -1;
  for (int32_t i = 0; i < m->input_count; ++i) {
    const DLTensor* given = &inputs[i];
    const ht_model_tensor* t = &m->tensors[m->inputs[i].tensor];
    if (given->device.device_type != ht_where_type || given->device.device_id != m->device || given->dtype.code != t->code ||
        given->dtype.bits != t->bits || given->dtype.lanes != 1)
      return refuse_place(m, i, given, error);
    if (given->ndim != t->rank || (given->shape == NULL && t->rank > 0)) return refuse_shape(m, i, given, NULL, 0, error);
    int empty = 0;
    for (int32_t a = 0; a < t->rank; ++a) {
      const ht_size_line* line = &m->sizes[t->shape[a]];
      int64_t extent = given->shape[a];
      empty |= extent == 0;
      if (extent < 0 || extent > HT_MODEL_EXTENT || (line->op == SIZE_NUMBER && line->number != extent)) return refuse_shape(m, i, given, NULL, 0, error);
      if (line->op != SIZE_DIM) continue; /* held against the table's value later */
      if (dims[line->a] >= 0 && dims[line->a] != extent) return refuse_shape(m, i, given, m->dims[line->a], dims[line->a], error);
      dims[line->a] = extent;
    }
    if (!empty && (given->data == NULL || (uintptr_t)ht_data(given) % (t->bits / 8) != 0))
      return ht_refuse(error, "ValueError", "%s: input %s has no data, or none that is aligned to its elements", m->name, m->inputs[i].name);
    const int32_t cache = m->inputs[i].cache;
    int64_t capacity;
    if (cache > 0 ? !ht_cache_lies(given, m->caches[cache - 1].axis, &capacity) : !ht_contiguous(given)) return ht_refuse(error, "ValueError", "%s: input %s must be contiguous; pass a contiguous copy", m->name, m->inputs[i].name);
    if (!ht_addressable(given)) return ht_refuse(error, "ValueError", "%s: input " HT_NOT_ADDRESSABLE, m->name, m->inputs[i].name);
  }
  return 0;
}

int ht_model_dims(const ht_model* m, const DLTensor* inputs, int64_t* dims, ht_error* error) {
  if (ht_model_given(m, inputs, dims, error) != 0) return -1;
  for (int32_t i = 0; i < m->dim_count; ++i)
    if (dims[i] < 0) return ht_refuse(error, "ValueError", "%s: no input says what %s is", m->name, m->dims[i]);
  return 0;
}

static double real_of(int64_t bits) {
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static int put_real(double value, int64_t* out) {
  value += 0.0; /* the bits of -0 are those of a size that is not known */
  memcpy(out, &value, sizeof value);
  return 0;
}

/* The nearest number of fp16, ties to the even one. */
static double to_fp16(double value) {
  if (value != value) return value;
  if (!(fabs(value) < 65520.0)) return value < 0 ? -INFINITY : INFINITY;
  int exponent;
  frexp(value, &exponent);
  double unit = ldexp(1.0, (exponent < -13 ? -13 : exponent) - 11);
  return nearbyint(value / unit) * unit;
}

/* Through fp32, the nearest number whose last 16 bits are 0; ties to the even one. */
static double to_bf16(double value) {
  float narrow = (float)value;
  uint32_t bits;
  if (narrow != narrow) return value;
  memcpy(&bits, &narrow, sizeof bits);
  bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
  memcpy(&narrow, &bits, sizeof bits);
  return narrow;
}

static int typed_value(int op, int64_t one, int64_t other, int64_t* out) {
  double a = real_of(one), b = real_of(other);
  switch (op) {
    case SIZE_QUOTIENT:
      if (other == 0 || (one == INT64_MIN && other == -1)) return 1;
      return *out = one / other, 0;
    case SIZE_REAL: return put_real((double)one, out);
    case SIZE_WHOLE: return a > -0x1p63 && a < 0x1p63 ? (*out = (int64_t)a, 0) : 1;
    case SIZE_REAL_ADD: return put_real(a + b, out);
    case SIZE_REAL_SUB: return put_real(a - b, out);
    case SIZE_REAL_MUL: return put_real(a * b, out);
    case SIZE_REAL_DIV: return put_real(a / b, out);
    case SIZE_REAL_MAX: return put_real(a != a || a > b ? a : b, out);
    case SIZE_REAL_MIN: return put_real(a != a || a < b ? a : b, out);
    case SIZE_REAL_FLOOR: return put_real(floor(a), out);
    case SIZE_REAL_CEIL: return put_real(ceil(a), out);
    case SIZE_REAL_ROUND: return put_real(nearbyint(a), out);
    case SIZE_REAL_SQRT: return put_real(sqrt(a), out);
    case SIZE_TO_FP32: return put_real((float)a, out);
    case SIZE_TO_FP16: return put_real(to_fp16(a), out);
    case SIZE_TO_BF16: return put_real(to_bf16(a), out);
    case SIZE_TO_INT8: return *out = (int8_t)one, 0;
    case SIZE_TO_INT16: return *out = (int16_t)one, 0;
    case SIZE_TO_INT32: return *out = (int32_t)one, 0;
    case SIZE_TO_UINT8: return *out = (uint8_t)one, 0;
    case SIZE_TO_UINT16: return *out = (uint16_t)one, 0;
    default: return *out = (uint32_t)one, 0;
  }
}

int ht_size_value(const ht_size_line* line, const int64_t* dims, const int64_t* sizes, int64_t* out) {
  if (line->op == SIZE_DIM) return *out = dims[line->a], 0;
  if (line->op == SIZE_NUMBER) return *out = line->number, 0;
  int64_t a = sizes[line->a], b = sizes[line->b], rest;
  switch (line->op) {
    case SIZE_ADD: return __builtin_add_overflow(a, b, out);
    case SIZE_SUB: return __builtin_sub_overflow(a, b, out);
    case SIZE_MUL: return __builtin_mul_overflow(a, b, out);
    case SIZE_CAPACITY: return *out = a, 0;
    case SIZE_MAXIMUM: return *out = a > b ? a : b, 0;
    case SIZE_MINIMUM: return *out = a < b ? a : b, 0;
    case SIZE_DIV:
    case SIZE_MOD:
      if (b == 0 || (a == INT64_MIN && b == -1)) return 1;
      rest = a % b; /* rounded down, as the importer does */
      if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
      return *out = line->op == SIZE_MOD ? rest : (a - rest) / b, 0;
    default: return typed_value(line->op, a, b, out);
  }
}

int ht_model_extents(const ht_model* m, const ht_model_tensor* t, const int64_t* sizes, int64_t* out, int64_t* count, ht_error* error) {
  *count = 1;
  int wide = 0, empty = 0;
  for (int32_t a = 0; a < t->rank; ++a) {
    int64_t extent = t->weight >= 0 ? t->shape[a] : sizes[t->shape[a]];
    if (extent < 0 || extent > HT_MODEL_EXTENT) {
      return ht_refuse(error, "ValueError", "%s: these sizes make the tensor %.60s of an extent of %lld; this model takes no such request", m->name, t->name,
                       (long long)extent);
    }
    out[a] = extent;
    empty |= extent == 0;
    if (extent != 0) wide |= __builtin_mul_overflow(*count, extent, count) || *count > HT_MODEL_BYTES;
    if (wide) *count = 1;
  }
  if (empty) *count = 0;
  else if (wide) return ht_refuse(error, "ValueError", "%s: the tensor %.60s would be larger than any memory", m->name, t->name);
  return 0;
}

const ht_model_way* ht_model_way_of(const ht_model* m, const int64_t* sizes) {
  const ht_model_way* way = m->ways;
  while (way->line >= 0 && sizes[way->line] > way->most) ++way; /* the last one has no line */
  return way;
}

int ht_model_sizes(const ht_model* m, const int64_t* dims, int64_t* sizes, ht_error* error) {
  for (int32_t i = 0; i < m->size_count; ++i)
    if (ht_size_value(&m->sizes[i], dims, sizes, &sizes[i]))
      return ht_refuse(error, "ValueError", "%s: an extent of this request cannot be computed; this model takes no such request", m->name);
    else if (i == m->capacity && dims[m->dim_count] > sizes[i])
      sizes[i] = dims[m->dim_count];
  for (int32_t i = 0; i < m->required_count; ++i)
    if (sizes[m->required[i].line] == 0) return ht_refuse(error, "ValueError", "%s: %s", m->name, m->required[i].words);
  for (int32_t i = 0; i < m->equal_count; ++i) {
    int64_t one = sizes[m->equal[2 * i]], other = sizes[m->equal[2 * i + 1]];
    if (one == other) continue;
    char left[96] = "", right[96] = "";
    size_words(m, m->equal[2 * i], left, sizeof left);
    size_words(m, m->equal[2 * i + 1], right, sizeof right);
    return ht_refuse(error, "ValueError", "%s: this request makes %s = %lld and %s = %lld, which must be equal; the model takes no such request", m->name, left,
                     (long long)one, right, (long long)other);
  }
  int64_t extents[HT_MODEL_AXES], count;
  for (int32_t i = 0; i < m->tensor_count; ++i)
    if (m->tensors[i].weight < 0 && ht_model_extents(m, &m->tensors[i], sizes, extents, &count, error) != 0) return -1;
  return 0;
}

/* The first element, of those from `at` on, that is no index of so many rows; the count where all are. */
static int64_t astray(const DLTensor* given, int64_t at, int64_t step, int64_t count, int64_t rows) {
  int64_t index;
#define SCAN(kind) for (const kind* held = given->data; at < count && held[at] >= -rows && held[at] < rows;) at += step;
  if (given->dtype.code == kDLInt && given->dtype.bits == 64) SCAN(int64_t)
  else if (given->dtype.code == kDLInt && given->dtype.bits == 32) SCAN(int32_t)
  else while (at < count && ht_between_element(given, at, &index) == 0 && index >= -rows && index < rows) at += step;
#undef SCAN
  return at;
}

/* The same of a view, an axis after the other; -1: it reaches beyond the input. */
static int64_t astray_in(const DLTensor* given, const ht_model_indices* own, const int64_t* sizes, int64_t count, int64_t rows) {
  int64_t at = sizes[own->first], last = at, place[HT_MODEL_AXES] = {0};
  for (int32_t a = 0; a < own->rank; ++a)
    if (sizes[own->axes[2 * a]] == 0) return count;
  for (int32_t a = 0; a < own->rank; ++a) {
    int64_t extent = sizes[own->axes[2 * a]], stride = sizes[own->axes[2 * a + 1]], reach;
    if (extent < 0 || stride < 1 || __builtin_mul_overflow(extent - 1, stride, &reach) || __builtin_add_overflow(last, reach, &last)) return -1;
  }
  if (at < 0 || last >= count) return -1;
  const int32_t inner = own->rank - 1;
  const int64_t stride = inner < 0 ? 1 : sizes[own->axes[2 * inner + 1]], run = inner < 0 ? 1 : (sizes[own->axes[2 * inner]] - 1) * stride + 1;
  for (;;) {
    int64_t bad = astray(given, at, stride, at + run, rows);
    if (bad < at + run) return bad;
    int32_t a = inner - 1;
    for (; a >= 0; --a) {
      at += sizes[own->axes[2 * a + 1]];
      if (++place[a] < sizes[own->axes[2 * a]]) break;
      at -= place[a] * sizes[own->axes[2 * a + 1]];
      place[a] = 0;
    }
    if (a < 0) return count;
  }
}

int ht_model_indices_in(const ht_model* m, const DLTensor* inputs, const int64_t* sizes, ht_error* error) {
  for (int32_t i = 0; i < m->index_count; ++i) {
    const ht_model_indices* own = &m->indices[i];
    DLTensor given = inputs[own->input];
    given.data = ht_data(&given);
    int64_t rows = sizes[own->line], count = 1, index;
    for (int a = 0; a < given.ndim; ++a) count *= given.shape[a];
    int64_t at = astray_in(&given, own, sizes, count, rows);
    if (at < 0) return ht_refuse(error, "ValueError", "%s: %.90s takes indices from elements that the input %.60s of this shape has not", m->name, own->reader, m->inputs[own->input].name);
    if (at >= count || ht_between_element(&given, at, &index) != 0) continue;
    return ht_refuse(error, "ValueError", "%s: %.90s: element %lld of the input %.60s is the index %lld, but there are %lld rows: %lld to %lld", m->name, own->reader,
                     (long long)at, m->inputs[own->input].name, (long long)index, (long long)rows, (long long)-rows, (long long)rows - 1);
  }
  return 0;
}
