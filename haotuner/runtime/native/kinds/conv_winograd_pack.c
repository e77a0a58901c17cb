/* Weights of minimal filtering: see conv_winograd.h. */
#include "conv_winograd.h"

int64_t ht_conv_winograd_packed(const ht_conv* conv, int tile) {
  const ht_conv of = ht_winograd_conv(conv);
  const ht_winograd f = ht_winograd_of(&of, tile);
  return f.points * f.group + HT_CONV_SLACK_PANELS * f.panel;
}

static void points_of(const ht_winograd_side* s, const double* g, int step, double* out) {
  if (s->points == 1) out[0] = g[0];
  else ht_filter_weight((int)s->points, (int)s->taps, g, step, out);
}

/* The taps of one phase, `g`, with zeros for those that it lacks. */
static void phase_of(const ht_conv* conv, const ht_winograd* f, int64_t down, int64_t across, const float* weight, double* g) {
  for (int64_t t = 0; t < f->tall.taps; ++t)
    for (int64_t u = 0; u < f->wide.taps; ++u) {
      const int64_t row = down + t * f->tall.move, column = across + u * f->wide.move;
      g[t * f->wide.taps + u] = row < conv->tall.taps && column < conv->wide.taps ? weight[row * conv->wide.taps + column] : 0;
    }
}

/* Of a transposed convolution the taps of one residue, feature `feature` of what is filtered, those of the image's first pixel first. */
static void residue_of(const ht_conv* conv, const ht_winograd* f, int64_t feature, int64_t c, const float* weight, double* g) {
  const int64_t lanes = conv->lanes, count = ht_winograd_residues(conv), own = feature / (lanes * count) * lanes + feature % lanes;
  const int64_t residue = feature / lanes % count, down = residue / conv->wide.stride, across = residue % conv->wide.stride;
  const float* window = weight + (c * conv->features + own) * conv->tall.taps * conv->wide.taps;
  for (int64_t t = 0; t < f->tall.taps; ++t)
    for (int64_t u = 0; u < f->wide.taps; ++u) {
      const int64_t row = down + (f->tall.taps - 1 - t) * conv->tall.stride, column = across + (f->wide.taps - 1 - u) * conv->wide.stride;
      g[t * f->wide.taps + u] = own < conv->features ? window[row * conv->wide.taps + column] : 0;
    }
}

void ht_conv_winograd_pack(const ht_conv* conv, int tile, const float* weight, float* packed) {
  const ht_conv of = ht_winograd_conv(conv);
  const ht_winograd f = ht_winograd_of(&of, tile);
  const int64_t lanes = conv->lanes, taps = f.wide.taps, window = (int64_t)conv->tall.taps * conv->wide.taps;
  double g[HT_FILTER_POINTS * HT_FILTER_POINTS], half[HT_FILTER_POINTS * HT_FILTER_POINTS], line[HT_FILTER_POINTS];
  for (int64_t feature = 0; feature < of.features; ++feature)
    for (int64_t c = 0; c < conv->channels; ++c)
      for (int64_t phase = 0; phase < f.tall.phases * f.wide.phases; ++phase) {
        if (conv->transposed) residue_of(conv, &f, feature, c, weight, g);
        else phase_of(conv, &f, phase / f.wide.phases, phase % f.wide.phases, weight + (feature * conv->channels + c) * window, g);
        for (int64_t j = 0; j < taps; ++j) {
          points_of(&f.tall, g + j, (int)taps, line);
          for (int64_t i = 0; i < f.tall.points; ++i) half[i * taps + j] = line[i];
        }
        float* to = packed + feature / lanes * f.panel + (phase * conv->channels + c) * lanes + feature % lanes;
        for (int64_t i = 0; i < f.tall.points; ++i) {
          points_of(&f.wide, half + i * taps, 1, line);
          for (int64_t j = 0; j < f.wide.points; ++j) to[(i * f.wide.points + j) * f.group] = (float)line[j];
        }
      }
}
