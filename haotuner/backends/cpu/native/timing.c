/* Times compositions through the very code that serves them (run.c, pool.c). Part of measuring libraries only. */
#include <string.h>

#include "kinds/dense.h"
#include "watch.h"

#define HT_EXPORT __attribute__((visibility("default")))

extern const ht_kernel ht_kernels[]; /* generated: the candidates in this library */
extern const int ht_kernel_count;

enum { /* the job: one int64 vector */
  JOB_N, JOB_K, JOB_PW, JOB_PANELS, JOB_COL_BLOCK, JOB_M, JOB_LDX, JOB_LDY, JOB_THREADS, JOB_SPLIT, JOB_ROW_BLOCK, JOB_K_BLOCK,
  JOB_WEIGHTS,     /* how many packed weights lie behind w; calls rotate over them */
  JOB_SAMPLE_NS,   /* a sample lasts at least this long */
  JOB_LIMIT_NS,    /* no new sample is started after this time */
  JOB_LEAST,       /* samples that are taken in any case */
  JOB_PARTS, JOB_FIRST_PART /* then kernel index and tiles of each part */
};

#define MOST_LOOKS 8 /* under a millisecond */
#define MOST_TRIES 10 /* 0.3 ms on a shared core: a sleeping virtual processor took up to 0.1 */

static int fail(const char* text) {
  TVMFFIErrorSetRaisedFromCStr("ValueError", text);
  return -1;
}

static const DLTensor* tensor(const TVMFFIAny* arg) { /* NULL: it is none */
  if (arg->type_index == kTVMFFIDLTensorPtr) return arg->v_ptr;
  if (arg->type_index == kTVMFFITensor) return (const DLTensor*)((const char*)arg->v_ptr + sizeof(TVMFFIObject));
  return NULL;
}

/* The kernel's own words may lie in the thread that ran it: a failing call with no error set here crashes tvm-ffi. */
static int refused(void) { return fail("a micro-kernel refused its arguments"); }

static void rounds_of(void* unused, int64_t chunk) {
  (void)unused, (void)chunk;
  fma_rounds(WATCH_ROUNDS);
}

/* Nanoseconds of the watched multiply-adds, once on each of `threads`: more than on one where they are not all computing. The
 * least of some, because a worker that had long been done has gone to sleep, and takes several of them to wake up. */
