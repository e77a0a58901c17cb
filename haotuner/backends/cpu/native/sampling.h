/* The loop of samples that every kind of operator is timed with. Part of measuring libraries only.
 * Each sample is followed by a look at the machine (watch.h). */
#ifndef HT_SAMPLING_H_
#define HT_SAMPLING_H_

#include "ht.h"
#include "watch.h"

#define HT_EXPORT __attribute__((visibility("default")))

#define MOST_LOOKS 8 /* under a millisecond */
#define MOST_TRIES 10 /* 0.3 ms on a shared core: a sleeping virtual processor took up to 0.1 */

__attribute__((unused)) static int fail(const char* text) {
  TVMFFIErrorSetRaisedFromCStr("ValueError", text);
  return -1;
}

__attribute__((unused)) static const DLTensor* tensor(const TVMFFIAny* arg) { /* NULL: it is none */
  if (arg->type_index == kTVMFFIDLTensorPtr) return arg->v_ptr;
  if (arg->type_index == kTVMFFITensor) return (const DLTensor*)((const char*)arg->v_ptr + sizeof(TVMFFIObject));
  return NULL;
}

/* The kernel's own words may lie in the thread that ran it: a failing call with no error set here crashes tvm-ffi. */
__attribute__((unused)) static int refused(void) { return fail("a micro-kernel refused its arguments"); }

static void rounds_of(void* unused, int64_t chunk) {
  (void)unused, (void)chunk;
  fma_rounds(WATCH_ROUNDS);
}

/* Nanoseconds of the watched multiply-adds, once on each of `threads`: more than on one where they are not all computing. The
 * least of some, because a worker that had long been done has gone to sleep, and takes several of them to wake up. */
__attribute__((unused)) static double together(int threads) {
  int64_t least = INT64_MAX / 8, start = now_ns();
  fma_rounds(WATCH_ROUNDS);
  int64_t alone = now_ns() - start;
  for (int i = 0; i < MOST_TRIES && least * 4 > alone * 5; ++i) {
    start = now_ns();
    ht_pool_run(rounds_of, NULL, threads, threads);
    int64_t spent = now_ns() - start;
    least = spent < least ? spent : least;
  }
  return (double)least;
}

static int sharers; /* threads that the call under watch is shared by at most */

static void count_sharers(void (*body)(void*, int64_t), void* arg, int64_t chunks, int threads) {
  if (threads > sharers) sharers = threads;
  for (int64_t i = 0; i < chunks; ++i) body(arg, i);
}

typedef struct { /* how to time: a call computes on one of `copies` sets of operands, which lie `stride` bytes apart from `first` on */
  int (*call)(void* arg, int64_t copy); /* 0, or not when a micro-kernel refused its arguments */
  void* arg;
  const char* first;
  int64_t copies, stride;
  int64_t sample_ns; /* a sample lasts at least this long */
  int64_t limit_ns;  /* no new sample is started after this time */
  int64_t least;     /* samples that are taken in any case */
  int threads;
} ht_timing;

/* The first call, on the caller alone. Returns whether it would be shared: a row that cannot be cut is one thread's, whatever it is
 * given. -1: refused. */
__attribute__((unused)) static int is_shared(const ht_timing* t) {
  sharers = 1;
  ht_pool_inject(count_sharers);
  int failed = t->call(t->arg, 0);
  ht_pool_inject(NULL);
  return failed != 0 ? -1 : sharers > 1;
}

/* Take at most `room` samples into [4, room]: ns per call; ns of a read of memory, with several copies, of multiply-adds, and of
 * these on all threads at once, if a call is shared by several: else nobody else's core is of concern. No room: one bare call.
 * Returns how many were taken, -1 with an error set. */
__attribute__((unused)) static int64_t take_samples(const ht_timing* t, double* samples, int64_t room) {
  int64_t turn = 0, taken = 0, bytes = t->copies * t->stride;
  int watched = room > 0 && t->threads > 1, shared = watched ? is_shared(t) : 0;
  if (shared < 0 || (!watched && t->call(t->arg, turn) != 0)) return refused();
  int64_t begin = now_ns(), batch = 1, once = 0, seen = 0;
  while (room > 0 && once == 0) { /* how many calls make a sample */
    for (int64_t i = 0; i < batch; ++i) {
      if (t->call(t->arg, turn) != 0) return refused();
      turn = turn + 1 == t->copies ? 0 : turn + 1;
    }
    int64_t spent = now_ns() - begin;
    if (spent * 4 >= t->sample_ns) once = spent / batch > 0 ? spent / batch : 1;
    else { batch *= 2; begin = now_ns(); }
  }
  if (room > 0) batch = t->sample_ns / once > 1 ? t->sample_ns / once : 1;
  begin = now_ns();
  while (taken < room && (taken < t->least || now_ns() - begin < t->limit_ns)) {
    int64_t start = now_ns();
    for (int64_t i = 0; i < batch; ++i) {
      if (t->call(t->arg, turn) != 0) return refused();
      turn = turn + 1 == t->copies ? 0 : turn + 1;
    }
    samples[taken] = (double)(now_ns() - start) / (double)batch;
    if (shared) samples[3 * room + taken] = together(t->threads);
    /* A long sample is looked at longer: one look is a moment. */
    int64_t looks = (now_ns() - start) / t->sample_ns;
    looks = looks < 1 ? 1 : looks > MOST_LOOKS ? MOST_LOOKS : looks;
    for (int64_t i = 0; i < looks; ++i) {
      double memory_ns, compute_ns;
      /* A quarter of a round away or more, each look farther than the one before: neither read lately, by a call or a look, nor
       * soon. What is hot must not be driven out: no read. */
      int64_t away = bytes / 4 + (bytes > 2 * WATCH_BYTES ? seen++ * WATCH_BYTES % (bytes / 2) : 0);
      watch(t->first, t->copies > 1 ? bytes : 0, turn * t->stride + away, &memory_ns, &compute_ns);
      samples[room + taken] += memory_ns / (double)looks;
      samples[2 * room + taken] += compute_ns / (double)looks;
    }
    ++taken;
  }
  return taken;
}

/* What a timing function answers. */
__attribute__((unused)) static int answer(TVMFFIAny* result, int64_t taken) {
  if (taken < 0) return -1;
  result->type_index = kTVMFFIInt;
  result->zero_padding = 0;
  result->v_int64 = taken;
  return 0;
}

#endif /* HT_SAMPLING_H_ */
