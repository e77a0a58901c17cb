/* Depthwise convolutions without a product: included once for each width of vectors, by conv_direct.c.
 *
 * HT_V: a vector; HT_N: its lanes; HT_LOAD(p), HT_PART(p, low, high): lanes [low, high) and zeros; HT_STORE(p, v, n): the first n;
 * HT_EVERY(p): a number in all lanes; HT_FMA(a, b, c); HT_EVEN(p, low, high): every other element from p on. */

/* Channels first. Lines of the image that a strip of the output needs, padded: every `across`-th element one after the other, so
 * that taps of all strides load whole vectors. `length`: floats of one such part of a line. */
HT_TARGET static void HT_WIDE(lines_of)(const ht_conv_call* call, const float* x, int64_t top, int64_t lines, int64_t left, int across,
                                        int64_t length, float* out) {
  for (int64_t at = top; at < top + lines; ++at) {
    const float* row = x + at * call->xh;
    for (int part = 0; part < across; ++part)
      for (int64_t j = 0; j < length; j += HT_N, out += HT_N) {
        int64_t from = j * across + part - left;
        int64_t low = from < 0 ? -from : 0, high = at < 0 || at >= call->h || from >= call->w ? 0 : call->w - from, most = HT_N * across;
        low = low < most ? low : most;
        high = high < most ? high : most;
        HT_V v;
        if (across == 1) v = HT_PART(row + from, low, high);
        else if (across == 2) v = HT_EVEN(row + from, low, high);
        else {
          float lanes[HT_N];
          for (int i = 0; i < HT_N; ++i) lanes[i] = i * across >= low && i * across < high ? row[from + i * across] : 0;
          v = HT_LOAD(lanes);
        }
        HT_STORE(out, v, HT_N);
      }
  }
}

/* `rows` output rows of `count` columns. Every line that is loaded serves all rows whose window it lies in. `at`: of each tap of a
 * line, where it begins; `line`: from one line to the next. */
HT_TARGET static inline __attribute__((always_inline)) void HT_WIDE(rows_of)(const float* x, int64_t line, const int64_t* at,
                                                                             const float* w, float bias, float* y, int64_t stride,
                                                                             int64_t count, int rows, int r, int s, int down, int thick) {
  const int lines = (rows - 1) * down + (r - 1) * thick + 1;
  for (int64_t q = 0; q < count; q += HT_N) {
    HT_V sums[4];
#pragma GCC unroll 4
    for (int i = 0; i < rows; ++i) sums[i] = HT_EVERY(&bias);
#pragma GCC unroll 11
    for (int k = 0; k < lines; ++k)
#pragma GCC unroll 5
      for (int u = 0; u < s; ++u) {
        HT_V v = HT_LOAD(x + k * line + at[u] + q);
#pragma GCC unroll 4
        for (int i = 0; i < rows; ++i) { /* thick times t is the line within the row's window */
          int within = k - i * down;
          if (within < 0 || within > (r - 1) * thick || within % thick != 0) continue;
          sums[i] = HT_FMA(HT_EVERY(w + within / thick * s + u), v, sums[i]);
        }
      }
    int64_t n = count - q < HT_N ? count - q : HT_N;
#pragma GCC unroll 4
    for (int i = 0; i < rows; ++i) HT_STORE(y + i * stride + q, sums[i], n);
  }
}

HT_TARGET static void HT_WIDE(plane)(const ht_conv_call* call, const ht_conv* conv, const float* x, const float* w, float bias, float* y,
                                     int most, float* room) {
  const ht_window *tall = &conv->tall, *wide = &conv->wide;
  int across = wide->stride;
  int square = tall->dilation == 1 && tall->taps == wide->taps && tall->stride <= 2 && (tall->taps == 3 || tall->taps == 5);
  int size = HT_SPECIAL && square ? tall->taps * 10 + tall->stride : 0;
  int64_t at[HT_DIRECT_TAPS], reach = (int64_t)tall->dilation * (tall->taps - 1);
  int64_t behind = ((int64_t)wide->dilation * (wide->taps - 1)) / across + 1;
  for (int64_t q = 0; q < call->q; q += HT_DIRECT_COLUMNS) {
    int64_t count = call->q - q < HT_DIRECT_COLUMNS ? call->q - q : HT_DIRECT_COLUMNS;
    int64_t length = (count + behind + 2 * HT_N - 1) / HT_N * HT_N, line = length * across;
    for (int u = 0; u < wide->taps; ++u) at[u] = u * wide->dilation % across * length + (int64_t)u * wide->dilation / across;
    int64_t strip = (HT_DIRECT_FLOATS / line - reach - 1) / tall->stride + 1;
    for (int64_t p = 0, rows; p < call->p; p += rows) {
      rows = call->p - p < strip ? call->p - p : strip;
      int64_t top = p * tall->stride - tall->before;
      HT_WIDE(lines_of)(call, x, top, (rows - 1) * tall->stride + reach + 1, wide->before - q * across, across, length, room);
      for (int64_t i = 0, now; i < rows; i += now) {
        now = rows - i >= 4 && most >= 4 ? 4 : 1;
        const float* from = room + i * tall->stride * line;
        float* to = y + (p + i) * call->yh + q;
#define HT_ROWS(n, r, st)                                                                 \
  case r * 100 + st * 10 + n:                                                             \
    HT_WIDE(rows_of)(from, line, at, w, bias, to, call->yh, count, n, r, r, st, 1);       \
    break;
        switch (size / 10 * 100 + size % 10 * 10 + (int)now) {
#if HT_SPECIAL
          HT_ROWS(4, 3, 1) HT_ROWS(1, 3, 1) HT_ROWS(4, 3, 2) HT_ROWS(1, 3, 2)
          HT_ROWS(4, 5, 1) HT_ROWS(1, 5, 1) HT_ROWS(4, 5, 2) HT_ROWS(1, 5, 2)
#endif
          default:
            now = 1;
            HT_WIDE(rows_of)(from, line, at, w, bias, to, call->yh, count, 1, tall->taps, wide->taps, tall->stride, tall->dilation);
        }
#undef HT_ROWS
      }
    }
  }
}

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

