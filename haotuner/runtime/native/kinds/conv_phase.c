/* Phases of a convolution, and its weight packed for them. */
#include <string.h>

#include "conv.h"

#define LINE 16 /* floats of a cache line */

int64_t ht_conv_phases(const ht_conv* conv) {
  return conv->transposed ? (int64_t)conv->tall.stride * conv->wide.stride : 1;
}

static ht_side side_of(const ht_conv* conv, const ht_window* w, int64_t phase, int64_t outputs) {
  if (conv->transposed) return ht_conv_residue(w, phase, outputs);
  return (ht_side){0, 1, outputs, w->stride, -(int64_t)w->before, w->dilation, 0, 1, w->taps};
}

static int64_t per_group(int64_t all, const ht_conv* conv) { return all / conv->groups; }

int64_t ht_conv_apart(int64_t floats) {
  int64_t lines = ceil_div(floats, LINE);
  return (lines | 1) * LINE;
}

static void weight_of(const ht_conv* conv, ht_phase* phase) {
  int64_t features = per_group(conv->features, conv);
  phase->depth = per_group(conv->channels, conv) * phase->tall.taps * phase->wide.taps;
  if (conv->typed != NULL) {
    int64_t panels = ceil_div(features, conv->lanes) + HT_CONV_SLACK_PANELS;
    phase->stride = ht_conv_apart(ht_typed_depth(conv->typed, phase->depth) * (conv->lanes * conv->typed->column / 4));
    phase->first = phase->stride * panels;
    phase->group = phase->first + (ht_typed_signed(conv->typed) ? panels * conv->lanes : 0);
    return;
  }
  phase->stride = ht_conv_apart(conv->last ? phase->depth * conv->lanes : phase->depth);
  phase->group = phase->stride * (conv->last ? ceil_div(features, conv->lanes) + HT_CONV_SLACK_PANELS : features);
}

void ht_conv_phase(const ht_conv* conv, int64_t index, int64_t p, int64_t q, ht_phase* phase) {
  phase->offset = index == 0 ? 0 : phase->offset + phase->group * conv->groups;
  phase->tall = side_of(conv, &conv->tall, index / conv->wide.stride, p);
  phase->wide = side_of(conv, &conv->wide, index % conv->wide.stride, q);
  weight_of(conv, phase);
}

/* Whether tap `t` meets the image, of `extent` elements, for some output. */
static int meets(const ht_side* side, int64_t t, int64_t extent) {
  int64_t at = side->at + t * side->by, output = at < 0 ? ceil_div(-at, side->move) : 0;
  return output < side->count && at + output * side->move < extent;
}

/* Without the first and last taps that meet nothing: how many the first are. */
static int64_t shorten(ht_side* side, int64_t extent) {
  int64_t first = 0, end = side->taps;
  while (first < end && !meets(side, first, extent)) ++first;
  while (end > first && !meets(side, end - 1, extent)) --end;
  side->tap += first * side->tap_step;
  side->at += first * side->by;
  side->taps = end - first;
  return first;
}

void ht_conv_shorten(const ht_conv* conv, int64_t h, int64_t w, ht_phase* phase) {
  if (!conv->last || conv->typed != NULL) return;
  int64_t terms = per_group(conv->channels, conv), first = shorten(&phase->tall, h) * phase->wide.taps;
  if (phase->tall.taps == 1) first += shorten(&phase->wide, w); /* only then do the taps that stay follow one another */
  phase->offset += first * terms * conv->lanes;
  phase->depth = terms * phase->tall.taps * phase->wide.taps;
}

int ht_conv_is_direct(const ht_conv* conv) {
  /* Lines of a strip of 256 columns must find room, whatever stride and dilation (conv_direct.c); other windows are products.
   * conv_direct.py says the same. */
  const ht_window *tall = &conv->tall, *wide = &conv->wide;
  int small = conv->last || (wide->taps <= 16 && tall->taps <= 16 && wide->stride <= 4 && tall->stride <= 4 && wide->dilation <= 4 &&
                             tall->dilation <= 1);
  return small && !conv->transposed && conv->groups == conv->channels && (!conv->last || conv->features == conv->channels);
}

static void pack_direct(const ht_conv* conv, const float* weight, float* packed) {
  const int64_t taps = (int64_t)conv->tall.taps * conv->wide.taps, apart = ht_conv_direct_apart(conv);
  for (int64_t f = 0; f < conv->features; ++f)
    for (int64_t tap = 0; tap < taps; ++tap) packed[ht_conv_direct_at(conv, f) + tap * apart] = weight[f * taps + tap];
}

