/* Memory for partial sums of a call that splits k: of the caller's framework, or a buffer that was prepared for the stream.
 *
 * Never one a pack: calls on two streams run at the same time. What was prepared is never freed, for graphs may replay it. */
#ifndef HT_CUDA_WORKSPACE_H_
#define HT_CUDA_WORKSPACE_H_

#include "driver.h"

typedef struct {
  float* data;
  void* held; /* an object of tvm-ffi, or NULL */
} ht_cuda_workspace;

/* 0 and memory for work that is queued on `stream` before `done`; -1 where there is none, which is no error: do not split. */
int ht_cuda_workspace_take(const ht_cuda_device* device, CUstream stream, int64_t bytes, ht_cuda_workspace* out);
void ht_cuda_workspace_done(const ht_cuda_workspace* workspace);

/* A buffer of at least so many bytes for a stream, with the device entered. Not for a call, nor under capture. */
int ht_cuda_workspace_prepare(const ht_cuda_device* device, CUstream stream, int64_t bytes, ht_error* error);

#endif /* HT_CUDA_WORKSPACE_H_ */
