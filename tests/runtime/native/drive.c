/* Exercises the C library and a pack from C, under sanitizers and counters. One mode a run; exit 0 when all held.
 *   quiet PACK THREADS        calls between two marks on descriptor 2, for strace; prints the allocations made in between
 *   race PACK OTHER MS N      N threads call while packs are opened, swapped and closed
 *   bind PACK MS N            N threads bind, call and free linears of one pack
 *   starve PACK               the n-th allocation fails, for every n
 *   open PATH...              prints the status of opening each */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "haotuner.h"

#define N 100 /* tests/runtime/conftest.py: DENSE, unless the build says another depth */
#ifndef K
#define K 37
#define OP "dense_n100_k37"
#endif
#define MOST 64

static atomic_llong allocations, fail_at; /* fail_at: counts down to the allocation that fails */
static int starved(void) {
  atomic_fetch_add(&allocations, 1);
  return atomic_load(&fail_at) > 0 && atomic_fetch_sub(&fail_at, 1) == 1;
}

#ifdef COUNT_ALL /* the plain build: every allocation of the process passes here */
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void* malloc(size_t size) { return starved() ? NULL : __libc_malloc(size); }
void* calloc(size_t count, size_t size) { return starved() ? NULL : __libc_calloc(count, size); }
void* realloc(void* old, size_t size) { return starved() ? NULL : __libc_realloc(old, size); }
void* aligned_alloc(size_t align, size_t size) { return starved() ? NULL : __libc_memalign(align, size); }
#else /* the sanitizers' build: those of the C library (ld --wrap) */
void* __real_malloc(size_t);
void* __real_calloc(size_t, size_t);
void* __real_aligned_alloc(size_t, size_t);
void* __wrap_malloc(size_t size) { return starved() ? NULL : __real_malloc(size); }
void* __wrap_calloc(size_t count, size_t size) { return starved() ? NULL : __real_calloc(count, size); }
void* __wrap_aligned_alloc(size_t align, size_t size) { return starved() ? NULL : __real_aligned_alloc(align, size); }
#endif

static float weight[N * K], bias[N], inputs[MOST * K], wanted[MOST * N];

