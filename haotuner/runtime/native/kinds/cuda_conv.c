/* See cuda_conv.h. */
#include "cuda_conv.h"

#include <string.h>

#include "cuda/workspace.h"
#include "cuda_dense.h"
#include "cuda_kind.h"
#include "cuda_product.h"
#include "c_api.h"

#define MARK 0x68612d636f6e7631u /* of a filled bound weight */
#define COLUMN_BYTES (64 << 20)  /* of a workspace, unless one image needs more: what is laid out should still lie in L2 when it is read */

static int64_t terms(const ht_conv* conv) { return conv->channels / conv->groups * (int64_t)conv->tall.taps * conv->wide.taps; }

int64_t ht_cuda_conv_weight_bytes(const ht_cuda_conv* data) {
  const ht_conv* conv = &data->conv;
  return (int64_t)conv->channels / conv->groups * conv->features * conv->tall.taps * conv->wide.taps * ht_cuda_bytes(data->dtype);
}

/* Of what is laid out of an image h x w that becomes p x q. */
static int64_t image_bytes(const ht_cuda_conv* data, int64_t h, int64_t w, int64_t p, int64_t q) {
  if (data->conv.transposed) return ht_cuda_fold_bytes(&data->conv, h, w);
  return p * q * data->conv.groups * terms(&data->conv) * ht_cuda_bytes(data->dtype);
}

static int64_t at_once(int64_t batch, int64_t bytes) {
  const int64_t most = bytes > 0 ? COLUMN_BYTES / bytes : batch;
  return min_i64(most > 1 ? most : 1, batch);
}

static int64_t bound_bytes(const ht_op* op) {
  (void)op;
  return (int64_t)sizeof(ht_cuda_bound_conv);
}

/* An image (or several) of `channels`: where each axis lies, in elements. `strides`: b, channel, h, w; that of an axis of one element says nothing. */
static int image_of(const ht_op* op, const char* name, const DLTensor* t, int device, int64_t channels, int64_t extents[3], int64_t strides[4],
                    ht_error* error) {
  const ht_conv* conv = &((const ht_cuda_conv*)op->data)->conv;
  const int rank = conv->flat ? 3 : 4, lead = t != NULL && t->ndim == rank - 1 ? 1 : 0; /* an image without the axis b is one */
  if (ht_cuda_check_tensor(op, name, t, device, error) != 0) return -1;
  if (t->ndim != rank - lead) return ht_refuse(error, "ValueError", "%s has rank %d; expected %d, or %d for one image", name, (int)t->ndim, rank, rank - 1);
  int64_t shape[4] = {1, 1, 1, 1}, steps[4] = {0, 0, 0, 0}, next = 1;
  for (int i = t->ndim - 1; i >= 0; --i) {
    shape[i + lead] = t->shape[i];
    steps[i + lead] = t->strides != NULL ? t->strides[i] : next;
    next *= t->shape[i];
    if (t->shape[i] < 0 || t->shape[i] > HT_EXTENT_LIMIT) return ht_refuse(error, "ValueError", "%s has extent %lld in axis %d", name, (long long)t->shape[i], i);
    if (t->shape[i] > 1 && steps[i + lead] < 0)
      return ht_refuse(error, "ValueError", "%s has stride %lld in axis %d; expected none below 0: pass a contiguous copy", name,
                       (long long)steps[i + lead], i);
  }
  const int c = conv->last ? rank - 1 : 1, w = conv->last ? rank - 2 : rank - 1;
  if (shape[c] != channels)
    return ht_refuse(error, "ValueError", "%s has extent %lld in axis %d; expected %lld", name, (long long)shape[c], c - lead, (long long)channels);
  if (ht_check_addresses(name, t, error) != 0) return -1;
  extents[0] = shape[0], extents[1] = conv->flat ? 1 : shape[w - 1], extents[2] = shape[w];
  strides[0] = steps[0], strides[1] = steps[c], strides[2] = conv->flat ? 0 : steps[w - 1], strides[3] = steps[w];
  return 0;
}

