/* See cuda_kind.h. */
#include "cuda_kind.h"

int ht_cuda_no_run(const ht_op* op, const ht_plan* plan, const ht_call* call, int threads) {
  (void)op, (void)plan, (void)call, (void)threads;
  return -1;
}

int ht_cuda_open_device(int device, ht_error* error) { return ht_cuda_load(device, error) == NULL ? -1 : 0; }

int64_t ht_cuda_no_bytes(const ht_op* op) {
  (void)op;
  return 0;
}

int ht_cuda_no_bind(const ht_op* op, const DLTensor* weight, const DLTensor* const* channels, int32_t count, void* bound, ht_error* error) {
  (void)weight, (void)channels, (void)count, (void)bound;
  return ht_refuse(error, "ValueError", "%s has no weight to bind: all operands come with the call", op->name);
}

int ht_cuda_no_prepare(const ht_op* op, const void* bound, void* stream, ht_error* error) {
  (void)op, (void)bound, (void)stream, (void)error;
  return 0;
}
