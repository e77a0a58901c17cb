/* The pack's side of model/model_api.h. */
#include "model/model_api.h"

#include <stdio.h>

#include "ht_pack.h"
#include "model/model.h"

#define MOST_ARRAYS 16 /* of a call by address: their descriptions lie on the stack */

static int said(int rc, const ht_error* error, const char** kind, char* text, size_t size) {
  if (rc == 0) return 0;
  *kind = error->kind;
  snprintf(text, size, "%s", error->text);
  return -1;
}

static int open_model(const int64_t* words, int64_t count, int weights, int check, int device, int threads, ht_model** out, const char** kind, char* text,
                      size_t size) {
  ht_error error;
  *out = ht_model_open(words, count, weights, check, device, threads, &error);
  return said(*out == NULL ? -1 : 0, &error, kind, text, size);
}

static const char* name(const ht_model* model) { return model->name; }

static const char* dim(const ht_model* model, int index) { return index < 0 || index >= model->dim_count ? NULL : model->dims[index]; }

static void end(const ht_model* model, int output, int index, ht_model_facts* out) {
  int count = output ? model->output_count : model->input_count;
  *out = (ht_model_facts){.name = NULL};
  if (index < 0 || index >= count) return;
  const ht_model_end* found = output ? &model->outputs[index] : &model->inputs[index];
  const ht_model_tensor* t = &model->tensors[found->tensor];
  *out = (ht_model_facts){.name = found->name, .code = t->code, .bits = t->bits, .rank = t->rank};
  for (int a = 0; a < t->rank; ++a) {
    const ht_size_line* line = t->weight >= 0 ? NULL : &model->sizes[t->shape[a]];
    out->extents[a] = line == NULL ? t->shape[a] : line->op == SIZE_NUMBER ? line->number : -1;
    if (line != NULL && line->op == SIZE_DIM) out->dims[a] = model->dims[line->a];
  }
}

static int memory(ht_model* model, const int64_t* dims, int64_t* bytes, const char** kind, char* text, size_t size) {
  ht_error error;
  return said(ht_model_memory(model, dims, bytes, &error), &error, kind, text, size);
}

static int shapes(ht_model* model, const DLTensor* inputs, int64_t* found, const char** kind, char* text, size_t size) {
  ht_error error;
  return said(ht_model_shapes(model, inputs, found, &error), &error, kind, text, size);
}

static int run(ht_model* model, const DLTensor* inputs, const DLTensor* outputs, const char** kind, char* text, size_t size) {
  ht_error error;
  return said(ht_model_run(model, inputs, outputs, NULL, &error), &error, kind, text, size);
}

HT_EXPORT int ht_pack_model_run_arrays(const ht_model_arrays* call);
HT_EXPORT int ht_pack_model_run_arrays(const ht_model_arrays* call) {
  ht_model* m = call->model;
  ht_array rooms[MOST_ARRAYS];
  DLTensor tensors[MOST_ARRAYS];
  const int32_t count = m->input_count + m->output_count;
  if (count > MOST_ARRAYS) return 1;
  for (int32_t i = 0; i < count; ++i) {
    const int written = i >= m->input_count;
    const ht_model_tensor* expected = &m->tensors[(written ? &m->outputs[i - m->input_count] : &m->inputs[i])->tensor];
    const DLTensor* tensor = ht_plain_array(call->arrays[i], written, &rooms[i]);
    if (tensor == NULL || tensor->dtype.code != expected->code || tensor->dtype.bits != expected->bits) return 1;
    tensors[i] = *tensor;
    tensors[i].strides = NULL; /* of axes with one element they may be anything */
  }
  return run(m, tensors, tensors + m->input_count, call->kind, call->text, call->size);
}

HT_EXPORT int ht_pack_model_arrays_agree(int64_t address, const DLTensor* tensor);
HT_EXPORT int ht_pack_model_arrays_agree(int64_t address, const DLTensor* tensor) { return ht_array_agrees(address, tensor); }

