/* Depthwise convolutions without a product: included once for each width of vectors, by conv_direct.c.
 *
 * HT_V: a vector; HT_N: its lanes; HT_LOAD(p), HT_PART(p, low, high): lanes [low, high) and zeros; HT_STORE(p, v, n): the first n;
 * HT_EVERY(p): a number in all lanes; HT_FMA(a, b, c); HT_EVEN(p, low, high): every other element from p on. */

/* Channels first: `rows` output rows from p on of one plane, all columns. Every line of the image that is loaded serves all rows
 * whose window it lies in. */
HT_TARGET static inline __attribute__((always_inline)) void HT_WIDE(rows_of)(const ht_conv_call* call, const ht_conv* conv, const float* x,
                                                                             const float* w, float bias, float* y, int64_t p, int rows,
                                                                             int r, int s, int down, int across, int thick, int broad) {
  const int64_t left = conv->wide.before, top = p * down - conv->tall.before;
  const int lines = (rows - 1) * down + (r - 1) * thick + 1;
  for (int64_t q = 0; q < call->q; q += HT_N) {
    HT_V sums[4];
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) sums[i] = HT_EVERY(&bias);
    int64_t first = q * across - left, reach = (HT_N - 1) * across + (s - 1) * broad;
    int inside = first >= 0 && first + reach + (across == 2) < call->w;
#pragma GCC unroll 16
    for (int line = 0; line < lines; ++line) {
      int64_t at = top + line;
      if (at < 0 || at >= call->h) continue;
      const float* row = x + at * call->xh;
#pragma GCC unroll 16
      for (int u = 0; u < s; ++u) {
        int64_t from = first + u * broad;
        HT_V v;
        if (across == 1) {
          if (inside) v = HT_LOAD(row + from);
          else {
            int64_t low = from < 0 ? -from : 0, high = call->w - from;
            v = HT_PART(row + from, low < HT_N ? low : HT_N, high < 0 ? 0 : high < HT_N ? high : HT_N);
          }
        } else if (across == 2) {
          int64_t low = from < 0 ? -from : 0, high = call->w - from;
          v = HT_EVEN(row + from, low < 2 * HT_N ? low : 2 * HT_N, high < 0 ? 0 : high < 2 * HT_N ? high : 2 * HT_N);
        } else {
          float lanes[HT_N];
          for (int j = 0; j < HT_N; ++j) {
            int64_t column = from + (int64_t)j * across;
            lanes[j] = column >= 0 && column < call->w ? row[column] : 0;
          }
          v = HT_LOAD(lanes);
        }
#pragma GCC unroll 16
        for (int i = 0; i < rows; ++i) { /* thick times t is the line within the row's window */
          int within = line - i * down;
          if (within < 0 || within > (r - 1) * thick || within % thick != 0) continue;
          sums[i] = HT_FMA(HT_EVERY(w + within / thick * s + u), v, sums[i]);
        }
      }
    }
    int64_t count = call->q - q < HT_N ? call->q - q : HT_N;
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) HT_STORE(y + (p + i) * call->yh + q, sums[i], count);
  }
}

HT_TARGET static void HT_WIDE(plane)(const ht_conv_call* call, const ht_conv* conv, const float* x, const float* w, float bias, float* y,
                                     int most) {
  const ht_window *tall = &conv->tall, *wide = &conv->wide;
  int square = tall->dilation == 1 && wide->dilation == 1 && tall->taps == wide->taps && tall->stride == wide->stride;
  int size = square && tall->stride <= 2 && (tall->taps == 3 || tall->taps == 5) ? tall->taps * 10 + tall->stride : 0;
  for (int64_t p = 0; p < call->p;) {
    int rows = call->p - p >= 4 && most >= 4 ? 4 : call->p - p >= 2 && most >= 2 ? 2 : 1;
#define HT_ROWS(n, r, st)                                                             \
  case r * 100 + st * 10 + n:                                                         \
    HT_WIDE(rows_of)(call, conv, x, w, bias, y, p, n, r, r, st, st, 1, 1);            \
    break;
    switch (size / 10 * 100 + size % 10 * 10 + rows) {
      HT_ROWS(4, 3, 1) HT_ROWS(2, 3, 1) HT_ROWS(1, 3, 1) HT_ROWS(4, 3, 2) HT_ROWS(2, 3, 2) HT_ROWS(1, 3, 2)
      HT_ROWS(4, 5, 1) HT_ROWS(2, 5, 1) HT_ROWS(1, 5, 1) HT_ROWS(4, 5, 2) HT_ROWS(2, 5, 2) HT_ROWS(1, 5, 2)
      default:
        rows = 1;
        if (wide->stride == 1)
          HT_WIDE(rows_of)(call, conv, x, w, bias, y, p, 1, tall->taps, wide->taps, tall->stride, 1, tall->dilation, wide->dilation);
        else
          HT_WIDE(rows_of)(call, conv, x, w, bias, y, p, 1, tall->taps, wide->taps, tall->stride, wide->stride, tall->dilation,
                           wide->dilation);
    }
#undef HT_ROWS
    p += rows;
  }
}

