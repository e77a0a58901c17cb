/* What a call from C costs beside its kernel:  dispatch PACK LIBRARY KERNEL NR PW   prints ns: p50 and p99 of either, call by call.
 * The op is one row, one column; the bare call hands the same tensors to the same kernel, as run.c does. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <tvm/ffi/c_api.h>
#include <x86intrin.h>

#include "haotuner.h"

#define CALLS 400000

static double now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static unsigned long long stamp(void) { /* nothing moves across it */
  unsigned aux;
  _mm_lfence();
  unsigned long long t = __rdtscp(&aux);
  _mm_lfence();
  return t;
}

static int order(const void* a, const void* b) {
  unsigned x = *(const unsigned*)a, y = *(const unsigned*)b;
  return (x > y) - (x < y);
}

static unsigned empty[CALLS], bare[CALLS], whole[CALLS];

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  int64_t nr = atoll(argv[4]), pw = atoll(argv[5]);
  ht_pack* pack;
  ht_op* op;
  ht_linear* linear;
  ht_error error;
  float w = 1, x = 1, y = 0;
  int64_t shape[2] = {1, 1};
  const DLDataType fp32 = {kDLFloat, 32, 1};
  const DLDevice cpu = {kDLCPU, 0};
  DLTensor tw = {&w, cpu, 2, fp32, shape, NULL, 0}, tx = {&x, cpu, 2, fp32, shape, NULL, 0}, ty = {&y, cpu, 2, fp32, shape, NULL, 0};
  if (ht_pack_open(argv[1], 1, &pack, &error) != HT_OK || ht_op_find(pack, "dense_n1_k1", &op, &error) != HT_OK ||
      ht_bind(op, &tw, NULL, &linear, &error) != HT_OK)
    return fprintf(stderr, "%s\n", error.text), 1;
  char symbol[200];
  snprintf(symbol, sizeof symbol, "__tvm_ffi_%s", argv[3]);
  void* library = dlopen(argv[2], RTLD_NOW);
  TVMFFISafeCallType kernel;
  *(void**)&kernel = library == NULL ? NULL : dlsym(library, symbol);
  if (kernel == NULL) return fprintf(stderr, "no %s\n", symbol), 1;
  float* packed = aligned_alloc(64, (size_t)(nr * 4 + 64));
  float* tile = aligned_alloc(64, (size_t)(nr * 4 + 64));
  memset(packed, 0, (size_t)nr * 4);
  int64_t ones[2] = {1, 1}, w_shape[3] = {nr / pw, 1, pw}, w_strides[3] = {pw, pw, 1}, y_shape[2] = {1, nr}, y_strides[2] = {nr, 1};
  DLTensor bx = {&x, cpu, 2, fp32, shape, ones, 0}, bw = {packed, cpu, 3, fp32, w_shape, w_strides, 0},
           by = {tile, cpu, 2, fp32, y_shape, y_strides, 0};
  TVMFFIAny args[5], result;
  memset(args, 0, sizeof args);
  DLTensor* given[3] = {&bx, &bw, &by};
  for (int i = 0; i < 3; ++i) {
    args[i].type_index = kTVMFFIDLTensorPtr;
    args[i].v_ptr = given[i];
  }
  args[3].type_index = args[4].type_index = kTVMFFIInt;
  args[3].v_int64 = args[4].v_int64 = 1;
  double begin = now_ns();
  unsigned long long first = stamp();
  for (int i = 0; i < CALLS; ++i) {
    unsigned long long a = stamp(), b = stamp();
    memset(&result, 0, sizeof result);
    if (kernel(NULL, args, 5, &result) != 0) return 3;
    unsigned long long c = stamp();
    if (ht_call(linear, &tx, &ty, NULL, &error) != HT_OK) return 4;
    unsigned long long d = stamp();
    empty[i] = (unsigned)(b - a);
    bare[i] = (unsigned)(c - b);
    whole[i] = (unsigned)(d - c);
  }
  double tick = (now_ns() - begin) / (double)(stamp() - first);
  qsort(empty, CALLS, sizeof *empty, order);
  qsort(bare, CALLS, sizeof *bare, order);
  qsort(whole, CALLS, sizeof *whole, order);
  int p50 = CALLS / 2, p99 = CALLS / 100 * 99;
  double none = tick * empty[p50];
  printf("{\"bare_p50_ns\": %.1f, \"bare_p99_ns\": %.1f, \"call_p50_ns\": %.1f, \"call_p99_ns\": %.1f}\n", tick * bare[p50] - none,
         tick * bare[p99] - none, tick * whole[p50] - none, tick * whole[p99] - none);
  ht_linear_free(linear);
  ht_pack_close(pack);
  return y == 1 ? 0 : 5;
}
