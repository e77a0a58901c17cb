/* Transposed convolutions on CUDA: products of every pixel with every tap, in fp32 or int32, and a launch that gathers them (cuda_conv.h). */
#include <string.h>

#include "cuda/workspace.h"
#include "cuda_conv.h"
#include "cuda_product.h"

static int64_t taps(const ht_conv* conv) { return (int64_t)conv->tall.taps * conv->wide.taps; }

int64_t ht_cuda_fold_bytes(const ht_conv* conv, int64_t h, int64_t w) { return h * w * conv->features * taps(conv) * (int64_t)sizeof(float); }

/* Elements from one pixel of x to the next, channels last; 0: they are not evenly apart. */
static int64_t pixel_step(const ht_conv_call* c, int64_t channels) {
  const int64_t step = c->w > 1 ? c->xw : c->h > 1 ? c->xh : channels;
  return c->h > 1 && c->w > 1 && c->xh != c->w * step ? 0 : step;
}

/* The products of `images` images from the first on. */
static int products_of(const ht_op* op, const ht_conv_call* c, const ht_cuda_bound_conv* bound, void* columns, int64_t first, int64_t images,
                       ht_cuda_args* args, ht_cuda_batch* batch, ht_error* error) {
  const ht_cuda_conv* data = op->data;
  const ht_conv* conv = &data->conv;
  const int64_t depth = conv->channels / conv->groups, lines = conv->features / conv->groups * taps(conv), plane = c->h * c->w;
  const int64_t step = conv->last ? pixel_step(c, conv->channels) : 1;
  const int side_by_side = conv->last ? step > 0 && (conv->channels == 1 || c->xc == 1) : (c->w == 1 || c->xw == 1) && (c->h == 1 || c->xh == c->w);
  if (!side_by_side || (images > 1 && conv->last && c->xb != plane * step))
    return ht_refuse(error, "ValueError", "x has its pixels unevenly apart, which a transposed convolution on a device does not take: pass a contiguous copy");
  if (images * plane > HT_EXTENT_LIMIT || lines * conv->groups > HT_EXTENT_LIMIT) return ht_refuse(error, "ValueError", "x holds over 2^31-1 pixels: pass fewer images at a time");
  const char* x = (const char*)c->x + first * c->xb * ht_cuda_bytes(data->dtype);
  memset(batch, 0, sizeof *batch);
  batch->factor = 1;
  batch->extents[0] = 1, batch->extents[1] = conv->last ? 1 : (int32_t)images, batch->extents[2] = conv->groups;
  const ht_cuda_args both = {.y = columns, .k = (int32_t)depth, .splits = 1, .y_type = data->dtype == HT_CUDA_FP32 || data->dtype == HT_CUDA_INT8 ? HT_Y_OWN : HT_Y_FP32};
  *args = both;
  if (conv->last) {
    args->x = x, args->w = bound->w, args->m = (int32_t)(images * plane), args->n = (int32_t)lines;
    args->ldx = (int32_t)step, args->ldw = (int32_t)lines, args->ldy = (int32_t)(lines * conv->groups);
    batch->x[2] = depth, batch->w[2] = depth * lines, batch->y[2] = lines;
    return 0;
  }
  args->x = bound->w, args->w = x, args->m = (int32_t)lines, args->n = (int32_t)plane;
  args->ldx = (int32_t)lines, args->ldw = (int32_t)(conv->channels > 1 ? c->xc : plane), args->ldy = (int32_t)plane;
  batch->x[2] = depth * lines, batch->w[1] = c->xb, batch->w[2] = depth * c->xc;
  batch->y[1] = plane * lines * conv->groups, batch->y[2] = lines * plane;
  return 0;
}

static void gathered(const ht_cuda_conv* data, const ht_conv_call* c, const ht_cuda_bound_conv* bound, const void* columns, int64_t first, int64_t images,
                     ht_cuda_args* args, ht_cuda_fold* fold) {
  const ht_conv* conv = &data->conv;
  const int64_t lines = conv->features * taps(conv), plane = c->h * c->w;
  const int64_t done = first * c->yb * ht_cuda_y_bytes(data->dtype, data->after.y_type);
  const int64_t before = first * c->yb * ht_cuda_residual_bytes(data->dtype, data->after.y_type);
  const ht_cuda_args told = {.y = (char*)c->y + done, .residual = data->after.residual ? (const char*)c->extra[0].data + before : NULL};
  const ht_cuda_fold found = {.columns = columns, .image = plane * lines, .line = conv->last ? 1 : plane, .pixel = conv->last ? lines : 1,
                              .yb = c->yb, .yf = c->yf, .yh = c->yh, .yw = c->yw, .images = (int32_t)images, .features = conv->features,
                              .h = (int32_t)c->h, .w = (int32_t)c->w, .p = (int32_t)c->p, .q = (int32_t)c->q, .r = conv->tall.taps, .s = conv->wide.taps,
                              .down = conv->tall.stride, .right = conv->wide.stride, .above = conv->tall.before, .before = conv->wide.before,
                              .dilation_down = conv->tall.dilation, .dilation_right = conv->wide.dilation};
  *args = told;
  *fold = found;
  ht_cuda_tell(args, &data->after, &bound->channels);
}

int ht_cuda_launch_transposed(const ht_op* op, int planned, const ht_call* call, int64_t each, const ht_cuda_bound_conv* bound, void* columns,
                              ht_queue* queue, ht_error* error) {
  const ht_cuda_conv* data = op->data;
  const ht_conv_call* c = &call->conv;
  const ht_cuda_loaded* loaded = bound->loaded;
  for (int64_t first = 0; first < c->batch; first += each) {
    const int64_t images = c->batch - first < each ? c->batch - first : each;
    ht_cuda_args args;
    ht_cuda_batch batch;
    ht_cuda_fold fold;
    if (products_of(op, c, bound, columns, first, images, &args, &batch, error) != 0) return -1;
    const int chosen = ht_cuda_conv_kernel(op, planned, &args, &batch, error);
    if (chosen < 0) return -1;
    if (chosen != planned) queue->fallback = 1;
    const int place = data->kernels[chosen];
    if (ht_cuda_launch_batch(&ht_cuda_pack_code.kernels[place], loaded->functions[place], &args, &batch, (int64_t)batch.extents[1] * batch.extents[2],
                             queue->stream, error) != 0)
      return -1;
    gathered(data, c, bound, columns, first, images, &args, &fold);
    if (ht_cuda_launch_fold(loaded->folds[data->dtype], &fold, &args, loaded->device->units, queue->stream, error) != 0) return -1;
  }
  return 0;
}
