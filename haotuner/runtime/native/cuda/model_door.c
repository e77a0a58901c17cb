/* The doors of a pack's models for tvm-ffi, whose tensors come from any framework of the device: as model/entry.h, with tensors one by one. */
#include <stdio.h>
#include <string.h>

#include <tvm/ffi/extra/c_env_api.h>

#include "ht_pack.h"
#include "model/model.h"

#pragma weak TVMFFIEnvGetStream

enum { MOST = 2 * HT_MODEL_ENDS };

static ht_model* model_of(const TVMFFIAny* args, int32_t count) {
  return count > 0 && args[0].type_index == kTVMFFIInt ? (ht_model*)(uintptr_t)args[0].v_int64 : NULL;
}

static int raised(const ht_model* m, const ht_error* error) {
  const size_t size = strlen(m->name);
  const int named = strncmp(error->text, m->name, size) == 0 && strncmp(error->text + size, ": ", 2) == 0;
  return ht_ffi_raise(error->kind, m->name, error->text + (named ? size + 2 : 0));
}

/* Tensors of the arguments from `first` on, in the model's order. */
static int tensors_of(const ht_model* m, const TVMFFIAny* args, int32_t first, int32_t count, DLTensor* out) {
  for (int32_t i = 0; i < count; ++i) {
    const DLTensor* t = ht_ffi_tensor(&args[first + i]);
    if (t == NULL) {
      char text[128];
      const int output = i >= m->input_count;
      snprintf(text, sizeof text, "%s %.60s is not a tensor: pass a tensor of the pack's device", output ? "out" : "input",
               output ? m->outputs[i - m->input_count].name : m->inputs[i].name);
      return ht_ffi_raise("TypeError", m->name, text);
    }
    out[i] = *t;
  }
  return 0;
}

/* model_shapes(model, int64[ranks of all outputs], inputs...) */
HT_EXPORT int __tvm_ffi_ht_model_shapes(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  (void)self;
  ht_model* m = model_of(args, count);
  DLTensor given[MOST];
  ht_error error;
  if (m == NULL || count != 2 + m->input_count) return ht_ffi_raise("TypeError", "model_shapes", "expected (model, int64 array, inputs)");
  const DLTensor* found = ht_ffi_tensor(&args[1]);
  int64_t ranks = 0;
  for (int32_t i = 0; i < m->output_count; ++i) ranks += m->tensors[m->outputs[i].tensor].rank;
  if (found == NULL || found->device.device_type != kDLCPU || found->ndim != 1 || found->shape[0] < ranks || found->dtype.bits != 64)
    return ht_ffi_raise("TypeError", "model_shapes", "expected (model, int64 array, inputs)");
  if (tensors_of(m, args, 2, m->input_count, given) != 0) return -1;
  if (ht_model_shapes(m, given, (int64_t*)(void*)ht_data(found), &error) != 0) return raised(m, &error);
  result->type_index = kTVMFFINone;
  return 0;
}

/* model_queue(model, stream or None, inputs..., outputs...): without a stream it is the one that tvm-ffi was told for the device. */
HT_EXPORT int __tvm_ffi_ht_model_queue(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  (void)self;
  ht_model* m = model_of(args, count);
  DLTensor given[MOST];
  ht_error error;
  if (m == NULL || count != 2 + m->input_count + m->output_count || (args[1].type_index != kTVMFFIInt && args[1].type_index != kTVMFFINone))
    return ht_ffi_raise("TypeError", "model_queue", "expected (model, stream, inputs, outputs)");
  if (tensors_of(m, args, 2, m->input_count + m->output_count, given) != 0) return -1;
  void* stream = args[1].type_index == kTVMFFIInt ? (void*)(uintptr_t)args[1].v_int64 : NULL;
  if (args[1].type_index == kTVMFFINone && TVMFFIEnvGetStream != NULL) stream = TVMFFIEnvGetStream(kDLCUDA, m->device);
  if (ht_model_run(m, given, given + m->input_count, stream, &error) != 0) return raised(m, &error);
  result->type_index = kTVMFFINone;
  return 0;
}