static DLTensor matrix(float* data, int64_t shape[2]) {
  DLTensor t = {data, {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, shape, NULL, 0};
  return t;
}

static void prepare(void) {
  for (int i = 0; i < N * K; ++i) weight[i] = (float)(i % 13 - 6);
  for (int i = 0; i < N; ++i) bias[i] = (float)i;
  for (int i = 0; i < MOST * K; ++i) inputs[i] = (float)(i % 7 - 3); /* whole numbers: sums are exact in any order */
  for (int i = 0; i < MOST; ++i)
    for (int j = 0; j < N; ++j) {
      float sum = bias[j];
      for (int t = 0; t < K; ++t) sum += inputs[i * K + t] * weight[j * K + t];
      wanted[i * N + j] = sum;
    }
}

static ht_status bind(ht_pack* pack, ht_linear** out, ht_error* error) {
  ht_op* op;
  int64_t w_shape[2] = {N, K}, b_shape[1] = {N};
  DLTensor w = matrix(weight, w_shape), b = {bias, {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, b_shape, NULL, 0};
  ht_status status = ht_op_find(pack, OP, &op, error);
  return status == HT_OK ? ht_bind(op, &w, &b, out, error) : status;
}

static ht_status serve(const ht_linear* linear, int64_t m, float* y, ht_error* error) {
  int64_t x_shape[2] = {m, K}, y_shape[2] = {m, N};
  DLTensor x = matrix(inputs, x_shape), out = matrix(y, y_shape);
  return ht_call(linear, &x, &out, NULL, error);
}

static int quiet(const char* path, int threads) {
  ht_pack* pack;
  ht_linear* linear;
  ht_error error;
  static float y[MOST * N];
  if (ht_pack_open(path, threads, &pack, &error) != HT_OK || bind(pack, &linear, &error) != HT_OK) return 1;
  for (int i = 0; i < 100; ++i) serve(linear, MOST, y, &error);
  usleep(100000); /* threads that were just started make their own first system calls */
  long long before = atomic_load(&allocations);
  int bad = 0;
  if (write(2, "begin\n", 6) != 6) return 1;
  for (int64_t i = 0; i < 1000; ++i) bad |= serve(linear, 1 + i % MOST, y, &error) != HT_OK;
  if (write(2, "end\n", 4) != 4) return 1;
  printf("%lld\n", atomic_load(&allocations) - before);
  int64_t x_shape[2] = {1, K}, y_shape[2] = {1, N};
  DLTensor x = matrix(inputs, x_shape), out = matrix(y, y_shape);
  bad |= ht_call(linear, &x, &out, &bad, &error) != HT_BAD_VALUE; /* a stream, for a pack of the CPU */
  ht_linear_free(linear);
  ht_pack_close(pack);
  return bad;
}

static double now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* A slot that readers take from and the swapper exchanges; the old linear is freed when no reader is inside. */
typedef struct {
  pthread_rwlock_t lock;
  ht_linear* linear;
} slot;

static slot current = {PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP, NULL};
static atomic_int stop_all, errors;
static atomic_llong served;

static void* reader(void* arg) {
  float* y = malloc(sizeof wanted);
  unsigned m = (unsigned)(uintptr_t)arg;
  while (!atomic_load(&stop_all)) {
    m = m * 1103515245u + 12345u;
    int64_t rows = 1 + (m >> 16) % MOST;
    ht_error error;
    pthread_rwlock_rdlock(&current.lock);
    ht_status status = serve(current.linear, rows, y, &error);
    pthread_rwlock_unlock(&current.lock);
    if (status != HT_OK && status != HT_CLOSED) atomic_fetch_add(&errors, 1);
    if (status == HT_OK && memcmp(y, wanted, (size_t)rows * N * sizeof *y) != 0) atomic_fetch_add(&errors, 1);
    if (status == HT_OK) atomic_fetch_add(&served, 1);
  }
  free(y);
  return NULL;
}

static long resident_kib(void) {
  long whole = 0, resident = 0;
  FILE* file = fopen("/proc/self/statm", "r");
  if (file == NULL || fscanf(file, "%ld %ld", &whole, &resident) != 2) resident = 0;
  if (file != NULL) fclose(file);
  return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

static int race(const char* one, const char* other, int ms, int count) {
  ht_error error;
  ht_pack* pack;
  pthread_t threads[64];
  if (ht_pack_open(one, 2, &pack, &error) != HT_OK || bind(pack, &current.linear, &error) != HT_OK) return 1;
  for (int i = 0; i < count; ++i) pthread_create(&threads[i], NULL, reader, (void*)(uintptr_t)(i + 1));
  double end = now_ns() + ms * 1e6;
  int swaps = 0;
  long early = 0;
  for (; now_ns() < end; ++swaps) {
    if (early == 0 && swaps >= 20 && now_ns() > end - ms * 0.5e6) early = resident_kib();
    ht_pack* next;
    ht_linear* fresh;
    if (ht_pack_open(swaps % 2 ? one : other, 1 + swaps % 3, &next, &error) != HT_OK || bind(next, &fresh, &error) != HT_OK) {
      fprintf(stderr, "%s\n", error.text);
      return 1;
    }
    if (swaps % 3 == 0) ht_pack_close(pack); /* readers see HT_CLOSED until the swap */
    pthread_rwlock_wrlock(&current.lock);
    ht_linear* old = current.linear;
    current.linear = fresh;
    pthread_rwlock_unlock(&current.lock);
    if (swaps % 3 != 0) ht_pack_close(pack);
    ht_linear_free(old); /* the last one unmaps the old pack's library */
    pack = next;
  }
  long grown = early == 0 ? 0 : resident_kib() - early; /* over the second half */
  atomic_store(&stop_all, 1);
  for (int i = 0; i < count; ++i) pthread_join(threads[i], NULL);
  ht_pack_close(pack);
  ht_linear_free(current.linear);
  printf("served=%lld swaps=%d errors=%d grown_kib=%ld\n", atomic_load(&served), swaps, atomic_load(&errors), grown);
#ifdef COUNT_ALL /* sanitizers keep freed memory */
  if (grown > 8192) return 5; /* a leaked linear has 16 KiB, a mapped pack 100: hundreds of swaps would show */
#endif
  return atomic_load(&errors) != 0 || atomic_load(&served) == 0;
}

static ht_pack* shared;

static void* binder(void* arg) {
  float* y = malloc(sizeof wanted);
  unsigned turn = (unsigned)(uintptr_t)arg;
  while (!atomic_load(&stop_all)) {
    ht_linear* own[3] = {NULL, NULL, NULL};
    ht_error error;
    for (int i = 0; i < 3; ++i)
      if (bind(shared, &own[i], &error) != HT_OK) atomic_fetch_add(&errors, 1);
    for (int i = 0; i < 3; ++i, ++turn) { /* freed in another order than bound */
      ht_linear* linear = own[turn % 3];
      own[turn % 3] = NULL;
      if (linear == NULL) continue;
      if (serve(linear, MOST, y, &error) != HT_OK || memcmp(y, wanted, sizeof wanted) != 0) atomic_fetch_add(&errors, 1);
      ht_linear_free(linear);
      atomic_fetch_add(&served, 1);
    }
    ++turn;
  }
  free(y);
  return NULL;
}

static int bind_many(const char* path, int ms, int count) {
  ht_error error;
  pthread_t threads[64];
  long before = resident_kib();
  if (ht_pack_open(path, 1, &shared, &error) != HT_OK) return 1;
  for (int i = 0; i < count; ++i) pthread_create(&threads[i], NULL, binder, (void*)(uintptr_t)(i + 1));
  usleep((useconds_t)ms * 1000);
  atomic_store(&stop_all, 1);
  for (int i = 0; i < count; ++i) pthread_join(threads[i], NULL);
  ht_pack_close(shared);
  long grown = resident_kib() - before;
  printf("served=%lld errors=%d grown_kib=%ld\n", atomic_load(&served), atomic_load(&errors), grown);
#ifdef COUNT_ALL
  if (grown > 16384) return 5; /* stacks and malloc's own memory stay; chunks of 32 MiB do not */
#endif
  return atomic_load(&errors) != 0 || atomic_load(&served) == 0;
}

static int starve(const char* path) {
  static float y[MOST * N];
  int failed = 0;
  for (int at = 1; at < 200; ++at) {
    ht_error error = {HT_OK, ""};
    ht_pack* pack = NULL;
    ht_linear* linear = NULL;
    atomic_store(&fail_at, at);
    ht_status status = ht_pack_open(path, 2, &pack, &error);
    if (status == HT_OK) status = bind(pack, &linear, &error);
    if (status == HT_OK) status = serve(linear, 40, y, &error);
    int reached = atomic_exchange(&fail_at, 0) <= 0;
    if (status == HT_OK && memcmp(y, wanted, 40 * N * sizeof *y) != 0) return 1;
    if (status != HT_OK && error.text[0] == 0) return 2;
    failed += status != HT_OK;
    ht_linear_free(linear);
    ht_pack_close(pack);
    if (!reached) { /* more allocations than the whole story makes: done */
      printf("failed=%d of %d\n", failed, at - 1);
      return failed == 0;
    }
  }
  return 3;
}

int main(int argc, char** argv) {
  prepare();
  const char* mode = argc > 2 ? argv[1] : "";
  if (strcmp(mode, "quiet") == 0) return quiet(argv[2], atoi(argv[3]));
  if (strcmp(mode, "race") == 0) return race(argv[2], argv[3], atoi(argv[4]), atoi(argv[5]));
  if (strcmp(mode, "bind") == 0) return bind_many(argv[2], atoi(argv[3]), atoi(argv[4]));
  if (strcmp(mode, "starve") == 0) return starve(argv[2]);
  for (int i = 2; i < argc; ++i) {
    ht_error error = {HT_OK, ""};
    ht_pack* pack;
    ht_status status = ht_pack_open(argv[i], 1, &pack, &error);
    printf("%d %s\n", (int)status, error.text);
    ht_pack_close(pack);
  }
  return strcmp(mode, "open") != 0;
}
