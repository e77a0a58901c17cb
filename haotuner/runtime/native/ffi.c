/* The doors of a pack's library for tvm-ffi: one function an op, generated in pack_data.c, and the functions below.
 *
 * call(x, weight, out, setting[, bias]), or with an epilogue call(x, weight, out, setting, its operands…): setting = plan index + HT_MAX_THREADS * threads. Returns None; with None for out, a new tensor
 * from the allocator of x's framework, which tvm-ffi knows for classes with a DLPack exchange table (torch).
 * Of another kind than dense: call(setting, operands…, out). With HT_BY_ADDRESS in the setting, whole numbers among the operands are
 * addresses of numpy's arrays (arrays.c). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <tvm/ffi/extra/c_env_api.h>

#include "ht_pack.h"

#pragma weak TVMFFIErrorSetRaisedFromCStr /* a C server has no tvm-ffi; it comes in through c_api.c and never gets here */
#pragma weak TVMFFIEnvTensorAlloc
#pragma weak TVMFFIObjectDecRef

/* A pack that serves whole models is mapped without tvm-ffi, which may come later: then the weak names above stay NULL. */
typedef struct {
  void (*raise)(const char* kind, const char* message);
  int (*allocate)(DLTensor* like, TVMFFIObjectHandle* out);
  int (*release)(TVMFFIObjectHandle object);
} ffi;

static ffi late(void) {
  static _Atomic(void*) kept[3];
  static const char* const names[3] = {"TVMFFIErrorSetRaisedFromCStr", "TVMFFIEnvTensorAlloc", "TVMFFIObjectDecRef"};
  void* found[3];
  for (int i = 0; i < 3; ++i)
    if ((found[i] = atomic_load_explicit(&kept[i], memory_order_acquire)) == NULL)
      atomic_store_explicit(&kept[i], found[i] = dlsym(RTLD_DEFAULT, names[i]), memory_order_release);
  ffi all;
  memcpy(&all, found, sizeof all); /* POSIX's own way to turn object pointers into functions' */
  return all;
}

static ffi tvm_ffi(void) {
  ffi all = {TVMFFIErrorSetRaisedFromCStr, TVMFFIEnvTensorAlloc, TVMFFIObjectDecRef};
  if (all.raise != NULL && all.allocate != NULL && all.release != NULL) return all;
  ffi more = late();
  if (all.raise == NULL) all.raise = more.raise;
  if (all.allocate == NULL) all.allocate = more.allocate;
  if (all.release == NULL) all.release = more.release;
  return all;
}

static void release(TVMFFIAny* made) {
  if (made->type_index != kTVMFFINone) tvm_ffi().release(made->v_obj);
}

int ht_ffi_raise(const char* kind, const char* op, const char* text) {
  char message[384];
  snprintf(message, sizeof message, "%s: %s", op, text);
  ffi all = tvm_ffi();
  if (all.raise != NULL) all.raise(kind, message);
  return -1;
}

const DLTensor* ht_ffi_tensor(const TVMFFIAny* value) {
  if (value->type_index == kTVMFFIDLTensorPtr) return value->v_ptr;
  if (value->type_index == kTVMFFITensor) return (const DLTensor*)((const char*)value->v_ptr + sizeof(TVMFFIObject));
  return NULL;
}

/* Data of argument `index`, a contiguous int64 array on the CPU of these extents; NULL if it is anything else. */
static int64_t* int64_array(const TVMFFIAny* args, int32_t count, int32_t index, int32_t rank, int64_t first, int64_t second) {
  const DLTensor* t = index < count ? ht_ffi_tensor(&args[index]) : NULL;
  if (t == NULL || t->device.device_type != kDLCPU || t->data == NULL || t->shape == NULL || t->ndim != rank) return NULL;
  if (t->dtype.code != kDLInt || t->dtype.bits != 64 || t->dtype.lanes != 1) return NULL;
  if (t->shape[0] != first || (rank == 2 && t->shape[1] != second)) return NULL;
  if (t->strides != NULL && (t->strides[rank - 1] != 1 || (rank == 2 && t->strides[0] != second))) return NULL;
  return ht_addressable(t) ? (int64_t*)ht_data(t) : NULL;
}

