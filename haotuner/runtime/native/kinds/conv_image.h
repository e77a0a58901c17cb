/* What windows see, laid out for the micro-kernels: included once for each width of vectors, by conv_image.c. */

/* Channels first: windows that are the pixels themselves, of one image. A channel's pixels lie side by side: it goes into all panels at once,
 * so that few pages are read at a time. Whether it is so. */
HT_TARGET static int HT_WIDE(planes)(const ht_image* im, float* out) {
  const ht_side *tall = &im->phase->tall, *wide = &im->phase->wide;
  const ht_conv_call* call = im->call;
  const int64_t width = im->width, plane = tall->count * wide->count, pixel = im->pixel % plane, whole = im->count / width, rest = im->count % width;
  if (tall->taps * wide->taps != 1 || tall->move != 1 || wide->move != 1 || tall->at != 0 || wide->at != 0 || tall->count != call->h ||
      wide->count != call->w || call->xw != 1 || (call->h > 1 && call->xh != call->w) || pixel + im->count > plane)
    return 0;
  const float* from = call->x + im->pixel / plane * call->xb + (im->channel + im->from) * call->xc + pixel;
  for (int64_t c = 0; c < im->depth; ++c, from += call->xc, out += width) {
    const float* next = from + (c + 2 < im->depth ? 2 * call->xc : 0);
    for (int64_t p = 0; p < whole; ++p) {
      for (int64_t i = 0; i < width; i += 16) __builtin_prefetch(next + p * width + i);
      HT_WIDE(line)(out + p * im->depth * width, from + p * width, width);
    }
    if (rest > 0) HT_WIDE(lines)(out + whole * im->depth * width, 0, from + whole * width, 0, 1, 0, rest, width, 1);
  }
  return 1;
}

/* Channels first. Pixels of a panel in pieces that lie side by side in a row of the image; a term is copied for all channels. */
HT_TARGET static void HT_WIDE(first)(const ht_image* im, float* out) {
  const ht_phase* ph = im->phase;
  const ht_conv_call* call = im->call;
  int64_t per_channel = ph->tall.taps * ph->wide.taps, q_count = ph->wide.count, width = im->width, move = ph->wide.move;
  int64_t end = im->pixel + im->count, channels = im->conv->channels / im->conv->groups;
  if (HT_WIDE(planes)(im, out)) return;
  const int whole = im->from == 0 && im->depth == channels * per_channel; /* terms are not cut: divisions take as long as the copies */
  for (int64_t pixel = im->pixel; pixel < end; pixel += width, out += im->depth * width) {
    int64_t last = pixel + width < end ? pixel + width : end;
    if (last - pixel < width) /* beyond the last pixel: numbers that no output keeps, but no signalling ones */
      for (int64_t k = 0; k < im->depth; ++k) memset(out + k * width + (last - pixel), 0, (size_t)(width - (last - pixel)) * sizeof *out);
    for (int64_t at = pixel; at < last;) {
      int64_t row = at / q_count, column = at % q_count, b = row / ph->tall.count, p = row % ph->tall.count;
      int64_t length = q_count - column < last - at ? q_count - column : last - at;
      const float* image = call->x + b * call->xb + im->channel * call->xc;
      for (int64_t tap = 0, t = 0, u = 0; tap < per_channel; ++tap, u + 1 < ph->wide.taps ? ++u : (u = 0, ++t)) {
        /* the first channel whose term (channel, tap) is in [from, from + depth), and the first that is beyond */
        int64_t c = 0, c_end = channels;
        if (!whole) {
          c = im->from < tap ? 0 : (im->from - tap + per_channel - 1) / per_channel;
          c_end = (im->from + im->depth - tap + per_channel - 1) / per_channel;
          if (im->from + im->depth <= tap) continue;
        }
        float* to = out + (c * per_channel + tap - im->from) * width + (at - pixel);
        int64_t y = p * ph->tall.move + ph->tall.at + t * ph->tall.by, x = column * move + ph->wide.at + u * ph->wide.by;
        /* the pixels whose column lies in the image; only borders divide */
        int64_t low = x >= 0 ? 0 : (-x + move - 1) / move, high = length;
        if (x + (length - 1) * move >= call->w) high = x >= call->w ? 0 : (call->w - x + move - 1) / move;
        if (y < 0 || y >= call->h || low >= high) low = high = length; /* nothing of the image: all zero */
        const float* from = image + c * call->xc + y * call->xh + x * call->xw;
        int64_t step = per_channel * width;
        HT_WIDE(lines)(to, step, from, call->xc, c_end - c, low, high, length, move * call->xw);
      }
      at += length;
    }
  }
}

