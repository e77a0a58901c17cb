/* The doors of a pack's library for tvm-ffi: one function an op, generated in pack_data.c, and the functions below.
 *
 * call(x, weight, out, setting[, bias]): setting = plan index + 256 * threads. Returns None. */
#include <stdio.h>

#include "ht_pack.h"

#pragma weak TVMFFIErrorSetRaisedFromCStr /* a C server has no tvm-ffi; it comes in through door.c and never gets here */

static int raise(const char* kind, const char* op, const char* text) {
  char message[384];
  snprintf(message, sizeof message, "%s: %s", op, text);
  if (TVMFFIErrorSetRaisedFromCStr != NULL) TVMFFIErrorSetRaisedFromCStr(kind, message);
  return -1;
}

static const DLTensor* tensor(const TVMFFIAny* value) {
  if (value->type_index == kTVMFFIDLTensorPtr) return value->v_ptr;
  if (value->type_index == kTVMFFITensor) return (const DLTensor*)((const char*)value->v_ptr + sizeof(TVMFFIObject));
  return NULL;
}

int ht_ffi_call(int index, const TVMFFIAny* args, int32_t count_args, TVMFFIAny* result) {
  static const char* const names[5] = {"x", "weight", "out", "setting", "bias"};
  const DLTensor* given[5] = {NULL};
  const ht_op* op = &ht_ops[index];
  if (count_args < 4 || count_args > 5 || args[3].type_index != kTVMFFIInt)
    return raise("TypeError", op->name, "expected the arguments (x, weight, out, setting[, bias])");
  for (int i = 0; i < count_args; ++i) {
    if (i == 3) continue;
    given[i] = tensor(&args[i]);
    if (given[i] != NULL) continue;
    char text[128];
    snprintf(text, sizeof text, "%s is not a tensor: pass a numpy array, a torch tensor or another DLPack tensor", names[i]);
    return raise("TypeError", op->name, text);
  }
  ht_error error;
  if (ht_call_op(index, given[0], given[1], given[2], given[4], args[3].v_int64, &error) != 0)
    return raise(error.kind, op->name, error.text);
  result->type_index = kTVMFFINone;
  return 0;
}

/* look_up(op, plan index, m, out int64[2 + 2*HT_MAX_PARTS]): out = count, split, then kernel index and tiles a region. */
HT_EXPORT int __tvm_ffi_ht_look_up(void* self, const TVMFFIAny* args, int32_t count_args, TVMFFIAny* result) {
  (void)self;
  const DLTensor* out = count_args == 4 ? tensor(&args[3]) : NULL;
  if (out == NULL || out->dtype.bits != 64 || out->ndim != 1 || out->shape[0] != 2 + 2 * HT_MAX_PARTS)
    return raise("TypeError", "look_up", "expected (op, plan, m, int64 array of 10)");
  int64_t op_index = args[0].v_int64, plan = args[1].v_int64, m = args[2].v_int64;
  if (op_index < 0 || op_index >= ht_op_count || plan < 0 || plan >= ht_ops[op_index].plan_count || m < 1)
    return raise("ValueError", "look_up", "no such op, plan, or m");
  const ht_op* op = &ht_ops[op_index];
  ht_composition found;
  ht_plan_look_up(op, &op->plans[plan], m, &found);
  int64_t* values = (int64_t*)((char*)out->data + out->byte_offset);
  values[0] = found.count;
  values[1] = found.split;
  for (int i = 0; i < found.count; ++i) {
    values[2 + 2 * i] = found.part[i].kernel - op->kernels;
    values[3 + 2 * i] = found.part[i].tiles;
  }
  result->type_index = kTVMFFINone;
  return 0;
}

/* stats(op, out int64[3]): calls, fallbacks, out_of_range since the library was loaded. */
HT_EXPORT int __tvm_ffi_ht_stats(void* self, const TVMFFIAny* args, int32_t count_args, TVMFFIAny* result) {
  (void)self;
  const DLTensor* out = count_args == 2 ? tensor(&args[1]) : NULL;
  if (out == NULL || out->dtype.bits != 64 || out->ndim != 1 || out->shape[0] != 3)
    return raise("TypeError", "stats", "expected (op, int64 array of 3)");
  if (args[0].v_int64 < 0 || args[0].v_int64 >= ht_op_count) return raise("ValueError", "stats", "no such op");
  ht_counts((int)args[0].v_int64, (int64_t*)((char*)out->data + out->byte_offset));
  result->type_index = kTVMFFINone;
  return 0;
}

/* capture(step): +1 begins, -1 ends counting shapes. */
HT_EXPORT int __tvm_ffi_ht_capture(void* self, const TVMFFIAny* args, int32_t count_args, TVMFFIAny* result) {
  (void)self;
  if (count_args != 1 || (args[0].v_int64 != 1 && args[0].v_int64 != -1)) return raise("TypeError", "capture", "expected 1 or -1");
  ht_capture((int)args[0].v_int64);
  result->type_index = kTVMFFINone;
  return 0;
}

/* seen(op, out int64[2][HT_SHAPE_SLOTS]): rows that each slot stands for, and calls counted in it. */
HT_EXPORT int __tvm_ffi_ht_seen(void* self, const TVMFFIAny* args, int32_t count_args, TVMFFIAny* result) {
  (void)self;
  const DLTensor* out = count_args == 2 ? tensor(&args[1]) : NULL;
  if (out == NULL || out->dtype.bits != 64 || out->ndim != 2 || out->shape[0] != 2 || out->shape[1] != HT_SHAPE_SLOTS)
    return raise("TypeError", "seen", "expected (op, int64 array of 2 x 5376)");
  if (args[0].v_int64 < 0 || args[0].v_int64 >= ht_op_count) return raise("ValueError", "seen", "no such op");
  int64_t* values = (int64_t*)((char*)out->data + out->byte_offset);
  for (int i = 0; i < HT_SHAPE_SLOTS; ++i) {
    values[i] = ht_slot_rows(i);
    values[HT_SHAPE_SLOTS + i] = ht_seen((int)args[0].v_int64, i);
  }
  result->type_index = kTVMFFINone;
  return 0;
}
