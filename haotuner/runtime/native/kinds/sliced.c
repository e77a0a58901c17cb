/* A kind without loops of its own: the entry of a shape's cell names the kernel and the axis that threads share. */
#include "sliced.h"

#include <string.h>

typedef struct {
  const ht_op* op;
  const ht_call* call;
  const ht_sliced_kernel* kernel;
  int axis;
  int64_t tiles, slices; /* along the axis */
  float* partial;        /* the output of each slice, one after the other, where the axis is folded; else NULL */
  int64_t outputs;       /* its elements */
  int64_t stage, parts;  /* of a program in stages; no parts: as one */
  atomic_int failed;
} job;

/* What a program in stages takes behind its operands. */
static int32_t staged_arguments(const job* j, int64_t part, DLTensor* room, TVMFFIAny* args) {
  static int64_t shape[1] = {HT_PARTIAL_FLOATS}, stride[1] = {1};
  static float nothing[1];
  const int64_t numbers[] = {j->stage, part, j->parts};
  *room = (DLTensor){j->parts > 0 ? j->partial : nothing, {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, shape, stride, 0};
  args[0].type_index = kTVMFFIDLTensorPtr;
  args[0].v_ptr = room;
  for (int i = 0; i < 3; ++i) {
    args[i + 1].type_index = kTVMFFIInt;
    args[i + 1].v_int64 = numbers[i];
  }
  return 4;
}

/* The kernel on rows [first, last) of the axis of every operand that has it; its output goes to `partial` unless that is NULL.
 * `part`: of a program in stages, which then has the operands whole. */
static int call_kernel(const job* j, int64_t first, int64_t last, float* partial, int64_t part) {
  const ht_op* op = j->op;
  DLTensor tensors[HT_MAX_OPERANDS];
  int64_t shapes[HT_MAX_OPERANDS][HT_MAX_AXES];
  int64_t dense[HT_MAX_AXES];
  DLTensor room;
  TVMFFIAny args[HT_MAX_OPERANDS + 4], result;
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
    int64_t* strides = (int64_t*)view->strides;
    if (partial != NULL && o->role == HT_OUTPUT) {
      data = (char*)partial;
      strides = dense;
      for (int64_t a = o->rank - 1, step = 1; a >= 0; step *= shapes[i][a--]) dense[a] = step;
    }
    tensors[i] = (DLTensor){data, {kDLCPU, 0}, o->rank, {o->code, o->bits, 1}, shapes[i], strides, 0};
    args[i].type_index = kTVMFFIDLTensorPtr;
    args[i].v_ptr = &tensors[i];
  }
  int32_t count = op->operand_count;
  if (j->kernel->stages > 0) count += staged_arguments(j, part, &room, args + count);
  return j->kernel->fn(NULL, args, count, &result);
}

static void run_slice(void* arg, int64_t index) {
  job* j = arg;
  int64_t tile = j->kernel->tile[j->axis], extent = j->call->extents[j->axis];
  int64_t first = j->tiles * index / j->slices * tile, last = j->tiles * (index + 1) / j->slices * tile;
  float* partial = j->partial == NULL ? NULL : j->partial + index * j->outputs;
  if (call_kernel(j, first, last < extent ? last : extent, partial, 0) != 0) atomic_store_explicit(&j->failed, 1, memory_order_relaxed);
}

static float join(uint8_t how, float one, float other, float share) {
  switch (how) {
    case HT_JOIN_MAX: return one > other || one != one ? one : other; /* a NaN in either is the result */
    case HT_JOIN_MIN: return one < other || one != one ? one : other;
    case HT_JOIN_PROD: return one * other;
    case HT_JOIN_MEAN: return one + other * share;
    default: return one + other;
  }
}

/* The output from the slices' results, in the order of the axis: the same bits whoever computed them. */
static void join_slices(const job* j, uint8_t how) {
  const ht_op* op = j->op;
  const ht_view* y = &j->call->views[op->operand_count - 1];
  const int rank = op->operands[op->operand_count - 1].rank;
  const int64_t tile = j->kernel->tile[j->axis], extent = j->call->extents[j->axis];
  for (int64_t i = 0; i < j->outputs; ++i) {
    float value = 0.0f;
    for (int64_t s = 0; s < j->slices; ++s) {
      int64_t first = j->tiles * s / j->slices * tile, last = j->tiles * (s + 1) / j->slices * tile;
      float share = (float)((double)((last < extent ? last : extent) - first) / (double)extent);
      float part = j->partial[s * j->outputs + i];
      if (s == 0) value = how == HT_JOIN_MEAN ? part * share : part;
      else value = join(how, value, part, share);
    }
    int64_t place = 0, left = i;
    for (int a = rank - 1; a >= 0; left /= y->extents[a--]) place += left % y->extents[a] * y->strides[a];
    ((float*)y->data)[place] = value;
  }
}

