/* Epilogues of convolutions, on a part of the output that is still in cache. */
#include "conv.h"
#include "epilogue.h"

#define STRIDED_PIXELS 64 /* at a time, where the pixels of a row are apart */

/* Channels first and pixels apart: a row of one feature through scratch memory. */
static int finish_apart(const ht_kernel* k, float* y, int64_t gap, const ht_extra* extra, const int64_t* steps, int extras, int64_t pixels) {
  float row[STRIDED_PIXELS], read[HT_MAX_EXTRA][STRIDED_PIXELS];
  int rc = 0;
  for (int64_t first = 0; first < pixels && rc == 0; first += STRIDED_PIXELS) {
    int64_t some = pixels - first < STRIDED_PIXELS ? pixels - first : STRIDED_PIXELS;
    ht_extra here[HT_MAX_EXTRA];
    for (int64_t i = 0; i < some; ++i) row[i] = y[(first + i) * gap];
    for (int e = 0; e < extras; ++e) {
      for (int64_t i = 0; i < some; ++i) read[e][i] = extra[e].data[(first + i) * steps[e]];
      here[e] = (ht_extra){read[e], 0, extra[e].column_stride};
    }
    rc = ht_epilogue_run(k->epilogue, k->lanes, row, some, here, extras, 0, 0, 1, some);
    for (int64_t i = 0; i < some; ++i) y[(first + i) * gap] = row[i];
  }
  return rc;
}

void ht_conv_add_bias(const ht_conv* conv, float* results, int64_t stride, const float* bias, int64_t features, int64_t pixels) {
  if (conv->last)
    for (int64_t i = 0; i < pixels; ++i)
      for (int64_t f = 0; f < features; ++f) results[i * stride + f] += bias[f];
  else
    for (int64_t f = 0; f < features; ++f)
      for (int64_t i = 0; i < pixels; ++i) results[f * stride + i] += bias[f];
}

int ht_conv_finish(const ht_conv* conv, const ht_kernel* kernel, const ht_conv_call* call, const ht_conv_part* part) {
  if (kernel->epilogue == NULL) return 0;
  ht_extra extra[HT_MAX_EXTRA];
  int64_t steps[HT_MAX_EXTRA];
  float* y = call->y + part->b * call->yb + part->f * call->yf + part->p * call->yh + part->q * call->yw;
  for (int i = 0; i < call->extras; ++i) {
    const ht_conv_extra* e = &call->extra[i];
    const float* data = e->data + part->b * e->sb + part->f * e->sf + part->p * e->sh + part->q * e->sw;
    int whole = e->sw != 0 || e->sh != 0 || e->sb != 0;
    steps[i] = part->step * e->sw;
    extra[i] = conv->last ? (ht_extra){data, steps[i], 1} : (ht_extra){data, e->sf, whole ? 1 : 0};
  }
  if (conv->last)
    return ht_epilogue_run(kernel->epilogue, kernel->lanes, y, part->step * call->yw, extra, call->extras, 0, 0, part->pixels, part->features);
  if (part->step == 1)
    return ht_epilogue_run(kernel->epilogue, kernel->lanes, y, call->yf, extra, call->extras, 0, 0, part->features, part->pixels);
  int rc = 0;
  for (int64_t f = 0; f < part->features && rc == 0; ++f) {
    rc = finish_apart(kernel, y + f * call->yf, part->step * call->yw, extra, steps, call->extras, part->pixels);
    for (int i = 0; i < call->extras; ++i) extra[i].data += call->extra[i].sf;
  }
  return rc;
}