/* Argument `index` as a whole number of [0, limit); -1 if it is anything else. */
int64_t ht_ffi_whole(const TVMFFIAny* args, int32_t count, int32_t index, int64_t limit) {
  if (index >= count || args[index].type_index != kTVMFFIInt) return -1;
  return args[index].v_int64 >= 0 && args[index].v_int64 < limit ? args[index].v_int64 : -1;
}

/* A new tensor like the op's output, from the allocator of x's framework. */
static int allocate(const ht_op* op, const DLTensor* x, int32_t rank, int64_t* shape, TVMFFIAny* out) {
  const ht_operand* y = &op->operands[op->operand_count - 1];
  for (int i = 0; i < rank; ++i)
    if (shape[i] < 0) return ht_ffi_raise("ValueError", op->name, "x has a negative extent");
  DLTensor like = {NULL, x->device, rank, {y->code, y->bits, 1}, shape, NULL, 0};
  out->type_index = kTVMFFITensor;
  out->zero_padding = 0;
  return tvm_ffi().allocate(&like, (TVMFFIObjectHandle*)&out->v_obj);
}

/* x itself is checked in full later, here only what sizes the output. */
int ht_ffi_allocate(const ht_op* op, int device_type, const DLTensor* x, TVMFFIAny* out) {
  int64_t shape[HT_MAX_RANK];
  if (x == NULL || x->ndim < 1 || x->ndim > HT_MAX_RANK || x->shape == NULL ||
      x->shape[x->ndim - 1] != op->axes[HT_AXIS_K].extent || (int)x->device.device_type != device_type || tvm_ffi().allocate == NULL)
    return ht_ffi_raise("ValueError", op->name, "no output can be made for this x");
  for (int i = 0; i < x->ndim; ++i) shape[i] = x->shape[i];
  shape[x->ndim - 1] = op->axes[HT_AXIS_N].extent;
  return allocate(op, x, x->ndim, shape, out);
}

/* The output of a kind that says how large it is. */
static int allocate_sized(const ht_op* op, const DLTensor* const* inputs, TVMFFIAny* out) {
  int64_t shape[HT_MAX_RANK];
  const int rank = op->kind->sized(op, inputs, shape);
  if (rank == 0 || inputs[0]->device.device_type != kDLCPU || tvm_ffi().allocate == NULL)
    return ht_ffi_raise("ValueError", op->name, "no output can be made for these operands");
  return allocate(op, inputs[0], rank, shape, out);
}

/* An operand's tensor, of a setting with HT_BY_ADDRESS also that of an array; NULL if it is none. */
static const DLTensor* operand_of(const TVMFFIAny* value, int64_t setting, int written, ht_array* room) {
  if (value->type_index == kTVMFFIInt && (setting & HT_BY_ADDRESS) != 0) return ht_ffi_array(value->v_int64, written, room);
  return ht_ffi_tensor(value);
}