/* Bytes from the first element to the last. */
static int64_t span(const int64_t extents[3], const int64_t strides[4], int64_t channels, int64_t element) {
  return ((extents[0] - 1) * strides[0] + (channels - 1) * strides[1] + (extents[1] - 1) * strides[2] + (extents[2] - 1) * strides[3] + 1) * element;
}

/* Pixels of an image side by side (channels first), or pixels of all images evenly apart (channels last): what one product writes. */
static int check_out(const ht_conv* conv, const int64_t e[3], const int64_t s[4], ht_error* error) {
  const int rows = e[1] > 1, columns = e[2] > 1, images = e[0] > 1, many = conv->features > 1;
  int even;
  if (!conv->last)
    even = (!columns || s[3] == 1) && (!rows || s[2] == e[2]) && (!many || s[1] >= e[1] * e[2]) &&
           (!images || s[0] >= (conv->features - 1) * s[1] + e[1] * e[2]);
  else {
    const int64_t step = columns ? s[3] : rows ? s[2] : images ? s[0] : conv->features;
    even = (!many || s[1] == 1) && (!rows || s[2] == e[2] * step) && (!images || s[0] == e[1] * e[2] * step) && step >= conv->features;
  }
  if (even) return 0;
  return ht_refuse(error, "ValueError", "out has its pixels unevenly apart, or overlapping; pass a contiguous out");
}

/* What is added to the sums lies as out does, and may be out itself: an element is read by who then writes it. */
static int check_residual(const ht_op* op, const DLTensor* t, int device, const int64_t y[3], const int64_t ys[4], int64_t y_bytes, ht_call* call,
                          ht_error* error) {
  int64_t extents[3], strides[4];
  if (image_of(op, "residual", t, device, ((const ht_cuda_conv*)op->data)->conv.features, extents, strides, error) != 0) return -1;
  if (memcmp(extents, y, sizeof extents) != 0 || memcmp(strides, ys, sizeof strides) != 0)
    return ht_refuse(error, "ValueError", "residual is %lld images of %lld x %lld; expected %lld of %lld x %lld, with the strides of out: pass contiguous ones",
                     (long long)extents[0], (long long)extents[1], (long long)extents[2], (long long)y[0], (long long)y[1], (long long)y[2]);
  if (t->data == NULL) return ht_refuse(error, "ValueError", "residual has no data");
  call->conv.extras = 1;
  call->conv.extra[0].data = (const float*)ht_data(t);
  const ht_cuda_conv* data = op->data;
  const int64_t written = ht_cuda_y_bytes(data->dtype, data->after.y_type), added = ht_cuda_residual_bytes(data->dtype, data->after.y_type);
  const int same = ht_data(t) == (const char*)call->conv.y && written == added;
  if (!same && ht_cuda_meet(call->conv.y, y_bytes, ht_data(t), y_bytes / written * added))
    return ht_refuse(error, "ValueError", "out shares some of its memory with residual; pass the same tensor, or another out");
  return 0;
}

