/* The kernel of a session's graph, or of a subgraph of it: one call of the pack's model, on the runtime's own tensors. */
#include <stdlib.h>
#include <string.h>

#include "provider.h"

#define MOST_ENDS 1024 /* inputs, or outputs, of a model: their tensors lie on the stack of a call */

typedef struct {
  int number;       /* of the fused node's input or output; -1: the model's own default, or an output that nobody reads */
  DLTensor default_of;
} kernel_end;

typedef struct {
  OrtNodeComputeInfo base;
  ort_table api;
  ht_model* model;
  int input_count, output_count;
  kernel_end *inputs, *outputs;
} kernel;

typedef struct unread_output { /* memory of an output that nobody reads; its elements follow */
  _Alignas(64) struct unread_output* next;
} unread_output;

typedef struct { /* of one call: where outputs go */
  const kernel* own;
  OrtKernelContext* context;
  OrtStatus* status;
  unread_output* unread;
} call;

/* DLPack's type of an element type of ONNX; bits 0: none that a pack has. */
static DLDataType type_of(int onnx) {
  static const DLDataType types[] = {
      [1] = {kDLFloat, 32, 1}, [2] = {kDLUInt, 8, 1},    [3] = {kDLInt, 8, 1},    [4] = {kDLUInt, 16, 1},  [5] = {kDLInt, 16, 1},
      [6] = {kDLInt, 32, 1},   [7] = {kDLInt, 64, 1},    [9] = {kDLBool, 8, 1},   [10] = {kDLFloat, 16, 1}, [11] = {kDLFloat, 64, 1},
      [12] = {kDLUInt, 32, 1}, [13] = {kDLUInt, 64, 1},  [16] = {kDLBfloat, 16, 1}};
  return onnx >= 0 && onnx < (int)(sizeof types / sizeof *types) ? types[onnx] : (DLDataType){0, 0, 1};
}

static void* unread_memory(call* own, const DLTensor* wanted) {
  size_t bytes = (size_t)(wanted->dtype.bits * wanted->dtype.lanes + 7) / 8;
  for (int i = 0; i < wanted->ndim; ++i) bytes *= (size_t)wanted->shape[i];
  unread_output* memory = aligned_alloc(64, sizeof *memory + (bytes + 63) / 64 * 64);
  if (memory == NULL) return NULL;
  memory->next = own->unread;
  own->unread = memory;
  return memory + 1;
}

static void free_unread(call* own) {
  for (unread_output* next; own->unread != NULL; own->unread = next) {
    next = own->unread->next;
    free(own->unread);
  }
}

static void* output_memory(void* arg, int output, const DLTensor* wanted) {
  call* own = arg;
  OrtValue* value;
  void* data = NULL;
  if (own->status != NULL) return NULL;
  if (own->own->outputs[output].number < 0) return unread_memory(own, wanted);
  own->status = ort_output(own->own->api, own->context, (size_t)own->own->outputs[output].number, wanted->shape, (size_t)wanted->ndim, &value);
  if (own->status == NULL) own->status = ort_tensor_data(own->own->api, value, &data);
  return data;
}

static OrtStatus* compute(OrtNodeComputeInfo* base, void* state, OrtKernelContext* context) {
  const kernel* own = (const kernel*)base;
  (void)state;
  DLTensor inputs[own->input_count + 1]; /* no array is empty */
  for (int i = 0; i < own->input_count; ++i) {
    if (own->inputs[i].number < 0) {
      inputs[i] = own->inputs[i].default_of;
      continue;
    }
    const OrtValue* value;
    const int64_t* shape = NULL;
    size_t rank = 0;
    int type = 0;
    void* data = NULL;
    OrtStatus* status = ort_input(own->api, context, (size_t)own->inputs[i].number, &value);
    if (status == NULL) status = ort_tensor_shape(own->api, value, &type, &shape, &rank);
    if (status == NULL) status = ort_tensor_data(own->api, (OrtValue*)value, &data);
    if (status != NULL) return status;
    inputs[i] = (DLTensor){data, {kDLCPU, 0}, (int32_t)rank, type_of(type), (int64_t*)shape, NULL, 0};
  }
  call one = {own, context, NULL, NULL};
  ht_error error;
  const ht_status done = ht_model_run_placed(own->model, inputs, NULL, output_memory, &one, &error);
  free_unread(&one);
  if (done == HT_OK) return one.status;
  return one.status != NULL ? one.status : provider_failed(own->api, &error);
}