/* Channels last: `count` pixels of a row from q on, whose windows lie inside the image's columns or not. */
HT_TARGET static inline __attribute__((always_inline)) void HT_WIDE(pixels_of)(const ht_conv_call* call, const ht_conv* conv,
                                                                               const float* x, const float* w, int64_t p, int64_t q,
                                                                               float* y, int count, int inside) {
  const ht_window *tall = &conv->tall, *wide = &conv->wide;
  int64_t features = conv->features, top = p * tall->stride - tall->before, first = q * wide->stride - wide->before;
  int64_t across = wide->stride * call->xw;
  for (int64_t f = 0; f < features; f += HT_N) {
    int64_t n = features - f < HT_N ? features - f : HT_N;
    HT_V sums[8], zero = HT_PART(w, 0, 0);
    HT_V start = call->bias == NULL ? zero : HT_PART(call->bias + f, 0, n);
#pragma GCC unroll 16
    for (int j = 0; j < count; ++j) sums[j] = start;
    for (int t = 0; t < tall->taps; ++t) {
      int64_t at = top + (int64_t)t * tall->dilation;
      if (at < 0 || at >= call->h) continue;
      for (int u = 0; u < wide->taps; ++u) {
        const float* tap = w + (t * wide->taps + u) * features + f;
        int64_t from = first + (int64_t)u * wide->dilation;
        const float* pixel = x + at * call->xh + from * call->xw + f;
        HT_V v = n == HT_N ? HT_LOAD(tap) : HT_PART(tap, 0, n);
#pragma GCC unroll 16
        for (int j = 0; j < count; ++j) {
          int64_t column = from + (int64_t)j * wide->stride;
          if (!inside && (column < 0 || column >= call->w)) continue;
          sums[j] = HT_FMA(v, n == HT_N ? HT_LOAD(pixel + j * across) : HT_PART(pixel + j * across, 0, n), sums[j]);
        }
      }
    }
#pragma GCC unroll 16
    for (int j = 0; j < count; ++j) HT_STORE(y + (q + j) * call->yw + f, sums[j], n);
  }
}

HT_TARGET static void HT_WIDE(row)(const ht_conv_call* call, const ht_conv* conv, const float* x, const float* w, int64_t p, float* y,
                                   int most) {
  const ht_window* wide = &conv->wide;
  int64_t reach = (int64_t)wide->dilation * (wide->taps - 1);
  for (int64_t q = 0; q < call->q;) {
    int count = call->q - q >= 8 && most >= 8 ? 8 : call->q - q >= 4 && most >= 4 ? 4 : 1;
    int64_t first = q * wide->stride - wide->before;
    int inside = first >= 0 && first + (count - 1) * (int64_t)wide->stride + reach < call->w;
    if (count == 8 && inside) HT_WIDE(pixels_of)(call, conv, x, w, p, q, y, 8, 1);
    else if (count == 8) HT_WIDE(pixels_of)(call, conv, x, w, p, q, y, 8, 0);
    else if (count == 4 && inside) HT_WIDE(pixels_of)(call, conv, x, w, p, q, y, 4, 1);
    else if (count == 4) HT_WIDE(pixels_of)(call, conv, x, w, p, q, y, 4, 0);
    else HT_WIDE(pixels_of)(call, conv, x, w, p, q, y, 1, 0);
    q += count;
  }
}