static int check(const ht_op* op, const DLTensor* const* tensors, int32_t count, ht_call* call, ht_error* error) {
  const ht_cuda_conv* data = op->data;
  const ht_conv* conv = &data->conv;
  if (count != 3 + data->after.residual)
    return ht_refuse(error, "TypeError", "expected x, a bound weight, %s", data->after.residual ? "out, and residual" : "and out");
  const DLTensor* w = tensors[1];
  if (w == NULL || w->device.device_type != kDLCPU || w->dtype.bits != 8 || w->ndim != 1 || w->shape[0] != bound_bytes(op) || w->data == NULL || !ht_addressable(w) ||
      (uintptr_t)ht_data(w) % HT_BOUND_ALIGNMENT != 0 || ((const ht_cuda_bound_conv*)ht_data(w))->mark != MARK || ((const ht_cuda_bound_conv*)ht_data(w))->op != op)
    return ht_refuse(error, "ValueError", "weight was not bound by this pack for %s: bind the weight again", op->name);
  const ht_cuda_bound_conv* bound = (const ht_cuda_bound_conv*)ht_data(w);
  const int device = bound->loaded->device->ordinal;
  int64_t x[3], xs[4], y[3], ys[4];
  if (image_of(op, "x", tensors[0], device, conv->channels, x, xs, error) != 0 || image_of(op, "out", tensors[2], device, conv->features, y, ys, error) != 0)
    return -1;
  if (x[1] < 1 || x[2] < 1)
    return ht_refuse(error, "ValueError", "x is an image of %lld x %lld; expected at least one element each way", (long long)x[1], (long long)x[2]);
  const int64_t p = conv->flat ? 1 : ht_conv_out(conv, &conv->tall, x[1]), q = ht_conv_out(conv, &conv->wide, x[2]);
  if (p < 1 || q < 1)
    return ht_refuse(error, "ValueError", "x is an image of %lld x %lld, with its pads smaller than the window: nothing is left", (long long)x[1],
                     (long long)x[2]);
  if (y[0] != x[0] || y[1] != p || y[2] != q)
    return ht_refuse(error, "ValueError", "out is %lld images of %lld x %lld; expected %lld of %lld x %lld", (long long)y[0], (long long)y[1],
                     (long long)y[2], (long long)x[0], (long long)p, (long long)q);
  if (p * q > HT_EXTENT_LIMIT) return ht_refuse(error, "ValueError", "the output has %lld pixels; an image may have 2^31-1", (long long)(p * q));
  memset(call->extents, 0, sizeof call->extents);
  const int64_t all[HT_CONV_AXES] = {x[0], x[1], x[2], p, q, conv->channels, conv->features, 0};
  memcpy(call->extents, all, sizeof all);
  call->empty = x[0] == 0;
  call->conv = (ht_conv_call){.x = (const float*)ht_data(tensors[0]), .weight = (const float*)(const void*)bound, .y = (float*)ht_data(tensors[2]),
                              .batch = x[0], .h = x[1], .w = x[2], .p = p, .q = q, .xb = xs[0], .xc = xs[1], .xh = xs[2], .xw = xs[3],
                              .yb = ys[0], .yf = ys[1], .yh = ys[2], .yw = ys[3]};
  if (call->empty) return 0;
  if (tensors[0]->data == NULL || tensors[2]->data == NULL) return ht_refuse(error, "ValueError", "%s has no data", tensors[0]->data == NULL ? "x" : "out");
  if (check_out(conv, y, ys, error) != 0) return -1;
  const int64_t element = ht_cuda_bytes(data->dtype), y_bytes = span(y, ys, conv->features, ht_cuda_y_bytes(data->dtype, data->after.y_type));
  if (ht_cuda_meet(call->conv.y, y_bytes, call->conv.x, span(x, xs, conv->channels, element)))
    return ht_refuse(error, "ValueError", "out shares memory with x, which is read meanwhile; pass another out");
  if (ht_cuda_meet(call->conv.y, y_bytes, bound->w, ht_cuda_conv_weight_bytes(data)) || ht_cuda_meet_channels(&bound->channels, conv->features * ht_cuda_channel_bytes(data->dtype), call->conv.y, y_bytes))
    return ht_refuse(error, "ValueError", "out shares memory with the weight or the bias; pass another out");
  return data->after.residual ? check_residual(op, tensors[3], device, y, ys, y_bytes, call, error) : 0;
}

