/* What every kind on CUDA answers alike. */
#ifndef HT_CUDA_KIND_H_
#define HT_CUDA_KIND_H_

#include "cuda/loaded.h"
#include "ht.h"

int ht_cuda_no_run(const ht_op* op, const ht_plan* plan, const ht_call* call, int threads); /* -1: a call is launched instead */
int ht_cuda_open_device(int device, ht_error* error);

/* Of kinds that bind nothing: every operand comes with the call. */
int64_t ht_cuda_no_bytes(const ht_op* op);
int ht_cuda_no_bind(const ht_op* op, const DLTensor* weight, const DLTensor* const* channels, int32_t count, void* bound, ht_error* error);
int ht_cuda_no_prepare(const ht_op* op, const void* bound, void* stream, ht_error* error);

#endif /* HT_CUDA_KIND_H_ */
