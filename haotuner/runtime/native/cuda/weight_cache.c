/* See weight_cache.h. */
#include "weight_cache.h"

#include <stdlib.h>

ht_cuda_kept* ht_cuda_kept_new(const ht_cuda_device* device, int64_t bytes, ht_error* error) {
  const ht_cu* cu = ht_cu_load(error);
  if (cu == NULL) return NULL;
  ht_cuda_kept* made = calloc(1, sizeof *made);
  if (made == NULL) {
    ht_refuse(error, "RuntimeError", "no memory to keep a weight");
    return NULL;
  }
  made->device = device, made->bytes = bytes;
  const CUresult result = cu->MemAlloc(&made->data, (size_t)bytes);
  if (result == CUDA_SUCCESS) return made;
  ht_cu_refuse(error, result, "memory for a weight as kernels read it");
  free(made);
  return NULL;
}

int ht_cuda_kept_read(ht_cuda_kept* kept, CUstream stream, ht_error* error) {
  int status = CU_STREAM_CAPTURE_STATUS_NONE;
  const ht_cu* cu = ht_cu_load(error);
  if (cu == NULL) return -1;
  /* The legacy stream, which has two names, is never captured. */
  if (stream == NULL || stream == (CUstream)1 || atomic_load_explicit(&kept->replayed, memory_order_relaxed)) return 0;
  const CUresult result = cu->StreamIsCapturing(stream, &status);
  if (result != CUDA_SUCCESS) return ht_cu_refuse(error, result, "asking whether the stream is captured");
  if (status != CU_STREAM_CAPTURE_STATUS_NONE) atomic_store(&kept->replayed, 1);
  return 0;
}

void ht_cuda_give_back(const ht_cuda_device* device, CUdeviceptr address) {
  ht_error unused;
  ht_cuda_scope scope;
  const ht_cu* cu = ht_cu_load(&unused); /* NULL: the process was forked since */
  if (address == 0 || cu == NULL || ht_cuda_enter(device, &scope, &unused) != 0) return;
  if (cu->CtxSynchronize() == CUDA_SUCCESS) cu->MemFree(address);
  ht_cuda_leave(&scope);
}

void ht_cuda_let_go(ht_cuda_kept* kept) {
  if (kept == NULL) return;
  if (!atomic_load(&kept->replayed)) ht_cuda_give_back(kept->device, kept->data);
  free(kept);
}
