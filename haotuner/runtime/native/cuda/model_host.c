/* See model/backend.h: what a chain's host reads and makes of tensors on a GPU. Memory of the host is not pinned: a copy to it is there when
 * the stream was waited for, and one from it stays as it is until then. */
#include <stdlib.h>

#include "cuda/driver.h"
#include "model/backend.h"

/* At least so many bytes; what was in them is lost. */
static char* bytes_of(const ht_model* m, ht_model_bytes* own, int64_t bytes, ht_error* error) {
  if ((size_t)bytes <= own->bytes) return own->data;
  free(own->data);
  *own = (ht_model_bytes){malloc((size_t)bytes), (size_t)bytes};
  if (own->data != NULL) return own->data;
  own->bytes = 0;
  return ht_refuse(error, "RuntimeError", "%s: the host has no memory for %lld bytes of a tensor that it reads or makes", m->name, (long long)bytes), NULL;
}

/* Enters the device that the model was opened on; 0, or -1 with *error filled. */
static int enter(const ht_model* m, const ht_cu** cu, ht_cuda_scope* scope, ht_error* error) {
  if ((*cu = ht_cu_load(error)) == NULL) return -1;
  return ht_cuda_enter(ht_cuda_opened(m->device), scope, error);
}

const void* ht_where_seen(const ht_model* m, ht_model_context* c, const void* from, int64_t bytes, const ht_model_queue* q, ht_error* error) {
  const ht_cu* cu;
  ht_cuda_scope scope;
  char* to = bytes_of(m, &c->seen, bytes, error);
  if (to == NULL || enter(m, &cu, &scope, error) != 0) return NULL;
  CUresult result = cu->MemcpyDtoHAsync(to, (CUdeviceptr)(uintptr_t)from, (size_t)bytes, q->stream);
  if (result == CUDA_SUCCESS) result = cu->StreamSynchronize(q->stream);
  ht_cuda_leave(&scope);
  if (result != CUDA_SUCCESS) return ht_cu_refuse(error, result, "reading what tells a size or a branch"), NULL;
  c->sending = 0; /* what was queued before is done, too */
  return to;
}

void* ht_where_room(const ht_model* m, ht_model_context* c, void* to, int64_t bytes, const ht_model_queue* q, ht_error* error) {
  (void)to;
  if (c->sending && ht_where_wait(m, q->stream, error) != 0) return NULL;
  c->sending = 0;
  return bytes_of(m, &c->sent, bytes, error);
}

int ht_where_send(const ht_model* m, ht_model_context* c, void* to, int64_t bytes, const ht_model_queue* q, ht_error* error) {
  const ht_cu* cu;
  ht_cuda_scope scope;
  if (enter(m, &cu, &scope, error) != 0) return -1;
  c->sending = 1;
  const CUresult result = cu->MemcpyHtoDAsync((CUdeviceptr)(uintptr_t)to, c->sent.data, (size_t)bytes, q->stream);
  ht_cuda_leave(&scope);
  return result == CUDA_SUCCESS ? 0 : ht_cu_refuse(error, result, "copying what the host makes");
}

/* In halves, by which no memory of the host has to wait. */
int ht_where_number(const ht_model* m, int64_t* to, int64_t number, const ht_model_queue* q, ht_error* error) {
  const ht_cu* cu;
  ht_cuda_scope scope;
  const CUdeviceptr low = (CUdeviceptr)(uintptr_t)to;
  if (enter(m, &cu, &scope, error) != 0) return -1;
  CUresult result = cu->MemsetD32Async(low, (unsigned)(uint64_t)number, 1, q->stream);
  if (result == CUDA_SUCCESS) result = cu->MemsetD32Async(low + 4, (unsigned)((uint64_t)number >> 32), 1, q->stream);
  ht_cuda_leave(&scope);
  return result == CUDA_SUCCESS ? 0 : ht_cu_refuse(error, result, "saying which turn of a loop it is");
}
