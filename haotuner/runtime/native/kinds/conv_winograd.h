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

static inline ht_winograd_side ht_winograd_side_of(const ht_window* w, int tile) {
  ht_winograd_side s = {.taps = up(w->taps, w->stride), .move = w->stride, .apart = w->dilation, .before = w->before};
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
  f.group = f.panel * up(conv->features, conv->lanes);
  return f;
}

#endif /* HT_CONV_WINOGRAD_H_ */
