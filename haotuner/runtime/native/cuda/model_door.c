/* The doors of a pack's models for tvm-ffi, whose tensors come from any framework of the device: as model/model_api.h, with tensors one by one. */
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

/* The stream that is told, or the one that tvm-ffi was told for the device. */
static void* stream_of(const ht_model* m, const TVMFFIAny* told) {
  void* stream = told->type_index == kTVMFFIInt ? (void*)(uintptr_t)told->v_int64 : NULL;
  if (told->type_index == kTVMFFINone && TVMFFIEnvGetStream != NULL) stream = TVMFFIEnvGetStream(kDLCUDA, m->device);
  return stream;
}

static int whole_or_none(const TVMFFIAny* value) { return value->type_index == kTVMFFIInt || value->type_index == kTVMFFINone; }

/* So many whole numbers of the host at least, to be written; NULL: the argument is none. */
static int64_t* numbers_of(const TVMFFIAny* arg, int64_t least) {
  const DLTensor* t = ht_ffi_tensor(arg);
  const int fits = t != NULL && t->device.device_type == kDLCPU && t->ndim == 1 && t->shape[0] >= least && t->dtype.bits == 64 && ht_addressable(t);
  return fits ? (int64_t*)(void*)ht_data(t) : NULL;
}

/* model_shapes(model, int64[ranks of all outputs], inputs...) */
HT_EXPORT int __tvm_ffi_ht_model_shapes(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  (void)self;
  ht_model* m = model_of(args, count);
  DLTensor given[MOST];
  ht_error error;
  if (m == NULL || count != 2 + m->input_count) return ht_ffi_raise("TypeError", "model_shapes", "expected (model, int64 array, inputs)");
  int64_t ranks = 0;
  for (int32_t i = 0; i < m->output_count; ++i) ranks += m->tensors[m->outputs[i].tensor].rank;
  int64_t* found = numbers_of(&args[1], ranks);
  if (found == NULL) return ht_ffi_raise("TypeError", "model_shapes", "expected (model, int64 array, inputs)");
  if (tensors_of(m, args, 2, m->input_count, given) != 0) return -1;
  if (ht_model_shapes(m, given, found, &error) != 0) return raised(m, &error);
  result->type_index = kTVMFFINone;
  return 0;
}

/* model_queue(model, stream or None, inputs..., outputs...): without a stream it is the one that tvm-ffi was told for the device. */
HT_EXPORT int __tvm_ffi_ht_model_queue(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  (void)self;
  ht_model* m = model_of(args, count);
  DLTensor given[MOST];
  ht_error error;
  if (m == NULL || count != 2 + m->input_count + m->output_count || !whole_or_none(&args[1]))
    return ht_ffi_raise("TypeError", "model_queue", "expected (model, stream, inputs, outputs)");
  if (tensors_of(m, args, 2, m->input_count + m->output_count, given) != 0) return -1;
  if (ht_model_run(m, given, given + m->input_count, stream_of(m, &args[1]), &error) != 0) return raised(m, &error);
  result->type_index = kTVMFFINone;
  return 0;
}

/* model_place(model, output, address of a DLTensor, tensor) gives the address where the tensor lies, which is as the other says. */
HT_EXPORT int __tvm_ffi_ht_model_place(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  (void)self;
  const ht_model* m = model_of(args, count);
  ht_error error;
  const int64_t output = m == NULL ? -1 : ht_ffi_whole(args, count, 1, m->output_count);
  if (output < 0 || count != 4 || args[2].type_index != kTVMFFIInt) return ht_ffi_raise("TypeError", "model_place", "expected (model, output, address, tensor)");
  const DLTensor* found = ht_ffi_tensor(&args[3]);
  if (found == NULL) return ht_ffi_raise("TypeError", m->name, "what an output is to lie in is no tensor: pass one of the pack's device");
  if (ht_model_fits(m, (int32_t)output, (const DLTensor*)(uintptr_t)args[2].v_int64, found, &error) != 0) return raised(m, &error);
  *result = (TVMFFIAny){.type_index = kTVMFFIInt, .v_int64 = (int64_t)(uintptr_t)ht_data(found)};
  return 0;
}

/* model_queue_placed(model, stream or None, seed or None, address of a ht_model_place_fn, int64[dimensions], inputs...) */
HT_EXPORT int __tvm_ffi_ht_model_queue_placed(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  (void)self;
  ht_model* m = model_of(args, count);
  DLTensor given[MOST];
  ht_error error;
  int64_t* dims = m != NULL && count == 5 + m->input_count ? numbers_of(&args[4], m->dim_count) : NULL;
  if (dims == NULL || args[3].type_index != kTVMFFIInt || !whole_or_none(&args[1]) || !whole_or_none(&args[2]))
    return ht_ffi_raise("TypeError", "model_queue_placed", "expected (model, stream, seed, address, int64 array, inputs)");
  if (tensors_of(m, args, 5, m->input_count, given) != 0) return -1;
  const uint64_t seed = (uint64_t)args[2].v_int64;
  ht_model_place_fn place;
  *(void**)&place = (void*)(uintptr_t)args[3].v_int64;
  void* stream = stream_of(m, &args[1]);
  if (ht_model_run_placed(m, given, args[2].type_index == kTVMFFIInt ? &seed : NULL, place, NULL, stream, dims, &error) != 0) return raised(m, &error);
  result->type_index = kTVMFFINone;
  return 0;
}