static int bind(const ht_op* op, const DLTensor* weight, const DLTensor* const* channels, int32_t count, void* memory, ht_error* error) {
  const ht_cuda_conv* data = op->data;
  const ht_conv* conv = &data->conv;
  ht_cuda_bound_conv* bound = memory;
  const int rank = conv->flat ? 3 : 4;
  const int64_t wanted[4] = {conv->transposed ? conv->channels : conv->features, (conv->transposed ? conv->features : conv->channels) / conv->groups, conv->flat ? conv->wide.taps : conv->tall.taps, conv->wide.taps};
  bound->mark = 0;
  if (ht_cuda_check_tensor(op, "weight", weight, -1, error) != 0) return -1;
  if (weight->ndim != rank || memcmp(weight->shape, wanted, (size_t)rank * sizeof *wanted) != 0 || weight->data == NULL || !ht_contiguous(weight))
    return ht_refuse(error, "ValueError", "weight must be contiguous, of the axes %lld x %lld x %lld%s: it is not copied", (long long)wanted[0],
                     (long long)wanted[1], (long long)wanted[2], conv->flat ? "" : " x the window's width");
  if (ht_check_addresses("weight", weight, error) != 0) return -1;
  ht_cuda_channels values;
  if (ht_cuda_bind_channels(op, &data->after, 0, conv->features, channels, count, weight->device.device_id, &values, error) != 0) return -1;
  const ht_cuda_loaded* loaded = ht_cuda_load(weight->device.device_id, error);
  if (loaded == NULL) return -1;
  *bound = (ht_cuda_bound_conv){0, op, loaded, ht_data(weight), values, NULL};
  bound->mark = MARK;
  return 0;
}

static int reads_windows(const ht_op* op) {
  int found = 0;
  for (int i = 0; i < op->kernel_count; ++i) found |= ht_cuda_pack_code.kernels[((const ht_cuda_conv*)op->data)->kernels[i]].windows;
  return found;
}

/* Room that a call takes at the largest sizes that plans know: columns of as many images as are laid out at a time, or a turned weight. */
static int64_t most_columns(const ht_op* op, const ht_cuda_bound_conv* bound) {
  const ht_cuda_conv* data = op->data;
  const ht_conv* conv = &data->conv;
  int64_t largest[3];
  int columns = 0, windows = reads_windows(op) && bound->kept == NULL;
  for (int i = 0; i < op->kernel_count; ++i) {
    const ht_cuda_kernel* kernel = &ht_cuda_pack_code.kernels[data->kernels[i]];
    columns |= !kernel->direct && !kernel->windows;
  }
  if (!columns) return windows ? ht_cuda_conv_weight_bytes(data) : 0;
  for (int i = 0; i < 3; ++i) largest[i] = op->axes[HT_CONV_B + i].extent > 0 ? op->axes[HT_CONV_B + i].extent : op->axes[HT_CONV_B + i].last;
  const int64_t p = conv->flat ? 1 : ht_conv_out(conv, &conv->tall, largest[1]), q = ht_conv_out(conv, &conv->wide, largest[2]);
  const int64_t bytes = image_bytes(data, conv->flat ? 1 : largest[1], largest[2], p, q);
  const int64_t laid_out = p < 1 || q < 1 ? 0 : at_once(largest[0], bytes) * bytes;
  return windows && ht_cuda_conv_weight_bytes(data) > laid_out ? ht_cuda_conv_weight_bytes(data) : laid_out;
}

static int prepare(const ht_op* op, const void* memory, void* stream, ht_error* error) {
  const ht_cuda_bound_conv* bound = memory;
  ht_cuda_scope scope;
  if (bound->mark != MARK || bound->op != op) return ht_refuse(error, "ValueError", "the weight was not bound by this pack: bind it again");
  if (ht_cuda_open(bound->loaded->device->ordinal, error) == NULL || ht_cuda_enter(bound->loaded->device, &scope, error) != 0) return -1;
  int rc = ht_cuda_workspace_prepare(bound->loaded->device, stream, most_columns(op, bound), error);
  ht_cuda_leave(&scope);
  return rc;
}

/* Pixels of all images evenly apart, as channels last lie: elements from one to the next. */
static int64_t apart(const ht_conv_call* c, int64_t row, int64_t pixel, int64_t image, int64_t alone) {
  return c->q > 1 ? pixel : c->p > 1 ? row : c->batch > 1 ? image : alone;
}

/* Whether what the windows see is x as it lies: windows of one tap and stride 1, channels last, pixels evenly apart. */
static int lies_as_columns(const ht_conv* conv, const ht_conv_call* c) {
  const int64_t step = apart(c, c->xh, c->xw, c->xb, conv->channels);
  return conv->last && !conv->transposed && conv->tall.taps == 1 && conv->wide.taps == 1 && conv->tall.stride == 1 && conv->wide.stride == 1 && c->p == c->h && c->q == c->w &&
         conv->tall.before == 0 && conv->wide.before == 0 && (conv->channels == 1 || c->xc == 1) && (c->p == 1 || c->xh == c->q * step) &&
         (c->batch == 1 || c->xb == c->p * c->q * step) && step >= conv->channels && step <= HT_EXTENT_LIMIT &&
         c->batch * c->p * c->q <= HT_EXTENT_LIMIT;
}

