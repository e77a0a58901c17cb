/* dense on CUDA: what it checks, binds and prepares, and its place among the kinds. */
#include "cuda_dense.h"

#include <string.h>

#include "cuda/workspace.h"
#include "cuda_kind.h"
#include "cuda_queue.h"
#include "c_api.h"

#define MARK 0x68612d6375646131u /* of a filled ht_cuda_bound */

static const char* place_name(int device_type) {
  return device_type == kDLCPU ? "the CPU" : device_type == kDLCUDAHost ? "pinned memory of the CPU" : "another kind of device";
}

static const ht_operand* operand_of(const ht_op* op, const char* name) {
  const ht_operand* found = &op->operands[strcmp(name, "out") == 0 ? op->operand_count - 1 : 0];
  for (int i = 0; i < op->operand_count + op->optional_count; ++i)
    if (strcmp(op->operands[i].name, name) == 0) found = &op->operands[i];
  return found;
}

static int same_type(const ht_operand* a, const ht_operand* b) { return a->code == b->code && a->bits == b->bits; }

int ht_cuda_check_tensor(const ht_op* op, const char* name, const DLTensor* t, int device, ht_error* error) {
  const ht_operand* x = operand_of(op, name);
  if (t == NULL) return ht_refuse(error, "TypeError", "%s is missing", name);
  if (t->device.device_type != kDLCUDA)
    return ht_refuse(error, "ValueError", "%s lives on %s; this pack computes on CUDA devices: copy it to one first", name,
                     place_name((int)t->device.device_type));
  if (device >= 0 && t->device.device_id != device)
    return ht_refuse(error, "ValueError", "%s lives on cuda:%d, the weight on cuda:%d: copy it there, or bind a weight on its device",
                     name, (int)t->device.device_id, device);
  const int code = x->code, bits = x->bits;
  if (t->dtype.code != code || t->dtype.bits != bits || t->dtype.lanes != 1)
    return ht_refuse(error, "TypeError", "%s has dtype code %d with %d bits x %d lanes; expected %s", name, (int)t->dtype.code,
                     (int)t->dtype.bits, (int)t->dtype.lanes,
                     bits == 8 ? code == kDLInt ? "int8" : "uint8" : code == kDLInt ? "int32" : code == kDLBfloat ? "bfloat16" : bits == 16 ? "float16" : "float32");
  if (t->ndim < 1 || t->ndim > HT_MAX_RANK || t->shape == NULL)
    return ht_refuse(error, "ValueError", "%s has rank %d; expected 1 to %d axes", name, (int)t->ndim, HT_MAX_RANK);
  return 0;
}

static int check_rows(const char* name, const DLTensor* t, int64_t inner, ht_view* view, ht_error* error) {
  const int64_t expected[2] = {0, inner};
  if (ht_fold(name, t, 2, expected, view, error) != 0) return -1;
  if (view->strides[0] < 0) /* of several rows: that of one is its length */
    return ht_refuse(error, "ValueError", "%s has the row stride %lld; expected none below 0: pass a contiguous copy", name,
                     (long long)view->strides[0]);
  return 0;
}

static int64_t stack(const ht_cuda_dense* dense) { return dense->groups > 0 ? dense->groups : 1; }

/* Where the rows of each group end: read on the device, when the call runs. */
static int check_offsets(const ht_op* op, const DLTensor* offsets, int device, ht_call* call, ht_error* error) {
  const ht_cuda_dense* dense = op->data;
  if (ht_cuda_check_tensor(op, "offsets", offsets, device, error) != 0) return -1;
  if (offsets->ndim != 1 || offsets->shape[0] != dense->groups || offsets->data == NULL || !ht_contiguous(offsets))
    return ht_refuse(error, "ValueError", "offsets has rank %d and extent %lld; expected one contiguous axis of %d: the end of each group",
                     (int)offsets->ndim, (long long)offsets->shape[0], (int)dense->groups);
  if (ht_check_addresses("offsets", offsets, error) != 0) return -1;
  if ((uintptr_t)ht_data(offsets) % 4 != 0) return ht_refuse(error, "ValueError", "offsets begins at an address that is no multiple of 4");
  call->views[3].data = ht_data(offsets);
  return 0;
}

