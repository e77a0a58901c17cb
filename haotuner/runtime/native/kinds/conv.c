/* Convolutions: their check, and their place among the kinds. */
#include "conv.h"

#include "c_api.h"

static int check(const ht_op* op, const DLTensor* const* tensors, int32_t count, ht_call* call, ht_error* error) {
  const ht_conv* conv = op->data;
  const int last = op->operand_count - 1;
  const DLTensor* bias = count == op->operand_count + 1 ? tensors[last + 1] : NULL;
  ht_call checked;
  if (bias != NULL && op->optional_count == 0)
    return ht_refuse(error, "TypeError", "takes %d tensors and no bias beside: its epilogue has one, or its sums are integers", (int)op->operand_count);
  if (ht_check(op, tensors, count - (count > op->operand_count), &checked, error) != 0) return -1;
  int64_t b = checked.extents[HT_CONV_B], h = conv->flat ? 1 : checked.extents[HT_CONV_H], w = checked.extents[HT_CONV_W];
  int64_t p = conv->flat ? 1 : checked.extents[HT_CONV_P], q = checked.extents[HT_CONV_Q];
  int64_t tall = ht_conv_out(conv, &conv->tall, h), wide = ht_conv_out(conv, &conv->wide, w);
  if (h < 1 || w < 1)
    return ht_refuse(error, "ValueError", "x is an image of %lld x %lld; expected at least one element each way", (long long)h, (long long)w);
  if (tall < 1 || wide < 1)
    return ht_refuse(error, "ValueError", "x is an image of %lld x %lld, with its pads smaller than the window: nothing is left", (long long)h,
                     (long long)w);
  if (tall > HT_EXTENT_LIMIT || wide > HT_EXTENT_LIMIT)
    return ht_refuse(error, "ValueError", "the output has %lld x %lld pixels; an axis may have 2^31-1", (long long)tall, (long long)wide);
  if (p != tall || q != wide)
    return ht_refuse(error, "ValueError", "out is an image of %lld x %lld; expected %lld x %lld", (long long)p, (long long)q, (long long)tall,
                     (long long)wide);
  const ht_view *x = &checked.views[HT_CONV_X], *y = &checked.views[last];
  ht_conv_call* c = &call->conv;
  *c = (ht_conv_call){.x = (const float*)x->data, .weight = (const float*)checked.views[HT_CONV_WEIGHT].data, .y = (float*)y->data,
                      .batch = b, .h = h, .w = w, .p = p, .q = q, .extras = last - HT_CONV_EXTRA};
  for (int e = 0; e < c->extras; ++e) {
    const ht_operand* o = &op->operands[HT_CONV_EXTRA + e];
    const ht_view* view = &checked.views[HT_CONV_EXTRA + e];
    c->extra[e] = (ht_conv_extra){.data = (const float*)view->data};
    for (int i = 0; i < o->rank; ++i) {
      ht_conv_extra* found = &c->extra[e];
      int axis = o->axes[i];
      *(axis == HT_CONV_B ? &found->sb : axis == HT_CONV_F ? &found->sf : axis == HT_CONV_P ? &found->sh : &found->sw) = view->strides[i];
    }
  }
  for (int i = 0; i < op->operands[HT_CONV_X].rank; ++i) {
    int axis = op->operands[HT_CONV_X].axes[i];
    *(axis == HT_CONV_B ? &c->xb : axis == HT_CONV_C ? &c->xc : axis == HT_CONV_H ? &c->xh : &c->xw) = x->strides[i];
    axis = op->operands[last].axes[i];
    *(axis == HT_CONV_B ? &c->yb : axis == HT_CONV_F ? &c->yf : axis == HT_CONV_P ? &c->yh : &c->yw) = y->strides[i];
  }
  for (int i = 0; i < HT_MAX_AXES; ++i) call->extents[i] = checked.extents[i];
  call->empty = checked.empty;
  if (bias == NULL) return 0;
  if (ht_check_type("bias", bias, kDLFloat, 32, error) != 0) return -1;
  if (bias->ndim != 1 || bias->shape[0] != conv->features || bias->data == NULL || !ht_contiguous(bias))
    return ht_refuse(error, "ValueError", "bias must be contiguous, of one axis of %lld", (long long)conv->features);
  if (ht_check_addresses("bias", bias, error) != 0) return -1;
  c->bias = (const float*)ht_data(bias);
  return 0;
}

static int run(const ht_op* op, const ht_plan* plan, const ht_call* call, int threads) {
  const ht_sliced_entry* entry = (const ht_sliced_entry*)plan->data + ht_look_up(&plan->table, call->extents);
  const ht_conv* conv = op->data;
  return ht_conv_run(conv, &conv->kernels[entry->kernel], &call->conv, entry->axis, threads);
}

static const char* kernel_name(const ht_op* op, int32_t index) { return ((const ht_conv*)op->data)->kernels[index].name; }

static void describe(const ht_op* op, ht_door_op* out) { out->n = ((const ht_conv*)op->data)->features; }

static int64_t packed_floats(const ht_op* op) { return ht_conv_packed(op->data); }

static int pack(const ht_op* op, const DLTensor* weight, float* packed, ht_error* error) {
  const ht_conv* conv = op->data;
  int64_t window[4] = {conv->transposed ? conv->channels : conv->features, (conv->transposed ? conv->features : conv->channels) / conv->groups,
                       conv->tall.taps, conv->wide.taps};
  int skip = conv->flat; /* the height of a window of one dimension */
  const ht_element type = conv->typed != NULL ? conv->typed->weight : (ht_element){kDLFloat, 32};
  if (ht_check_type("weight", weight, type.code, type.bits, error) != 0) return -1;
  int right = weight->ndim == 4 - skip;
  for (int i = 0; right && i < 4 - skip; ++i) right = weight->shape[i] == window[i >= 2 ? i + skip : i];
  if (!right || weight->data == NULL || !ht_contiguous(weight))
    return ht_refuse(error, "ValueError", "weight must be contiguous, of the axes %lld x %lld x %lld x %lld%s", (long long)window[0],
                     (long long)window[1], (long long)window[2], (long long)window[3], skip ? " without the third" : "");
  if (ht_check_addresses("weight", weight, error) != 0) return -1;
  ht_conv_pack(conv, (const float*)ht_data(weight), packed);
  return 0;
}

const ht_kind ht_conv_kind = {.name = "conv", .check = check, .run = run, .kernel_name = kernel_name, .describe = describe,
                              .packed_floats = packed_floats, .pack = pack};
