/* numpy's arrays where they lie. Through DLPack an array costs 0.4 us of allocations in Python; here its fields are read, by the layout
 * that every extension module of numpy 1 and 2 is compiled for (PyArrayObject_fields, PyArray_Descr). Whoever loads the library has it
 * compare some arrays with what DLPack says of them first (`agrees`); no Python header is needed. */
#include <string.h>

#include "ht_pack.h"

typedef struct { /* an object of CPython with the lock, not compiled for debugging */
  intptr_t references;
  void* type;
} head;

typedef struct {
  head object;
  void* scalar;
  char kind, letter, order, flags;
  int32_t number;
} descriptor;

typedef struct {
  head object;
  char* data;
  int32_t rank;
  int64_t *shape, *strides; /* in bytes */
  void* base;
  const descriptor* type;
  int32_t flags;
} array;

#define WRITEABLE 0x400 /* NPY_ARRAY_WRITEABLE */
#define PLAIN 0x101     /* NPY_ARRAY_C_CONTIGUOUS and NPY_ARRAY_ALIGNED */
#define TYPES 24        /* NPY_HALF is the last that is known here */

/* By numpy's numbers of types; of no bits: taken through DLPack, or refused in its words. arrays.py has those that are compared. */
static const DLDataType types[TYPES] = {
    [0] = {kDLBool, 8, 1}, [1] = {kDLInt, 8, 1},     [2] = {kDLUInt, 8, 1},   [4] = {kDLUInt, 16, 1},  [5] = {kDLInt, 32, 1},
    [7] = {kDLInt, 64, 1}, [11] = {kDLFloat, 32, 1}, [12] = {kDLFloat, 64, 1}, [23] = {kDLFloat, 16, 1},
};

/* Whether `*found` says what this array is; one that can be written to, if it will be. */
static int describe(const array* a, int written, ht_array* found) {
  const descriptor* type = a->type;
  if (a->rank < 0 || a->rank > HT_MAX_RANK || (written && (a->flags & WRITEABLE) == 0)) return 0;
  if (type->number < 0 || type->number >= TYPES || types[type->number].bits == 0 || (type->order != '=' && type->order != '|')) return 0;
  const int shift = __builtin_ctz(types[type->number].bits / 8);
  for (int i = 0; i < a->rank; ++i) {
    found->strides[i] = a->strides[i] >> shift;
    if ((a->strides[i] & ((1 << shift) - 1)) != 0 && a->shape[i] != 1) return 0;
  }
  found->tensor = (DLTensor){a->data, {kDLCPU, 0}, a->rank, types[type->number], a->shape, found->strides, 0};
  return 1;
}

const DLTensor* ht_ffi_array(int64_t address, int written, ht_array* room) {
  return describe((const array*)(uintptr_t)address, written, room) ? &room->tensor : NULL;
}

const DLTensor* ht_plain_array(int64_t address, int written, ht_array* room) {
  const DLTensor* tensor = ht_ffi_array(address, written, room);
  return tensor != NULL && (((const array*)(uintptr_t)address)->flags & PLAIN) == PLAIN ? tensor : NULL;
}

int ht_array_agrees(int64_t address, const DLTensor* t) {
  const array* a = (const array*)(uintptr_t)address;
  if (a->data != (char*)t->data + t->byte_offset || a->rank != t->ndim) return 0;
  if (memcmp(a->shape, t->shape, (size_t)t->ndim * sizeof *t->shape) != 0) return 0;
  ht_array room;
  if (!describe(a, 1, &room) || memcmp(&room.tensor.dtype, &t->dtype, sizeof t->dtype) != 0) return 0;
  return memcmp(room.strides, t->strides, (size_t)t->ndim * sizeof *t->strides) == 0;
}

/* agrees(address, tensor): see ht_array_agrees. */
HT_EXPORT int __tvm_ffi_ht_agrees(void* self, const TVMFFIAny* args, int32_t count_args, TVMFFIAny* result) {
  (void)self;
  const DLTensor* t = count_args == 2 ? ht_ffi_tensor(&args[1]) : NULL;
  if (t == NULL || t->strides == NULL || t->ndim < 1 || args[0].type_index != kTVMFFIInt)
    return ht_ffi_raise("TypeError", "agrees", "expected (address, tensor)");
  result->type_index = kTVMFFIInt;
  result->v_int64 = ht_array_agrees(args[0].v_int64, t);
  return 0;
}
