/* Times a kernel of a kind whose plans are by cells through the code that serves it (kinds/sliced.c or the kind's own loops, check.c,
 * pool.c). Part of measuring libraries only. */
#include <string.h>

#include "kinds/sliced.h"
#include "sampling.h"

extern const ht_kind* const ht_timed_kind; /* generated: the candidates in this library, as the kind has them in a pack */
extern const void* const ht_timed_data;
extern const int ht_timed_count;

enum { /* the job: one int64 vector, then of each operand its role, type code, bits, rank, and HT_MAX_AXES axes */
  JOB_KERNEL, JOB_AXIS, JOB_LEAST_TILES, JOB_THREADS, JOB_COPIES, JOB_SAMPLE_NS, JOB_LIMIT_NS, JOB_LEAST, JOB_AXES, JOB_OPERANDS,
  JOB_EXTENTS, /* HT_MAX_AXES of them */
  JOB_FIRST = JOB_EXTENTS + HT_MAX_AXES
};
enum { OPERAND_ROLE, OPERAND_CODE, OPERAND_BITS, OPERAND_RANK, OPERAND_AXES, OPERAND_WORDS = OPERAND_AXES + HT_MAX_AXES };

typedef struct {
  const ht_op* op;
  const ht_plan* plan;
  ht_call call;
  char* first[HT_MAX_OPERANDS];
  int64_t bytes[HT_MAX_OPERANDS]; /* from one copy of an operand to the next */
  int threads;
} sliced_job;

static int call_sliced(void* arg, int64_t copy) {
  sliced_job* job = arg;
  for (int i = 0; i < job->op->operand_count; ++i) job->call.views[i].data = job->first[i] + copy * job->bytes[i];
  return job->op->kind->run(job->op, job->plan, &job->call, job->threads);
}

/* time_sliced(operands…, the output last; job; samples float64 [4, room]): each operand is a tensor of its axes, or of one leading
 * axis more that counts its copies. Returns how many samples were taken (sampling.h). */
HT_EXPORT int __tvm_ffi_ht_time_sliced(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  (void)self;
  const DLTensor* t[HT_MAX_OPERANDS + 2];
  if (count < 3 || count > HT_MAX_OPERANDS + 2) return fail("expected (operands…, job, samples)");
  for (int i = 0; i < count; ++i)
    if ((t[i] = tensor(&args[i])) == NULL) return fail("arguments must be tensors");
  int32_t operands_count = count - 2;
  const int64_t* job = t[operands_count]->data;
  if (job[JOB_OPERANDS] != operands_count || job[JOB_AXES] < 1 || job[JOB_AXES] > HT_MAX_AXES) return fail("not so many operands");
  if (job[JOB_KERNEL] < 0 || job[JOB_KERNEL] >= ht_timed_count) return fail("no such kernel in this library");
  int threads = (int)job[JOB_THREADS];
  if (threads < 1 || threads > HT_MAX_THREADS) return fail("as many threads as a pool never has");
  ht_axis axes[HT_MAX_AXES];
  for (int i = 0; i < job[JOB_AXES]; ++i) axes[i] = (ht_axis){"axis", 0, 1, HT_EXTENT_LIMIT};
  ht_operand operands[HT_MAX_OPERANDS];
  DLTensor tensors[HT_MAX_OPERANDS];
  const DLTensor* each[HT_MAX_OPERANDS];
  sliced_job sliced = {.threads = threads};
  int64_t copies = job[JOB_COPIES], widest = 0;
  for (int i = 0; i < operands_count; ++i) {
    const int64_t* words = job + JOB_FIRST + i * OPERAND_WORDS;
    operands[i] = (ht_operand){.name = "operand", .role = (uint8_t)words[OPERAND_ROLE], .code = (uint8_t)words[OPERAND_CODE],
                               .bits = (uint8_t)words[OPERAND_BITS], .rank = (uint8_t)words[OPERAND_RANK]};
    for (int a = 0; a < operands[i].rank; ++a) operands[i].axes[a] = (uint8_t)words[OPERAND_AXES + a];
    tensors[i] = *t[i];
    each[i] = &tensors[i];
    sliced.first[i] = ht_data(t[i]);
    if (copies > 1) { /* the first axis counts copies */
      tensors[i].ndim -= 1;
      tensors[i].shape += 1;
      int64_t elements = t[i]->strides != NULL ? t[i]->strides[0] : 1;
      for (int a = 0; t[i]->strides == NULL && a < tensors[i].ndim; ++a) elements *= tensors[i].shape[a];
      tensors[i].strides = t[i]->strides == NULL ? NULL : t[i]->strides + 1;
      sliced.bytes[i] = elements * (operands[i].bits / 8);
    }
    if (sliced.bytes[i] > sliced.bytes[widest]) widest = i;
  }
  ht_sliced_entry entry = {.kernel = (uint8_t)job[JOB_KERNEL], .axis = (uint8_t)job[JOB_AXIS], .least = (uint16_t)job[JOB_LEAST_TILES]};
  ht_plan plan = {.threads = threads, .table = {.dims = 1, .count = {1}}, .data = &entry};
  ht_op op = {.name = "candidate", .kind = ht_timed_kind, .axis_count = (int32_t)job[JOB_AXES], .operand_count = operands_count,
              .plan_count = 1, .kernel_count = ht_timed_count, .axes = axes, .operands = operands, .plans = &plan, .data = ht_timed_data};
  sliced.op = &op;
  sliced.plan = &plan;
  ht_error error;
  if (op.kind->check(&op, each, operands_count, &sliced.call, &error) != 0) return fail(error.text);
  for (int i = 0; i < job[JOB_AXES]; ++i)
    if (sliced.call.extents[i] != job[JOB_EXTENTS + i]) return fail("the operands have other extents than the job");
  ht_timing timing = {.call = call_sliced, .arg = &sliced, .first = sliced.first[widest], .copies = copies,
                      .stride = sliced.bytes[widest], .sample_ns = job[JOB_SAMPLE_NS], .limit_ns = job[JOB_LIMIT_NS],
                      .least = job[JOB_LEAST], .threads = threads};
  const DLTensor* samples = t[operands_count + 1];
  return answer(result, take_samples(&timing, samples->data, samples->ndim == 2 ? samples->shape[1] : 0));
}