/* Any kind: (setting, operands…, out). None for the output, where the kind says how large it is: a new one. */
static int run(int index, const TVMFFIAny* args, int32_t count_args, TVMFFIAny* result) {
  const ht_op* op = &ht_ops[index];
  const DLTensor* tensors[HT_MAX_OPERANDS];
  ht_array arrays[HT_MAX_OPERANDS];
  int32_t given = count_args - 1;
  if (given < op->operand_count || given > op->operand_count + op->optional_count || given > HT_MAX_OPERANDS ||
      args[0].type_index != kTVMFFIInt)
    return ht_ffi_raise("TypeError", op->name, "expected the arguments (setting, operands..., out)");
  TVMFFIAny made = {.type_index = kTVMFFINone};
  const int32_t output = op->operand_count - 1;
  for (int i = 0; i < given; ++i) {
    const int written = i < op->operand_count && op->operands[i].role >= HT_OUTPUT;
    if ((tensors[i] = operand_of(&args[i + 1], args[0].v_int64, written, &arrays[i])) != NULL) continue;
    if (i == output && args[i + 1].type_index == kTVMFFINone && op->kind->sized != NULL) {
      if (allocate_sized(op, tensors, &made) != 0) return -1;
      tensors[i] = ht_ffi_tensor(&made);
      continue;
    }
    if (i >= op->operand_count && args[i + 1].type_index == kTVMFFINone) continue; /* its check says whether it can do without */
    release(&made);
    char text[128];
    snprintf(text, sizeof text, "%.40s is not a tensor: pass a numpy array, a torch tensor or another DLPack tensor",
             op->operands[i].name);
    return ht_ffi_raise("TypeError", op->name, text);
  }
  ht_error error;
  if (ht_call_op(index, tensors, given, args[0].v_int64 & ~(int64_t)HT_BY_ADDRESS, NULL, &error) != 0) {
    release(&made);
    return ht_ffi_raise(error.kind, op->name, error.text);
  }
  *result = made;
  return 0;
}

int ht_ffi_call(int index, const TVMFFIAny* args, int32_t count_args, TVMFFIAny* result) {
  static const char* const names[5] = {"x", "weight", "out", "setting", "bias"};
  const DLTensor* tensors[HT_MAX_OPERANDS + 1] = {NULL};
  ht_array arrays[HT_MAX_OPERANDS + 1];
  const ht_op* op = &ht_ops[index];
  if (op->kind->look_up == NULL) return run(index, args, count_args, result);
  const int extras = op->operand_count - HT_LAYER_OPERANDS;
  if (count_args < 4 + extras || count_args > 4 + extras + op->optional_count || args[3].type_index != kTVMFFIInt) {
    char text[160];
    snprintf(text, sizeof text, "expected the arguments (x, weight, out, setting%s), got %d", extras > 0 ? ", what its epilogue reads" : "[, bias]",
             (int)count_args);
    return ht_ffi_raise("TypeError", op->name, text);
  }
  TVMFFIAny made = {.type_index = kTVMFFINone};
  if (args[2].type_index == kTVMFFINone && ht_ffi_allocate(op, kDLCPU, ht_ffi_tensor(&args[0]), &made) != 0) return -1;
  for (int i = 0; i < count_args; ++i) {
    if (i == 3) continue;
    const int place = i < 3 ? i : i - 1;
    const TVMFFIAny* given = i == 2 && made.type_index != kTVMFFINone ? &made : &args[i];
    if ((tensors[place] = operand_of(given, args[3].v_int64, i == 2, &arrays[place])) != NULL) continue;
    release(&made);
    char text[160];
    const char* name = i > 3 && extras > 0 ? op->operands[HT_FIRST_EXTRA + i - 4].name : names[i];
    snprintf(text, sizeof text, "%.40s is not a tensor: pass a numpy array, a torch tensor or another DLPack tensor", name);
    return ht_ffi_raise("TypeError", op->name, text);
  }
  ht_error error;
  if (ht_call_op(index, tensors, count_args - 1, args[3].v_int64 & ~(int64_t)HT_BY_ADDRESS, NULL, &error) != 0) {
    release(&made);
    return ht_ffi_raise(error.kind, op->name, error.text);
  }
  *result = made;
  return 0;
}

/* look_up(op, plan index, m, out int64[2 + 2*HT_MAX_PARTS]): of a dense op; out = count, split, then kernel index and tiles a
 * region. */
