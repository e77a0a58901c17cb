/* The doors of a pack's library for tvm-ffi: one function an op, generated in pack_data.c, and the functions below.
 *
 * call(x, weight, out, setting[, bias]): setting = plan index + 256 * threads. Returns None; with None for out, a new tensor
 * from the allocator of x's framework, which tvm-ffi knows for classes with a DLPack exchange table (torch). */
#include <stdio.h>
#include <string.h>
#include <tvm/ffi/extra/c_env_api.h>

#include "ht_pack.h"

#pragma weak TVMFFIErrorSetRaisedFromCStr /* a C server has no tvm-ffi; it comes in through door.c and never gets here */
#pragma weak TVMFFIEnvTensorAlloc
#pragma weak TVMFFIObjectDecRef

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

/* An output for x; x itself is checked in full later, here only what sizes the output. */
static int allocate(const ht_op* op, const DLTensor* x, TVMFFIAny* out) {
  int64_t shape[32];
  if (x == NULL || x->ndim < 1 || x->ndim > 32 || x->shape == NULL || x->shape[x->ndim - 1] != op->k ||
      x->device.device_type != kDLCPU || TVMFFIEnvTensorAlloc == NULL)
    return raise("ValueError", op->name, "no output can be made for this x");
  memcpy(shape, x->shape, (size_t)x->ndim * sizeof *shape);
  shape[x->ndim - 1] = op->n;
  DLTensor like = {NULL, {kDLCPU, 0}, x->ndim, {kDLFloat, 32, 1}, shape, NULL, 0};
  out->type_index = kTVMFFITensor;
  out->zero_padding = 0;
  return TVMFFIEnvTensorAlloc(&like, (TVMFFIObjectHandle*)&out->v_obj);
}

int ht_ffi_call(int index, const TVMFFIAny* args, int32_t count_args, TVMFFIAny* result) {
  static const char* const names[5] = {"x", "weight", "out", "setting", "bias"};
  const DLTensor* given[5] = {NULL};
  const ht_op* op = &ht_ops[index];
  if (count_args < 4 || count_args > 5 || args[3].type_index != kTVMFFIInt)
    return raise("TypeError", op->name, "expected the arguments (x, weight, out, setting[, bias])");
  TVMFFIAny made = {.type_index = kTVMFFINone};
  if (args[2].type_index == kTVMFFINone && allocate(op, tensor(&args[0]), &made) != 0) return -1;
  for (int i = 0; i < count_args; ++i) {
    if (i == 3) continue;
    given[i] = tensor(i == 2 && made.type_index != kTVMFFINone ? &made : &args[i]);
    if (given[i] != NULL) continue;
    if (made.type_index != kTVMFFINone) TVMFFIObjectDecRef(made.v_obj);
    char text[128];
    snprintf(text, sizeof text, "%s is not a tensor: pass a numpy array, a torch tensor or another DLPack tensor", names[i]);
    return raise("TypeError", op->name, text);
  }
  ht_error error;
  if (ht_call_op(index, given[0], given[1], given[2], given[4], args[3].v_int64, &error) != 0) {
    if (made.type_index != kTVMFFINone) TVMFFIObjectDecRef(made.v_obj);
    return raise(error.kind, op->name, error.text);
  }
  *result = made;
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

/* team(address): that of GOMP_parallel in this process, or 0 for our own pool; see ht.h. */
HT_EXPORT int __tvm_ffi_ht_team(void* self, const TVMFFIAny* args, int32_t count_args, TVMFFIAny* result) {
  (void)self;
  if (count_args != 1 || args[0].type_index != kTVMFFIInt) return raise("TypeError", "team", "expected an address");
  ht_pool_use_team((ht_team_fn)(uintptr_t)args[0].v_int64);
  result->type_index = kTVMFFINone;
  return 0;
}
