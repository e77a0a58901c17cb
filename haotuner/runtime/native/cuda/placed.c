/* The doors of a pack's library for tvm-ffi, for ops whose weight stays on a device and whose calls are queued there.
 *
 * call(x, bound, out, setting[, stream[, more...]]): as in ffi.c, with what `ht_bind` filled for a weight; more: offsets of a grouped op,
 * what the epilogue adds of out's shape.
 * Without a stream (or with None) it is the one that tvm-ffi was told for x's device: that of x's framework, or of tvm_ffi.use_raw_stream. */
#include <stdio.h>
#include <tvm/ffi/extra/c_env_api.h>

#include "ht_pack.h"
#include "weight_cache.h"

#pragma weak TVMFFIEnvGetStream
#pragma weak TVMFFIObjectDecRef

/* Argument `index` as a stream; 0 if it is none. */
static int stream_of(const TVMFFIAny* args, int32_t count, int32_t index, void** stream) {
  if (index >= count) return 0;
  if (args[index].type_index == kTVMFFIInt) *stream = (void*)(uintptr_t)args[index].v_int64;
  else if (args[index].type_index == kTVMFFIOpaquePtr) *stream = args[index].v_ptr;
  else return 0;
  return 1;
}

enum { MOST_BROUGHT = 2 };

/* Names of what a call brings beside x, of which an op has so many: offsets of groups, a residual. */
static int brought(const ht_op* op, const char* names[MOST_BROUGHT]) {
  int count = 0;
  for (int i = 1; i < op->operand_count && count < MOST_BROUGHT; ++i)
    if (op->operands[i].role == HT_INPUT) names[count++] = op->operands[i].name;
  return count;
}

int ht_ffi_queue(int index, const TVMFFIAny* args, int32_t count_args, TVMFFIAny* result) {
  enum { MOST = 3 + MOST_BROUGHT };
  const ht_op* op = &ht_ops[index];
  const char* names[MOST] = {"x", "weight", "out", "offsets", "residual"};
  const int more = brought(op, names + 3);
  const DLTensor* given[MOST] = {NULL};
  TVMFFIAny made = {.type_index = kTVMFFINone};
  void* stream = NULL;
  if (count_args < 4 || count_args > 5 + (more > 0 ? more : 1) || args[3].type_index != kTVMFFIInt ||
      (count_args >= 5 && args[4].type_index != kTVMFFINone && !stream_of(args, count_args, 4, &stream)))
    return ht_ffi_raise("TypeError", op->name, "expected the arguments (x, bound, out, setting[, stream[, offsets or residual]])");
  const DLTensor* x = ht_ffi_tensor(&args[0]);
  if (args[2].type_index == kTVMFFINone && ht_ffi_allocate(op, kDLCUDA, x, &made) != 0) return -1;
  const int tensors = count_args < 5 ? 3 : count_args - 2;
  for (int i = 0; i < tensors; ++i) {
    given[i] = ht_ffi_tensor(i == 2 && made.type_index != kTVMFFINone ? &made : &args[i < 3 ? i : i + 2]);
    if (given[i] != NULL) continue;
    if (made.type_index != kTVMFFINone) TVMFFIObjectDecRef(made.v_obj);
    char text[128];
    snprintf(text, sizeof text, "%s is not a tensor: pass a tensor of a CUDA device", names[i]);
    return ht_ffi_raise("TypeError", op->name, text);
  }
  if ((count_args == 4 || args[4].type_index == kTVMFFINone) && TVMFFIEnvGetStream != NULL)
    stream = TVMFFIEnvGetStream((int32_t)x->device.device_type, x->device.device_id);
  ht_error error;
  if (ht_call_op(index, given, tensors, args[3].v_int64, stream, &error) != 0) {
    if (made.type_index != kTVMFFINone) TVMFFIObjectDecRef(made.v_obj);
    return ht_ffi_raise(error.kind, op->name, error.text);
  }
  *result = made;
  return 0;
}

