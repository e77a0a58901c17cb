/* The arithmetic peak of this moment: every thread runs independent fp32 multiply-adds in registers, as the contenders' threads
 * would at best. Compiled with -DVECTOR_BYTES, -DCHAINS and the flags of one instruction set (hw_profiles/isa.py). */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

typedef float vec __attribute__((vector_size(VECTOR_BYTES)));

static uint64_t rounds;
static atomic_long turn;
static atomic_int busy;
static volatile float sink;

static void multiply_adds(void) {
  vec x[CHAINS], a = (vec){0} + 0.5f, b = (vec){0} + 1.0f; /* x = x/2 + 1 tends to 2: no denormals, no overflow */
  __asm__ volatile("" : "+x"(a), "+x"(b));
  for (int i = 0; i < CHAINS; i++) x[i] = a * (float)i;
  for (uint64_t r = 0; r < rounds; r++) {
#pragma GCC unroll 16
    for (int i = 0; i < CHAINS; i++) x[i] = x[i] * a + b;
  }
  vec sum = x[0];
  for (int i = 1; i < CHAINS; i++) sum += x[i];
  sink = sum[0];
}

static void* work(void* unused) {
  (void)unused;
  for (long seen = 0;;) {
    long now;
    while ((now = atomic_load_explicit(&turn, memory_order_acquire)) == seen) __builtin_ia32_pause();
    seen = now;
    multiply_adds();
    atomic_fetch_sub_explicit(&busy, 1, memory_order_release);
  }
  return NULL;
}

static int helpers;

/* Start `threads - 1` helpers; a call then makes at least `flops` operations on each thread. Returns flops of a call, 0: no thread. */
EXPORT double machine_start(int threads, double flops) {
  const double per_round = CHAINS * (VECTOR_BYTES / 4) * 2.0;
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
  multiply_adds();
  while (atomic_load_explicit(&busy, memory_order_acquire) > 0) __builtin_ia32_pause();
}