/* The products of `images` images from the first on; columns NULL: x lies as they would. */
void ht_cuda_conv_products(const ht_op* op, const ht_conv_call* c, const ht_cuda_bound_conv* bound, const void* columns, int64_t first, int64_t images,
                        ht_cuda_args* args, ht_cuda_batch* batch) {
  const ht_cuda_conv* data = op->data;
  const ht_conv* conv = &data->conv;
  const int64_t k = terms(conv), features = conv->features / conv->groups, plane = c->p * c->q, pixels = images * plane;
  const int64_t done = first * c->yb * ht_cuda_y_bytes(data->dtype, data->after.y_type);
  char* y = (char*)c->y + done;
  const int64_t before = first * c->yb * ht_cuda_residual_bytes(data->dtype, data->after.y_type);
  const char* residual = data->after.residual ? (const char*)c->extra[0].data + before : NULL;
  memset(batch, 0, sizeof *batch);
  batch->factor = 1;
  batch->extents[0] = 1, batch->extents[1] = conv->last ? 1 : (int32_t)images, batch->extents[2] = conv->groups;
  batch->channel_apart[2] = features;
  batch->channel_rows = !conv->last;
  const ht_cuda_args both = {.y = y, .residual = residual, .k = (int32_t)k, .ldx = (int32_t)k, .ldw = (int32_t)k, .splits = 1};
  *args = both;
  ht_cuda_tell(args, &data->after, &bound->channels);
  if (conv->last) {
    args->x = columns, args->w = bound->w, args->m = (int32_t)pixels, args->n = (int32_t)features;
    args->ldy = (int32_t)apart(c, c->yh, c->yw, c->yb, conv->features);
    batch->x[2] = pixels * k, batch->w[2] = features * k, batch->y[2] = features;
    if (columns == NULL) args->x = c->x, args->ldx = (int32_t)apart(c, c->xh, c->xw, c->xb, conv->channels), batch->x[2] = k;
    return;
  }
  args->x = bound->w, args->w = columns, args->m = (int32_t)features, args->n = (int32_t)plane;
  args->ldy = (int32_t)(conv->features > 1 ? c->yf : plane);
  batch->x[2] = features * k, batch->w[1] = plane * k, batch->w[2] = pixels * k, batch->y[1] = c->yb, batch->y[2] = features * c->yf;
}

int ht_cuda_conv_kernel(const ht_op* op, int planned, const ht_cuda_args* args, const ht_cuda_batch* batch, ht_error* error) {
  const ht_cuda_conv* data = op->data;
  const ht_cuda_kernel* kernels = ht_cuda_pack_code.kernels;
  ht_error other;
  if (ht_cuda_product_fits(&kernels[data->kernels[planned]], args, batch, error) == 0) return planned;
  for (int i = 0; i < op->kernel_count; ++i) /* no op has products and kernels without columns, but windows beside columns */
    if (!kernels[data->kernels[i]].windows && ht_cuda_product_fits(&kernels[data->kernels[i]], args, batch, &other) == 0) return i;
  return -1;
}

static int launch_products(const ht_op* op, int chosen, const ht_cuda_bound_conv* bound, const ht_cuda_args* args, const ht_cuda_batch* batch, ht_queue* queue,
                           ht_error* error) {
  const int place = ((const ht_cuda_conv*)op->data)->kernels[chosen];
  return ht_cuda_launch_batch(&ht_cuda_pack_code.kernels[place], bound->loaded->functions[place], args, batch,
                              (int64_t)batch->extents[1] * batch->extents[2], queue->stream, error);
}

