/* See cuda_conv.h. */
#include "cuda/workspace.h"
#include "cuda_conv.h"

/* The weight as (features, taps, channels): an image of its own, whose channels are taps. */
static int turn_weight(const ht_conv* conv, const ht_cuda_bound_conv* bound, uint8_t dtype, void* turned, CUstream stream, ht_error* error) {
  if (conv->transposed) return ht_cuda_turn_phases(conv, bound, dtype, turned, stream, error);
  const int32_t taps = conv->tall.taps * conv->wide.taps, channels = conv->channels / conv->groups, piece = (int32_t)(16 / ht_cuda_bytes(dtype));
  const ht_cuda_unfold unfold = {.x = bound->w, .columns = turned, .xb = (int64_t)channels * taps, .xc = 1, .xw = taps, .pixels = conv->features,
                                 .h = 1, .w = channels, .p = 1, .q = 1, .channels = taps, .groups = 1, .r = 1, .s = channels, .down = 1, .right = 1,
                                 .dilation_down = 1, .dilation_right = 1, .stored = taps * channels % piece == 0 ? piece : 1};
  return ht_cuda_launch_unfold(bound->loaded->unfolds[dtype], &unfold, bound->loaded->device->units, stream, error);
}

int ht_cuda_launch_window_products(const ht_op* op, int place, const ht_call* call, const ht_cuda_bound_conv* bound, ht_queue* queue, ht_error* error) {
  const ht_cuda_conv* data = op->data;
  const ht_conv* conv = &data->conv;
  const ht_conv_call* c = &call->conv;
  const ht_cuda_kernel* kernel = &ht_cuda_pack_code.kernels[place];
  const int32_t channels = conv->channels / conv->groups;
  const int64_t element = ht_cuda_bytes(data->dtype), to_channel = conv->last ? conv->channels - 1 : (channels - 1) * c->xc;
  const int64_t room = HT_CUDA_OPERAND_ELEMENTS - ((c->h - 1) * c->xh + (c->w - 1) * c->xw + to_channel + 1);
  const int64_t by_offset = room < 0 ? 0 : conv->last && c->xb > 0 ? room / c->xb + 1 : c->batch; /* channels first an image is a matrix of its own */
  const int64_t each = conv->last ? min_i64(min_i64(by_offset, HT_EXTENT_LIMIT / (c->p * c->q)), c->batch) : by_offset;
  ht_cuda_windows windows = {.xb = c->xb, .xh = c->xh, .xw = c->xw, .xc = c->xc, .h = (int32_t)c->h, .w = (int32_t)c->w, .p = (int32_t)c->p, .q = (int32_t)c->q,
                             .channels = channels, .s = conv->wide.taps, .down = conv->tall.stride, .right = conv->wide.stride,
                             .above = conv->tall.before, .before = conv->wide.before, .dilation_down = conv->tall.dilation,
                             .dilation_right = conv->wide.dilation};
  /* An axis of one element says nothing of its stride. */
  if (c->batch == 1) windows.xb = 0;
  if (c->h == 1) windows.xh = 0;
  if (c->w == 1) windows.xw = 0;
  if (each < 1 || (conv->last && c->xc != 1)) { /* a group has several channels */
    ht_refuse(error, "ValueError", "x %sholds over 2^31-1 elements an image: pass a contiguous copy", conv->last ? "has its channels apart, or " : "");
    return 1;
  }
  const ht_cuda_args told = {.x = c->x, .w = bound->w};
  if (ht_cuda_windows_fit(kernel, &told, &windows, error) != 0) return 1;
  ht_cuda_workspace workspace = {NULL, NULL};
  const void* weight;
  int rc;
  if (bound->kept != NULL) {
    weight = ht_cuda_kept_data(bound->kept);
    rc = ht_cuda_kept_read(bound->kept, queue->stream, error);
  } else {
    if (ht_cuda_workspace_take(bound->loaded->device, queue->stream, ht_cuda_conv_weight_bytes(data), &workspace) != 0)
      return ht_refuse(error, "RuntimeError", "no memory for %lld bytes of a turned weight on this stream: call prepare(stream) of the bound weight first",
                       (long long)ht_cuda_conv_weight_bytes(data));
    weight = workspace.data;
    rc = turn_weight(conv, bound, data->dtype, workspace.data, queue->stream, error);
  }
  for (int64_t first = 0; first < c->batch && rc == 0; first += each) {
    ht_cuda_args args;
    ht_cuda_batch batch;
    ht_cuda_phases phases;
    const ht_cuda_windows* seen = &windows;
    const int64_t images = min_i64(each, c->batch - first);
    ht_cuda_conv_products(op, c, bound, NULL, first, images, &args, &batch);
    const void* image = (const char*)c->x + first * c->xb * element;
    args.x = conv->last ? image : weight, args.w = conv->last ? weight : image;
    if (conv->last) batch.x[2] = channels;
    else args.ldw = (int32_t)c->xc, batch.w[1] = c->xb, batch.w[2] = channels * c->xc;
    if (conv->transposed) {
      args.m = (int32_t)ht_cuda_tell_phases(conv, &windows, images, c->p, c->q, &phases);
      batch.extents[1] = phases.down * phases.right;
      seen = &phases.windows;
    }
    rc = ht_cuda_launch_windows(kernel, bound->loaded->functions[place], &args, &batch, seen,
                                (int64_t)batch.extents[1] * batch.extents[2], queue->stream, error);
  }
  ht_cuda_workspace_done(&workspace);
  return rc;
}

int ht_cuda_keep_turned(const ht_op* op, ht_cuda_bound_conv* bound, ht_error* error) {
  const ht_cuda_conv* data = op->data;
  const ht_cuda_device* device = bound->loaded->device;
  const ht_cu* cu = ht_cu_load(error);
  ht_cuda_scope scope;
  if (cu == NULL || ht_cuda_enter(device, &scope, error) != 0) return -1;
  ht_cuda_kept* made = ht_cuda_kept_new(device, ht_cuda_conv_weight_bytes(data), error);
  int rc = made == NULL ? -1 : 0;
  CUresult result = rc == 0 ? cu->CtxSynchronize() : CUDA_SUCCESS; /* the weight may come of any stream */
  if (rc == 0 && result == CUDA_SUCCESS) rc = turn_weight(&data->conv, bound, data->dtype, ht_cuda_kept_data(made), NULL, error);
  if (rc == 0 && result == CUDA_SUCCESS) result = cu->StreamSynchronize(NULL); /* and calls on any */
  if (result != CUDA_SUCCESS) rc = ht_cu_refuse(error, result, "turning a weight");
  ht_cuda_leave(&scope);
  if (rc == 0) bound->kept = made;
  else ht_cuda_let_go(made);
  return rc;
}
