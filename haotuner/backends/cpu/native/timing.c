/* Times compositions of dense micro-kernels through the very code that serves them (kinds/dense_run.c, pool.c). Part of measuring
 * libraries only. */
#include <string.h>

#include "kinds/dense.h"
#include "sampling.h"

extern const ht_kernel ht_kernels[]; /* generated: the candidates in this library */
extern const int ht_kernel_count;
extern const ht_typed* const ht_kernels_typed; /* NULL: fp32 */

enum { /* the job: one int64 vector */
  JOB_N, JOB_K, JOB_PW, JOB_PANELS, JOB_COL_BLOCK, JOB_M, JOB_LDX, JOB_LDY, JOB_THREADS, JOB_SPLIT, JOB_ROW_BLOCK, JOB_K_BLOCK,
  JOB_ROWS, JOB_WHOLES, /* of what the epilogue reads: rows of n, matrices of m x n behind them */
  JOB_WEIGHTS,     /* how many packed weights lie behind w; calls rotate over them */
  JOB_SAMPLE_NS,   /* a sample lasts at least this long */
  JOB_LIMIT_NS,    /* no new sample is started after this time */
  JOB_LEAST,       /* samples that are taken in any case */
  JOB_PARTS, JOB_FIRST_PART /* then kernel index and tiles of each part */
};

typedef struct {
  const ht_dense* op;
  const ht_composition* composition;
  ht_dense_call call;
  const float* weights;
  int64_t stride;
  int threads;
} dense_job;

static int call_dense(void* arg, int64_t copy) {
  dense_job* job = arg;
  job->call.w = job->weights + copy * job->stride;
  return ht_dense_run(job->op, job->composition, &job->call, job->threads);
}

/* time(x, w, y, job, samples float64 [4, room], extra: what the epilogue reads, one after the other): returns how many samples were taken (sampling.h). */
HT_EXPORT int __tvm_ffi_ht_time(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  (void)self;
  const DLTensor* t[6];
  if (count != 6) return fail("expected (x, w, y, job, samples, extra)");
  for (int i = 0; i < 6; ++i)
    if ((t[i] = tensor(&args[i])) == NULL) return fail("arguments must be tensors");
  const int64_t* job = t[3]->data;
  const ht_typed_dense made = {{.n = job[JOB_N], .k = job[JOB_K], .panels = job[JOB_PANELS], .pw = (int32_t)job[JOB_PW],
                                .col_block = (int32_t)job[JOB_COL_BLOCK], .flags = ht_kernels_typed != NULL ? HT_TYPED : 0},
                               ht_kernels_typed};
  const ht_dense* op = &made.dense;
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
    if (c.part[i].kernel->pw != op->pw) return fail("regions of one shape share one packed weight");
  }
  if (rows != job[JOB_M]) return fail("the regions do not cover m exactly");
  const float* weights = (const float*)((const char*)t[1]->data + t[1]->byte_offset);
  int64_t stride = ht_dense_packed(op);
  int threads = (int)job[JOB_THREADS];
  if (threads < 1 || threads > HT_MAX_THREADS) return fail("as many threads as a pool never has");
  dense_job dense = {.op = op, .composition = &c, .weights = weights, .stride = stride, .threads = threads,
                     .call = {.x = (const float*)((const char*)t[0]->data + t[0]->byte_offset), .ldx = job[JOB_LDX], .w = weights,
                              .y = (float*)((char*)t[2]->data + t[2]->byte_offset), .ldy = job[JOB_LDY], .m = job[JOB_M]}};
  const float* extra = (const float*)((const char*)t[5]->data + t[5]->byte_offset);
  dense.call.extras = (int32_t)(job[JOB_ROWS] + job[JOB_WHOLES]);
  if (job[JOB_ROWS] < 0 || job[JOB_WHOLES] < 0 || dense.call.extras > HT_MAX_EXTRA) return fail("more than an epilogue reads");
  if (t[5]->ndim != 1 || t[5]->shape[0] < (job[JOB_ROWS] + job[JOB_WHOLES] * job[JOB_M]) * job[JOB_N]) return fail("too little for the epilogue");
  for (int32_t i = 0; i < dense.call.extras; ++i) {
    int whole = i >= job[JOB_ROWS];
    dense.call.extra[i] = (ht_extra){extra, whole ? job[JOB_N] : 0, 1};
    extra += whole ? job[JOB_M] * job[JOB_N] : job[JOB_N];
  }
  ht_timing timing = {.call = call_dense, .arg = &dense, .first = (const char*)weights, .copies = job[JOB_WEIGHTS],
                      .stride = stride * (int64_t)sizeof(float), .sample_ns = job[JOB_SAMPLE_NS], .limit_ns = job[JOB_LIMIT_NS],
                      .least = job[JOB_LEAST], .threads = threads};
  return answer(result, take_samples(&timing, t[4]->data, t[4]->ndim == 2 ? t[4]->shape[1] : 0));
}
