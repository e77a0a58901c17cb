/* What the moment leaves of the machine: a read of memory and a loop of multiply-adds, each some tens of microseconds long. Other
 * tenants of a shared host take bandwidth, and half a core through its other hyperthread, for tenths of a second at a time. */
#include <stdint.h>
#include <time.h>

#define VECTOR_BYTES 16 /* any x86-64 has it, and what slows it slows wider vectors alike */
#define CHAINS 12
#include "fma.h"
#include "read.h"

#define WATCH_BYTES (2 << 20)
#define WATCH_ROUNDS 8000
#define WATCH_WAY 0 /* one plain stream, as a kernel reads its weight: what slows the one slows the other */

static volatile long long watch_sink;

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t); /* never steps back */
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* Nanoseconds of a read of WATCH_BYTES from `at` on, wrapped into `bytes`, and of WATCH_ROUNDS rounds of multiply-adds. Memory is
 * not read where there is too little of it: 0. */
static void watch(const char* data, int64_t bytes, int64_t at, double* memory_ns, double* compute_ns) {
  *memory_ns = 0;
  if (bytes >= 2 * WATCH_BYTES) {
    at %= bytes - WATCH_BYTES + 1;
    const char* from = (const char*)(((uintptr_t)data + (uintptr_t)at + VECTOR_BYTES - 1) & ~(uintptr_t)(VECTOR_BYTES - 1));
    int64_t start = now_ns();
    watch_sink = read_pass(from, WATCH_BYTES - VECTOR_BYTES, WATCH_WAY);
    *memory_ns = (double)(now_ns() - start);
  }
  int64_t start = now_ns();
  fma_rounds(WATCH_ROUNDS);
  *compute_ns = (double)(now_ns() - start);
}