int ht_ffi_queue_all(int index, const TVMFFIAny* args, int32_t count_args, TVMFFIAny* result) {
  enum { MOST = 6 };
  static const char* const names[MOST] = {"x", "w", "out", "bias", "scale", "mask"};
  const ht_op* op = &ht_ops[index];
  const DLTensor* given[MOST];
  void* stream = NULL;
  if (count_args < 4 || count_args > 8 || args[3].type_index != kTVMFFIInt ||
      (count_args >= 5 && args[4].type_index != kTVMFFINone && !stream_of(args, count_args, 4, &stream)))
    return ht_ffi_raise("TypeError", op->name, "expected the arguments (x, w, out, setting[, stream[, bias[, scale[, mask]]]])");
  const int tensors = count_args < 5 ? 3 : count_args - 2;
  for (int i = 0; i < tensors; ++i) {
    const TVMFFIAny* arg = &args[i < 3 ? i : i + 2];
    if ((given[i] = ht_ffi_tensor(arg)) != NULL || (i >= 3 && arg->type_index == kTVMFFINone)) continue;
    char text[128];
    snprintf(text, sizeof text, "%s is not a tensor: pass a tensor of a CUDA device", names[i]);
    return ht_ffi_raise("TypeError", op->name, text);
  }
  if ((count_args == 4 || args[4].type_index == kTVMFFINone) && TVMFFIEnvGetStream != NULL)
    stream = TVMFFIEnvGetStream((int32_t)given[0]->device.device_type, given[0]->device.device_id);
  ht_error error;
  if (ht_call_op(index, given, tensors, args[3].v_int64, stream, &error) != 0) return ht_ffi_raise(error.kind, op->name, error.text);
  result->type_index = kTVMFFINone;
  return 0;
}

int ht_ffi_queue_operands(int index, const TVMFFIAny* args, int32_t count_args, TVMFFIAny* result) {
  const ht_op* op = &ht_ops[index];
  const DLTensor* given[HT_MAX_OPERANDS];
  void* stream = NULL;
  if (count_args != 2 + op->operand_count || args[0].type_index != kTVMFFIInt ||
      (args[1].type_index != kTVMFFINone && !stream_of(args, count_args, 1, &stream)))
    return ht_ffi_raise("TypeError", op->name, "expected the arguments (setting, stream, operands in their order, out)");
  for (int i = 0; i < op->operand_count; ++i) {
    if ((given[i] = ht_ffi_tensor(&args[2 + i])) != NULL) continue;
    char text[128];
    snprintf(text, sizeof text, "%.60s is not a tensor: pass a tensor of a CUDA device", op->operands[i].name);
    return ht_ffi_raise("TypeError", op->name, text);
  }
  if (args[1].type_index == kTVMFFINone && TVMFFIEnvGetStream != NULL)
    stream = TVMFFIEnvGetStream((int32_t)given[0]->device.device_type, given[0]->device.device_id);
  ht_error error;
  if (ht_call_op(index, given, op->operand_count, args[0].v_int64, stream, &error) != 0) return ht_ffi_raise(error.kind, op->name, error.text);
  result->type_index = kTVMFFINone;
  return 0;
}

/* Argument 0 as an op of this kind, or NULL. */
static const ht_op* placed_op(const TVMFFIAny* args, int32_t count_args) {
  int64_t index = ht_ffi_whole(args, count_args, 0, ht_op_count);
  return index < 0 || ht_ops[index].kind->placed == NULL ? NULL : &ht_ops[index];
}

/* The bytes of argument `place`, if it is what `bind` fills for the op; else NULL. */
static void* bound_of(const ht_op* op, const TVMFFIAny* args, int32_t count_args, int32_t place) {
  const DLTensor* t = place < count_args ? ht_ffi_tensor(&args[place]) : NULL;
  if (t == NULL || t->device.device_type != kDLCPU || t->dtype.bits != 8 || t->dtype.lanes != 1 || t->ndim != 1 || t->data == NULL ||
      t->shape[0] != op->kind->placed->bound_bytes(op) || !ht_addressable(t) || (uintptr_t)ht_data(t) % HT_BOUND_ALIGNMENT != 0)
    return NULL;
  return ht_data(t);
}

/* open(device): load the code on device number `device`. */
HT_EXPORT int __tvm_ffi_ht_open(void* self, const TVMFFIAny* args, int32_t count_args, TVMFFIAny* result) {
  (void)self;
  ht_error error;
  if (count_args != 1 || args[0].type_index != kTVMFFIInt || args[0].v_int64 < 0 || args[0].v_int64 > 1 << 20)
    return ht_ffi_raise("TypeError", "open", "expected the number of a device");
  if (ht_ops[0].kind->placed->open((int)args[0].v_int64, &error) != 0) return ht_ffi_raise(error.kind, "open", error.text);
  result->type_index = kTVMFFINone;
  return 0;
}

/* bound_bytes(op): what `bind` fills, at an address that is a multiple of 128. */
HT_EXPORT int __tvm_ffi_ht_bound_bytes(void* self, const TVMFFIAny* args, int32_t count_args, TVMFFIAny* result) {
  (void)self;
  const ht_op* op = placed_op(args, count_args);
  if (op == NULL) return ht_ffi_raise("ValueError", "bound_bytes", "no such op on a device");
  result->type_index = kTVMFFIInt;
  result->v_int64 = op->kind->placed->bound_bytes(op);
  return 0;
}

/* bind(op, weight, bias or None, bound uint8[bound_bytes][, more...]): what has one value a channel, in the op's order, `bound` behind the
 * first. Weight and these must outlive every call and every graph with them. */
