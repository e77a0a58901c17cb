/* tvm-ffi as a program of ours plays it: errors, a stream, an allocator, objects that are counted. Link with -rdynamic where a pack's
 * library is to find it. */
#ifndef FRAMEWORK_H_
#define FRAMEWORK_H_

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tvm/ffi/extra/c_env_api.h>

#define CHECK(condition)                                      \
  do {                                                        \
    if (!(condition)) {                                       \
      fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
      exit(1);                                                \
    }                                                         \
  } while (0)
#define SHOWN __attribute__((visibility("default")))

typedef struct { /* as tvm-ffi has a tensor: behind the object's head */
  TVMFFIObject head;
  DLTensor tensor;
  int64_t shape[8];
} made_tensor;

static char raised[400];
static int alive, asked, allocates = 1, out_of_memory, raises = 1, gives, moved; /* objects; calls of the allocator; what it does; errors taken */
static int64_t asked_for;                                             /* elements of the last tensor */
static void* current_stream;
static int32_t stream_type, stream_device;
static void* (*memory_of)(int64_t bytes);

SHOWN void TVMFFIErrorSetRaisedFromCStr(const char* kind, const char* message) { snprintf(raised, sizeof raised, "%s: %s", kind, message); }
SHOWN void TVMFFIErrorMoveFromRaised(TVMFFIObjectHandle* out) {
  ++moved;
  *out = raises ? malloc(sizeof(TVMFFIObject)) : NULL;
  alive += raises;
}
SHOWN int TVMFFIObjectDecRef(TVMFFIObjectHandle object) {
  CHECK(object != NULL);
  free(object);
  return --alive, 0;
}
SHOWN TVMFFIStreamHandle TVMFFIEnvGetStream(int32_t type, int32_t device) {
  stream_type = type, stream_device = device;
  return current_stream;
}
static int unused_allocator(DLTensor* like, struct DLManagedTensorVersioned** out, void* context, void (*say)(void*, const char*, const char*)) {
  (void)like, (void)out, (void)context, (void)say;
  return -1;
}
SHOWN DLPackManagedTensorAllocator TVMFFIEnvGetDLPackManagedTensorAllocator(void) { return allocates ? unused_allocator : NULL; }
SHOWN int TVMFFIEnvTensorAlloc(DLTensor* like, TVMFFIObjectHandle* out) {
  ++asked;
  if (out_of_memory) return -1;
  made_tensor* made = calloc(1, sizeof *made);
  made->tensor = *like, made->tensor.shape = made->shape, asked_for = 1;
  for (int i = 0; i < like->ndim; ++i) asked_for *= made->shape[i] = like->shape[i];
  made->tensor.data = memory_of(asked_for * like->dtype.bits / 8);
  *out = made, ++gives, ++alive;
  return 0;
}

#endif /* FRAMEWORK_H_ */
