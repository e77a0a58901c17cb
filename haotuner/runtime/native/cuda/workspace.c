/* See workspace.h. The buffers stand in a list that only grows, so that a call reads it without a lock. */
#include "workspace.h"

#include <sched.h>
#include <tvm/ffi/extra/c_env_api.h>

#define MOST 1024 /* buffers: streams x devices, and once more for each growth */

#pragma weak TVMFFIEnvGetStream /* a C server has no tvm-ffi */
#pragma weak TVMFFIEnvGetDLPackManagedTensorAllocator
#pragma weak TVMFFIEnvTensorAlloc
#pragma weak TVMFFIErrorMoveFromRaised
#pragma weak TVMFFIObjectDecRef

typedef struct {
  const ht_cuda_device* device;
  CUstream stream;
  int64_t bytes;
  float* data;
} buffer;

static struct {
  atomic_int busy, count;
  buffer list[MOST];
} prepared;

static CUstream plain(CUstream stream) { return stream == (CUstream)1 ? NULL : stream; } /* two names of the legacy stream */

/* Calls of a thread's own default stream share its name, not the stream. */
static int own_of_thread(CUstream stream) { return stream == (CUstream)2; }

static float* find(const ht_cuda_device* device, CUstream stream, int64_t bytes) {
  for (int i = atomic_load_explicit(&prepared.count, memory_order_acquire) - 1; i >= 0; --i) {
    const buffer* one = &prepared.list[i];
    if (one->device == device && one->stream == plain(stream) && one->bytes >= bytes) return one->data;
  }
  return NULL;
}

/* The framework frees in the order of its current stream: right only where that is the call's. */
static int ask_framework(const ht_cuda_device* device, CUstream stream, int64_t bytes, ht_cuda_workspace* out) {
  if (TVMFFIEnvGetDLPackManagedTensorAllocator == NULL) return -1; /* of tvm-ffi, which has all or none of what is asked here */
  if (TVMFFIEnvGetDLPackManagedTensorAllocator() == NULL) return -1;
  if ((CUstream)TVMFFIEnvGetStream(kDLCUDA, device->ordinal) != stream) return -1;
  int64_t shape[1] = {bytes / (int64_t)sizeof(float)};
  DLTensor like = {NULL, {kDLCUDA, device->ordinal}, 1, {kDLFloat, 32, 1}, shape, NULL, 0};
  TVMFFIObjectHandle made = NULL;
  if (TVMFFIEnvTensorAlloc(&like, &made) != 0) { /* out of memory: the call goes on without */
    TVMFFIObjectHandle error = NULL;
    TVMFFIErrorMoveFromRaised(&error);
    if (error != NULL) TVMFFIObjectDecRef(error);
    return -1;
  }
  const DLTensor* t = (const DLTensor*)((const char*)made + sizeof(TVMFFIObject));
  *out = (ht_cuda_workspace){(float*)ht_data(t), made};
  return 0;
}

int ht_cuda_workspace_take(const ht_cuda_device* device, CUstream stream, int64_t bytes, ht_cuda_workspace* out) {
  if (ask_framework(device, stream, bytes, out) == 0) return 0;
  *out = (ht_cuda_workspace){own_of_thread(stream) ? NULL : find(device, stream, bytes), NULL};
  return out->data == NULL ? -1 : 0;
}

void ht_cuda_workspace_done(const ht_cuda_workspace* workspace) {
  if (workspace->held != NULL) TVMFFIObjectDecRef(workspace->held);
}

int ht_cuda_workspace_prepare(const ht_cuda_device* device, CUstream stream, int64_t bytes, ht_error* error) {
  const ht_cu* cu = ht_cu_load(error);
  int free_slot = 0, rc = 0;
  if (cu == NULL) return -1;
  if (bytes == 0 || own_of_thread(stream)) return 0; /* calls on it do not split */
  while (!atomic_compare_exchange_strong(&prepared.busy, &free_slot, 1)) {
    free_slot = 0;
    sched_yield();
  }
  int count = atomic_load(&prepared.count);
  if (find(device, stream, bytes) == NULL) {
    CUdeviceptr address = 0;
    CUresult result = count == MOST ? CUDA_SUCCESS : cu->MemAlloc(&address, (size_t)bytes);
    if (count == MOST) rc = ht_refuse(error, "RuntimeError", "%d buffers for partial sums are in use: serve on fewer streams", MOST);
    else if (result != CUDA_SUCCESS) rc = ht_cu_refuse(error, result, "memory for partial sums");
    else {
      prepared.list[count] = (buffer){device, plain(stream), bytes, (float*)(uintptr_t)address};
      atomic_store_explicit(&prepared.count, count + 1, memory_order_release);
    }
  }
  atomic_store(&prepared.busy, 0);
  return rc;
}