/* A folded axis in as many slices as the plan has threads, twice over, whoever is free to compute them. */
static int run_folded(job* j, uint8_t how, const ht_plan* plan, int threads) {
  _Alignas(64) float partial[HT_PARTIAL_FLOATS];
  if (j->slices > 2 * (int64_t)plan->threads) j->slices = 2 * (int64_t)plan->threads;
  if (j->slices * j->outputs > HT_PARTIAL_FLOATS) j->slices = HT_PARTIAL_FLOATS / j->outputs;
  if (j->slices < 2) {
    j->axis = HT_WHOLE;
    return call_kernel(j, 0, 0, NULL, 0);
  }
  j->partial = partial;
  atomic_init(&j->failed, 0);
  ht_pool_run(run_slice, j, j->slices, threads);
  if (atomic_load_explicit(&j->failed, memory_order_relaxed)) return -1;
  join_slices(j, how);
  return 0;
}

static void run_part(void* arg, int64_t part) {
  job* j = arg;
  if (call_kernel(j, 0, 0, NULL, part) != 0) atomic_store_explicit(&j->failed, 1, memory_order_relaxed);
}

/* Whether what all parts leave of all rows has its place on the stack. */
static int has_room(const job* j) {
  const int last = j->op->operand_count - 1;
  const int64_t row = j->kernel->row > 0 ? j->kernel->row : j->call->extents[j->kernel->along];
  int64_t rows = 1;
  for (int a = 0; a < j->op->operands[last].rank; ++a) rows *= j->call->views[last].extents[a];
  return row > 0 && rows / row <= HT_PARTIAL_FLOATS / ((int64_t)j->kernel->left * j->kernel->parts);
}

/* Every part of a stage, whoever is free to compute it, then of the next one. The kernel says how many parts there are. */
static int run_stages(job* j, int threads) {
  _Alignas(64) float partial[HT_PARTIAL_FLOATS];
  j->partial = partial;
  j->parts = j->kernel->parts;
  atomic_init(&j->failed, 0);
  for (j->stage = 0; j->stage < j->kernel->stages; ++j->stage) {
    ht_pool_run(run_part, j, j->parts, threads);
    if (atomic_load_explicit(&j->failed, memory_order_relaxed)) return -1;
  }
  return 0;
}

static int run(const ht_op* op, const ht_plan* plan, const ht_call* call, int threads) {
  const ht_sliced_entry* entry = (const ht_sliced_entry*)plan->data + ht_look_up(&plan->table, call->extents);
  const ht_sliced* data = op->data;
  job j = {.op = op, .call = call, .kernel = &data->kernels[entry->kernel], .axis = HT_WHOLE};
  if (call->over & ~j.kernel->in_place) j.kernel = &data->kernels[data->over];
  int axis = entry->axis;
  const ht_sliced_kernel* planned = &data->kernels[entry->kernel];
  if (planned->stages > 0 && axis == planned->along) {
    if (j.kernel == planned && has_room(&j)) return run_stages(&j, threads);
    axis = planned->rows;
  }
  /* A cell's rows may be fewer than those that it was timed with: where one row is left, its terms are shared instead. */
  if (axis != HT_WHOLE && j.kernel->join[axis] == HT_JOIN_NONE && call->extents[axis] <= j.kernel->tile[axis])
    for (int a = 0; a < op->axis_count; ++a)
      if (j.kernel->join[a] != HT_JOIN_NONE && call->extents[a] >= HT_FOLD_LEAST) axis = a;
  const uint8_t how = axis == HT_WHOLE ? HT_JOIN_NONE : j.kernel->join[axis];
  if (axis == HT_WHOLE || (threads == 1 && how == HT_JOIN_NONE)) return call_kernel(&j, 0, 0, NULL, 0);
  j.axis = axis;
  int64_t tile = j.kernel->tile[j.axis], least = entry->least > 0 ? entry->least : 1;
  j.tiles = (call->extents[j.axis] + tile - 1) / tile;
  j.slices = j.tiles / least;
  if (how != HT_JOIN_NONE) {
    const int last = op->operand_count - 1;
    j.outputs = 1;
    for (int a = 0; a < op->operands[last].rank; ++a) j.outputs *= call->views[last].extents[a];
    return run_folded(&j, how, plan, threads);
  }
  if (j.slices > 4 * (int64_t)threads) j.slices = 4 * (int64_t)threads; /* enough for a free thread to help a late one */
  if (j.slices < 2) {
    j.axis = HT_WHOLE;
    return call_kernel(&j, 0, 0, NULL, 0);
  }
  atomic_init(&j.failed, 0);
  ht_pool_run(run_slice, &j, j.slices, threads);
  return atomic_load_explicit(&j.failed, memory_order_relaxed) ? -1 : 0;
}

static const char* kernel_name(const ht_op* op, int32_t index) { return ((const ht_sliced*)op->data)->kernels[index].name; }

const ht_kind ht_sliced_kind = {.name = "sliced", .check = ht_check, .run = run, .kernel_name = kernel_name};
