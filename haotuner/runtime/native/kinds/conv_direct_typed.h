/* Sums of depthwise convolutions in another type than fp32: included once for each width of vectors and each type of the image. Pixels are
 * widened as they are loaded. Integers are summed as floats: of windows of 25 taps those are exact. */
#define HT_PLAIN 0
#define HT_IF_7(...)
#undef HT_UP_TO
#define HT_UP_TO HT_UP_TO_4 /* more rows load little less, and each takes its time to compile */
#if HT_INTEGER
#define HT_LOAD_W(p) HT_FLOATS(HT_LOAD(p))
#define HT_EVERY_W(p) HT_FLOATS(HT_EVERY(p))
#define HT_SUM(v) HT_WHOLES(v)
#else
#define HT_LOAD_W(p) HT_LOAD(p)
#define HT_EVERY_W(p) HT_EVERY(p)
#define HT_SUM(v) (v)
#endif
#include "conv_direct_last.h"
#include "conv_direct_first.h"
#include "conv_direct_lanes.h"

HT_TARGET static void HT_WIDE(squares)(const ht_conv* conv, const ht_conv_call* call, const void* x, const float* w, float* sums, int64_t down,
                                       int64_t right, int64_t top, int64_t features) {
  HT_WIDE(square)(call, x, w, NULL, sums, down, right, top, features, conv->features, conv->tall.taps, conv->tall.stride);
}

HT_TARGET static void HT_WIDE(planes)(const ht_conv* conv, const ht_conv_call* call, const ht_direct_lines* of, const ht_direct_band* band, float* sums) {
  const int64_t each = conv->features / conv->channels;
  const int64_t rows = ht_direct_row(of, band->last) - ht_direct_row(of, band->first), wide = band->end - band->q;
  HT_WIDE(tile) tile = {.of = of, .stride = wide};
  HT_WIDE(tile_columns) known[HT_DIRECT_COLUMNS];
  for (int i = 0; i < HT_DIRECT_COLUMNS; ++i) known[i].q = -1;
  for (int64_t f = band->f; f < band->f + band->planes; ++f, sums += rows * wide) {
    const HT_X* x = (const HT_X*)(const void*)call->x + band->b * call->xb + f / each * call->xc;
    tile.w = call->weight + ht_conv_direct_at(conv, f);
    HT_WIDE(plane)(&tile, call, known, x, sums, band->first, band->last, band->q, band->end);
  }
}

HT_TARGET static void HT_WIDE(images)(const ht_conv* conv, const ht_conv_call* call, const ht_direct_lines* of, const ht_direct_taps* met,
                                      const ht_direct_band* band, float* sums) {
  ht_direct_room* room = ht_direct_rooms();
  const int64_t pixels = call->p * call->q, row = ceil_div(pixels, HT_N) * HT_N;
  HT_WIDE(channels_of)(call, (const HT_X*)(const void*)call->x + band->b * call->xb + band->f * call->xc, band->planes, room);
  HT_WIDE(image)(of, call, met, room->x, call->weight + ht_conv_direct_at(conv, band->f), HT_ZERO, room->y);
  for (int64_t p = 0; p < pixels; p += HT_N)
    ht_square(HT_N, room->y + p * HT_N, HT_N, min_i64(HT_N, pixels - p), band->planes, sums + p, row, HT_N);
}

const ht_direct_typed HT_PROGRAMS = {HT_WIDE(squares), HT_WIDE(planes), HT_WIDE(images)};
