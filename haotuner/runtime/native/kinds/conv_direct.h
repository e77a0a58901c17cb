/* Depthwise convolutions without a product: included once for each width of vectors, by conv_direct.c.
 *
 * HT_V: a vector; HT_N: its lanes; HT_LOAD(p), HT_PART(p, low, high): lanes [low, high) and zeros; HT_STORE(p, v, n): the first n;
 * HT_EVERY(p): a number in all lanes; HT_FMA(a, b, c); HT_EVEN(p, low, high): every other element from p on. */

/* Channels last: `count` pixels of a row from q on, features [f, f + n), whose windows lie inside the image's columns or not. `s`: taps
 * side by side, where they are known when this is compiled; `whole`: n is a vector. */
HT_TARGET static inline __attribute__((always_inline)) void HT_WIDE(pixels_of)(const ht_conv_call* call, const ht_conv* conv,
                                                                               const float* x, const float* w, int64_t p, int64_t q, int64_t f,
                                                                               int64_t n, float* y, int count, int inside, int s, int whole) {
  const ht_window *tall = &conv->tall, *wide = &conv->wide;
  const int64_t features = conv->features, top = p * tall->stride - tall->before, first = q * wide->stride - wide->before;
  const int64_t across = wide->stride * call->xw;
  HT_V sums[8], zero = HT_PART(w, 0, 0);
  HT_V start = call->bias == NULL ? zero : HT_PART(call->bias + f, 0, n);
#pragma GCC unroll 16
  for (int j = 0; j < count; ++j) sums[j] = start;
  /* Places go on by sums: a product for each tap takes longer than what is computed there. */
  const int taps = s > 0 ? s : wide->taps;
  const int64_t along = wide->dilation * call->xw, below = tall->dilation * call->xh;
  const float *tap = w + f, *line = x + top * call->xh + first * call->xw + f;
  int64_t at = top;
  for (int t = 0; t < tall->taps; ++t, at += tall->dilation, line += below) {
    if (at < 0 || at >= call->h) {
      tap += taps * features;
      continue;
    }
    const float* pixel = line;
    int64_t from = first;
#pragma GCC unroll 5
    for (int u = 0; u < taps; ++u, tap += features, pixel += along, from += wide->dilation) {
      HT_V v = whole ? HT_LOAD(tap) : HT_PART(tap, 0, n);
#pragma GCC unroll 16
      for (int j = 0; j < count; ++j) {
        int64_t column = from + (int64_t)j * wide->stride;
        if (!inside && (column < 0 || column >= call->w)) continue;
        sums[j] = HT_FMA(v, whole ? HT_LOAD(pixel + j * across) : HT_PART(pixel + j * across, 0, n), sums[j]);
      }
    }
  }
#pragma GCC unroll 16
  for (int j = 0; j < count; ++j) HT_STORE(y + (q + j) * call->yw + f, sums[j], whole ? HT_N : n);
}

HT_TARGET static void HT_WIDE(row)(const ht_conv_call* call, const ht_conv* conv, const float* x, const float* w, int64_t p, float* y,
                                   int most) {
  const ht_window* wide = &conv->wide;
  const int64_t reach = (int64_t)wide->dilation * (wide->taps - 1), room = call->w + wide->before - reach;
  /* pixels whose windows lie inside: [low, high) */
  const int64_t low = (wide->before + wide->stride - 1) / wide->stride, end = room > 0 ? (room - 1) / wide->stride + 1 : 0;
  const int64_t high = end < call->q ? end : call->q;
  const int s = HT_SPECIAL && (wide->taps == 3 || wide->taps == 5) ? wide->taps : 0;
  for (int64_t q = 0, now; q < call->q; q += now) {
    const int inside = q >= low && q < high;
    const int64_t left = high - q;
    now = !inside ? 1 : left >= 8 && most >= 8 ? 8 : left >= 4 && most >= 4 ? 4 : 1;
    if (now == 1 && inside && most >= 4 && high - low >= 4) now = 4, q = high - 4; /* some of them again, rather than one by one */
#define HT_PIXELS(count, inside, s)                                                                                                  \
  for (int64_t f = 0; f < conv->features; f += HT_N)                                                                                 \
    if (f + HT_N <= conv->features) HT_WIDE(pixels_of)(call, conv, x, w, p, q, f, HT_N, y, count, inside, s, 1);                     \
    else HT_WIDE(pixels_of)(call, conv, x, w, p, q, f, conv->features - f, y, count, inside, s, 0);
    if (now == 8 && s == 3) {
      HT_PIXELS(8, 1, 3)
    } else if (now == 8 && s == 5) {
      HT_PIXELS(8, 1, 5)
    } else if (now == 8) {
      HT_PIXELS(8, 1, 0)
    } else if (now == 4 && s == 3) {
      HT_PIXELS(4, 1, 3)
    } else if (now == 4) {
      HT_PIXELS(4, 1, 0)
    } else {
      HT_PIXELS(1, 0, 0)
    }
#undef HT_PIXELS
  }
}

