/* See cuda_product.h. What a call is checked for is the CPU's (product_check.c), and what device kernels need beyond it. */
#include "cuda_product.h"

#include <string.h>

#include "cuda_dense.h"
#include "cuda_kind.h"

/* A number for all matrices: it comes in memory of the host, and is read before the call is queued. */
static int is_number(const DLTensor* t) {
  if (t->device.device_type != kDLCPU || t->ndim > HT_MAX_RANK) return 0;
  for (int i = 0; i < t->ndim; ++i)
    if (t->shape[i] != 1) return 0;
  return 1;
}

int ht_cuda_product_type(const ht_op* op, const char* name, const DLTensor* t, ht_error* error) {
  if (strcmp(name, "scale") == 0 && is_number(t)) return ht_check_type(name, t, kDLFloat, 32, error);
  return ht_cuda_check_tensor(op, name, t, -1, error);
}

/* The row stride of a matrix of `rows` x `columns` for a kernel, which reads whole rows: its columns must lie side by side. */
static int row_stride(const char* name, int64_t rows, int64_t columns, int64_t down, int64_t right, int64_t* out, ht_error* error) {
  if (columns > 1 && right != 1)
    return ht_refuse(error, "ValueError", "%s has inner stride %lld; expected 1 on a device: pass a contiguous copy", name, (long long)right);
  if (rows > 1 && (down < 0 || down > HT_EXTENT_LIMIT))
    return ht_refuse(error, "ValueError", "%s has the row stride %lld; expected one in 0..2^31-1: pass a contiguous copy", name,
                     (long long)down);
  *out = rows > 1 ? down : columns;
  return 0;
}

/* Arguments of one matrix, and the batch's strides. */
/* What is beside the products. */
static int described_beside(const ht_cuda_product* data, const ht_call* call, ht_cuda_args* args, ht_cuda_batch* batch, int axis, int place, ht_error* error) {
  const ht_view* views = call->product.views;
  const ht_view *bias = &views[HT_PRODUCT_BIAS], *scale = &views[HT_PRODUCT_SCALE], *mask = &views[HT_PRODUCT_MASK];
  if (axis >= 0) {
    batch->scale_apart[place] = scale->data == NULL ? 0 : scale->strides[2 + axis];
    batch->mask_apart[place] = mask->data == NULL ? 0 : mask->strides[2 + axis];
    return 0;
  }
  batch->factor = 1;
  if (scale->data != NULL && scale->extents[0] == 1) batch->factor = *(const float*)scale->data;
  else batch->scale = (const float*)scale->data;
  if (bias->data != NULL && args->n > 1 && bias->strides[1] != 1)
    return ht_refuse(error, "ValueError", "bias has the stride %lld; expected %d elements side by side on a device", (long long)bias->strides[1],
                     (int)args->n);
  args->bias = bias->data;
  const ht_cuda_after* after = &data->after;
  args->y_type = after->y_type;
  args->after = after->steps != 0 && bias->data != NULL ? after->steps << HT_STEP_BITS | HT_STEP_BIAS : after->steps;
  batch->mask = mask->data;
  batch->mask_down = mask->data == NULL ? 0 : mask->strides[0];
  batch->mask_right = mask->data == NULL ? 0 : mask->strides[1];
  return 0;
}

static int described(const ht_op* op, const ht_call* call, ht_cuda_args* args, ht_cuda_batch* batch, ht_error* error) {
  const ht_cuda_product* data = op->data;
  const ht_product_call* product = &call->product;
  const ht_view *x = &product->views[HT_PRODUCT_X], *w = &product->views[HT_PRODUCT_W], *y = &product->views[HT_PRODUCT_Y];
  const int64_t m = call->extents[HT_PRODUCT_M], n = call->extents[HT_PRODUCT_N], k = call->extents[HT_PRODUCT_K];
  int64_t ldx, ldw, ldy;
  const int across = data->product.w_across; /* w lies (n, k); its view is that of (k, n) */
  const int x_across = data->product.x_across; /* x lies (k, m); its view is that of (m, k) */
  if (row_stride("x", x_across ? k : m, x_across ? m : k, x->strides[x_across], x->strides[!x_across], &ldx, error) != 0 ||
      row_stride("w", across ? n : k, across ? k : n, w->strides[across], w->strides[!across], &ldw, error) != 0 ||
      row_stride("out", m, n, y->strides[0], y->strides[1], &ldy, error) != 0)
    return -1;
  if (product->batch_axes > HT_CUDA_BATCH_AXES)
    return ht_refuse(error, "ValueError", "its batch axes fold into %d; a device takes up to %d: pass contiguous copies",
                     (int)product->batch_axes, HT_CUDA_BATCH_AXES);
  *args = (ht_cuda_args){.x = x->data, .w = w->data, .y = y->data, .m = (int32_t)m, .n = (int32_t)n, .k = (int32_t)k,
                         .ldx = (int32_t)ldx, .ldy = (int32_t)ldy, .ldw = (int32_t)ldw, .splits = 1};
  const int absent = HT_CUDA_BATCH_AXES - product->batch_axes;
  memset(batch, 0, sizeof *batch);
  for (int i = 0; i < HT_CUDA_BATCH_AXES; ++i) {
    const int axis = i - absent;
    batch->extents[i] = axis < 0 ? 1 : (int32_t)product->batch[axis];
    if (axis < 0) continue;
    batch->x[i] = x->strides[2 + axis];
    batch->w[i] = w->strides[2 + axis];
    batch->y[i] = y->strides[2 + axis];
    described_beside(data, call, args, batch, axis, i, error);
  }
  return described_beside(data, call, args, batch, -1, 0, error);
}

