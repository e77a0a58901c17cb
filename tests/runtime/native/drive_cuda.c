/* Drives a pack on CUDA device 0 through haotuner.h: drive_cuda time|refuse|threads|together PACK OP. Prints "right", or nanoseconds. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda/cu.h"
#include "haotuner.h"

#define CHECK(condition)                                      \
  do {                                                        \
    if (!(condition)) {                                       \
      fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
      exit(1);                                                \
    }                                                         \
  } while (0)

#define ROWS 8
#define THREADS 8
#define CALLS 400

static ht_cu cu;
static CUcontext context;
static ht_linear* linear;
static int64_t n, k;
static DLDataType dtype;

static void open_driver(void) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  CHECK(library != NULL);
#define FIND(field, symbol, parameters) *(void**)&cu.field = dlsym(library, #symbol);
  HT_CU_NEEDED(FIND)
  HT_CU_PERHAPS(FIND)
  CUdevice device;
  CHECK(cu.DeviceGet(&device, 0) == 0 && cu.DevicePrimaryCtxRetain(&context, device) == 0);
}

static void* place(size_t bytes) {
  CUdeviceptr found;
  CHECK(cu.CtxPushCurrent(context) == 0);
  CHECK(cu.MemAlloc(&found, bytes) == 0);
  CHECK(cu.CtxPopCurrent(&context) == 0);
  return (void*)(size_t)found;
}

static CUstream new_stream(void) {
  CUstream stream;
  CHECK(cu.CtxPushCurrent(context) == 0 && cu.StreamCreate(&stream, CU_STREAM_NON_BLOCKING) == 0);
  CHECK(cu.CtxPopCurrent(&context) == 0);
  return stream;
}

static DLTensor tensor(void* data, int rank, int64_t* shape) {
  DLTensor t = {data, {kDLCUDA, 0}, rank, dtype, shape, NULL, 0};
  return t;
}

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* Nanoseconds of ht_call over those of what it must ask the driver for: the best of many rounds. */
static void measure(const DLTensor* x, const DLTensor* y, CUstream stream) {
  int64_t best = 1 << 30, least = 1 << 30;
  CUtensorMap map;
  void* params[1] = {&map};
  const uint64_t extents[2] = {64, 64}, strides[1] = {128};
  const uint32_t box[2] = {64, 64}, steps[2] = {1, 1};
  int maps = dtype.bits == 16;
  CUcontext current;
  CHECK(cu.CtxPushCurrent(context) == 0); /* as a server's thread has it */
  for (int round = 0; round < 200; ++round) {
    int64_t begin = now();
    for (int i = 0; i < 200; ++i) CHECK(ht_call(linear, x, y, stream, NULL) == HT_OK);
    int64_t middle = now();
    for (int i = 0; i < 200; ++i) {
      CHECK(cu.CtxGetCurrent(&current) == 0);
      if (maps) CHECK(cu.TensorMapEncodeTiled(&map, 6, 2, x->data, extents, strides, box, steps, 0, 3, 2, 0) == 0);
      CHECK(cu.LaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL) == 0);
    }
    int64_t end = now();
    if (middle - begin < best) best = middle - begin;
    if (end - middle < least) least = end - middle;
  }
  printf("a call %.0f ns, of which the driver %.0f: a dispatch adds %.0f\n", (double)best / 200, (double)least / 200,
         (double)(best - least) / 200);
}

static void refuse(ht_op* op, DLTensor x, DLTensor y, CUstream stream) {
  ht_error error;
  int64_t wrong[2] = {ROWS, k + 1}, empty[2] = {0, k}, none[2] = {0, n}, far[2] = {(int64_t)1 << 40, k}, strides[2] = {k, 2};
  DLTensor t = x, u = y;
  CHECK(ht_call(linear, &x, &y, stream, &error) == HT_OK);
  t.shape = wrong;
  CHECK(ht_call(linear, &t, &y, stream, &error) == HT_BAD_VALUE && strstr(error.text, "last extent") != NULL);
  t = x, t.device.device_type = kDLCPU;
  CHECK(ht_call(linear, &t, &y, stream, &error) == HT_BAD_VALUE && strstr(error.text, "x lives on the CPU") != NULL);
  t = x, t.device.device_id = 7;
  CHECK(ht_call(linear, &t, &y, stream, &error) == HT_BAD_VALUE && strstr(error.text, "x lives on cuda:7") != NULL);
  t = x, t.dtype.bits = 64;
  CHECK(ht_call(linear, &t, &y, stream, &error) == HT_BAD_TYPE);
  t = x, t.data = NULL;
  CHECK(ht_call(linear, &t, &y, stream, &error) == HT_BAD_VALUE && strstr(error.text, "has no data") != NULL);
  t = x, t.shape = NULL;
  CHECK(ht_call(linear, &t, &y, stream, &error) == HT_BAD_VALUE);
  t = x, t.ndim = 65;
  CHECK(ht_call(linear, &t, &y, stream, &error) == HT_BAD_VALUE);
  t = x, t.strides = strides;
  CHECK(ht_call(linear, &t, &y, stream, &error) == HT_BAD_VALUE && strstr(error.text, "inner stride 2") != NULL);
  t = x, t.shape = far;
  CHECK(ht_call(linear, &t, &y, stream, &error) == HT_BAD_VALUE && strstr(error.text, "2^31-1") != NULL);
  u = y, u.data = x.data;
  CHECK(ht_call(linear, &x, &u, stream, &error) == HT_BAD_VALUE && strstr(error.text, "shares memory with x") != NULL);
  t = x, t.shape = empty, u = y, u.shape = none;
  CHECK(ht_call(linear, &t, &u, stream, &error) == HT_OK);
  t.data = u.data = NULL;
  CHECK(ht_call(linear, &t, &u, stream, &error) == HT_OK);
  CHECK(ht_call(linear, NULL, &y, stream, &error) == HT_BAD_VALUE && ht_call(NULL, &x, &y, stream, NULL) == HT_BAD_VALUE);
  CHECK(ht_call_threads(linear, &x, &y, stream, 2, &error) == HT_BAD_VALUE && strstr(error.text, "no thread counts") != NULL);
  ht_linear* other;
  CHECK(ht_bind(op, &x, NULL, &other, &error) == HT_BAD_VALUE && strstr(error.text, "weight has rank 2 and shape") != NULL);
  CHECK(ht_bind(op, NULL, NULL, &other, &error) == HT_BAD_VALUE && ht_prepare(NULL, stream, &error) == HT_BAD_VALUE);
  CHECK(ht_call(linear, &x, &y, stream, &error) == HT_OK);
}