/* Two pixels of four rows from (p, q) on, `r` x `r` windows that move by `step` and lie inside the image's columns: each pixel of the image
 * that is loaded serves all windows it lies in. The last vector of features overlaps the one before. */
HT_TARGET static inline __attribute__((always_inline)) void HT_WIDE(square_of)(const ht_conv_call* call, const float* x, const float* w, float* y,
                                                                               int64_t top, int64_t features, const int r,
                                                                               const int step) {
  static const float zeros[HT_N];
  for (int64_t at = 0; at < features; at += HT_N) {
    const int64_t f = at + HT_N <= features ? at : features - HT_N;
    HT_V sums[4][2], start = call->bias == NULL ? HT_ZERO : HT_LOAD(call->bias + f);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) sums[i][0] = sums[i][1] = start;
#pragma GCC unroll 16
    for (int k = 0; k < 3 * step + r; ++k) {
      const int inside = top + k >= 0 && top + k < call->h;
      const float* from = inside ? x + k * call->xh + f : zeros;
      const int64_t right = inside ? call->xw : 0;
#pragma GCC unroll 8
      for (int j = 0; j < step + r; ++j, from += right) {
        HT_V v = HT_LOAD(from);
        HT_IN_REGISTER(v);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          const int t = k - i * step;
          if (t < 0 || t >= r) continue;
          if (j < r) sums[i][0] = HT_FMA(HT_LOAD(w + (t * r + j) * features + f), v, sums[i][0]);
          if (j >= step) sums[i][1] = HT_FMA(HT_LOAD(w + (t * r + j - step) * features + f), v, sums[i][1]);
        }
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      HT_STORE(y + i * call->yh + f, sums[i][0], HT_N);
      HT_STORE(y + i * call->yh + call->yw + f, sums[i][1], HT_N);
    }
  }
}

/* Four rows of an image from p on; 0 where no program is for such windows. */
HT_TARGET static int HT_WIDE(four_rows)(const ht_conv_call* call, const ht_conv* conv, const float* x, const float* w, int64_t p, float* y) {
  const ht_window *tall = &conv->tall, *wide = &conv->wide;
  const int r = tall->taps, step = tall->stride;
  const int plain = step <= 2 && wide->stride == step && tall->dilation == 1 && wide->dilation == 1;
  if (!plain || r != wide->taps || (r != 3 && r != 5) || conv->features < HT_N) return 0;
  /* pixels whose windows lie inside: [low, high) */
  const int64_t room = call->w + wide->before - r, low = (wide->before + step - 1) / step, end = room < 0 ? 0 : room / step + 1;
  const int64_t high = end < call->q ? end : call->q, top = p * step - tall->before;
  for (int64_t q = 0, now; q < call->q; q += now) {
    now = q >= low && q + 2 <= high ? 2 : 1;
    if (now == 1 && q > low && q < high) now = 2, q -= 1; /* one of them again, rather than one alone */
    const float* from = x + top * call->xh + (q * step - wide->before) * call->xw;
    float* to = y + q * call->yw;
    if (now == 2 && r == 3 && step == 1) HT_WIDE(square_of)(call, from, w, to, top, conv->features, 3, 1);
    else if (now == 2 && r == 3) HT_WIDE(square_of)(call, from, w, to, top, conv->features, 3, 2);
    else if (now == 2 && step == 1) HT_WIDE(square_of)(call, from, w, to, top, conv->features, 5, 1);
    else if (now == 2) HT_WIDE(square_of)(call, from, w, to, top, conv->features, 5, 2);
    else
      for (int i = 0; i < 4; ++i)
        for (int64_t f = 0; f < conv->features; f += HT_N) {
          const int64_t n = conv->features - f < HT_N ? conv->features - f : HT_N;
          if (n == HT_N) HT_WIDE(pixels_of)(call, conv, x, w, p + i, q, f, n, y + i * call->yh, 1, 0, 0, 1);
          else HT_WIDE(pixels_of)(call, conv, x, w, p + i, q, f, n, y + i * call->yh, 1, 0, 0, 0);
        }
  }
  return 1;
}
