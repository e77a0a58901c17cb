/* The arithmetic peak of this moment: every thread runs independent fp32 multiply-adds in registers, as the contenders' threads
 * would at best. The loop is that of hw_profiles/native/fma.h. */
#include <pthread.h>
#include <stdatomic.h>

#include "fma.h"

#define EXPORT __attribute__((visibility("default")))

static uint64_t rounds;
static atomic_long turn;
static atomic_int busy;

static void* work(void* unused) {
  (void)unused;
  for (long seen = 0;;) {
    long now;
    while ((now = atomic_load_explicit(&turn, memory_order_acquire)) == seen) __builtin_ia32_pause();
    seen = now;
    fma_rounds(rounds);
    atomic_fetch_sub_explicit(&busy, 1, memory_order_release);
  }
  return NULL;
}

static int helpers;

/* Start `threads - 1` helpers; a call then makes at least `flops` operations on each thread. Returns flops of a call, 0: no thread. */
EXPORT double machine_start(int threads, double flops) {
  const double per_round = CHAINS * LANES * 2.0;
  rounds = (uint64_t)(flops / per_round) + 1;
  for (helpers = 0; helpers < threads - 1; helpers++) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, work, NULL) != 0) return 0;
    pthread_detach(thread);
  }
  return per_round * (double)rounds * threads;
}

EXPORT void machine_run(void) {
  atomic_store_explicit(&busy, helpers, memory_order_relaxed);
  atomic_fetch_add_explicit(&turn, 1, memory_order_release);
  fma_rounds(rounds);
  while (atomic_load_explicit(&busy, memory_order_acquire) > 0) __builtin_ia32_pause();
}
