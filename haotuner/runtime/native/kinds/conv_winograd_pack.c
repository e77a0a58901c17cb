/* Weights of minimal filtering: see conv_winograd.h. */
#include <string.h>

#include "conv_winograd.h"

int64_t ht_conv_winograd_packed(const ht_conv* conv, int tile) {
  const ht_conv of = ht_winograd_conv(conv);
  const ht_winograd f = ht_winograd_of(&of, tile);
  return f.points * f.group + HT_CONV_SLACK_PANELS * f.panel;
}

#define MOST_LANES 16
#define INLINE static inline __attribute__((always_inline))

typedef double vector[MOST_LANES]; /* of features, one a lane */
typedef double four __attribute__((vector_size(32), aligned(8), may_alias));
typedef float four_floats __attribute__((vector_size(16), aligned(4), may_alias));

/* What one axis does to taps: (points, taps). */
static void matrix_of(const ht_winograd_side* s, double* to) {
  for (int64_t t = 0; t < s->taps; ++t) {
    double tap[HT_FILTER_POINTS] = {0}, line[HT_FILTER_POINTS] = {1};
    tap[t] = 1;
    if (s->points > 1) ht_filter_weight((int)s->points, (int)s->taps, tap, 1, line);
    for (int64_t i = 0; i < s->points; ++i) to[i * s->taps + t] = line[i];
  }
}

/* Points of taps that lie `step` vectors apart, as far apart themselves. A product is rounded before it is added, on every CPU. */
INLINE void points_of(const ht_winograd_side* s, const double* matrix, const vector* g, int64_t step, vector* out, const int lanes) {
  for (int64_t i = 0; i < s->points; ++i)
    for (int l = 0; l < lanes; l += 4) {
      four sum = {0};
      for (int64_t t = 0; t < s->taps; ++t) {
        const four term = matrix[i * s->taps + t] * *(const four*)&g[t * step][l];
        sum = sum + term;
      }
      *(four*)&out[i * step][l] = sum;
    }
}

/* The first `some` lanes in fp32. */
INLINE void stored(const vector line, int64_t some, float* to, const int lanes) {
  if (some < lanes) {
    for (int64_t l = 0; l < some; ++l) to[l] = (float)line[l];
    return;
  }
  for (int l = 0; l < lanes; l += 4) *(four_floats*)(to + l) = __builtin_convertvector(*(const four*)&line[l], four_floats);
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

INLINE void pack(const ht_conv* conv, int tile, const float* weight, float* packed, const int lanes) {
  const ht_conv of = ht_winograd_conv(conv);
  const ht_winograd f = ht_winograd_of(&of, tile);
  const int64_t taps = f.wide.taps, window = (int64_t)conv->tall.taps * conv->wide.taps;
  double tall[HT_FILTER_POINTS * HT_FILTER_POINTS], wide[HT_FILTER_POINTS * HT_FILTER_POINTS], one[HT_FILTER_POINTS * HT_FILTER_POINTS];
  vector g[HT_FILTER_POINTS * HT_FILTER_POINTS] = {{0}}, half[HT_FILTER_POINTS * HT_FILTER_POINTS], line[HT_FILTER_POINTS];
  matrix_of(&f.tall, tall);
  matrix_of(&f.wide, wide);
  for (int64_t feature = 0; feature < of.features; feature += lanes)
    for (int64_t c = 0; c < conv->channels; ++c)
      for (int64_t phase = 0; phase < f.tall.phases * f.wide.phases; ++phase) {
        const int64_t some = min_i64(lanes, of.features - feature);
        for (int64_t l = 0; l < some; ++l) {
          if (conv->transposed) residue_of(conv, &f, feature + l, c, weight, one);
          else phase_of(conv, &f, phase / f.wide.phases, phase % f.wide.phases, weight + ((feature + l) * conv->channels + c) * window, one);
          for (int64_t k = 0; k < f.tall.taps * taps; ++k) g[k][l] = one[k];
        }
        for (int64_t j = 0; j < taps; ++j) points_of(&f.tall, tall, g + j, taps, half + j, lanes);
        float* to = packed + feature / lanes * f.panel + (phase * conv->channels + c) * lanes;
        for (int64_t i = 0; i < f.tall.points; ++i) {
          points_of(&f.wide, wide, half + i * taps, 1, line, lanes);
          for (int64_t j = 0; j < f.wide.points; ++j) stored(line[j], some, to + (i * f.wide.points + j) * f.group, lanes);
        }
      }
}

__attribute__((target("avx512f"))) static void pack_16(const ht_conv* conv, int tile, const float* weight, float* packed) {
  pack(conv, tile, weight, packed, 16);
}

__attribute__((target("avx2"))) static void pack_8(const ht_conv* conv, int tile, const float* weight, float* packed) {
  pack(conv, tile, weight, packed, 8);
}

void ht_conv_winograd_pack(const ht_conv* conv, int tile, const float* weight, float* packed) {
  if (conv->lanes >= 16) pack_16(conv, tile, weight, packed);
  else if (conv->lanes >= 8) pack_8(conv, tile, weight, packed);
  else pack(conv, tile, weight, packed, 4);
}
