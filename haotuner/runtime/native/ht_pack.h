/* What a pack's generated pack_data.c provides, and what it calls. */
#ifndef HT_PACK_H_
#define HT_PACK_H_

#include "ht.h"

#define HT_EXPORT __attribute__((visibility("default")))

extern const ht_op ht_ops[];
extern const int ht_op_count;

/* serve.c: one checked, planned, counted call; tensors in the order of the op's operands, an optional one may be left out.
 * setting = plan index + HT_MAX_THREADS * threads, which on a device is 1, or 2 where the plan was made for another device.
 * `stream` of a device, else NULL. 0, or -1 with *error filled. */
int ht_call_op(int index, const DLTensor* const* tensors, int32_t count, int64_t setting, void* stream, ht_error* error);

/* c_api.c: the setting of an op for a thread count: its nearest plan, and the count. */
int64_t ht_setting(int op, int threads);

/* serve.c: calls, calls with a thread count that was not tuned, and shapes outside the tuned range since loading. */
void ht_counts(int op, int64_t out[3]);

/* serve.c: histogram of shapes, filled while `capture` was called more often with 1 than with -1. Never allocates. */
void ht_capture(int step);
int64_t ht_seen(int op, int slot, int64_t extents[HT_MAX_DYNAMIC]); /* calls in a slot, and the smallest shape of it */

/* ffi.c: the same behind tvm-ffi's calling convention; pack_data.c exports one such function an op. */
int ht_ffi_call(int index, const TVMFFIAny* args, int32_t count, TVMFFIAny* result);

/* placed.c: the same of an op whose kind is `placed`. */
int ht_ffi_queue(int index, const TVMFFIAny* args, int32_t count, TVMFFIAny* result);
/* The same of an op that binds nothing: (x, w, out, setting[, stream]). */
/* Of a kind that binds nothing: (setting, stream or None, operands in their order, out). */
int ht_ffi_queue_operands(int index, const TVMFFIAny* args, int32_t count, TVMFFIAny* result);
int ht_ffi_queue_all(int index, const TVMFFIAny* args, int32_t count, TVMFFIAny* result);

/* ffi.c, for placed.c. */
int ht_ffi_raise(const char* kind, const char* op, const char* text); /* -1, with the error set */
const DLTensor* ht_ffi_tensor(const TVMFFIAny* value);                /* NULL if it is none */

typedef struct {
  DLTensor tensor;
  int64_t strides[HT_MAX_RANK];
} ht_array;

/* arrays.c: the tensor of the numpy array at that address, in `room`, as long as the array is kept; NULL where it cannot be taken so: of
 * another type, or read-only though it will be written. */
const DLTensor* ht_ffi_array(int64_t address, int written, ht_array* room);
/* The same of an array whose elements lie side by side and aligned; NULL of any other. */
const DLTensor* ht_plain_array(int64_t address, int written, ht_array* room);
/* 1 where the array at that address is this tensor, which has strides; 0 where it is laid out otherwise or may not be written to. Nothing is
 * followed that does not agree so far. */
int ht_array_agrees(int64_t address, const DLTensor* tensor);

/* A new output of a layer for x, of x's framework and on its device; 0 or -1. */
int ht_ffi_allocate(const ht_op* op, int device_type, const DLTensor* x, TVMFFIAny* out);
int64_t ht_ffi_whole(const TVMFFIAny* args, int32_t count, int32_t index, int64_t limit); /* of [0, limit), or -1 */

#endif /* HT_PACK_H_ */