HT_EXPORT int __tvm_ffi_ht_look_up(void* self, const TVMFFIAny* args, int32_t count_args, TVMFFIAny* result) {
  (void)self;
  int64_t* values = int64_array(args, count_args, 3, 1, 2 + 2 * HT_MAX_PARTS, 0);
  int64_t op_index = ht_ffi_whole(args, count_args, 0, ht_op_count), m = ht_ffi_whole(args, count_args, 2, HT_EXTENT_LIMIT + (int64_t)1);
  int64_t plan = op_index < 0 ? -1 : ht_ffi_whole(args, count_args, 1, ht_ops[op_index].plan_count);
  if (values == NULL) return ht_ffi_raise("TypeError", "look_up", "expected (op, plan, m, int64 array of 10)");
  if (plan < 0 || m < 1 || ht_ops[op_index].kind->look_up == NULL)
    return ht_ffi_raise("ValueError", "look_up", "no such dense op, plan, or m");
  ht_ops[op_index].kind->look_up(&ht_ops[op_index], &ht_ops[op_index].plans[plan], m, values);
  result->type_index = kTVMFFINone;
  return 0;
}

/* cell(op, plan index, extents int64[]): the cell of the plan's table that serves these extents of the op's axes, HT_CELL_AXES at least. */
HT_EXPORT int __tvm_ffi_ht_cell(void* self, const TVMFFIAny* args, int32_t count_args, TVMFFIAny* result) {
  (void)self;
  int64_t op = ht_ffi_whole(args, count_args, 0, ht_op_count);
  int64_t room = op >= 0 && ht_ops[op].axis_count > HT_CELL_AXES ? ht_ops[op].axis_count : HT_CELL_AXES;
  const int64_t* extents = int64_array(args, count_args, 2, 1, room, 0);
  int64_t plan = op < 0 ? -1 : ht_ffi_whole(args, count_args, 1, ht_ops[op].plan_count);
  if (plan < 0 || extents == NULL) return ht_ffi_raise("ValueError", "cell", "expected (op, plan, int64 array of the op's axes, 8 at least)");
  result->type_index = kTVMFFIInt;
  result->v_int64 = ht_look_up(&ht_ops[op].plans[plan].table, extents);
  return 0;
}

/* pack(op, weight, out float32): a weight as its kind's loops read it; returns how many floats that are, alone where out is None. */
HT_EXPORT int __tvm_ffi_ht_pack(void* self, const TVMFFIAny* args, int32_t count_args, TVMFFIAny* result) {
  (void)self;
  int64_t index = ht_ffi_whole(args, count_args, 0, ht_op_count);
  if (index < 0 || count_args != 3 || ht_ops[index].kind->pack == NULL) return ht_ffi_raise("ValueError", "pack", "no such op with a weight to pack");
  const ht_op* op = &ht_ops[index];
  int64_t floats = op->kind->packed_floats(op);
  if (floats == 0) return ht_ffi_raise("ValueError", op->name, "it binds no weight");
  result->type_index = kTVMFFIInt;
  result->v_int64 = floats;
  if (args[2].type_index == kTVMFFINone) return 0;
  const DLTensor *weight = ht_ffi_tensor(&args[1]), *out = ht_ffi_tensor(&args[2]);
  if (weight == NULL || out == NULL || out->ndim != 1 || out->shape[0] != floats || out->dtype.bits != 32 || out->data == NULL ||
      out->device.device_type != kDLCPU || !ht_addressable(out))
    return ht_ffi_raise("TypeError", op->name, "expected a weight and room for it");
  ht_error error;
  if (op->kind->pack(op, weight, (float*)ht_data(out), &error) != 0) return ht_ffi_raise(error.kind, op->name, error.text);
  return 0;
}

/* about(op, out uint8[room]): writes "NAME KIND\nTHREADS...\nKERNEL\n..." of an op; returns the length it has, 0 beyond the last
 * op. The manifest must say the same: counters and plans go by place. */