static int launch_images(const ht_op* op, int planned, const ht_call* call, int64_t first, int64_t images, void* columns, ht_queue* queue, ht_error* error) {
  const ht_cuda_conv* data = op->data;
  const ht_conv* conv = &data->conv;
  const ht_conv_call* c = &call->conv;
  const ht_cuda_bound_conv* bound = (const ht_cuda_bound_conv*)(const void*)c->weight;
  const int32_t piece = (int32_t)(16 / ht_cuda_bytes(data->dtype));
  ht_cuda_unfold unfold = {.x = (const char*)c->x + first * c->xb * ht_cuda_bytes(data->dtype), .columns = columns, .xb = c->xb, .xc = c->xc,
                           .xh = c->xh, .xw = c->xw, .pixels = images * c->p * c->q, .h = (int32_t)c->h, .w = (int32_t)c->w, .p = (int32_t)c->p,
                           .q = (int32_t)c->q, .channels = conv->channels / conv->groups, .groups = conv->groups, .r = conv->tall.taps,
                           .s = conv->wide.taps, .down = conv->tall.stride, .right = conv->wide.stride, .above = conv->tall.before,
                           .before = conv->wide.before, .dilation_down = conv->tall.dilation, .dilation_right = conv->wide.dilation,
                           .stored = terms(conv) % piece == 0 ? piece : 1};
  ht_cuda_args args;
  ht_cuda_batch batch;
  ht_cuda_conv_products(op, c, bound, columns, first, images, &args, &batch);
  const int chosen = ht_cuda_conv_kernel(op, planned, &args, &batch, error);
  if (chosen < 0) return -1;
  if (chosen != planned) queue->fallback = 1;
  if (ht_cuda_launch_unfold(bound->loaded->unfolds[data->dtype], &unfold, bound->loaded->device->units, queue->stream, error) != 0) return -1;
  return launch_products(op, chosen, bound, &args, &batch, queue, error);
}

/* Columns of so many images at a time, and their products. */
static int launch_laid_out(const ht_op* op, int planned, const ht_call* call, const ht_cuda_device* device, ht_queue* queue, ht_error* error) {
  const ht_cuda_conv* data = op->data;
  const ht_conv_call* c = &call->conv;
  const int64_t bytes = image_bytes(data, c->h, c->w, c->p, c->q), each = at_once(c->batch, bytes);
  ht_cuda_workspace workspace = {NULL, NULL};
  int rc = ht_cuda_workspace_take(device, queue->stream, each * bytes, &workspace);
  if (rc != 0)
    rc = ht_refuse(error, "RuntimeError", "no memory for %lld bytes of image columns on this stream: call prepare(stream) of the bound weight first, which has "
                   "room for the shapes that were tuned", (long long)(each * bytes));
  if (rc == 0 && data->conv.transposed)
    rc = ht_cuda_launch_transposed(op, planned, call, each, (const ht_cuda_bound_conv*)(const void*)c->weight, workspace.data, queue, error);
  for (int64_t first = 0; first < c->batch && rc == 0 && !data->conv.transposed; first += each)
    rc = launch_images(op, planned, call, first, min_i64(each, c->batch - first), workspace.data, queue, error);
  ht_cuda_workspace_done(&workspace);
  return rc;
}

/* Every feature from its channel: one launch, no columns. */
static int launch_direct(const ht_op* op, int place, const ht_call* call, const ht_cuda_bound_conv* bound, ht_queue* queue, ht_error* error) {
  const ht_cuda_conv* data = op->data;
  const ht_conv* conv = &data->conv;
  const ht_conv_call* c = &call->conv;
  ht_cuda_args args = {.x = c->x, .w = bound->w, .y = c->y, .residual = data->after.residual ? c->extra[0].data : NULL, .splits = 1};
  const ht_cuda_direct direct = {.xb = c->xb, .xc = c->xc, .xh = c->xh, .xw = c->xw, .yb = c->yb, .yf = c->yf, .yh = c->yh, .yw = c->yw,
                                 .images = (int32_t)c->batch, .features = conv->features, .each = conv->features / conv->channels,
                                 .h = (int32_t)c->h, .w = (int32_t)c->w, .p = (int32_t)c->p, .q = (int32_t)c->q,
                                 .above = conv->tall.before, .before = conv->wide.before};
  ht_cuda_tell(&args, &data->after, &bound->channels);
  return ht_cuda_launch_direct(&ht_cuda_pack_code.kernels[place], bound->loaded->functions[place], &direct, &args, bound->loaded->device->units,
                               queue->stream, error);
}

