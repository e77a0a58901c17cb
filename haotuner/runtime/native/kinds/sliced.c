/* A kind without loops of its own: the entry of a shape's cell names the kernel and the axis that threads share. */
#include "sliced.h"

#include <string.h>

typedef struct {
  const ht_op* op;
  const ht_call* call;
  const ht_sliced_kernel* kernel;
  int axis;
  int64_t tiles, slices; /* along the axis */
  atomic_int failed;
} job;

/* The kernel on rows [first, last) of the axis of every operand that has it. */
static int call_kernel(const job* j, int64_t first, int64_t last) {
  const ht_op* op = j->op;
  DLTensor tensors[HT_MAX_OPERANDS];
  int64_t shapes[HT_MAX_OPERANDS][HT_MAX_AXES];
  TVMFFIAny args[HT_MAX_OPERANDS], result;
  memset(args, 0, sizeof args);
  memset(&result, 0, sizeof result);
  for (int i = 0; i < op->operand_count; ++i) {
    const ht_operand* o = &op->operands[i];
    const ht_view* view = &j->call->views[i];
    char* data = view->data;
    for (int a = 0; a < o->rank; ++a) {
      shapes[i][a] = view->extents[a];
      if (o->axes[a] != j->axis) continue;
      shapes[i][a] = last - first;
      data += first * view->strides[a] * (o->bits / 8);
    }
    tensors[i] = (DLTensor){data, {kDLCPU, 0}, o->rank, {o->code, o->bits, 1}, shapes[i], (int64_t*)view->strides, 0};
    args[i].type_index = kTVMFFIDLTensorPtr;
    args[i].v_ptr = &tensors[i];
  }
  return j->kernel->fn(NULL, args, op->operand_count, &result);
}

static void run_slice(void* arg, int64_t index) {
  job* j = arg;
  int64_t tile = j->kernel->tile[j->axis], extent = j->call->extents[j->axis];
  int64_t first = j->tiles * index / j->slices * tile, last = j->tiles * (index + 1) / j->slices * tile;
  if (call_kernel(j, first, last < extent ? last : extent) != 0) atomic_store_explicit(&j->failed, 1, memory_order_relaxed);
}

static int run(const ht_op* op, const ht_plan* plan, const ht_call* call, int threads) {
  const ht_sliced_entry* entry = (const ht_sliced_entry*)plan->data + ht_look_up(&plan->table, call->extents);
  job j = {.op = op, .call = call, .kernel = &((const ht_sliced*)op->data)->kernels[entry->kernel], .axis = HT_WHOLE};
  if (entry->axis == HT_WHOLE || threads == 1) return call_kernel(&j, 0, 0);
  j.axis = entry->axis;
  int64_t tile = j.kernel->tile[j.axis], least = entry->least > 0 ? entry->least : 1;
  j.tiles = (call->extents[j.axis] + tile - 1) / tile;
  j.slices = j.tiles / least;
  if (j.slices > 4 * (int64_t)threads) j.slices = 4 * (int64_t)threads; /* enough for a free thread to help a late one */
  if (j.slices < 2) {
    j.axis = HT_WHOLE;
    return call_kernel(&j, 0, 0);
  }
  atomic_init(&j.failed, 0);
  ht_pool_run(run_slice, &j, j.slices, threads);
  return atomic_load_explicit(&j.failed, memory_order_relaxed) ? -1 : 0;
}

static const char* kernel_name(const ht_op* op, int32_t index) { return ((const ht_sliced*)op->data)->kernels[index].name; }

const ht_kind ht_sliced_kind = {.name = "sliced", .check = ht_check, .run = run, .kernel_name = kernel_name};