/* For people who look for the slow steps: as `run`, and `ns` gets the nanoseconds of every step of the schedule. */
HT_EXPORT int ht_pack_model_times(ht_model* model, const DLTensor* inputs, const DLTensor* outputs, int64_t* ns, const char** kind, char* text, size_t size);
HT_EXPORT int ht_pack_model_times(ht_model* model, const DLTensor* inputs, const DLTensor* outputs, int64_t* ns, const char** kind, char* text, size_t size) {
  ht_error error;
  return said(ht_model_times(model, inputs, outputs, ns, &error), &error, kind, text, size);
}

HT_EXPORT int ht_pack_model_queue(ht_model* model, const DLTensor* inputs, const DLTensor* outputs, void* stream, const char** kind, char* text, size_t size);
HT_EXPORT int ht_pack_model_queue(ht_model* model, const DLTensor* inputs, const DLTensor* outputs, void* stream, const char** kind, char* text, size_t size) {
  ht_error error;
  return said(ht_model_run(model, inputs, outputs, stream, &error), &error, kind, text, size);
}

HT_EXPORT int ht_pack_model_run_placed(ht_model* model, const DLTensor* inputs, const uint64_t* seed, ht_model_placing place, void* arg, int64_t* dims,
                                       const char** kind, char* text, size_t size);
HT_EXPORT int ht_pack_model_run_placed(ht_model* model, const DLTensor* inputs, const uint64_t* seed, ht_model_placing place, void* arg, int64_t* dims,
                                       const char** kind, char* text, size_t size) {
  ht_error error;
  return said(ht_model_run_placed(model, inputs, seed, place, arg, NULL, dims, &error), &error, kind, text, size);
}

HT_EXPORT int ht_pack_model_queue_placed(ht_model* model, const DLTensor* inputs, const uint64_t* seed, ht_model_placing place, void* arg, void* stream,
                                         int64_t* dims, const char** kind, char* text, size_t size);
HT_EXPORT int ht_pack_model_queue_placed(ht_model* model, const DLTensor* inputs, const uint64_t* seed, ht_model_placing place, void* arg, void* stream,
                                         int64_t* dims, const char** kind, char* text, size_t size) {
  ht_error error;
  return said(ht_model_run_placed(model, inputs, seed, place, arg, stream, dims, &error), &error, kind, text, size);
}

HT_EXPORT const char* ht_pack_model_segment(ht_model* model, int index, ht_model* given);
HT_EXPORT const char* ht_pack_model_segment(ht_model* model, int index, ht_model* given) { return ht_chain_segment(model, index, given); }

HT_EXPORT const void* ht_pack_model_default(const ht_model* model, int input, const int64_t** shape);
HT_EXPORT const void* ht_pack_model_default(const ht_model* model, int input, const int64_t** shape) {
  for (int32_t i = 0; i < model->default_count; ++i)
    if (model->defaults[i].input == input) return *shape = model->defaults[i].shape, model->defaults[i].elements;
  return NULL;
}

HT_EXPORT int ht_pack_model_expected(const ht_model* model, const int64_t* dims, double us[3], const char** kind, char* text, size_t size);
HT_EXPORT int ht_pack_model_expected(const ht_model* model, const int64_t* dims, double us[3], const char** kind, char* text, size_t size) {
  ht_error error;
  return said(ht_model_expected(model, dims, us, &error), &error, kind, text, size);
}

HT_EXPORT void ht_pack_model_limit(ht_model* model, int64_t most_bytes);
HT_EXPORT void ht_pack_model_limit(ht_model* model, int64_t most_bytes) { ht_model_limit(model, most_bytes); }

HT_EXPORT const ht_model_door* ht_pack_models(void);
HT_EXPORT const ht_model_door* ht_pack_models(void) {
  static const ht_model_door door = {HT_MODEL_DOOR_VERSION, 0, NULL, open_model, ht_model_close, name, dim, end, memory, shapes, run, ht_model_held, ht_model_trim};
  return &door;
}