int64_t ht_conv_plain(const ht_conv* conv) {
  if (ht_conv_is_direct(conv))
    return (int64_t)conv->tall.taps * conv->wide.taps * (conv->last ? conv->features : ceil_div(conv->features, conv->lanes) * conv->lanes);
  if (ht_conv_is_woven(conv)) return ht_conv_woven_packed(conv);
  ht_phase phase;
  for (int64_t index = 0, phases = ht_conv_phases(conv); index < phases; ++index) ht_conv_phase(conv, index, 0, 0, &phase);
  int64_t longest = ht_conv_apart(per_group(conv->channels, conv) * (int64_t)conv->tall.taps * conv->wide.taps);
  return phase.offset + phase.group * conv->groups + (conv->last || conv->typed != NULL ? 0 : HT_CONV_SLACK_ROWS * longest);
}

ht_conv ht_conv_as_turned(const ht_conv* conv) {
  ht_conv turned = *conv;
  turned.last = 1;
  turned.forms = 1 << HT_CONV_TURNED; /* which no convolution with channels last has */
  return turned;
}

int64_t ht_conv_form(const ht_conv* conv, int form) {
  const ht_conv turned = ht_conv_as_turned(conv);
  int64_t floats = ht_conv_plain(conv);
  for (int before = 1; before < form; ++before)
    if (ht_conv_has(conv, before)) floats += before == HT_CONV_TURNED ? ht_conv_plain(&turned) : ht_conv_winograd_packed(conv, before);
  return floats;
}

int64_t ht_conv_packed(const ht_conv* conv) { return ht_conv_form(conv, HT_CONV_FORMS); }

static void pack_plain(const ht_conv* conv, const float* weight, float* packed) {
  int64_t channels = per_group(conv->channels, conv), features = per_group(conv->features, conv);
  int64_t window = (int64_t)conv->tall.taps * conv->wide.taps;
  /* channels of which all taps follow one another: (channels / block, tap, block) */
  const int64_t block = !conv->last ? 1 : ht_conv_has(conv, HT_CONV_TURNED) ? HT_CONV_TURNED_CHANNELS : channels;
  ht_phase phase;
  for (int64_t index = 0, phases = ht_conv_phases(conv); index < phases; ++index) {
    ht_conv_phase(conv, index, 0, 0, &phase);
    int64_t taps = phase.tall.taps * phase.wide.taps;
    for (int64_t g = 0; g < conv->groups; ++g)
      for (int64_t f = 0; f < features; ++f)
        for (int64_t c = 0; c < channels; ++c) {
          const float* from = conv->transposed ? weight + ((g * channels + c) * features + f) * window
                                               : weight + ((g * features + f) * channels + c) * window;
          float* to = packed + phase.offset + g * phase.group;
          const int64_t first = c / block * block, some = channels - first < block ? channels - first : block, apart = conv->last ? conv->lanes : 1;
          to += (first * taps + c - first) * apart + (conv->last ? f / conv->lanes * phase.stride + f % conv->lanes : f * phase.stride);
          const int64_t tap_stride = some * apart;
          for (int64_t t = 0; t < phase.tall.taps; ++t)
            for (int64_t u = 0; u < phase.wide.taps; ++u) {
              int64_t tap = (phase.tall.tap + t * phase.tall.tap_step) * conv->wide.taps + phase.wide.tap + u * phase.wide.tap_step;
              *to = from[tap];
              to += tap_stride;
            }
        }
  }
}

void ht_conv_pack(const ht_conv* conv, const float* weight, float* packed) {
  memset(packed, 0, (size_t)ht_conv_packed(conv) * sizeof *packed);
  if (conv->typed != NULL) {
    ht_conv_pack_typed(conv, (const char*)weight, packed);
    return;
  }
  if (ht_conv_is_direct(conv)) {
    pack_direct(conv, weight, packed);
    return;
  }
  const ht_conv turned = ht_conv_as_turned(conv);
  (ht_conv_is_woven(conv) ? ht_conv_pack_woven : pack_plain)(conv, weight, packed);
  if (ht_conv_has(conv, HT_CONV_TURNED)) pack_plain(&turned, weight, packed + ht_conv_form(conv, HT_CONV_TURNED));
  for (int tile = HT_CONV_TURNED + 1; tile < HT_CONV_FORMS; ++tile)
    if (ht_conv_has(conv, tile)) ht_conv_winograd_pack(conv, tile, weight, packed + ht_conv_form(conv, tile));
}