/* A kernel of products of columns, of an op that has windows; -1: none. */
static int with_columns(const ht_op* op) {
  for (int i = 0; i < op->kernel_count; ++i) {
    if (!ht_cuda_pack_code.kernels[((const ht_cuda_conv*)op->data)->kernels[i]].windows) return i;
  }
  return -1;
}

static int launch(const ht_op* op, const ht_plan* plan, const ht_call* call, ht_queue* queue, ht_error* error) {
  const ht_cuda_conv* data = op->data;
  const ht_cuda_bound_conv* bound = (const ht_cuda_bound_conv*)(const void*)call->conv.weight;
  const ht_cuda_device* device = bound->loaded->device;
  const int planned = ((const ht_sliced_entry*)plan->data)[ht_look_up(&plan->table, call->extents)].kernel;
  ht_cuda_scope scope;
  ht_cuda_args args;
  ht_cuda_batch batch;
  if (ht_cuda_opened(device->ordinal) == NULL && ht_cuda_open(device->ordinal, error) == NULL) return -1; /* forked since */
  if (ht_cuda_enter(device, &scope, error) != 0) return -1;
  int rc, chosen = -1;
  if (ht_cuda_pack_code.kernels[data->kernels[planned]].direct) {
    rc = launch_direct(op, data->kernels[planned], call, bound, queue, error);
    ht_cuda_leave(&scope);
    return rc;
  }
  if (ht_cuda_pack_code.kernels[data->kernels[planned]].windows) {
    rc = ht_cuda_launch_window_products(op, data->kernels[planned], call, bound, queue, error);
    const int other = rc == 1 ? with_columns(op) : -1;
    if (other >= 0) queue->fallback = 1, rc = launch_laid_out(op, other, call, device, queue, error);
    ht_cuda_leave(&scope);
    return rc == 0 ? 0 : -1;
  }
  if (lies_as_columns(&data->conv, &call->conv)) {
    ht_error other; /* addresses or strides that no kernel takes: columns are laid out all the same */
    ht_cuda_conv_products(op, &call->conv, bound, NULL, 0, call->conv.batch, &args, &batch);
    chosen = ht_cuda_conv_kernel(op, planned, &args, &batch, &other);
  }
  if (chosen < 0) rc = launch_laid_out(op, planned, call, device, queue, error);
  else {
    if (chosen != planned) queue->fallback = 1;
    rc = launch_products(op, chosen, bound, &args, &batch, queue, error);
  }
  ht_cuda_leave(&scope);
  return rc;
}

static const char* kernel_name(const ht_op* op, int32_t index) {
  return ht_cuda_pack_code.kernels[((const ht_cuda_conv*)op->data)->kernels[index]].name;
}

static void describe(const ht_op* op, ht_door_op* out) { out->n = ((const ht_cuda_conv*)op->data)->conv.features; }

static int keep(const ht_op* op, void* memory, ht_error* error) {
  ht_cuda_bound_conv* bound = memory;
  if (bound->mark != MARK || bound->op != op) return ht_refuse(error, "ValueError", "the weight was not bound by this pack: bind it again");
  return bound->kept != NULL || !reads_windows(op) ? 0 : ht_cuda_keep_turned(op, bound, error);
}

static void* kept(const ht_op* op, const void* memory) {
  const ht_cuda_bound_conv* bound = memory;
  return bound->mark == MARK && bound->op == op ? bound->kept : NULL;
}

static const ht_placed placed = {ht_cuda_open_device, bound_bytes, bind, prepare, launch, keep, kept};

const ht_kind ht_cuda_conv_kind = {.name = "conv", .check = check, .run = ht_cuda_no_run, .kernel_name = kernel_name, .describe = describe, .placed = &placed};
