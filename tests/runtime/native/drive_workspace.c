/* cuda/workspace.c alone: whose memory a call with partial sums gets, from a framework or from what was prepared. Prints "right". */
#define _GNU_SOURCE
#include "framework.h"

#include <pthread.h>
#include <unistd.h>

#include "cuda/workspace.h"

#define BYTES 256
#define STREAMS 1024 /* the most that are kept */
#define THREADS 4

static ht_cu cu;
static int loads = 1, made, slow;
static CUresult answer;
static CUresult take_memory(CUdeviceptr* address, size_t bytes) {
  if (answer != CUDA_SUCCESS) return answer;
  if (slow) usleep(100); /* so that threads meet here */
  *address = (CUdeviceptr)(size_t)malloc(bytes);
  return __atomic_add_fetch(&made, 1, __ATOMIC_RELAXED), CUDA_SUCCESS;
}
const ht_cu* ht_cu_load(ht_error* error) {
  return loads ? &cu : (ht_refuse(error, "RuntimeError", "no driver"), NULL);
}
int ht_cu_refuse(ht_error* error, CUresult result, const char* doing) { return ht_refuse(error, "RuntimeError", "%s: %d", doing, result); }

static const ht_cuda_device devices[2] = {{.ordinal = 0}, {.ordinal = 1}};
static void* heap(int64_t bytes) { return malloc((size_t)bytes); }

/* What a call gets: memory that is ready to be written, or none; given back, nothing of the framework's is left. */
static float* taken(int device, void* stream, int64_t bytes, int from_framework) {
  ht_cuda_workspace out = {(float*)1, (void*)1};
  const int before = alive, given = gives;
  const int rc = ht_cuda_workspace_take(&devices[device], stream, bytes, &out);
  CHECK((rc == 0) == (out.data != NULL) && gives - given == from_framework && (out.held != NULL) == from_framework);
  if (from_framework) memset(out.data, 1, (size_t)bytes), free(out.data);
  ht_cuda_workspace_done(&out);
  CHECK(alive == before);
  return out.data;
}

static void* prepare(void* stream) {
  ht_error error;
  for (int i = 0; i < 200; ++i) CHECK(ht_cuda_workspace_prepare(&devices[1], (CUstream)((char*)stream + 64 * i), BYTES, &error) == 0);
  return NULL;
}

int main(void) {
  ht_error error = {NULL, ""};
  CUstream one = (CUstream)(size_t)0x1000, other = (CUstream)(size_t)0x2000, legacy = (CUstream)(size_t)1, of_thread = (CUstream)(size_t)2;
  memory_of = heap, cu.MemAlloc = take_memory;
  /* the framework's, where its stream is the call's */
  current_stream = one;
  CHECK(taken(0, one, BYTES, 1) != NULL && asked_for == BYTES / 4 && stream_type == kDLCUDA && stream_device == 0);
  CHECK(taken(1, one, 2 * BYTES, 1) != NULL && asked_for == BYTES / 2 && stream_device == 1);
  CHECK(taken(0, other, BYTES, 0) == NULL);
  current_stream = of_thread;
  CHECK(taken(0, of_thread, BYTES, 1) != NULL);
  current_stream = one, allocates = 0, asked = 0;
  CHECK(taken(0, one, BYTES, 0) == NULL && asked == 0);
  allocates = out_of_memory = 1;
  CHECK(taken(0, one, BYTES, 0) == NULL && asked == 1 && moved == 1);
  raises = 0;
  CHECK(taken(0, one, BYTES, 0) == NULL && asked == 2 && moved == 2);
  /* what was prepared, for a device, a stream and its size */
  loads = 0;
  CHECK(ht_cuda_workspace_prepare(&devices[0], one, BYTES, &error) == -1 && strcmp(error.text, "no driver") == 0);
  loads = 1, answer = CUDA_ERROR_OUT_OF_MEMORY;
  CHECK(ht_cuda_workspace_prepare(&devices[0], one, BYTES, &error) == -1 && strcmp(error.text, "memory for partial sums: 2") == 0);
  answer = CUDA_SUCCESS;
  CHECK(ht_cuda_workspace_prepare(&devices[0], one, 0, &error) == 0 && ht_cuda_workspace_prepare(&devices[0], of_thread, BYTES, &error) == 0);
  CHECK(made == 0 && taken(0, one, BYTES, 0) == NULL && taken(0, of_thread, BYTES, 0) == NULL);
  CHECK(ht_cuda_workspace_prepare(&devices[0], one, BYTES, &error) == 0 && made == 1);
  CHECK(ht_cuda_workspace_prepare(&devices[0], one, BYTES / 2, &error) == 0 && made == 1);
  float* first = taken(0, one, BYTES, 0);
  CHECK(first != NULL && taken(0, one, BYTES / 2, 0) == first && taken(0, one, BYTES + 4, 0) == NULL);
  CHECK(taken(1, one, BYTES, 0) == NULL && taken(0, other, BYTES, 0) == NULL);
  CHECK(ht_cuda_workspace_prepare(&devices[0], one, 2 * BYTES, &error) == 0 && made == 2 && taken(0, one, 2 * BYTES, 0) != NULL);
  CHECK(ht_cuda_workspace_prepare(&devices[0], legacy, BYTES, &error) == 0 && made == 3); /* two names of one stream */
  CHECK(taken(0, NULL, BYTES, 0) != NULL && taken(0, NULL, BYTES, 0) == taken(0, legacy, BYTES, 0));
  CHECK(ht_cuda_workspace_prepare(&devices[0], NULL, BYTES, &error) == 0 && made == 3);
  /* several threads at once, then as many streams as there is room for */
  pthread_t threads[THREADS];
  slow = 1;
  for (int i = 0; i < THREADS; ++i) CHECK(pthread_create(&threads[i], NULL, prepare, (void*)(size_t)0x100000) == 0);
  for (int i = 0; i < THREADS; ++i) pthread_join(threads[i], NULL);
  CHECK(made == 203);
  slow = 0;
  for (size_t i = 0; made < STREAMS; ++i) CHECK(ht_cuda_workspace_prepare(&devices[0], (CUstream)(0x900000 + 64 * i), BYTES, &error) == 0);
  CHECK(ht_cuda_workspace_prepare(&devices[0], other, BYTES, &error) == -1 && made == STREAMS);
  CHECK(strcmp(error.text, "1024 buffers for partial sums are in use: serve on fewer streams") == 0);
  CHECK(ht_cuda_workspace_prepare(&devices[0], one, BYTES, &error) == 0 && taken(0, one, 2 * BYTES, 0) != NULL && taken(0, other, BYTES, 0) == NULL);
  printf("right\n");
  return 0;
}
