/* Rows -> regions -> launches of a dense call on CUDA. */
#include "cuda_queue.h"

#include "cuda/workspace.h"
#include "integers.h"

void ht_cuda_look_up(const ht_cuda_dense* dense, const ht_plan* plan, int64_t m, ht_cuda_regions* out) {
  const int64_t extents[1] = {m};
  const int64_t cell = ht_look_up(&plan->table, extents), last = plan->table.count[0] - 1;
  const ht_cuda_entry* entry = (const ht_cuda_entry*)plan->data + cell;
  const int64_t limit = plan->table.bounds[0] == NULL ? last + 1 : plan->table.bounds[0][last];
  const int64_t tile = ht_cuda_pack_code.kernels[dense->kernels[entry->kernel[0]]].tile_m;
  int64_t rows = entry->tiles * tile;
  if (m > limit) rows += ceil_div(m - limit, tile) * tile; /* the rest is one that the table knows */
  out->splits = entry->splits;
  out->count = 1;
  out->kernel[0] = entry->kernel[0];
  out->rows[0] = m;
  if (entry->tiles == 0 || rows >= m) return;
  out->count = 2;
  out->rows[0] = rows;
  out->kernel[1] = entry->kernel[1];
  out->rows[1] = m - rows;
}

typedef struct {
  const ht_op* op;
  const ht_cuda_dense* dense;
  const ht_cuda_bound* bound;
  const int32_t* offsets; /* of groups, on the device */
  const char* residual;   /* rows as far apart as those of y; NULL */
  ht_queue* queue;
  ht_error* error;
} job;

/* The planned kernel, or another of the op's that takes operands at these addresses; -1 if none does. */
static int fitting(const job* j, int kernel, const ht_cuda_args* args) {
  const ht_cuda_kernel* kernels = ht_cuda_pack_code.kernels;
  if (ht_cuda_fits(&kernels[j->dense->kernels[kernel]], args, j->error) == 0) return kernel;
  ht_error other;
  j->queue->fallback = 1;
  for (int i = 0; i < j->op->kernel_count; ++i)
    if (ht_cuda_fits(&kernels[j->dense->kernels[i]], args, &other) == 0) return i;
  return -1;
}

static int launch_rows(const job* j, int kernel, ht_cuda_args args) {
  const int place = j->dense->kernels[kernel];
  const ht_cuda_loaded* loaded = j->bound->loaded;
  const CUstream stream = j->queue->stream;
  ht_cuda_workspace workspace = {NULL, NULL};
  if (args.splits > ht_cuda_pack_code.kernels[place].splits_max) args.splits = 1;
  if (args.splits > 1 && ht_cuda_workspace_take(loaded->device, stream, (int64_t)args.splits * args.m * args.n * 4, &workspace) != 0) {
    args.splits = 1; /* right, and slower: this stream was not prepared */
    j->queue->fallback = 1;
  }
  args.partial = workspace.data;
  if (j->dense->groups > 0) {
    const ht_cuda_groups groups = {j->offsets, j->dense->groups, 0};
    return ht_cuda_launch_groups(&ht_cuda_pack_code.kernels[place], loaded->functions[place], &args, &groups, &j->bound->maps[kernel],
                                 stream, j->error);
  }
  int rc = ht_cuda_launch(&ht_cuda_pack_code.kernels[place], loaded->functions[place], &args, &j->bound->maps[kernel], stream,
                          loaded->reduces[j->dense->dtype], j->error);
  ht_cuda_workspace_done(&workspace);
  return rc;
}

/* Rows [from, from + rows), at most so many at a time as 32-bit offsets reach. */
static int launch_region(const job* j, int planned, const ht_call* call, int64_t from, int64_t rows, int32_t splits) {
  const ht_view *x = &call->views[0], *y = &call->views[2];
  const int64_t element = ht_cuda_bytes(j->dense->dtype), written = ht_cuda_y_bytes(j->dense->dtype, j->dense->after.y_type);
  const int64_t added = ht_cuda_residual_bytes(j->dense->dtype, j->dense->after.y_type);
  const int64_t ldx = call->extents[HT_AXIS_M] > 1 ? x->strides[0] : j->dense->k, ldy = call->extents[HT_AXIS_M] > 1 ? y->strides[0] : j->dense->n;
  int64_t most = HT_CUDA_OPERAND_ELEMENTS / (ldx > 0 ? ldx : 1) / 1024 * 1024;
  if (most == 0) most = 1;
  if (j->dense->groups > 0) most = rows; /* groups are one launch; what does not fit is refused */
  for (int64_t end = from + rows; from < end; from += rows) {
    rows = end - from < most ? end - from : most;
    ht_cuda_args args = {.x = x->data + from * ldx * element,
                         .w = j->bound->w,
                         .residual = j->residual == NULL ? NULL : j->residual + from * ldy * added,
                         .y = y->data + from * ldy * written,
                         .m = (int32_t)rows,
                         .n = (int32_t)j->dense->n,
                         .k = (int32_t)j->dense->k,
                         .ldx = (int32_t)ldx,
                         .ldy = (int32_t)ldy,
                         .splits = splits};
    ht_cuda_tell(&args, &j->dense->after, &j->bound->channels);
    int kernel = fitting(j, planned, &args);
    if (kernel < 0 || launch_rows(j, kernel, args) != 0) return -1;
  }
  return 0;
}

int ht_cuda_dense_launch(const ht_op* op, const ht_plan* plan, const ht_call* call, ht_queue* queue, ht_error* error) {
  job j = {op, op->data, (const ht_cuda_bound*)call->views[1].data, NULL, NULL, queue, error};
  const ht_cuda_device* device = j.bound->loaded->device;
  if (j.dense->groups > 0) j.offsets = (const int32_t*)call->views[3].data;
  if (j.dense->after.residual) j.residual = call->views[4].data;
  ht_cuda_regions regions;
  ht_cuda_scope scope;
  if (ht_cuda_opened(device->ordinal) == NULL && ht_cuda_open(device->ordinal, error) == NULL) return -1; /* forked since */
  if (ht_cuda_enter(device, &scope, error) != 0) return -1;
  ht_cuda_look_up(j.dense, plan, call->extents[HT_AXIS_M], &regions);
  int rc = 0;
  int64_t from = 0;
  for (int i = 0; i < regions.count && rc == 0; ++i) {
    rc = launch_region(&j, regions.kernel[i], call, from, regions.rows[i], regions.splits);
    from += regions.rows[i];
  }
  ht_cuda_leave(&scope);
  return rc;
}
