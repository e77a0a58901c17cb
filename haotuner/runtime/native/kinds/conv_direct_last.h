/* Depthwise convolutions with channels last: see conv_direct.h. */

#if HT_PLAIN
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
  const ht_direct_inside in = ht_direct_inside_of(wide, call);
  const int64_t low = in.low, high = in.high;
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

#endif

/* Two pixels of four rows, `r` x `r` windows that move by `step` and lie inside the image's columns: each pixel of the image that is loaded
 * serves all windows it lies in. Of `features` features (those of a pixel lie beside one another, taps of a weight `apart`); the last vector
 * overlaps the one before. `top`: line that x is of; y: sums `down` and `right` from one another. */
HT_TARGET static inline __attribute__((always_inline)) void HT_WIDE(square_of)(const ht_conv_call* call, const HT_X* x, const float* w,
                                                                               const float* bias, float* y, int64_t down, int64_t right, int64_t top,
                                                                               int64_t features, int64_t apart, const int r, const int step) {
  static const HT_X zeros[HT_N];
  for (int64_t at = 0; at < features; at += HT_N) {
    const int64_t f = at + HT_N <= features ? at : features - HT_N;
    HT_V sums[4][2], start = bias == NULL ? HT_ZERO : HT_LOAD(bias + f);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) sums[i][0] = sums[i][1] = start;
#pragma GCC unroll 16
    for (int k = 0; k < 3 * step + r; ++k) {
      const int inside = top + k >= 0 && top + k < call->h;
      const HT_X* from = inside ? x + k * call->xh + f : zeros;
      const int64_t next = inside ? call->xw : 0;
#pragma GCC unroll 8
      for (int j = 0; j < step + r; ++j, from += next) {
        HT_V v = HT_LOAD_X(from);
        HT_IN_REGISTER(v);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          const int t = k - i * step;
          if (t < 0 || t >= r) continue;
          if (j < r) sums[i][0] = HT_FMA(HT_LOAD_W(w + (t * r + j) * apart + f), v, sums[i][0]);
          if (j >= step) sums[i][1] = HT_FMA(HT_LOAD_W(w + (t * r + j - step) * apart + f), v, sums[i][1]);
        }
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      HT_STORE(y + i * down + f, HT_SUM(sums[i][0]), HT_N);
      HT_STORE(y + i * down + right + f, HT_SUM(sums[i][1]), HT_N);
    }
  }
}

/* The same of any window that there is a program for (3 or 5, by 1 or 2). */
HT_TARGET static void HT_WIDE(square)(const ht_conv_call* call, const HT_X* x, const float* w, const float* bias, float* y, int64_t down,
                                      int64_t right, int64_t top, int64_t features, int64_t apart, int r, int step) {
  if (r == 3 && step == 1) HT_WIDE(square_of)(call, x, w, bias, y, down, right, top, features, apart, 3, 1);
  else if (r == 3) HT_WIDE(square_of)(call, x, w, bias, y, down, right, top, features, apart, 3, 2);
  else if (step == 1) HT_WIDE(square_of)(call, x, w, bias, y, down, right, top, features, apart, 5, 1);
  else HT_WIDE(square_of)(call, x, w, bias, y, down, right, top, features, apart, 5, 2);
}

#if HT_PLAIN
/* Four rows of an image from p on; 0 where no program is for such windows. */
HT_TARGET static int HT_WIDE(four_rows)(const ht_conv_call* call, const ht_conv* conv, const float* x, const float* w, int64_t p, float* y) {
  const ht_window *tall = &conv->tall, *wide = &conv->wide;
  const int r = tall->taps, step = tall->stride;
  if (!ht_direct_squares(conv)) return 0;
  const ht_direct_inside in = ht_direct_inside_of(wide, call);
  const int64_t low = in.low, high = in.high, top = p * step - tall->before;
  for (int64_t q = 0, now; q < call->q; q += now) {
    now = q >= low && q + 2 <= high ? 2 : 1;
    if (now == 1 && q > low && q < high) now = 2, q -= 1; /* one of them again, rather than one alone */
    const float* from = x + top * call->xh + (q * step - wide->before) * call->xw;
    float* to = y + q * call->yw;
    if (now == 2) HT_WIDE(square)(call, from, w, call->bias, to, call->yh, call->yw, top, conv->features, conv->features, r, step);
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
#endif
