/* What a pack's generated pack_data.c provides, and what it calls. */
#ifndef HT_PACK_H_
#define HT_PACK_H_

#include "ht.h"

#define HT_MAX_OPS 256 /* plan indices and op counters are sized by it; the writer refuses more */
#define HT_EXPORT __attribute__((visibility("default")))

extern const ht_op ht_ops[];
extern const int ht_op_count;

/* serve.c: one checked, planned, counted call; bias may be NULL. setting = plan index + 256 * threads.
 * 0, or -1 with *error filled. */
int ht_call_op(int index, const DLTensor* x, const DLTensor* w, const DLTensor* y, const DLTensor* bias, int64_t setting,
               ht_error* error);

/* serve.c: calls, calls with a thread count that was not tuned, and shapes outside the tuned range since loading. */
void ht_counts(int op, int64_t out[3]);

/* serve.c: histogram of rows a call, filled while `capture` was called more often with 1 than with -1. Never allocates. */
#define HT_SHAPE_SLOTS (4096 + 20 * 64)
void ht_capture(int step);
int64_t ht_seen(int op, int slot);
int64_t ht_slot_rows(int slot); /* rows that a slot stands for */

/* ffi.c: the same behind tvm-ffi's calling convention; pack_data.c exports one such function an op. */
int ht_ffi_call(int index, const TVMFFIAny* args, int32_t count, TVMFFIAny* result);

#endif /* HT_PACK_H_ */