/* Channels first, a vector of channels at a time: pixels are turned to channels last in padded lines of scratch memory, `most` of them
 * are computed at once, and turned back. Of planes of few columns, whose lines would fill vectors badly. -1: no room. */
HT_TARGET static inline __attribute__((always_inline)) void HT_WIDE(turned_pixels)(const float* x, int64_t line, int64_t across, const float* w,
                                                                                   const ht_conv* conv, HT_V start, float* out, int count) {
  const ht_window *tall = &conv->tall, *wide = &conv->wide;
  HT_V sums[8];
#pragma GCC unroll 8
  for (int j = 0; j < count; ++j) sums[j] = start;
  for (int t = 0; t < tall->taps; ++t)
    for (int u = 0; u < wide->taps; ++u, w += HT_N) {
      const float* from = x + (int64_t)t * tall->dilation * line + (int64_t)u * wide->dilation * HT_N;
      const HT_V tap = HT_LOAD(w);
#pragma GCC unroll 8
      for (int j = 0; j < count; ++j) sums[j] = HT_FMA(tap, HT_LOAD(from + j * across), sums[j]);
    }
#pragma GCC unroll 8
  for (int j = 0; j < count; ++j) HT_STORE(out + j * HT_N, sums[j], HT_N);
}

HT_TARGET static int HT_WIDE(channels)(const ht_conv_call* call, const ht_conv* conv, const float* x, const float* packed, const float* bias,
                                       float* y, int64_t some, float* room, float* made) {
  const ht_window *tall = &conv->tall, *wide = &conv->wide;
  const int64_t reach = (int64_t)tall->dilation * (tall->taps - 1), columns = call->q + 7, taps = (int64_t)tall->taps * wide->taps;
  const int64_t width = (columns - 1) * wide->stride + (int64_t)wide->dilation * (wide->taps - 1) + 1, line = width * HT_N;
  const int64_t left = wide->before < width ? wide->before : width, right = call->w + left < width ? call->w + left : width;
  const int64_t stride = ht_conv_direct_stride(conv);
  int64_t strip = HT_DIRECT_FLOATS / line - reach < 1 ? 0 : (HT_DIRECT_FLOATS / line - reach - 1) / tall->stride + 1;
  if (strip > (HT_MADE_FLOATS / HT_N - 4) / call->q) strip = (HT_MADE_FLOATS / HT_N - 4) / call->q;
  if (strip < 1) return -1;
  _Alignas(64) float weights[HT_DIRECT_TAPS * HT_DIRECT_TAPS * HT_N], starts[HT_N] = {0};
  for (int64_t tap = 0; tap < taps; ++tap)
    for (int64_t l = 0; l < HT_N; ++l) weights[tap * HT_N + l] = l < some ? packed[l * stride + tap] : 0;
  for (int64_t l = 0; l < some && bias != NULL; ++l) starts[l] = bias[l];
  const HT_V start = HT_LOAD(starts);
  for (int64_t p = 0, rows; p < call->p; p += rows) {
    rows = call->p - p < strip ? call->p - p : strip;
    const int64_t top = p * tall->stride - tall->before;
    for (int64_t l = 0; l < (rows - 1) * tall->stride + reach + 1; ++l) {
      float* to = room + l * line;
      const int inside = top + l >= 0 && top + l < call->h;
      memset(to, 0, (size_t)((inside ? left : width) * HT_N) * sizeof *to);
      if (!inside) continue;
      for (int64_t j = left; j < right; j += HT_N)
        ht_square(HT_N, x + (top + l) * call->xh + j - left, call->xc, some, right - j < HT_N ? right - j : HT_N, to + j * HT_N, HT_N, HT_N);
      memset(to + right * HT_N, 0, (size_t)((width - right) * HT_N) * sizeof *to);
    }
    for (int64_t i = 0; i < rows; ++i) /* what lies beyond a row is written again by the next one */
      for (int64_t q = 0; q < call->q;) {
        const float* from = room + i * tall->stride * line + q * wide->stride * HT_N;
        float* to = made + (i * call->q + q) * HT_N;
        if (call->q - q > 4) HT_WIDE(turned_pixels)(from, line, (int64_t)wide->stride * HT_N, weights, conv, start, to, 8), q += 8;
        else HT_WIDE(turned_pixels)(from, line, (int64_t)wide->stride * HT_N, weights, conv, start, to, 4), q += 4;
      }
    const int64_t joined = call->yh == call->q ? rows : 1, length = joined * call->q;
    for (int64_t i = 0; i < rows; i += joined)
      for (int64_t at = 0; at < length; at += HT_N) {
        const int64_t pixels = length - at < HT_N ? length - at : HT_N;
        ht_square(HT_N, made + (i * call->q + at) * HT_N, HT_N, pixels, some, y + (p + i) * call->yh + at, call->yf, pixels);
      }
  }
  return 0;
}