HT_EXPORT int __tvm_ffi_ht_bind(void* self, const TVMFFIAny* args, int32_t count_args, TVMFFIAny* result) {
  (void)self;
  const ht_op* op = placed_op(args, count_args);
  void* bound = op == NULL ? NULL : bound_of(op, args, count_args, 3);
  const int32_t count = count_args - 3; /* of channels: the first may be None */
  int32_t most = 1, constants = 0;
  for (int i = HT_FIRST_EXTRA; op != NULL && i < op->operand_count; ++i) constants += op->operands[i].role == HT_CONSTANT;
  if (constants > most) most = constants;
  const DLTensor* weight = count >= 1 && count <= most && count <= HT_MAX_EXTRA ? ht_ffi_tensor(&args[1]) : NULL;
  const DLTensor* channels[HT_MAX_EXTRA];
  int wrong = bound == NULL || weight == NULL;
  for (int32_t i = 0; i < count && !wrong; ++i) {
    const TVMFFIAny* arg = &args[i == 0 ? 2 : 3 + i];
    channels[i] = ht_ffi_tensor(arg);
    wrong = channels[i] == NULL && arg->type_index != kTVMFFINone;
  }
  if (wrong)
    return ht_ffi_raise("TypeError", op == NULL ? "bind" : op->name, "expected (op, weight, bias or None, bytes) with tensors of a device");
  ht_error error;
  if (op->kind->placed->bind(op, weight, channels, count, bound, &error) != 0) return ht_ffi_raise(error.kind, op->name, error.text);
  result->type_index = kTVMFFINone;
  return 0;
}

/* keep(op, bound): what calls would lay out of the weight each time is laid out once, behind all that was queued on the device; the
 * weight is not to change any more. Returns a number for `let_go`, to be called once all calls are queued; 0: there is nothing. */
HT_EXPORT int __tvm_ffi_ht_keep(void* self, const TVMFFIAny* args, int32_t count_args, TVMFFIAny* result) {
  (void)self;
  const ht_op* op = placed_op(args, count_args);
  void* bound = op == NULL ? NULL : bound_of(op, args, count_args, 1);
  if (bound == NULL) return ht_ffi_raise("TypeError", "keep", "expected (op, bytes of a bound weight)");
  ht_error error;
  const ht_placed* placed = op->kind->placed;
  if (placed->keep != NULL && placed->keep(op, bound, &error) != 0) return ht_ffi_raise(error.kind, op->name, error.text);
  result->type_index = kTVMFFIInt;
  result->v_int64 = placed->keep == NULL ? 0 : (int64_t)(uintptr_t)placed->kept(op, bound);
  return 0;
}

static ht_cuda_kept* kept_of(const TVMFFIAny* args, int32_t count_args) {
  return count_args == 1 && args[0].type_index == kTVMFFIInt ? (ht_cuda_kept*)(uintptr_t)args[0].v_int64 : NULL;
}

/* kept_bytes(number): memory of the device that it takes. */
HT_EXPORT int __tvm_ffi_ht_kept_bytes(void* self, const TVMFFIAny* args, int32_t count_args, TVMFFIAny* result) {
  (void)self;
  const ht_cuda_kept* kept = kept_of(args, count_args);
  result->type_index = kTVMFFIInt;
  result->v_int64 = kept == NULL ? 0 : kept->bytes;
  return 0;
}

/* let_go(number), once: frees it, unless a graph may read it. */
HT_EXPORT int __tvm_ffi_ht_let_go(void* self, const TVMFFIAny* args, int32_t count_args, TVMFFIAny* result) {
  (void)self;
  ht_cuda_let_go(kept_of(args, count_args));
  result->type_index = kTVMFFINone;
  return 0;
}

/* prepare(op, bound, stream): memory that calls on this stream may want; `bound`: the number of a device where an op binds nothing. */
HT_EXPORT int __tvm_ffi_ht_prepare(void* self, const TVMFFIAny* args, int32_t count_args, TVMFFIAny* result) {
  (void)self;
  const ht_op* op = placed_op(args, count_args);
  int device = op != NULL && count_args > 1 && args[1].type_index == kTVMFFIInt && op->kind->placed->bound_bytes(op) == 0 ? (int)args[1].v_int64 : -1;
  void *bound = op == NULL ? NULL : device >= 0 ? (void*)&device : bound_of(op, args, count_args, 1), *stream = NULL;
  if (bound == NULL || !stream_of(args, count_args, 2, &stream))
    return ht_ffi_raise("TypeError", "prepare", "expected (op, bytes of a bound weight, stream)");
  ht_error error;
  if (op->kind->placed->prepare(op, bound, stream, &error) != 0) return ht_ffi_raise(error.kind, op->name, error.text);
  result->type_index = kTVMFFINone;
  return 0;
}
