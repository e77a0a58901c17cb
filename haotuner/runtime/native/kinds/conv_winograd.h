/* A convolution as minimal filtering sees it, for conv_winograd.c and conv_winograd_pack.c. A window that moves by more than one is cut in
 * phases, taps that are a stride apart, which move by one over every stride-th pixel: they are further channels of the sum (Huang et al.,
 * DWM, AAAI 2020). A phase may lack the last tap: it has a weight of zero, and nothing at infinity. Where taps are apart (dilation), so are the
 * outputs of a tile: those between belong to other tiles. A window has a stride or a dilation, not both. */
#ifndef HT_CONV_WINOGRAD_H_
#define HT_CONV_WINOGRAD_H_

#include "conv.h"
#include "conv_filter.h"

typedef struct { /* one axis */
  int64_t tile, taps, points; /* outputs of a tile, taps of a phase, their products; of one tap: 1, and nothing is transformed */
  int64_t phases, whole;      /* of the stride, and how many of them have all taps: the first ones */
  int64_t move, step, apart;  /* pixels between the inputs of two outputs side by side, and of two taps; outputs between those of a tile */
  int64_t before;
} ht_winograd_side;

typedef struct {
  ht_winograd_side tall, wide;
  int64_t points;       /* of a tile, those down the image outside */
  int64_t depth;        /* terms of a product: (phase down, phase across, channel) */
  int64_t panel, group; /* floats from one panel of a point's weight, and from one point's, to the next */
} ht_winograd;

/* Residues of a transposed convolution's stride that see the same windows, each way; 1 of an ordinary one. */
static inline int64_t ht_winograd_residues(const ht_conv* conv) { return conv->transposed ? (int64_t)conv->tall.stride * conv->wide.stride : 1; }

/* Along an axis of a transposed one, output g * stride + residue - before % stride has the taps residue + stride * (taps - 1 - t) at input
 * g + t - before. */
static inline ht_window ht_winograd_window(const ht_window* w) {
  const int32_t taps = w->taps / w->stride;
  return (ht_window){taps, 1, 1, taps - 1 - w->before / w->stride, 0, 0};
}

/* The convolution that is filtered. Of a transposed one whose windows are a multiple of its stride each way all residues see the same windows
 * of the image: they are further features, (vector of features, tall residue, wide residue, lane), of a window that moves by one. */
static inline ht_conv ht_winograd_conv(const ht_conv* conv) {
  ht_conv of = *conv;
  if (!conv->transposed) return of;
  of.transposed = 0;
  of.features = (int32_t)(ceil_div(conv->features, conv->lanes) * conv->lanes * ht_winograd_residues(conv));
  of.tall = ht_winograd_window(&conv->tall);
  of.wide = ht_winograd_window(&conv->wide);
  return of;
}

static inline ht_winograd_side ht_winograd_side_of(const ht_window* w, int tile) {
  ht_winograd_side s = {.taps = ceil_div(w->taps, w->stride), .move = w->stride, .apart = w->dilation, .before = w->before};
  s.step = s.move * s.apart;
  s.tile = s.taps > 1 ? tile : 1;
  s.points = s.tile + s.taps - 1;
  s.phases = w->taps < w->stride ? w->taps : w->stride;
  s.whole = w->taps - (s.taps - 1) * w->stride;
  return s;
}

static inline ht_winograd ht_winograd_of(const ht_conv* conv, int tile) {
  ht_winograd f = {.tall = ht_winograd_side_of(&conv->tall, tile), .wide = ht_winograd_side_of(&conv->wide, tile)};
  f.points = f.tall.points * f.wide.points;
  f.depth = conv->channels * f.tall.phases * f.wide.phases;
  f.panel = ht_conv_apart(f.depth * conv->lanes);
  f.group = f.panel * ceil_div(conv->features, conv->lanes);
  return f;
}

#endif /* HT_CONV_WINOGRAD_H_ */
