/* See cuda_generated.h. What a call is checked for is the CPU's (check.c), and that all tensors live on one device. */
#include "cuda_generated.h"

#include <string.h>

#include "cuda/workspace.h"
#include "cuda_dense.h"
#include "cuda_kind.h"

static int check(const ht_op* op, const DLTensor* const* tensors, int32_t count, ht_call* call, ht_error* error) {
  DLTensor seen[HT_MAX_OPERANDS];
  const DLTensor* given[HT_MAX_OPERANDS];
  if (count != op->operand_count) return ht_refuse(error, "TypeError", "takes %d tensors, got %d", (int)op->operand_count, (int)count);
  for (int i = 0; i < count; ++i) {
    const DLTensor* t = tensors[i];
    const int device = i == 0 ? -1 : tensors[0]->device.device_id;
    if (t == NULL) return ht_refuse(error, "TypeError", "%s is missing", op->operands[i].name);
    if (t->device.device_type != kDLCUDA)
      return ht_refuse(error, "ValueError", "%s does not live on a CUDA device; this pack computes there: copy it to one first", op->operands[i].name);
    if (device >= 0 && t->device.device_id != device)
      return ht_refuse(error, "ValueError", "%s lives on cuda:%d, %s on cuda:%d: copy it there", op->operands[i].name, (int)t->device.device_id,
                       op->operands[0].name, device);
    seen[i] = *t;
    seen[i].device = (DLDevice){kDLCPU, 0}; /* the rest is checked as of memory of the host */
    given[i] = &seen[i];
  }
  if (ht_check(op, given, count, call, error) != 0) return -1;
  call->device = tensors[0]->device.device_id;
  return 0;
}

/* Whether a view has no gaps; axes of one element may have any stride. */
static int compact(const ht_view* view, int rank) {
  int64_t run = 1;
  for (int a = rank - 1; a >= 0; --a) {
    if (view->extents[a] > 1 && view->strides[a] != run) return 0;
    run *= view->extents[a];
  }
  return 1;
}

_Static_assert(HT_GENERATED_AXES == HT_MAX_AXES && HT_GENERATED_OPERANDS == HT_MAX_OPERANDS, "kernels have the op's room");

static void described(const ht_op* op, const ht_call* call, ht_generated_args* args) {
  const ht_cuda_generated* data = op->data;
  memset(args, 0, sizeof *args);
  for (int i = 0; i < op->operand_count; ++i) {
    args->data[i] = call->views[i].data;
    for (int a = 0; a < op->operands[i].rank; ++a) args->strides[i][a] = call->views[i].strides[a];
  }
  for (int d = 0; d < data->dimensions; ++d) args->sizes[d] = call->extents[data->axes[d]];
}

/* One long row where a program takes all axes as one and no tensor has gaps. */
static void merged(const ht_op* op, const ht_call* call, ht_generated_args* args, int64_t* shape, int32_t rank) {
  const ht_cuda_generated* data = op->data;
  const ht_operand* out = &op->operands[op->operand_count - 1];
  for (int i = 0; i < op->operand_count; ++i)
    if (!compact(&call->views[i], op->operands[i].rank)) return;
  for (int a = 0; a < rank - 1; ++a) {
    shape[rank - 1] *= shape[a];
    shape[a] = 1;
  }
  for (int d = 0; d < data->dimensions; ++d) args->sizes[d] = data->axes[d] == out->axes[rank - 1] ? shape[rank - 1] : 1;
}

static int launch(const ht_op* op, const ht_plan* plan, const ht_call* call, ht_queue* queue, ht_error* error) {
  const ht_cuda_generated* data = op->data;
  const int last = op->operand_count - 1, rank = op->operands[last].rank;
  int chosen = ((const ht_sliced_entry*)plan->data)[ht_look_up(&plan->table, call->extents)].kernel;
  if (call->over & ~data->in_place[chosen]) chosen = data->over;
  const ht_cuda_generated_kernel* program = &data->programs[chosen];
  int64_t shape[HT_MAX_AXES];
  ht_generated_args args;
  ht_cuda_scope scope;
  memcpy(shape, call->views[last].extents, sizeof shape);
  described(op, call, &args);
  if (program->merges) merged(op, call, &args, shape, rank);
  const ht_cuda_loaded* loaded = ht_cuda_load(call->device, error);
  if (loaded == NULL || ht_cuda_enter(loaded->device, &scope, error) != 0) return -1;
  const int64_t parts = ht_cuda_generated_parts(program, &args, shape, rank, loaded->device->units);
  ht_cuda_workspace workspace = {NULL, NULL};
  const int64_t bytes = ht_cuda_generated_floats(program, shape, rank, parts) * (int64_t)sizeof(float);
  if (parts > 1) (void)ht_cuda_workspace_take(loaded->device, queue->stream, bytes, &workspace); /* without one a row is a group's */
  const int rc = ht_cuda_launch_generated(program, loaded->functions[data->kernels[chosen]], &args, shape, rank, loaded->device->units,
                                          workspace.data, queue->stream, error);
  ht_cuda_workspace_done(&workspace);
  ht_cuda_leave(&scope);
  return rc;
}

static const char* kernel_name(const ht_op* op, int32_t index) {
  return ht_cuda_pack_code.kernels[((const ht_cuda_generated*)op->data)->kernels[index]].name;
}

/* `bound`: the number of a device. */
static int prepare(const ht_op* op, const void* bound, void* stream, ht_error* error) {
  const ht_cuda_generated* data = op->data;
  int cut = 0;
  for (int i = 0; i < data->count; ++i) cut |= data->programs[i].parts > 1;
  const ht_cuda_loaded* loaded = ht_cuda_load(*(const int*)bound, error);
  ht_cuda_scope scope;
  if (loaded == NULL || ht_cuda_enter(loaded->device, &scope, error) != 0) return -1;
  const int rc = cut ? ht_cuda_workspace_prepare(loaded->device, stream, HT_GENERATED_PARTIAL * (int64_t)sizeof(float), error) : 0;
  ht_cuda_leave(&scope);
  return rc;
}

static const ht_placed placed = {ht_cuda_open_device, ht_cuda_no_bytes, ht_cuda_no_bind, prepare, launch, NULL, NULL};

const ht_kind ht_cuda_generated_kind = {.name = "sliced", .check = check, .run = ht_cuda_no_run, .kernel_name = kernel_name, .placed = &placed};