static double together(int threads) {
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

/* time(x, w, y, job, samples float64 [4, room]): returns how many samples were taken: ns per call. Each is followed by a look at
 * the machine (watch.h): ns of its read, with cold weights, of its multiply-adds, and of these on all threads at once, if there
 * are several. No room: one bare call. */
HT_EXPORT int __tvm_ffi_ht_time(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  (void)self;
  const DLTensor* t[5];
  if (count != 5) return fail("expected (x, w, y, job, samples)");
  for (int i = 0; i < 5; ++i)
    if ((t[i] = tensor(&args[i])) == NULL) return fail("arguments must be tensors");
  const int64_t* job = t[3]->data;
  ht_dense op = {.n = job[JOB_N], .k = job[JOB_K], .panels = job[JOB_PANELS],
                 .pw = (int32_t)job[JOB_PW], .col_block = (int32_t)job[JOB_COL_BLOCK]};
  ht_composition c = {.count = (int32_t)job[JOB_PARTS], .split = (int32_t)job[JOB_SPLIT],
                      .row_block = (int32_t)job[JOB_ROW_BLOCK], .k_block = (int32_t)job[JOB_K_BLOCK]};
  if (c.count < 1 || c.count > HT_MAX_PARTS) return fail("a composition has 1 to 4 regions");
  int64_t rows = 0;
  for (int i = 0; i < c.count; ++i) {
    int64_t index = job[JOB_FIRST_PART + 2 * i];
    if (index < 0 || index >= ht_kernel_count) return fail("no such kernel in this library");
    c.part[i].kernel = &ht_kernels[index];
    c.part[i].tiles = job[JOB_FIRST_PART + 2 * i + 1];
    rows += c.part[i].tiles * c.part[i].kernel->mr;
    if (c.part[i].kernel->pw != op.pw) return fail("regions of one shape share one packed weight");
  }
  if (rows != job[JOB_M]) return fail("the regions do not cover m exactly");
  const float* weights = (const float*)((const char*)t[1]->data + t[1]->byte_offset);
  int64_t stride = op.panels * op.k * op.pw, copies = job[JOB_WEIGHTS], turn = 0;
  ht_dense_call call = {.x = (const float*)((const char*)t[0]->data + t[0]->byte_offset), .ldx = job[JOB_LDX], .w = weights,
                  .y = (float*)((char*)t[2]->data + t[2]->byte_offset), .ldy = job[JOB_LDY], .m = job[JOB_M]};
  int threads = (int)job[JOB_THREADS];
  if (threads < 1 || threads > HT_MAX_THREADS) return fail("as many threads as a pool never has");
  double* samples = t[4]->data;
  int64_t room = t[4]->ndim == 2 ? t[4]->shape[1] : 0, taken = 0, bytes = copies * stride * (int64_t)sizeof(float);
  if (ht_dense_run(&op, &c, &call, threads) != 0) return refused();
  int64_t begin = now_ns(), batch = 1, once = 0, seen = 0;
  while (room > 0 && once == 0) { /* how many calls make a sample */
    for (int64_t i = 0; i < batch; ++i) {
      call.w = weights + turn * stride;
      turn = turn + 1 == copies ? 0 : turn + 1;
      if (ht_dense_run(&op, &c, &call, threads) != 0) return refused();
    }
    int64_t spent = now_ns() - begin;
    if (spent * 4 >= job[JOB_SAMPLE_NS]) once = spent / batch > 0 ? spent / batch : 1;
    else { batch *= 2; begin = now_ns(); }
  }
  if (room > 0) batch = job[JOB_SAMPLE_NS] / once > 1 ? job[JOB_SAMPLE_NS] / once : 1;
  begin = now_ns();
  while (taken < room && (taken < job[JOB_LEAST] || now_ns() - begin < job[JOB_LIMIT_NS])) {
    int64_t start = now_ns();
    for (int64_t i = 0; i < batch; ++i) {
      call.w = weights + turn * stride;
      turn = turn + 1 == copies ? 0 : turn + 1;
      if (ht_dense_run(&op, &c, &call, threads) != 0) return refused();
    }
    samples[taken] = (double)(now_ns() - start) / (double)batch;
    if (threads > 1) samples[3 * room + taken] = together(threads);
    /* A long sample is looked at longer: one look is a moment. */
    int64_t looks = (now_ns() - start) / job[JOB_SAMPLE_NS];
    looks = looks < 1 ? 1 : looks > MOST_LOOKS ? MOST_LOOKS : looks;
    for (int64_t i = 0; i < looks; ++i) {
      double memory_ns, compute_ns;
      /* A quarter of a round away or more, each look farther than the one before: neither read lately, by a call or a look, nor
       * soon. Hot weights must not be driven out: no read. */
      int64_t away = bytes / 4 + (bytes > 2 * WATCH_BYTES ? seen++ * WATCH_BYTES % (bytes / 2) : 0);
      watch((const char*)weights, copies > 1 ? bytes : 0, turn * stride * (int64_t)sizeof(float) + away, &memory_ns, &compute_ns);
      samples[room + taken] += memory_ns / (double)looks;
      samples[2 * room + taken] += compute_ns / (double)looks;
    }
    ++taken;
  }
  result->type_index = kTVMFFIInt;
  result->zero_padding = 0;
  result->v_int64 = taken;
  return 0;
}

/* watch(w, samples float64 [2, room]): looks at the machine until there is no more room, going through the weights once; they
 * must have room for that, or what was read first is read again, from cache. */
HT_EXPORT int __tvm_ffi_ht_watch(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  (void)self;
  const DLTensor *w = count == 2 ? tensor(&args[0]) : NULL, *out = count == 2 ? tensor(&args[1]) : NULL;
  if (w == NULL || out == NULL || out->ndim != 2) return fail("expected (w, samples)");
  int64_t room = out->shape[1], bytes = w->shape[0] * (int64_t)sizeof(float);
  double* samples = out->data;
  for (int64_t i = 0; i < room; ++i)
    watch((const char*)w->data + w->byte_offset, bytes, i * WATCH_BYTES, &samples[i], &samples[room + i]);
  result->type_index = kTVMFFIInt;
  result->zero_padding = 0;
  result->v_int64 = room;
  return 0;
}
