/* Depthwise convolutions of small images with channels first, channels in the lanes of a vector: see conv_direct.h.
 *
 * Where lines are short a vector of their pixels is filled badly, and taps beside the image are computed for its other pixels' sake. Here
 * images of HT_N channels are turned so that a vector is one pixel of them, and only taps that meet the image are computed. A tile is several
 * output rows of one column, whose sums stay in registers; results are turned back. */
#include "turn.h"

typedef struct {
  const float *x, *w; /* of line 0 and the first tap along it that is in the image; that tap's weights */
  float* y;
  int64_t line, along, down; /* elements from one line of the image to the next, one tap along it, one output row */
  int64_t low, inside;       /* of the tile's lines [low, low + inside) are in the image */
  int count, across;         /* taps along a line that are in the image, and of a line of the window */
  HT_V start;
} HT_WIDE(column);

/* `rows` rows, windows of `r` lines that move down by `step`: all three are known when this is compiled. */
HT_TARGET static inline __attribute__((always_inline)) void HT_WIDE(column_of)(const HT_WIDE(column) * c, const int rows, const int r, const int step) {
  const int lines = (rows - 1) * step + r;
  const uint64_t inside = (uint64_t)c->inside;
  const int64_t line = c->line, below = (int64_t)c->across * HT_N;
  const float *from = c->x, *first = c->w;
  int64_t above = -c->low;
  HT_V sums[HT_ROWS], w[7];
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i) sums[i] = c->start;
  for (int u = 0; u < c->count; ++u, from += c->along, first += HT_N) {
    const float* x = from;
    __asm__("" : "+r"(above)); /* or each line's place among those inside is kept for all taps */
#pragma GCC unroll 7
    for (int t = 0; t < r; ++t) w[t] = HT_LOAD_W(first + t * below);
#pragma GCC unroll 32
    for (int k = 0; k < lines; ++k, x += line) {
      if ((uint64_t)(above + k) >= inside) continue;
      HT_V v = HT_LOAD(x);
      HT_IN_REGISTER(v); /* or every sum would load it again */
#pragma GCC unroll 7
      for (int t = 0; t < r; ++t)
        if (k >= t && (k - t) % step == 0 && (k - t) / step < rows) sums[(k - t) / step] = HT_FMA(w[t], v, sums[(k - t) / step]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i) HT_STORE(c->y + i * c->down, HT_SUM(sums[i]), HT_N);
}

HT_EVERY_PROGRAM(column, columns)

/* All pixels of HT_N channels: x (line, column, channel), y (row, column, channel), both without gaps; w (tap, channel); `start` of every sum. */
HT_TARGET static void HT_WIDE(image)(const ht_direct_lines* of, const ht_conv_call* call, const ht_direct_taps* met, const float* x, const float* w,
                                     HT_V start, float* y) {
  HT_WIDE(column) c = {.line = call->w * HT_N, .down = call->q * HT_N, .across = of->taps, .start = start};
  c.along = of->taps > 1 ? of->at[1] * HT_N : HT_N;
  for (int64_t p = 0, index = 0, rows; index < of->tiles; p += rows, ++index) {
    rows = of->rows + (index < of->more);
    const int64_t top = p * of->down - of->top, bottom = top + (rows - 1) * of->down + of->r;
    const int64_t inside = (bottom < call->h ? bottom : call->h) - (top < 0 ? 0 : top);
    c.low = top < 0 ? -top : 0;
    c.inside = inside > 0 ? inside : 0;
    for (int64_t q = 0; q < call->q; ++q) {
      c.count = met[q].count;
      c.x = x + (top * call->w + met[q].column) * HT_N;
      c.w = w + met[q].first * HT_N;
      c.y = y + (p * call->q + q) * HT_N;
      HT_WIDE(columns)[of->program][rows - 1](&c);
    }
  }
}

/* `some` channels of an image, turned: x (line, column, channel), zeros from channel `some` on. */
HT_TARGET static void HT_WIDE(channels_of)(const ht_conv_call* call, const HT_X* from, int64_t some, ht_direct_room* room) {
  const int joined = call->xh == call->w;
  const int64_t lines = joined ? 1 : call->h, length = joined ? call->h * call->w : call->w;
  float* x = room->x;
  for (int64_t i = 0; i < lines; ++i, from += call->xh, x += length * HT_N) {
#if HT_PLAIN
    ht_square(HT_N, from, call->xc, some, length, x, HT_N, HT_N);
#else
    const int64_t whole = length / HT_N * HT_N, row = ceil_div(length, HT_N) * HT_N;
    for (int64_t c = 0; c < some; ++c) {
      const HT_X* line = from + c * call->xc;
      float* wide = room->turned + c * row;
      HT_X left[HT_N] = {0};
      for (int64_t j = 0; j < whole; j += HT_N) HT_STORE(wide + j, HT_LOAD_X(line + j), HT_N);
      if (whole == length) continue;
      memcpy(left, line + whole, (size_t)(length - whole) * sizeof *left);
      HT_STORE(wide + whole, HT_LOAD_X(left), HT_N);
    }
    ht_square(HT_N, room->turned, row, some, length, x, HT_N, HT_N);
#endif
  }
}