/* Whether a kernel's wide loads reach every matrix of the batch. */
int ht_cuda_product_fits(const ht_cuda_kernel* kernel, const ht_cuda_args* args, const ht_cuda_batch* batch, ht_error* error) {
  if (ht_cuda_fits(kernel, args, error) != 0) return -1;
  for (int i = 0; i < HT_CUDA_BATCH_AXES; ++i)
    if (batch->x[i] % kernel->vector != 0 || batch->w[i] % kernel->vector != 0)
      return ht_refuse(error, "ValueError",
                       "%s has matrices %lld elements apart, no multiple of %d, which this pack's kernels need: pass a contiguous copy",
                       batch->x[i] % kernel->vector != 0 ? "x" : "w",
                       (long long)(batch->x[i] % kernel->vector != 0 ? batch->x[i] : batch->w[i]), (int)kernel->vector);
  return 0;
}

static int check(const ht_op* op, const DLTensor* const* tensors, int32_t count, ht_call* call, ht_error* error) {
  static const char* const names[] = {"w", "out", "bias", "scale", "mask"};
  if (ht_product_check(op, tensors, count, call, error) != 0) return -1;
  const int number = count > HT_PRODUCT_SCALE && tensors[HT_PRODUCT_SCALE] != NULL && is_number(tensors[HT_PRODUCT_SCALE]);
  call->product.views[HT_PRODUCT_SCALE].extents[0] = number;
  for (int i = 1; i < count; ++i)
    if (tensors[i] != NULL && !(i == HT_PRODUCT_SCALE && number) && tensors[i]->device.device_id != tensors[0]->device.device_id)
      return ht_refuse(error, "ValueError", "%s lives on cuda:%d, x on cuda:%d: copy it there", names[i - 1], (int)tensors[i]->device.device_id,
                       (int)tensors[0]->device.device_id);
  call->device = tensors[0]->device.device_id;
  return 0;
}

static int launch(const ht_op* op, const ht_plan* plan, const ht_call* call, ht_queue* queue, ht_error* error) {
  const ht_cuda_product* data = op->data;
  ht_cuda_args args;
  ht_cuda_batch batch;
  ht_cuda_scope scope;
  if (described(op, call, &args, &batch, error) != 0) return -1;
  int chosen = ((const ht_sliced_entry*)plan->data)[ht_look_up(&plan->table, call->extents)].kernel;
  const ht_cuda_kernel* kernels = ht_cuda_pack_code.kernels;
  if (ht_cuda_product_fits(&kernels[data->kernels[chosen]], &args, &batch, error) != 0) { /* another of the op's takes them, perhaps */
    ht_error other;
    int found = -1;
    for (int i = 0; i < op->kernel_count && found < 0; ++i)
      if (ht_cuda_product_fits(&kernels[data->kernels[i]], &args, &batch, &other) == 0) found = i;
    if (found < 0) return -1;
    chosen = found;
    queue->fallback = 1;
  }
  const ht_cuda_loaded* loaded = ht_cuda_load(call->device, error);
  if (loaded == NULL || ht_cuda_enter(loaded->device, &scope, error) != 0) return -1;
  const int place = data->kernels[chosen];
  const int rc = ht_cuda_launch_batch(&kernels[place], loaded->functions[place], &args, &batch, call->extents[HT_PRODUCT_B], queue->stream, error);
  ht_cuda_leave(&scope);
  return rc;
}

static const char* kernel_name(const ht_op* op, int32_t index) {
  return ht_cuda_pack_code.kernels[((const ht_cuda_product*)op->data)->kernels[index]].name;
}

static const ht_placed placed = {ht_cuda_open_device, ht_cuda_no_bytes, ht_cuda_no_bind, ht_cuda_no_prepare, launch, NULL, NULL};

const ht_kind ht_cuda_product_kind = {.name = "product", .check = check, .run = ht_cuda_no_run, .kernel_name = kernel_name, .placed = &placed};
