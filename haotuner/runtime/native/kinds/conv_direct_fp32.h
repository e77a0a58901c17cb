/* The program of depthwise kernels in fp32: included once for each width of vectors. */
#define HT_X float
#define HT_PLAIN 1
#define HT_LOAD_X(p) HT_LOAD(p)
#define HT_LOAD_W(p) HT_LOAD(p)
#define HT_EVERY_W(p) HT_EVERY(p)
#define HT_SUM(v) (v)
#define HT_IF_7(...) __VA_ARGS__
#include "conv_direct_last.h"
#include "conv_direct_first.h"
#include "conv_direct_lanes.h"

HT_TARGET static void HT_WIDE(planes)(ht_direct_job* j, int64_t first, int64_t last) {
  const ht_conv* conv = j->conv;
  const ht_conv_call* call = j->call;
  const int most = HT_N == 4 ? 4 : HT_ROWS;
  const ht_direct_lines of = ht_direct_lines_of(conv, call, j->kernel->mr < most ? j->kernel->mr : most, sizeof(float));
  const int64_t each = conv->features / conv->channels;
  HT_WIDE(tile) tile = {.of = &of, .stride = call->yh};
  HT_WIDE(tile_columns) known[HT_DIRECT_COLUMNS];
  for (int i = 0; i < HT_DIRECT_COLUMNS; ++i) known[i].q = -1;
  const int64_t fit = HT_DIRECT_FINISHED / (call->p * call->q + 1), together = fit < 1 ? 1 : fit < HT_DIRECT_PLANES ? fit : HT_DIRECT_PLANES;
  int64_t b = first / conv->features, f = first % conv->features, waiting = 0;
  for (int64_t at = first; at < last; ++at) {
    tile.w = call->weight + ht_conv_direct_at(conv, f);
    tile.bias = call->bias == NULL ? 0 : call->bias[f];
    HT_WIDE(plane)(&tile, call, known, call->x + b * call->xb + (each == 1 ? f : f / each) * call->xc, call->y + b * call->yb + f * call->yf, 0, of.tiles, 0, call->q);
    if (++waiting == together || f + 1 == conv->features || at + 1 == last) {
      ht_direct_finish(j, (ht_conv_part){b, f + 1 - waiting, 0, 0, waiting, call->q, 1}, call->p);
      waiting = 0;
    }
    if (++f == conv->features) f = 0, ++b;
  }
}

/* The same by vectors of channels: each item is one of them, of one image. */
HT_TARGET static void HT_WIDE(images)(ht_direct_job* j, int64_t first, int64_t last) {
  const ht_conv* conv = j->conv;
  const ht_conv_call* call = j->call;
  const ht_direct_lines of = ht_direct_lines_of(conv, call, HT_N == 4 ? 4 : HT_ROWS, sizeof(float));
  const int64_t vectors = ceil_div(conv->features, HT_N);
  const int finished = ht_conv_reads_channels(j->kernel, call);
  ht_direct_room* room = ht_direct_rooms();
  ht_direct_taps met[HT_DIRECT_OUTPUT];
  ht_direct_taps_of(&of, call, met);
  for (int64_t at = first; at < last; ++at) {
    const int64_t b = at / vectors, f = at % vectors * HT_N, some = min_i64(HT_N, conv->features - f);
    const ht_conv_part part = {b, f, 0, 0, some, call->q, 1};
    HT_WIDE(channels_of)(call, call->x + b * call->xb + f * call->xc, some, room);
    HT_WIDE(image)(&of, call, met, room->x, call->weight + ht_conv_direct_at(conv, f), call->bias == NULL ? HT_ZERO : HT_PART(call->bias + f, 0, some), room->y);
    if (ht_conv_put_turned(conv, j->kernel, call, &part, call->p, room->y, call->q, finished ? room->turned : NULL) != 0)
      atomic_store_explicit(&j->failed, 1, memory_order_relaxed);
    if (!finished) ht_direct_finish(j, part, call->p);
  }
}

HT_TARGET static void HT_WIDE(rows)(ht_direct_job* j, int64_t first, int64_t last) {
  const ht_conv_call* call = j->call;
  for (int64_t at = first; at < last; ++at) {
    const int64_t b = at / call->p, p = at % call->p;
    float* y = call->y + b * call->yb + p * call->yh;
    const int four = j->kernel->mr == HT_DIRECT_PAIR && at + 4 <= last && p + 4 <= call->p &&
                     HT_WIDE(four_rows)(call, j->conv, call->x + b * call->xb, call->weight, p, y);
    if (!four) HT_WIDE(row)(call, j->conv, call->x + b * call->xb, call->weight, p, y, j->kernel->mr);
    ht_direct_finish(j, (ht_conv_part){b, 0, p, 0, j->conv->features, call->q, 1}, four ? 4 : 1);
    if (four) at += 3;
  }
}

void HT_WIDE(ht_conv_direct)(ht_direct_job* j, int64_t first, int64_t last) {
  (j->conv->last ? HT_WIDE(rows) : j->lanes ? HT_WIDE(images) : HT_WIDE(planes))(j, first, last);
}