/* What is added to the sums comes in rows as far apart as out's, and may be out itself: an element is read by who then writes it. */
static int check_residual(const ht_op* op, const DLTensor* t, const DLTensor* y, int device, ht_call* call, ht_error* error) {
  const ht_cuda_dense* dense = op->data;
  const ht_view* out = &call->views[2];
  ht_view* view = &call->views[4];
  if (ht_cuda_check_tensor(op, "residual", t, device, error) != 0) return -1;
  if (t->ndim != y->ndim)
    return ht_refuse(error, "ValueError", "residual has rank %d, out has rank %d; they must be equal", (int)t->ndim, (int)y->ndim);
  for (int i = 0; i < t->ndim - 1; ++i)
    if (t->shape[i] != y->shape[i])
      return ht_refuse(error, "ValueError", "residual has extent %lld in axis %d, out has %lld; they must be equal", (long long)t->shape[i], i,
                       (long long)y->shape[i]);
  if (check_rows("residual", t, dense->n, view, error) != 0) return -1;
  if (out->extents[0] == 0) return 0;
  if (t->data == NULL) return ht_refuse(error, "ValueError", "residual has no data");
  if (view->strides[0] != out->strides[0]) /* of several rows: that of one is n */
    return ht_refuse(error, "ValueError", "residual has the row stride %lld, out has %lld; they must be equal: pass contiguous ones",
                     (long long)view->strides[0], (long long)out->strides[0]);
  const int64_t elements = (out->extents[0] - 1) * out->strides[0] + dense->n, written = ht_cuda_y_bytes(dense->dtype, dense->after.y_type);
  const int64_t added = ht_cuda_residual_bytes(dense->dtype, dense->after.y_type);
  const int same = view->data == out->data && same_type(operand_of(op, "residual"), operand_of(op, "out"));
  if (!same && ht_cuda_meet(out->data, elements * written, view->data, elements * added))
    return ht_refuse(error, "ValueError", "out shares some of its memory with residual; pass the same tensor, or another out");
  return 0;
}

static int check_apart(const ht_cuda_dense* dense, const ht_cuda_bound* bound, const ht_call* call, ht_error* error) {
  const ht_view *x = &call->views[0], *y = &call->views[2];
  const int64_t element = ht_cuda_bytes(dense->dtype), m = x->extents[0];
  const int64_t x_bytes = ((m - 1) * x->strides[0] + dense->k) * element;
  const int64_t y_bytes = ((m - 1) * y->strides[0] + dense->n) * ht_cuda_y_bytes(dense->dtype, dense->after.y_type);
  if (y->strides[0] < dense->n) /* of several rows: that of one is n */
    return ht_refuse(error, "ValueError", "rows of out overlap: row stride %lld is under n = %lld", (long long)y->strides[0],
                     (long long)dense->n);
  if (ht_cuda_meet(y->data, y_bytes, x->data, x_bytes))
    return ht_refuse(error, "ValueError", "out shares memory with x, which is read meanwhile; pass another out");
  if (ht_cuda_meet(y->data, y_bytes, bound->w, stack(dense) * dense->n * dense->k * element) ||
      ht_cuda_meet_channels(&bound->channels, stack(dense) * dense->n * ht_cuda_channel_bytes(dense->dtype), y->data, y_bytes))
    return ht_refuse(error, "ValueError", "out shares memory with the weight or the bias; pass another out");
  if (dense->groups > 0 && ht_cuda_meet(y->data, y_bytes, call->views[3].data, (int64_t)dense->groups * 4))
    return ht_refuse(error, "ValueError", "out shares memory with offsets, which is read meanwhile; pass another out");
  return 0;
}

static int64_t bound_bytes(const ht_op* op) {
  return (int64_t)(offsetof(ht_cuda_bound, maps) + (size_t)op->kernel_count * sizeof(CUtensorMap));
}