/* Channels last, taps side by side: windows of `count` pixels of row p that lie in the image from side to side, the first at column x. */
HT_TARGET static void HT_WIDE(within)(const ht_image* im, const float* image, int64_t p, int64_t x, int64_t count, float* out) {
  const ht_phase* ph = im->phase;
  const ht_conv_call* call = im->call;
  const int64_t rows = ph->tall.taps, by = ph->tall.by, y0 = p * ph->tall.move + ph->tall.at, h = call->h;
  const int64_t length = ph->wide.taps * call->xw, step = ph->wide.move * call->xw, down = by * call->xh, width = im->width;
  const float* from = image + y0 * call->xh + x * call->xw;
  for (int64_t i = 0; i < count; ++i, from += step, out += width)
    for (int64_t t = 0; t < rows; ++t) {
      const int64_t y = y0 + t * by;
      if (y >= 0 && y < h) HT_WIDE(line)(out + t * length, from + t * down, length);
      else memset(out + t * length, 0, (size_t)length * sizeof *out);
    }
}

/* Channels last: the taps of a window one after the other, each the channels of a group. Places go on from pixel to pixel and from tap
 * to tap: divisions would take as long as the copies. */
HT_TARGET static void HT_WIDE(last)(const ht_image* im, float* out) {
  const ht_phase* ph = im->phase;
  const ht_conv_call* call = im->call;
  const int64_t channels = im->conv->channels / im->conv->groups, end = im->from + im->depth;
  const int64_t q_count = ph->wide.count, taps = ph->wide.taps > 0 ? ph->wide.taps : 1;
  /* Taps side by side in memory are copied at once. */
  const int joined = ph->wide.by == 1 && im->conv->groups == 1 && call->xw == channels;
  const int whole = joined && im->from == 0 && im->depth == channels * ph->tall.taps * ph->wide.taps && im->depth > 0;
  const int64_t move = ph->wide.move, least = -ph->wide.at, most = call->w - taps - ph->wide.at; /* q * move of such windows */
  const int64_t tap0 = im->from / channels, c0 = im->from % channels, t0 = tap0 / taps, u0 = tap0 % taps;
  int64_t row = im->pixel / q_count, q = im->pixel % q_count, b = row / ph->tall.count, p = row % ph->tall.count;
  for (int64_t i = 0, some; i < im->count; i += some, out += some * im->width) {
    const int64_t y0 = p * ph->tall.move + ph->tall.at, x0 = q * ph->wide.move + ph->wide.at;
    const float* image = call->x + b * call->xb + im->channel * call->xc;
    int64_t t = t0, u = u0, c = c0, k = im->from;
    some = 1;
    if (whole && q * move >= least && q * move <= most) {
      int64_t left = q_count - q < im->count - i ? q_count - q : im->count - i;
      while (some < left && (q + some) * move <= most) ++some;
      HT_WIDE(within)(im, image, p, x0, some, out);
      k = end;
    }
    for (; k < end; c = 0) {
      const int64_t y = y0 + t * ph->tall.by, x = x0 + u * ph->wide.by;
      const int inside = y >= 0 && y < call->h && x >= 0 && x < call->w;
      int64_t more = 0, length = channels - c;
      if (joined && inside) {
        const int64_t room = call->w - 1 - x;
        more = taps - 1 - u < room ? taps - 1 - u : room;
        length += more * channels;
      }
      if (length > end - k) length = end - k;
      if (inside) HT_WIDE(line)(out + (k - im->from), image + y * call->xh + x * call->xw + c, length);
      else memset(out + (k - im->from), 0, (size_t)length * sizeof *out);
      k += length;
      u += 1 + more;
      if (u >= taps) u = 0, ++t;
    }
    if ((q += some) < q_count) continue;
    q = 0;
    if (++p == ph->tall.count) p = 0, ++b;
  }
}