static void* serve(void* unused) {
  CUstream streams[2] = {new_stream(), new_stream()};
  int64_t x_shape[2] = {ROWS, k}, y_shape[2] = {ROWS, n};
  DLTensor x = tensor(place((size_t)(ROWS * k) * 4), 2, x_shape), y = tensor(place((size_t)(ROWS * n) * 4), 2, y_shape);
  ht_error error;
  for (int i = 0; i < CALLS; ++i) {
    x_shape[0] = y_shape[0] = i % ROWS;
    if (i == 50) CHECK(ht_prepare(linear, streams[1], &error) == HT_OK);
    CHECK(ht_call(linear, &x, &y, streams[i % 2], &error) == HT_OK);
  }
  return unused;
}

static const char *pack_path, *op_name;
static pthread_barrier_t all_ready;

/* The first open of the driver, the device and the pack's code, by several threads at once; the tests make each take a while. */
static void* begin(void* unused) {
  ht_error error;
  ht_pack* pack;
  ht_op* op;
  pthread_barrier_wait(&all_ready);
  if (ht_pack_open_on(pack_path, 0, &pack, &error) != HT_OK) { /* a failure that the tests planned; the next try is right */
    CHECK(strstr(error.text, "CUDA_ERROR_OUT_OF_MEMORY (2)") != NULL);
    CHECK(ht_pack_open_on(pack_path, 0, &pack, &error) == HT_OK);
  }
  CHECK(ht_op_find(pack, op_name, &op, &error) == HT_OK);
  ht_pack_close(pack);
  return unused;
}

static void together(void) {
  pthread_t threads[THREADS];
  CHECK(pthread_barrier_init(&all_ready, NULL, THREADS) == 0);
  for (int i = 0; i < THREADS; ++i) CHECK(pthread_create(&threads[i], NULL, begin, NULL) == 0);
  for (int i = 0; i < THREADS; ++i) pthread_join(threads[i], NULL);
  printf("right\n");
}

int main(int argc, char** argv) {
  ht_error error;
  ht_pack *pack, *again;
  ht_op* op;
  long long columns, terms;
  CHECK(argc == 4 && sscanf(argv[3], "dense_n%lld_k%lld", &columns, &terms) == 2);
  n = columns, k = terms;
  pack_path = argv[2], op_name = argv[3];
  if (strcmp(argv[1], "together") == 0) {
    together();
    return 0;
  }
  dtype = (DLDataType){kDLFloat, strstr(argv[3], "fp16") == NULL ? 32 : 16, 1};
  CHECK(ht_pack_open_on(argv[2], 99, &pack, &error) == HT_NO_DEVICE && strstr(error.text, "no device cuda:99") != NULL);
  CHECK(ht_pack_open(argv[2], 1, &pack, &error) == HT_PACK_MISMATCH && strstr(error.text, "ht_pack_open_on") != NULL);
  CHECK(ht_pack_open_on(NULL, 0, &pack, &error) == HT_PACK_INVALID && ht_pack_open_on(argv[2], 0, NULL, &error) == HT_BAD_VALUE);
  if (ht_pack_open_on(argv[2], 0, &pack, &error) != HT_OK) return fprintf(stderr, "%s\n", error.text), 2;
  CHECK(ht_op_find(pack, argv[3], &op, &error) == HT_OK);
  open_driver();
  int64_t w_shape[2] = {n, k}, b_shape[1] = {n}, x_shape[2] = {ROWS, k}, y_shape[2] = {ROWS, n};
  DLTensor weight = tensor(place((size_t)(n * k) * 4), 2, w_shape), bias = tensor(place((size_t)n * 4), 1, b_shape);
  DLTensor x = tensor(place((size_t)(ROWS * k) * 4), 2, x_shape), y = tensor(place((size_t)(ROWS * n) * 4), 2, y_shape);
  if (ht_bind(op, &weight, &bias, &linear, &error) != HT_OK) return fprintf(stderr, "%s\n", error.text), 3;
  CUstream stream = new_stream();
  CHECK(ht_prepare(linear, stream, &error) == HT_OK);
  if (strcmp(argv[1], "time") == 0) {
    measure(&x, &y, stream);
    return 0;
  }
  refuse(op, x, y, stream);
  if (strcmp(argv[1], "threads") == 0) {
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; ++i) CHECK(pthread_create(&threads[i], NULL, serve, NULL) == 0);
    for (int i = 0; i < 20; ++i) {
      CHECK(ht_pack_open_on(argv[2], 0, &again, &error) == HT_OK);
      ht_pack_close(again);
    }
    for (int i = 0; i < THREADS; ++i) pthread_join(threads[i], NULL);
  }
  ht_pack_close(pack);
  CHECK(ht_call(linear, &x, &y, stream, &error) == HT_CLOSED);
  ht_linear_free(linear);
  printf("right\n");
  return 0;
}
