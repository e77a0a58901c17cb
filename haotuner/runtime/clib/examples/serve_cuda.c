/* Serve one fp32 op of a pack on a CUDA device from C:  serve_cuda PACK OP DEVICE M...
 *
 * Every call is made on a stream of our own, then captured in a graph and replayed; prints the largest error against a plain loop.
 * The driver's API is opened at run time, so that this file needs no CUDA toolkit; a server that has one includes <cuda.h>. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <haotuner.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void* driver;

static int cuda(const char* name, int code) {
  if (code != 0) fprintf(stderr, "%s: CUDA error %d\n", name, code);
  return code;
}

#define CALL(name, types, ...) \
  if (cuda(#name, ((int(*) types)dlsym(driver, #name))(__VA_ARGS__)) != 0) exit(5)

typedef unsigned long long address;

static address place(size_t bytes, const void* content) {
  address found;
  CALL(cuMemAlloc_v2, (address*, size_t), &found, bytes + 16);
  if (content == NULL) return found;
  CALL(cuMemcpyHtoD_v2, (address, const void*, size_t), found, content, bytes);
  CALL(cuStreamSynchronize, (void*), NULL); /* the copy may return before its last bytes arrive */
  return found;
}

static DLTensor tensor(address data, int device, int rank, int64_t* shape) {
  DLTensor t = {(void*)(size_t)data, {kDLCUDA, device}, rank, {kDLFloat, 32, 1}, shape, NULL, 0}; /* strides NULL: compact */
  return t;
}

static int stop(const char* what, const ht_error* error) {
  fprintf(stderr, "%s: %s (%d)\n", what, error->text, (int)error->code);
  return 1;
}

int main(int argc, char** argv) {
  ht_error error;
  ht_pack* pack;
  ht_op* op;
  ht_linear* linear;
  long long n, k;
  void *context, *stream, *graph, *ready;
  if (argc < 5 || sscanf(argv[2], "dense_n%lld_k%lld", &n, &k) != 2) {
    fprintf(stderr, "usage: serve_cuda PACK dense_n<N>_k<K> DEVICE M...\n");
    return 2;
  }
  int device = atoi(argv[3]), handle;
  if (ht_abi_version() != HT_ABI_VERSION) return 3;
  if (ht_pack_open_on(argv[1], device, &pack, &error) != HT_OK) return stop("open", &error);
  if (ht_op_find(pack, argv[2], &op, &error) != HT_OK) return stop("find", &error);
  driver = dlopen("libcuda.so.1", RTLD_NOW);
  CALL(cuDeviceGet, (int*, int), &handle, device);
  CALL(cuDevicePrimaryCtxRetain, (void**, int), &context, handle);
  CALL(cuCtxPushCurrent_v2, (void*), context);
  CALL(cuStreamCreate, (void**, unsigned), &stream, 1u);
  float* w = malloc((size_t)(n * k) * sizeof *w);
  float* b = malloc((size_t)n * sizeof *b);
  for (long long i = 0; i < n * k; ++i) w[i] = (float)((i * 37 % 101) - 50) / 50.0f;
  for (long long i = 0; i < n; ++i) b[i] = (float)i;
  int64_t w_shape[2] = {n, k}, b_shape[1] = {n};
  DLTensor weight = tensor(place((size_t)(n * k) * 4, w), device, 2, w_shape), bias = tensor(place((size_t)n * 4, b), device, 1, b_shape);
  if (ht_bind(op, &weight, &bias, &linear, &error) != HT_OK) return stop("bind", &error);
  if (ht_prepare(linear, stream, &error) != HT_OK) return stop("prepare", &error);
  double worst = 0;
  for (int a = 4; a < argc; ++a) {
    int64_t m = atoll(argv[a]), x_shape[2] = {m, k}, y_shape[2] = {m, n};
    float* x = malloc((size_t)(m * k + 1) * sizeof *x);
    float* y = malloc((size_t)(m * n + 1) * sizeof *y);
    for (int64_t i = 0; i < m * k; ++i) x[i] = (float)((i * 53 % 89) - 44) / 44.0f;
    DLTensor tx = tensor(place((size_t)(m * k) * 4, x), device, 2, x_shape), ty = tensor(place((size_t)(m * n) * 4, NULL), device, 2, y_shape);
    for (int captured = 0; captured < 2; ++captured) {
      if (captured) CALL(cuStreamBeginCapture_v2, (void*, int), stream, 1);
      if (ht_call(linear, &tx, &ty, stream, &error) != HT_OK) return stop("call", &error);
      if (captured) {
        CALL(cuStreamEndCapture, (void*, void**), stream, &graph);
        CALL(cuGraphInstantiateWithFlags, (void**, void*, unsigned long long), &ready, graph, 0ull);
        CALL(cuGraphLaunch, (void*, void*), ready, stream);
      }
      CALL(cuStreamSynchronize, (void*), stream);
      if (m > 0) CALL(cuMemcpyDtoH_v2, (void*, address, size_t), y, (address)(size_t)ty.data, (size_t)(m * n) * 4);
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) {
          double sum = b[j];
          for (int64_t t = 0; t < k; ++t) sum += (double)x[i * k + t] * w[j * k + t];
          worst = fmax(worst, fabs(sum - y[i * n + j]));
        }
    }
    if (ht_call(linear, &weight, &ty, stream, &error) == HT_OK && m != n) return 6; /* refused: other rows */
    free(x);
    free(y);
  }
  ht_counts_t counts;
  ht_stats(op, &counts);
  printf("calls=%lld fallbacks=%lld worst=%.3g\n", (long long)counts.calls, (long long)counts.fallbacks, worst);
  ht_linear_free(linear);
  ht_pack_close(pack);
  free(w);
  free(b);
  return worst < 1e-3 ? 0 : 4;
}