static int check(const ht_op* op, const DLTensor* const* tensors, int32_t count, ht_call* call, ht_error* error) {
  const ht_cuda_dense* dense = op->data;
  const int grouped = dense->groups > 0, residual = dense->after.residual;
  if (count != 3 + grouped + residual)
    return ht_refuse(error, "TypeError", "expected x, a bound weight, %s",
                     grouped && residual ? "out, offsets, and residual" : grouped ? "out, and offsets" : residual ? "out, and residual" : "and out");
  const DLTensor *x = tensors[0], *w = tensors[1], *y = tensors[2];
  if (w == NULL || w->device.device_type != kDLCPU || w->dtype.bits != 8 || w->ndim != 1 || w->shape[0] != bound_bytes(op) ||
      w->data == NULL || !ht_addressable(w) || (uintptr_t)ht_data(w) % HT_BOUND_ALIGNMENT != 0 || ((const ht_cuda_bound*)ht_data(w))->mark != MARK ||
      ((const ht_cuda_bound*)ht_data(w))->op != op)
    return ht_refuse(error, "ValueError", "weight was not bound by this pack for %s: bind the weight again", op->name);
  const ht_cuda_bound* bound = (const ht_cuda_bound*)ht_data(w);
  const int device = bound->loaded->device->ordinal;
  if (ht_cuda_check_tensor(op, "x", x, device, error) != 0 || ht_cuda_check_tensor(op, "out", y, device, error) != 0) return -1;
  if (grouped && check_offsets(op, tensors[3], device, call, error) != 0) return -1;
  if (check_rows("x", x, dense->k, &call->views[0], error) != 0) return -1;
  if (y->ndim != x->ndim)
    return ht_refuse(error, "ValueError", "out has rank %d, x has rank %d; they must be equal", (int)y->ndim, (int)x->ndim);
  for (int i = 0; i < x->ndim - 1; ++i)
    if (x->shape[i] != y->shape[i])
      return ht_refuse(error, "ValueError", "out has extent %lld in axis %d, x has %lld; they must be equal", (long long)y->shape[i], i,
                       (long long)x->shape[i]);
  if (check_rows("out", y, dense->n, &call->views[2], error) != 0) return -1;
  if (residual && check_residual(op, tensors[3 + grouped], y, device, call, error) != 0) return -1;
  call->views[1].data = (char*)bound;
  call->extents[HT_AXIS_M] = call->views[0].extents[0];
  call->extents[HT_AXIS_N] = dense->n;
  call->extents[HT_AXIS_K] = dense->k;
  call->extents[HT_AXIS_G] = dense->groups;
  call->empty = call->extents[HT_AXIS_M] == 0;
  if (call->empty) return 0;
  if (x->data == NULL || y->data == NULL) return ht_refuse(error, "ValueError", "%s has no data", x->data == NULL ? "x" : "out");
  return check_apart(dense, bound, call, error);
}

static int check_weight(const ht_op* op, const DLTensor* weight, ht_error* error) {
  const ht_cuda_dense* dense = op->data;
  const int64_t rows = dense->kn ? dense->k : dense->n, columns = dense->kn ? dense->n : dense->k;
  if (ht_cuda_check_tensor(op, "weight", weight, -1, error) != 0) return -1;
  if (dense->groups > 0) {
    const int64_t *shape = weight->shape, wanted[3] = {dense->groups, rows, columns};
    if (weight->ndim != 3 || memcmp(shape, wanted, sizeof wanted) != 0)
      return ht_refuse(error, "ValueError", "weight has rank %d and shape (%lld, ..., %lld); expected (%d, %lld, %lld), a matrix for each group",
                       (int)weight->ndim, (long long)shape[0], (long long)shape[weight->ndim - 1], (int)dense->groups, (long long)rows,
                       (long long)columns);
  } else if (weight->ndim != 2 || weight->shape[0] != rows || weight->shape[1] != columns)
    return ht_refuse(error, "ValueError", "weight has rank %d and shape (%lld, %lld); expected (%lld, %lld)", (int)weight->ndim,
                     (long long)weight->shape[0], (long long)(weight->ndim > 1 ? weight->shape[1] : 0), (long long)rows,
                     (long long)columns);
  if (weight->data == NULL || !ht_contiguous(weight))
    return ht_refuse(error, "ValueError", "weight must be contiguous and have data, for it is not copied: bind a contiguous copy of it");
  return ht_check_addresses("weight", weight, error);
}

static int bind_kernel(const ht_op* op, ht_cuda_bound* bound, int place, ht_error* error) {
  const ht_cuda_dense* dense = op->data;
  const ht_cuda_kernel* kernel = &ht_cuda_pack_code.kernels[dense->kernels[place]];
  const ht_cuda_args args = {.w = bound->w, .m = 1, .n = (int32_t)dense->n, .k = (int32_t)dense->k, .ldx = (int32_t)dense->k};
  CUtensorMap* map = &bound->maps[place];
  if (ht_cuda_fits(kernel, &args, error) != 0) return -1;
  memset(map, 0, sizeof *map);
  return kernel->maps ? ht_cuda_encode_w(map, kernel, bound->w, stack(dense), dense->n, dense->k, error) : 0;
}

