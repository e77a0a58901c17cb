/* Device memory with what a weight that was bound became, once, for all calls. */
#ifndef HT_CUDA_KEPT_H_
#define HT_CUDA_KEPT_H_

#include <stdatomic.h>

#include "driver.h"

typedef struct {
  const ht_cuda_device* device;
  CUdeviceptr data;
  int64_t bytes;
  atomic_int replayed; /* a call that read it was captured: a graph may read it at any time, so that it is never freed */
} ht_cuda_kept;

/* So many bytes, with the device entered; NULL with *error filled. Not for a call, nor under capture. */
ht_cuda_kept* ht_cuda_kept_new(const ht_cuda_device* device, int64_t bytes, ht_error* error);

static inline void* ht_cuda_kept_data(const ht_cuda_kept* kept) { return (void*)(uintptr_t)kept->data; }

/* A call that reads it is queued on `stream`, with the device entered. */
int ht_cuda_kept_read(ht_cuda_kept* kept, CUstream stream, ht_error* error);

/* Nobody calls with it any more; NULL is nothing. */
void ht_cuda_let_go(ht_cuda_kept* kept);

/* Frees memory that queued work may use, once that is done; where the driver lets nobody wait, as in a capture, it stays. */
void ht_cuda_give_back(const ht_cuda_device* device, CUdeviceptr address);

#endif /* HT_CUDA_KEPT_H_ */
