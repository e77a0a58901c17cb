/* Epilogues of convolutions, on a part of the output that is still in cache. */
#include "conv.h"
#include "epilogue.h"
#include "turn.h"

#define LONG 32           /* elements of a line from which on memcpy is faster: it writes whole lines of cache */
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

int ht_conv_reads_channels(const ht_kernel* kernel, const ht_conv_call* call) {
  if (kernel->epilogue == NULL) return 0;
  for (int i = 0; i < call->extras; ++i) {
    const ht_conv_extra* e = &call->extra[i];
    if (e->sb != 0 || e->sh != 0 || e->sw != 0) return 0; /* it lies as the output does */
  }
  return 1;
}

/* `lines` lines of `pixels` vectors of features, `wide` apart, to `to`, features `apart` and lines `down` apart; `whole`: filled up to vectors. */
static void turn_back(int64_t lanes, int64_t some, const float* from, int64_t wide, int64_t lines, int64_t pixels, float* to, int64_t apart,
                      int64_t down, int whole) {
  for (int64_t i = 0; i < lines; ++i)
    for (int64_t p = 0; p < pixels; p += lanes) {
      const int64_t now = min_i64(lanes, pixels - p);
      ht_square((int)lanes, from + (i * wide + p) * lanes, lanes, now, some, to + i * down + p, apart, whole ? lanes : now);
    }
}

int ht_conv_put_turned(const ht_conv* conv, const ht_kernel* kernel, const ht_conv_call* call, const ht_conv_part* part, int64_t lines, const float* from,
                       int64_t wide, float* room) {
  const int64_t lanes = conv->lanes, some = part->features, pixels = part->pixels, step = part->step;
  const int follow = wide == pixels, joined = follow && step == 1 && call->yh == pixels; /* lines: there, and in y, too */
  float* y = call->y + part->b * call->yb + part->f * call->yf + part->p * call->yh + part->q * call->yw;
  if (room == NULL && step > 1) {
    for (int64_t f = 0; f < some; ++f)
      for (int64_t i = 0; i < lines; ++i)
        for (int64_t p = 0; p < pixels; ++p) y[f * call->yf + i * call->yh + p * step] = from[(i * wide + p) * lanes + f];
    return 0;
  }
  if (room == NULL) {
    turn_back(lanes, some, from, wide, joined ? 1 : lines, joined ? lines * pixels : pixels, y, call->yf, call->yh, 0);
    return 0;
  }
  const int64_t runs = follow ? 1 : lines, run = follow ? lines * pixels : pixels, width = ceil_div(run, lanes) * lanes, row = runs * width;
  ht_extra extra[HT_MAX_EXTRA];
  turn_back(lanes, some, from, wide, runs, run, room, row, width, 1);
  for (int i = 0; i < call->extras; ++i) extra[i] = (ht_extra){call->extra[i].data + part->f * call->extra[i].sf, call->extra[i].sf, 0};
  if (ht_epilogue_run(kernel->epilogue, kernel->lanes, room, row, extra, call->extras, 0, 0, some, row) != 0) return -1;
  const int64_t copies = joined ? 1 : lines, length = joined ? run : pixels, down = follow ? pixels : width;
  for (int64_t f = 0; f < some; ++f)
    for (int64_t i = 0; i < copies; ++i) {
      float* to = y + f * call->yf + i * call->yh;
      const float* line = room + f * row + i * down;
      if (step > 1) ht_conv_spread((int)lanes, to, 0, step, line, 0, 1, length);
      else if (length < LONG) ht_copy_few(to, line, length * (int64_t)sizeof *y);
      else memcpy(to, line, (size_t)length * sizeof *y);
    }
  return 0;
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
