/* Times a micro-kernel of convolutions through the code that serves it (kinds/conv_run.c, pool.c). Part of measuring libraries only. */
#include "kinds/conv.h"
#include "sampling.h"

extern const ht_kernel ht_kernels[]; /* generated: the candidates in this library */
extern const int ht_kernel_count;
extern const ht_typed* const ht_kernels_typed; /* NULL: fp32 */

enum { /* the job: one int64 vector */
  JOB_KERNEL, JOB_SHARE, JOB_THREADS, JOB_COPIES, JOB_SAMPLE_NS, JOB_LIMIT_NS, JOB_LEAST,
  JOB_EXTENTS,                     /* b, h, w, p, q */
  JOB_STRIDES = JOB_EXTENTS + 5,   /* of x: b, c, h, w; of y: b, f, h, w */
  JOB_CONV = JOB_STRIDES + 8,      /* the fields of ht_conv but for its kernels (pack_conv.py) */
  JOB_EXTRAS = JOB_CONV + 20,                /* how many the epilogue reads, then of each where it begins and its strides b, f, h, w */
  JOB_WORDS = JOB_EXTRAS + 1 + 5 * HT_MAX_EXTRA
};

typedef struct {
  ht_conv conv;
  const ht_kernel* kernel;
  ht_conv_call call;
  const float* weights;
  int64_t packed; /* floats from one copy of the weight to the next */
  int share, threads;
} conv_job;

static ht_window window_of(const int64_t* w) {
  return (ht_window){(int32_t)w[0], (int32_t)w[1], (int32_t)w[2], (int32_t)w[3], (int32_t)w[4], (int32_t)w[5]};
}

static ht_conv conv_of(const int64_t* w) {
  return (ht_conv){(int32_t)w[0], (int32_t)w[1], (int32_t)w[2], window_of(w + 3), window_of(w + 9),
                   (uint8_t)w[15], (uint8_t)w[16], (uint8_t)w[17], (uint8_t)w[18], (int32_t)w[19], ht_kernels, ht_kernels_typed};
}

static int call_conv(void* arg, int64_t copy) {
  conv_job* job = arg;
  job->call.weight = job->weights + copy * job->packed;
  return ht_conv_run(&job->conv, job->kernel, &job->call, job->share, job->threads);
}

/* time_conv(x, packed weights, y, bias, job, samples float64 [4, room], extra): bias of no element is none, extra holds all that the
 * epilogue reads, in 32-bit room each. Returns how many samples were
 * taken (sampling.h). */
HT_EXPORT int __tvm_ffi_ht_time_conv(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  (void)self;
  const DLTensor* t[7];
  if (count != 7) return fail("expected (x, weights, y, bias, job, samples, extra)");
  for (int i = 0; i < 7; ++i)
    if ((t[i] = tensor(&args[i])) == NULL) return fail("arguments must be tensors");
  const int64_t* job = (const int64_t*)ht_data(t[4]);
  if (t[4]->shape[0] != JOB_WORDS) return fail("the job has another length");
  if (job[JOB_KERNEL] < 0 || job[JOB_KERNEL] >= ht_kernel_count) return fail("no such kernel in this library");
  if (job[JOB_THREADS] < 1 || job[JOB_THREADS] > HT_MAX_THREADS) return fail("as many threads as a pool never has");
  const int64_t *e = job + JOB_EXTENTS, *s = job + JOB_STRIDES;
  conv_job conv = {.conv = conv_of(job + JOB_CONV), .kernel = &ht_kernels[job[JOB_KERNEL]], .weights = (const float*)ht_data(t[1]),
                   .share = (int)job[JOB_SHARE], .threads = (int)job[JOB_THREADS]};
  conv.packed = ht_conv_packed(&conv.conv);
  conv.call = (ht_conv_call){.x = (const float*)ht_data(t[0]), .y = (float*)ht_data(t[2]), .batch = e[0], .h = e[1], .w = e[2], .p = e[3],
                             .q = e[4], .xb = s[0], .xc = s[1], .xh = s[2], .xw = s[3], .yb = s[4], .yf = s[5], .yh = s[6], .yw = s[7],
                             .bias = t[3]->shape[0] > 0 ? (const float*)ht_data(t[3]) : NULL};
  const int64_t* words = job + JOB_EXTRAS;
  if (words[0] < 0 || words[0] > HT_MAX_EXTRA) return fail("the epilogue reads too much");
  conv.call.extras = (int32_t)words[0];
  for (int i = 0; i < conv.call.extras; ++i) {
    const int64_t* of = words + 1 + 5 * i;
    conv.call.extra[i] = (ht_conv_extra){(const float*)ht_data(t[6]) + of[0], of[1], of[2], of[3], of[4]};
  }
  ht_timing timing = {.call = call_conv, .arg = &conv, .first = (const char*)conv.weights, .copies = job[JOB_COPIES],
                      .stride = conv.packed * (int64_t)sizeof(float), .sample_ns = job[JOB_SAMPLE_NS], .limit_ns = job[JOB_LIMIT_NS],
                      .least = job[JOB_LEAST], .threads = conv.threads};
  return answer(result, take_samples(&timing, (double*)ht_data(t[5]), t[5]->ndim == 2 ? t[5]->shape[1] : 0));
}

/* pack_conv(fields of ht_conv, weight, out): packs a weight; of an empty out the floats that it takes. */
HT_EXPORT int __tvm_ffi_ht_pack_conv(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  (void)self;
  const DLTensor* t[3];
  if (count != 3) return fail("expected (fields, weight, out)");
  for (int i = 0; i < 3; ++i)
    if ((t[i] = tensor(&args[i])) == NULL) return fail("arguments must be tensors");
  ht_conv conv = conv_of((const int64_t*)ht_data(t[0]));
  int64_t floats = ht_conv_packed(&conv);
  if (t[2]->shape[0] > 0 && t[2]->shape[0] != floats) return fail("no room for the packed weight");
  if (t[2]->shape[0] > 0) ht_conv_pack(&conv, (const float*)ht_data(t[1]), (float*)ht_data(t[2]));
  return answer(result, floats);
}