HT_EXPORT int __tvm_ffi_ht_about(void* self, const TVMFFIAny* args, int32_t count_args, TVMFFIAny* result) {
  (void)self;
  const DLTensor* out = count_args == 2 ? ht_ffi_tensor(&args[1]) : NULL;
  if (out == NULL || out->dtype.bits != 8 || out->dtype.lanes != 1 || out->ndim != 1 || out->data == NULL ||
      out->device.device_type != kDLCPU || !ht_addressable(out) || args[0].type_index != kTVMFFIInt || args[0].v_int64 < 0)
    return ht_ffi_raise("TypeError", "about", "expected (op, uint8 array)");
  result->type_index = kTVMFFIInt;
  result->v_int64 = 0;
  if (args[0].v_int64 >= ht_op_count) return 0;
  const ht_op* op = &ht_ops[args[0].v_int64];
  char* text = ht_data(out);
  size_t room = (size_t)out->shape[0], used = 0;
#define PUT(...) used += (size_t)snprintf(used < room ? text + used : NULL, used < room ? room - used : 0, __VA_ARGS__)
  PUT("%s %s\n", op->name, op->kind->name);
  for (int i = 0; i < op->plan_count; ++i) PUT("%d ", (int)op->plans[i].threads);
  PUT("\n");
  for (int i = 0; i < op->kernel_count; ++i) PUT("%s\n", op->kind->kernel_name(op, i));
#undef PUT
  result->v_int64 = (int64_t)used;
  return 0;
}

/* stats(op, out int64[3]): calls, fallbacks, out_of_range since the library was loaded. */
HT_EXPORT int __tvm_ffi_ht_stats(void* self, const TVMFFIAny* args, int32_t count_args, TVMFFIAny* result) {
  (void)self;
  int64_t* counts = int64_array(args, count_args, 1, 1, 3, 0);
  int64_t op = ht_ffi_whole(args, count_args, 0, ht_op_count);
  if (counts == NULL) return ht_ffi_raise("TypeError", "stats", "expected (op, int64 array of 3)");
  if (op < 0) return ht_ffi_raise("ValueError", "stats", "no such op");
  ht_counts((int)op, counts);
  result->type_index = kTVMFFINone;
  return 0;
}

/* capture(step): +1 begins, -1 ends counting shapes. */
HT_EXPORT int __tvm_ffi_ht_capture(void* self, const TVMFFIAny* args, int32_t count_args, TVMFFIAny* result) {
  (void)self;
  if (count_args != 1 || args[0].type_index != kTVMFFIInt ||
      (args[0].v_int64 != 1 && args[0].v_int64 != -1))
    return ht_ffi_raise("TypeError", "capture", "expected 1 or -1");
  ht_capture((int)args[0].v_int64);
  result->type_index = kTVMFFINone;
  return 0;
}

/* seen(op, out int64[1 + dynamic axes][HT_SHAPE_SLOTS]): the shape that each slot stands for, an axis a row, then calls in it. */
HT_EXPORT int __tvm_ffi_ht_seen(void* self, const TVMFFIAny* args, int32_t count_args, TVMFFIAny* result) {
  (void)self;
  int64_t op = ht_ffi_whole(args, count_args, 0, ht_op_count), extents[HT_MAX_DYNAMIC] = {0};
  if (op < 0) return ht_ffi_raise("ValueError", "seen", "no such op");
  int count = ht_ops[op].dynamic_count;
  int64_t* values = int64_array(args, count_args, 1, 2, 1 + count, HT_SHAPE_SLOTS);
  if (values == NULL) return ht_ffi_raise("TypeError", "seen", "expected (op, int64 array of slots for each dynamic axis and counts)");
  for (int i = 0; i < HT_SHAPE_SLOTS; ++i) {
    values[count * HT_SHAPE_SLOTS + i] = ht_seen((int)op, i, extents);
    for (int a = 0; a < count; ++a) values[a * HT_SHAPE_SLOTS + i] = extents[a];
  }
  result->type_index = kTVMFFINone;
  return 0;
}

/* team(address): that of GOMP_parallel in this process, or 0 for our own pool; see ht.h. */
HT_EXPORT int __tvm_ffi_ht_team(void* self, const TVMFFIAny* args, int32_t count_args, TVMFFIAny* result) {
  (void)self;
  if (count_args != 1 || args[0].type_index != kTVMFFIInt) return ht_ffi_raise("TypeError", "team", "expected an address");
  ht_pool_use_team((ht_team_fn)(uintptr_t)args[0].v_int64);
  result->type_index = kTVMFFINone;
  return 0;
}
