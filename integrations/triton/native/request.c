/* One request: its tensors where they lie, one call of the model, outputs in the response's own buffers. */
#include <stdlib.h>
#include <string.h>

#include "backend.h"

#define MOST_ENDS 1024 /* inputs, or outputs, of a model: their tensors lie on the stack of a call */

typedef struct { /* of one call */
  const served_model* own;
  TRITONBACKEND_Request* request;
  TRITONBACKEND_Response* response;
  TRITONSERVER_Error* error;
  void** scratch; /* memory of outputs that nobody asked for */
} call;

static DLDataType type_of(int triton) {
  static const DLDataType types[] = {
      [TRITON_TYPE_BOOL] = {kDLBool, 8, 1},   [TRITON_TYPE_UINT8] = {kDLUInt, 8, 1},   [TRITON_TYPE_UINT16] = {kDLUInt, 16, 1}, [TRITON_TYPE_UINT32] = {kDLUInt, 32, 1},
      [TRITON_TYPE_UINT64] = {kDLUInt, 64, 1}, [TRITON_TYPE_INT8] = {kDLInt, 8, 1},     [TRITON_TYPE_INT16] = {kDLInt, 16, 1},   [TRITON_TYPE_INT32] = {kDLInt, 32, 1},
      [TRITON_TYPE_INT64] = {kDLInt, 64, 1},   [TRITON_TYPE_FP16] = {kDLFloat, 16, 1},  [TRITON_TYPE_FP32] = {kDLFloat, 32, 1},  [TRITON_TYPE_FP64] = {kDLFloat, 64, 1},
      [TRITON_TYPE_BF16] = {kDLBfloat, 16, 1}};
  return triton > 0 && triton < (int)(sizeof types / sizeof *types) ? types[triton] : (DLDataType){0, 0, 1};
}

static int triton_type(DLDataType type) {
  for (int i = TRITON_TYPE_BOOL; i <= TRITON_TYPE_BF16; ++i)
    if (type_of(i).code == type.code && type_of(i).bits == type.bits && type.bits != 0) return i;
  return 0;
}

/* Bytes of a tensor; -1: more than can be counted, or a negative extent. */
static int64_t bytes_of(const int64_t* shape, uint32_t rank, int bits) {
  int64_t bytes = bits / 8;
  for (uint32_t a = 0; a < rank; ++a)
    if (shape[a] < 0 || __builtin_mul_overflow(bytes, shape[a], &bytes)) return -1;
  return bytes;
}

/* The request's tensor of an input; *copy: memory to free, where it did not lie in one aligned buffer of the CPU's. */
static TRITONSERVER_Error* read_input(TRITONBACKEND_Input* input, const char* name, DLTensor* out, void** copy) {
  const char* same;
  const int64_t* shape;
  uint32_t rank, buffers;
  uint64_t bytes, size;
  int type, memory = TRITON_MEMORY_CPU;
  int64_t memory_id = 0;
  const void* data = NULL;
  TRITONSERVER_Error* error = TRITONBACKEND_InputProperties(input, &same, &type, &shape, &rank, &bytes, &buffers);
  if (error != NULL) return error;
  DLDataType own = type_of(type);
  if (own.bits == 0) return triton_refuse(TRITON_ERROR_INVALID_ARG, "input %s has type %d of the server's, which no pack computes", name, type);
  if (bytes_of(shape, rank, own.bits) != (int64_t)bytes)
    return triton_refuse(TRITON_ERROR_INVALID_ARG, "input %s has %llu bytes, which are not those of its shape", name, (unsigned long long)bytes);
  *out = (DLTensor){NULL, {kDLCPU, 0}, (int32_t)rank, own, (int64_t*)shape, NULL, 0};
  if (buffers == 1) {
    if ((error = TRITONBACKEND_InputBuffer(input, 0, &data, &size, &memory, &memory_id)) != NULL) return error;
    if (memory != TRITON_MEMORY_GPU && size == bytes && (uintptr_t)data % (uintptr_t)(own.bits / 8) == 0) return out->data = (void*)data, NULL;
  }
  char* joined = *copy = malloc(bytes + 1);
  if (joined == NULL) return triton_refuse(TRITON_ERROR_UNAVAILABLE, "no memory for the %llu bytes of input %s", (unsigned long long)bytes, name);
  uint64_t used = 0;
  for (uint32_t i = 0; i < buffers; ++i) {
    memory = TRITON_MEMORY_CPU;
    if ((error = TRITONBACKEND_InputBuffer(input, i, &data, &size, &memory, &memory_id)) != NULL) return error;
    if (memory == TRITON_MEMORY_GPU) return triton_refuse(TRITON_ERROR_UNSUPPORTED, "input %s lies on a GPU; the pack computes on the CPU", name);
    if (size > bytes - used) return triton_refuse(TRITON_ERROR_INVALID_ARG, "the buffers of input %s have more bytes than its shape", name);
    memcpy(joined + used, data, size);
    used += size;
  }
  if (used != bytes) return triton_refuse(TRITON_ERROR_INVALID_ARG, "the buffers of input %s have fewer bytes than its shape", name);
  out->data = joined;
  return NULL;
}