static int bind(const ht_op* op, const DLTensor* weight, const DLTensor* const* channels, int32_t count, void* memory, ht_error* error) {
  const ht_cuda_dense* dense = op->data;
  ht_cuda_bound* bound = memory;
  if ((uintptr_t)memory % HT_BOUND_ALIGNMENT != 0) return ht_refuse(error, "ValueError", "bound must be aligned to %d bytes", HT_BOUND_ALIGNMENT);
  bound->mark = 0;
  if (check_weight(op, weight, error) != 0 ||
      ht_cuda_bind_channels(op, &dense->after, dense->groups, dense->n, channels, count, weight->device.device_id, &bound->channels, error) != 0)
    return -1;
  const ht_cuda_loaded* loaded = ht_cuda_load(weight->device.device_id, error);
  if (loaded == NULL) return -1;
  bound->w = ht_data(weight);
  ht_cuda_scope scope; /* a map is encoded for the current context: the driver refuses where there is none */
  if (ht_cuda_enter(loaded->device, &scope, error) != 0) return -1;
  int rc = 0;
  for (int i = 0; rc == 0 && i < op->kernel_count; ++i) rc = bind_kernel(op, bound, i, error);
  ht_cuda_leave(&scope);
  if (rc != 0) return -1;
  bound->op = op;
  bound->loaded = loaded;
  bound->mark = MARK;
  return 0;
}

/* Bytes of partial sums that the plans' cells ask for, at their largest shapes. */
static int64_t most_partial(const ht_op* op) {
  int64_t most = 0;
  for (int p = 0; p < op->plan_count; ++p) {
    const ht_table* table = &op->plans[p].table;
    const ht_cuda_entry* entries = op->plans[p].data;
    for (int32_t i = 0; i < table->count[0]; ++i) {
      int64_t rows = table->bounds[0] == NULL ? i + 1 : table->bounds[0][i];
      int64_t bytes = entries[i].splits > 1 ? rows * entries[i].splits * ((const ht_cuda_dense*)op->data)->n * (int64_t)sizeof(float) : 0;
      if (bytes > most) most = bytes;
    }
  }
  return most;
}

static int prepare(const ht_op* op, const void* memory, void* stream, ht_error* error) {
  const ht_cuda_bound* bound = memory;
  const int64_t bytes = most_partial(op);
  ht_cuda_scope scope;
  if (bound->mark != MARK || bound->op != op) return ht_refuse(error, "ValueError", "the weight was not bound by this pack: bind it again");
  if (ht_cuda_open(bound->loaded->device->ordinal, error) == NULL) return -1; /* forked since */
  if (ht_cuda_enter(bound->loaded->device, &scope, error) != 0) return -1;
  int rc = ht_cuda_workspace_prepare(bound->loaded->device, stream, bytes, error);
  ht_cuda_leave(&scope);
  return rc;
}

static const char* kernel_name(const ht_op* op, int32_t index) {
  return ht_cuda_pack_code.kernels[((const ht_cuda_dense*)op->data)->kernels[index]].name;
}

static void look_up(const ht_op* op, const ht_plan* plan, int64_t m, int64_t out[2 + 2 * HT_MAX_PARTS]) {
  const ht_cuda_dense* dense = op->data;
  ht_cuda_regions found;
  ht_cuda_look_up(dense, plan, m, &found);
  out[0] = found.count;
  out[1] = found.splits;
  for (int i = 0; i < found.count; ++i) {
    const int64_t tile = ht_cuda_pack_code.kernels[dense->kernels[found.kernel[i]]].tile_m;
    out[2 + 2 * i] = found.kernel[i];
    out[3 + 2 * i] = (found.rows[i] + tile - 1) / tile;
  }
}

static void describe(const ht_op* op, ht_door_op* out) {
  const ht_cuda_dense* dense = op->data;
  out->n = dense->n;
  out->k = dense->k;
  out->weight_kn = dense->kn;
}

static const ht_placed placed = {ht_cuda_open_device, bound_bytes, bind, prepare, ht_cuda_dense_launch, NULL, NULL};

const ht_kind ht_cuda_dense_kind = {.name = "dense", .check = check, .run = ht_cuda_no_run, .kernel_name = kernel_name, .look_up = look_up,
                                     .describe = describe, .placed = &placed};
const ht_kind ht_cuda_grouped_kind = {.name = "grouped", .check = check, .run = ht_cuda_no_run, .kernel_name = kernel_name, .look_up = look_up,
                                      .describe = describe, .placed = &placed};
