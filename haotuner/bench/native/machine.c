/* What this moment allows: every thread runs independent fp32 multiply-adds in registers, or reads its share of a weight, as
 * the contenders' threads would at best. The loops are those of the device's own peaks (hw_profiles/native). */
#include <pthread.h>
#include <stdatomic.h>

#include "fma.h"
#include "read.h"

#define EXPORT __attribute__((visibility("default")))

static uint64_t rounds;
static atomic_long turn;
static atomic_int busy;
static const char* data; /* NULL: multiply-adds */
static size_t share;     /* bytes a thread reads */
static int variant;
static volatile long long int_sink;

static void part(long index) {
  if (data == NULL) {
    fma_rounds(rounds);
  } else {
    int_sink = read_pass(data + share * (size_t)index, share, variant);
  }
}

static void* work(void* index) {
  for (long seen = 0;;) {
    long now;
    while ((now = atomic_load_explicit(&turn, memory_order_acquire)) == seen) __builtin_ia32_pause();
    seen = now;
    part((long)index);
    atomic_fetch_sub_explicit(&busy, 1, memory_order_release);
  }
  return NULL;
}

static int helpers;

/* Start `threads - 1` helpers; machine_compute then makes at least `flops` operations on each thread. How many, 0: no thread. */
EXPORT double machine_start(int threads, double flops) {
  const double per_round = CHAINS * LANES * 2.0;
  rounds = (uint64_t)(flops / per_round) + 1;
  for (helpers = 0; helpers < threads - 1; helpers++) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, work, (void*)(long)(helpers + 1)) != 0) return 0;
    pthread_detach(thread);
  }
  return per_round * (double)rounds * threads;
}

static void run(void) {
  atomic_store_explicit(&busy, helpers, memory_order_relaxed);
  atomic_fetch_add_explicit(&turn, 1, memory_order_release);
  part(0);
  while (atomic_load_explicit(&busy, memory_order_acquire) > 0) __builtin_ia32_pause();
}

EXPORT void machine_compute(void) {
  data = NULL;
  run();
}

EXPORT int machine_ways(void) { return VARIANTS; }

/* Read `bytes` from `from` on, each thread its share; `way` is one of machine_ways. Bytes that were really read, 0: too few. */
EXPORT double machine_read(const char* from, double bytes, int way) {
  const size_t page = 4096;
  data = (const char*)(((uintptr_t)from + VECTOR_BYTES - 1) & ~(uintptr_t)(VECTOR_BYTES - 1));
  share = ((size_t)bytes - VECTOR_BYTES) / (size_t)(helpers + 1) / page * page;
  variant = way;
  if (share < 16 * page) return 0; /* eight streams of two pages at least */
  run();
  return (double)stream_bytes(share, read_streams[way]) * read_streams[way] * (helpers + 1);
}
