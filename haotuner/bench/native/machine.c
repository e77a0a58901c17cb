/* What this moment allows: every thread runs independent fp32 multiply-adds in registers, or reads its share of a weight, as
 * the contenders' threads would at best. The loops are those of the device's own peaks (hw_profiles/native). */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "fma.h"
#include "read.h"

#define EXPORT __attribute__((visibility("default")))
#define ROUND_FLOPS (CHAINS * LANES * 2.0)
#define LOOKS 8
#define LOOK_SHARE 8 /* of a call: all looks together are over in half a millisecond, before a spell can end */

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

/* Start `threads - 1` helpers; machine_compute then makes at least `flops` operations on each thread. 0: no thread. */
EXPORT int machine_start(int threads, double flops) {
  rounds = (uint64_t)(flops / ROUND_FLOPS) + 1;
  for (helpers = 0; helpers < threads - 1; helpers++) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, work, (void*)(long)(helpers + 1)) != 0) return 0;
    pthread_detach(thread);
  }
  return 1;
}

static void run(void) {
  atomic_store_explicit(&busy, helpers, memory_order_relaxed);
  atomic_fetch_add_explicit(&turn, 1, memory_order_release);
  part(0);
  while (atomic_load_explicit(&busy, memory_order_acquire) > 0) __builtin_ia32_pause();
}

/* Operations made, on all threads. */
EXPORT double machine_compute(void) {
  data = NULL;
  run();
  return ROUND_FLOPS * (double)rounds * (helpers + 1);
}

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* How much longer multiply-adds take on all threads at once than on one: 1, or nearly 2 where two share a core. */
EXPORT double machine_crowding(void) {
  const uint64_t whole = rounds;
  int64_t alone = INT64_MAX, together = INT64_MAX;
  data = NULL;
  rounds = whole / LOOK_SHARE + 1;
  for (int i = 0; i < LOOKS; i++) { /* the least of some: in the first a thread may still be waking up */
    int64_t start = now_ns();
    part(0);
    int64_t between = now_ns();
    run();
    int64_t end = now_ns();
    alone = between - start < alone ? between - start : alone;
    together = end - between < together ? end - between : together;
  }
  rounds = whole;
  return alone > 0 ? (double)together / (double)alone : 1.0;
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