static OrtStatus* create_state(OrtNodeComputeInfo* base, OrtNodeComputeContext* context, void** state) {
  (void)context;
  *state = base; /* a call needs nothing of its own */
  return NULL;
}

static void release_state(OrtNodeComputeInfo* base, void* state) { (void)base, (void)state; }

void kernel_free(OrtNodeComputeInfo* base) {
  kernel* own = (kernel*)base;
  if (own == NULL) return;
  ht_model_free(own->model);
  free(own->inputs);
  free(own->outputs);
  free(own);
}

/* Number of the fused node's end of this name; -1: it has none. */
static OrtStatus* number_of(ort_table api, const OrtValueInfo* const* ends, size_t count, const char* name, int* out) {
  *out = -1;
  for (size_t i = 0; i < count; ++i) {
    const char* other = NULL;
    OrtStatus* status = ends[i] == NULL ? NULL : ort_value_name(api, ends[i], &other);
    if (status != NULL) return status;
    if (other != NULL && strcmp(other, name) == 0) *out = (int)i;
  }
  return NULL;
}

/* Of a whole graph every end of the fused node is one of the model's, and the other way round. A subgraph's node may have further inputs, and may
 * lack outputs that nobody reads. */
static OrtStatus* match(kernel* own, const OrtNode* fused, int outputs, int is_subgraph, kernel_end** out, int* out_count) {
  size_t count = 0;
  ht_model_end end;
  int ends = 0;
  OrtStatus* status = outputs ? ort_node_output_count(own->api, fused, &count) : ort_node_input_count(own->api, fused, &count);
  const OrtValueInfo** values = calloc(count + 1, sizeof *values);
  while ((outputs ? ht_model_output(own->model, ends, &end) : ht_model_input(own->model, ends, &end)) == HT_OK) ++ends;
  *out = calloc((size_t)ends + 1, sizeof **out);
  *out_count = ends;
  if (status == NULL && (values == NULL || *out == NULL)) status = provider_refuse(own->api, ORT_FAIL, "no memory for the ends of a model");
  if (status == NULL && ends > MOST_ENDS) status = provider_refuse(own->api, ORT_FAIL, "the model has %d %s; at most %d are served", ends, outputs ? "outputs" : "inputs", MOST_ENDS);
  if (status == NULL) status = ort_node_ends(own->api, outputs ? ORT_OUTPUTS : ORT_INPUTS, fused, values, count);
  size_t matched = 0;
  for (int i = 0; status == NULL && i < ends; ++i) {
    kernel_end* item = &(*out)[i];
    (void)(outputs ? ht_model_output(own->model, i, &end) : ht_model_input(own->model, i, &end));
    status = number_of(own->api, values, count, end.name, &item->number);
    matched += item->number >= 0;
    if (status == NULL && item->number < 0 && !(outputs && is_subgraph) && (outputs || ht_model_input_default(own->model, i, &item->default_of) != HT_OK))
      status = provider_refuse(own->api, ORT_FAIL, "%s %s of the pack's model is computed by no node of this graph; run the session with graph_optimization_level ORT_DISABLE_ALL", outputs ? "output" : "input", end.name);
  }
  if (status == NULL && (outputs || !is_subgraph) && matched != count)
    status = provider_refuse(own->api, ORT_FAIL, "the graph has %zu %s, of which the pack's model has %zu; tune for this file", count, outputs ? "outputs" : "inputs", matched);
  free(values);
  return status;
}

OrtStatus* kernel_make(ort_table api, ht_model* model, int is_subgraph, const OrtNode* fused, OrtNodeComputeInfo** out) {
  kernel* own = calloc(1, sizeof *own);
  if (own == NULL) {
    ht_model_free(model);
    return provider_refuse(api, ORT_FAIL, "no memory for a kernel");
  }
  own->base = (OrtNodeComputeInfo){ORT_VERSION_USED, create_state, compute, release_state};
  own->api = api;
  own->model = model;
  OrtStatus* status = match(own, fused, 0, is_subgraph, &own->inputs, &own->input_count);
  if (status == NULL) status = match(own, fused, 1, is_subgraph, &own->outputs, &own->output_count);
  if (status != NULL) return kernel_free(&own->base), status;
  *out = &own->base;
  return NULL;
}