static int is_requested(const call* own, const char* name) {
  uint32_t count = 0;
  const char* other;
  TRITONSERVER_Error* error = TRITONBACKEND_RequestOutputCount(own->request, &count);
  for (uint32_t i = 0; error == NULL && i < count; ++i) {
    if ((error = TRITONBACKEND_RequestOutputName(own->request, i, &other)) == NULL && strcmp(other, name) == 0) return 1;
  }
  if (error != NULL) TRITONSERVER_ErrorDelete(error);
  return 0;
}

static void* output_memory(void* arg, int output, const DLTensor* wanted) {
  call* own = arg;
  ht_model_end end;
  TRITONBACKEND_Output* target;
  void* data = NULL;
  int memory = TRITON_MEMORY_CPU, type = triton_type(wanted->dtype);
  int64_t memory_id = 0, bytes = bytes_of(wanted->shape, (uint32_t)wanted->ndim, wanted->dtype.bits);
  if (own->error != NULL || ht_model_output(own->own->model, output, &end) != HT_OK || bytes < 0) return NULL;
  if (!is_requested(own, end.name)) return own->scratch[output] = malloc((size_t)bytes + 1);
  own->error = TRITONBACKEND_ResponseOutput(own->response, &target, end.name, type, wanted->shape, (uint32_t)wanted->ndim);
  if (own->error == NULL) own->error = TRITONBACKEND_OutputBuffer(target, &data, (uint64_t)bytes, &memory, &memory_id);
  if (own->error == NULL && memory == TRITON_MEMORY_GPU) own->error = triton_refuse(TRITON_ERROR_UNSUPPORTED, "output %s is to lie on a GPU; the pack computes on the CPU", end.name);
  return own->error == NULL ? data : NULL;
}

/* The request's input of this name; NULL: it has none. */
static TRITONSERVER_Error* input_of(TRITONBACKEND_Request* request, const char* name, TRITONBACKEND_Input** out) {
  uint32_t count = 0, rank, buffers;
  uint64_t bytes;
  int type;
  const int64_t* shape;
  const char* other;
  *out = NULL;
  TRITONSERVER_Error* error = TRITONBACKEND_RequestInputCount(request, &count);
  for (uint32_t i = 0; error == NULL && i < count; ++i) {
    TRITONBACKEND_Input* input;
    if ((error = TRITONBACKEND_RequestInputByIndex(request, i, &input)) != NULL) break;
    error = TRITONBACKEND_InputProperties(input, &other, &type, &shape, &rank, &bytes, &buffers);
    if (error == NULL && strcmp(other, name) == 0) return *out = input, NULL;
  }
  return error;
}

static TRITONSERVER_Error* run(call* one, DLTensor* inputs, void** copies) {
  const served_model* own = one->own;
  TRITONSERVER_Error* error = NULL;
  for (int i = 0; error == NULL && i < own->input_count; ++i) {
    ht_model_end end;
    TRITONBACKEND_Input* input;
    if (ht_model_input(own->model, i, &end) != HT_OK) return triton_refuse(TRITON_ERROR_INTERNAL, "the model has no input %d", i);
    error = input_of(one->request, end.name, &input);
    if (error != NULL) break;
    if (input != NULL) error = read_input(input, end.name, &inputs[i], &copies[i]);
    else if (ht_model_input_default(own->model, i, &inputs[i]) != HT_OK) error = triton_refuse(TRITON_ERROR_INVALID_ARG, "the request has no input %s", end.name);
  }
  if (error != NULL) return error;
  ht_error failed;
  if (ht_model_run_placed(own->model, inputs, NULL, output_memory, one, &failed) == HT_OK) return one->error;
  return one->error != NULL ? one->error : triton_failed(&failed);
}

TRITONSERVER_Error* answer_request(const served_model* own, TRITONBACKEND_Request* request, TRITONBACKEND_Response* response) {
  if (own->input_count > MOST_ENDS || own->output_count > MOST_ENDS) return triton_refuse(TRITON_ERROR_UNSUPPORTED, "the model has more than %d inputs or outputs", MOST_ENDS);
  DLTensor inputs[own->input_count + 1]; /* no array is empty */
  void *copies[own->input_count + 1], *scratch[own->output_count + 1];
  memset(copies, 0, sizeof copies);
  memset(scratch, 0, sizeof scratch);
  call one = {own, request, response, NULL, scratch};
  TRITONSERVER_Error* error = run(&one, inputs, copies);
  for (int i = 0; i < own->input_count; ++i) free(copies[i]);
  for (int i = 0; i < own->output_count; ++i) free(scratch[i]);
  return error;
}
