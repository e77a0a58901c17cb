/* Depthwise convolutions in other types than fp32. Windows of 3 or 5 lines that move by one or two go by tiles of rows (conv_direct.h),
 * the others, and pixels at the border, by sums of one vector of pixels or channels that stay in a register for all taps. A pixel's bits do
 * not depend on the batch or on threads: how it is computed follows from its place in the image. */
#include <string.h>

#include "conv_direct.h"
#include "epilogue.h"

#define SUMS 4096
#define STRIP 512  /* features at a time, of four rows: the last strip may have up to a vector more */
#define WIDEST 512 /* columns at a time */
#define TAPS 64    /* of one call of the program */
#define PIXELS 256 /* of a line, channels first */

typedef struct {
  const ht_conv* conv;
  const ht_kernel* kernel;
  const ht_conv_call* call;
  ht_phase phase;
  int64_t fours; /* channels last: tiles of four rows of an image; 0: pixels are computed one by one */
  int planes, images; /* channels first: whether tiles of rows are computed, and channels are lanes there */
  int64_t all, chunks;
  atomic_int failed;
} job;

typedef struct { /* taps that are collected for one call */
  const char* x[TAPS];
  const float* w[TAPS];
  int64_t count;
} taps;

static void add(const job* j, taps* found, void* sums, int64_t count, int64_t w_step) {
  if (found->count > 0) j->conv->typed->taps(sums, count, found->x, found->w, w_step, found->count);
  found->count = 0;
}

/* Channels last: features [first, first + count) of a pixel, and of as many behind it in its row as see the same taps, at most
 * `most`. How many those are. */
static int64_t sum_pixels(const job* j, int64_t pixel, int64_t most, int64_t first, int64_t count, float* sums, int64_t stride) {
  const ht_side *tall = &j->phase.tall, *wide = &j->phase.wide;
  const ht_conv_call* call = j->call;
  const int64_t size = j->conv->typed->x.bits / 8, row = pixel / wide->count, b = row / tall->count, step = wide->move * call->xw * size;
  const int64_t y0 = row % tall->count * tall->move + tall->at, x0 = pixel % wide->count * wide->move + wide->at;
  const int64_t reach = (wide->taps - 1) * wide->by, left = wide->count - pixel % wide->count;
  int64_t pixels = 1;
  if (x0 >= 0 && x0 + reach < call->w) pixels = min_i64((call->w - 1 - reach - x0) / wide->move + 1, min_i64(left, most));
  taps found = {.count = 0};
  for (int64_t t = 0; t < tall->taps; ++t)
    for (int64_t u = 0; u < wide->taps; ++u) {
      const int64_t y = y0 + t * tall->by, x = x0 + u * wide->by;
      if (y < 0 || y >= call->h || x < 0 || x >= call->w) continue;
      found.x[found.count] = (const char*)call->x + (b * call->xb + y * call->xh + x * call->xw + first) * size;
      found.w[found.count++] = call->weight + (t * wide->taps + u) * j->conv->features + first;
      if (found.count < TAPS) continue;
      pixels = 1; /* a window of several calls: pixel by pixel */
      add(j, &found, sums, count, 1);
    }
  for (int64_t i = 1; i < pixels && found.count > 0; ++i, sums += stride) {
    j->conv->typed->taps(sums, count, found.x, found.w, 1, found.count);
    for (int64_t tap = 0; tap < found.count; ++tap) found.x[tap] += step;
  }
  add(j, &found, sums, count, 1);
  return pixels;
}

static int run_last(const job* j, int64_t pixel, int64_t end) {
  float sums[SUMS];
  const int64_t features = j->conv->features, strip = min_i64(features, SUMS / 4), some = SUMS / strip;
  for (; pixel < end; pixel += some)
    for (int64_t first = 0; first < features; first += strip) {
      const int64_t pixels = min_i64(some, end - pixel), count = min_i64(strip, features - first);
      memset(sums, 0, (size_t)(pixels * strip) * sizeof *sums);
      for (int64_t i = 0; i < pixels;) i += sum_pixels(j, pixel + i, pixels - i, first, count, sums + i * strip, strip);
      if (ht_conv_finish_typed(j->conv, j->kernel, j->call, &j->phase, sums, strip, first, count, pixel, pixels) != 0) return -1;
    }
  return 0;
}

/* Channels last: pixels [q, q + count) of four rows from p on, `features` features from `first` on, into sums (row, pixel, feature). */
static void sum_four(const job* j, int64_t b, int64_t p, int64_t q, int64_t count, int64_t first, int64_t features, float* sums) {
  const ht_conv* conv = j->conv;
  const ht_conv_call* call = j->call;
  const ht_window *tall = &conv->tall, *wide = &conv->wide;
  const ht_direct_inside in = ht_direct_inside_of(wide, call);
  const int64_t size = conv->typed->x.bits / 8, down = count * features, top = p * tall->stride - tall->before;
  for (int64_t i = 0, now; i < count; i += now) {
    int64_t at = q + i;
    now = at >= in.low && at + 2 <= in.high && i + 2 <= count ? 2 : 1;
    if (now == 1 && i > 0 && at > in.low && at < in.high) now = 2, --i, --at; /* one of them again, rather than one alone */
    float* to = sums + i * features;
    if (now == 2) {
      const int64_t from = b * call->xb + top * call->xh + (at * wide->stride - wide->before) * call->xw + first;
      conv->typed->direct->squares(conv, call, (const char*)call->x + from * size, call->weight + first, to, down, features, top, features);
      continue;
    }
    for (int64_t row = 0; row < 4; ++row, to += down) {
      memset(to, 0, (size_t)features * sizeof *to);
      sum_pixels(j, (b * call->p + p + row) * call->q + at, 1, first, features, to, features);
    }
  }
}

/* Tiles of four rows. The last of an image begins where four are left, and what the one before has finished is not finished again. */
static int run_fours(const job* j, int64_t tile, int64_t end) {
  const ht_conv_call* call = j->call;
  const int64_t all = j->conv->features;
  float sums[2 * SUMS];
  for (; tile < end; ++tile) {
    const int64_t b = tile / j->fours, asked = tile % j->fours * 4, p = min_i64(asked, call->p - 4);
    for (int64_t first = 0, features; first < all; first += features) {
      features = all - first < STRIP + j->conv->lanes ? all - first : STRIP;
      const int64_t some = SUMS / features / 4 > 2 ? SUMS / features / 4 : 2;
      for (int64_t q = 0, count; q < call->q; q += count) {
        count = min_i64(some, call->q - q);
        sum_four(j, b, p, q, count, first, features, sums);
        for (int64_t row = asked - p; row < 4; ++row)
          if (ht_conv_finish_typed(j->conv, j->kernel, call, &j->phase, sums + row * count * features, features, first, features,
                                   (b * call->p + p + row) * call->q + q, count) != 0)
            return -1;
      }
    }
  }
  return 0;
}

/* Channels first: `count` pixels of output row p from q on. Where a window leaves the image the pixel is computed alone. */
static void sum_line(const job* j, int64_t b, int64_t f, int64_t p, int64_t q, int64_t count, float* sums) {
  const ht_side *tall = &j->phase.tall, *wide = &j->phase.wide;
  const ht_conv_call* call = j->call;
  const int64_t size = j->conv->typed->x.bits / 8, gap = wide->move * call->xw, each = j->conv->features / j->conv->channels;
  const int64_t reach = (wide->taps - 1) * wide->by, y0 = p * tall->move + tall->at;
  const char* plane = (const char*)call->x + (b * call->xb + f / each * call->xc) * size;
  const float* weight = call->weight + ht_conv_direct_at(j->conv, f);
  char lines[TAPS * PIXELS * sizeof(float)]; /* of pixels that do not lie side by side */
  for (int64_t i = 0, length; i < count; i += length) {
    const int64_t x0 = (q + i) * wide->move + wide->at;
    length = 1;
    if (x0 >= 0 && x0 + reach < call->w) length = min_i64((call->w - 1 - reach - x0) / wide->move + 1, count - i);
    taps found = {.count = 0};
    for (int64_t t = 0; t < tall->taps; ++t)
      for (int64_t u = 0; u < wide->taps; ++u) {
        const int64_t y = y0 + t * tall->by, x = x0 + u * wide->by;
        if (y < 0 || y >= call->h || x < 0 || x >= call->w) continue;
        const char* from = plane + (y * call->xh + x * call->xw) * size;
        if (gap != 1 && length > 1) {
          char* line = lines + found.count * PIXELS * size;
          for (int64_t l = 0; l < length; ++l) memcpy(line + l * size, from + l * gap * size, (size_t)size);
          from = line;
        }
        found.x[found.count] = from;
        found.w[found.count++] = weight + (t * wide->taps + u) * j->conv->lanes;
        if (found.count == TAPS) add(j, &found, sums + i, length, 0);
      }
    add(j, &found, sums + i, length, 0);
  }
}

/* What follows the sums of one feature: values of a channel run along rows, of which there is one. */
static int finish_line(const job* j, int64_t b, int64_t f, int64_t p, int64_t q, int64_t count, float* sums) {
  const ht_typed* typed = j->conv->typed;
  const ht_conv_call* call = j->call;
  float wide[PIXELS];
  if (typed->floats != NULL && !typed->raw) typed->floats(sums, count, (char*)sums, count * 4, 1, count);
  for (int64_t i = 0; i < count && call->bias != NULL; ++i) sums[i] += call->bias[f];
  if (j->kernel->epilogue != NULL) {
    ht_extra extra[HT_MAX_EXTRA];
    for (int e = 0; e < call->extras; ++e) {
      const ht_conv_extra* of = &call->extra[e];
      extra[e] = (ht_extra){of->data + f * of->sf, 0, 0};
      if (of->sb == 0 && of->sh == 0 && of->sw == 0) continue;
      const char* from = (const char*)of->data + (b * of->sb + f * of->sf + p * of->sh + q * of->sw) * (typed->whole.bits / 8);
      ht_typed_widen(typed->whole, from, 0, of->sw, 1, count, wide, count);
      extra[e] = (ht_extra){wide, 0, 1};
    }
    if (ht_epilogue_run(j->kernel->epilogue, j->kernel->lanes, sums, count, extra, call->extras, 0, 0, 1, count) != 0) return -1;
  }
  const int64_t size = typed->y.bits / 8;
  char* y = (char*)call->y + (b * call->yb + f * call->yf + p * call->yh + q * call->yw) * size;
  if (call->yw == 1) typed->store(sums, count, y, count * size, 1, count);
  else
    for (int64_t i = 0; i < count; ++i) typed->store(sums + i, 1, y + i * call->yw * size, size, 1, 1);
  return 0;
}

/* Whether rows of y, and of all that an epilogue reads there, follow one another. */
static int rows_follow(const ht_conv_call* call) {
  int follow = call->yw == 1 && call->yh == call->q;
  for (int e = 0; e < call->extras; ++e) follow = follow && call->extra[e].sh == call->extra[e].sw * call->q;
  return follow;
}

/* What follows the sums of whole planes whose rows follow one another in y, each filled up to `width` of whole vectors, and reads channels alone. */
static int finish_whole(const job* j, const ht_direct_band* at, int64_t width, float* sums) {
  const ht_typed* typed = j->conv->typed;
  const ht_conv_call* call = j->call;
  const int64_t size = typed->y.bits / 8;
  if (typed->floats != NULL && !typed->raw) typed->floats(sums, width, (char*)sums, width * 4, at->planes, width);
  for (int64_t f = 0; f < at->planes && call->bias != NULL; ++f)
    for (int64_t i = 0; i < width; ++i) sums[f * width + i] += call->bias[at->f + f];
  if (j->kernel->epilogue != NULL) {
    ht_extra extra[HT_MAX_EXTRA];
    for (int e = 0; e < call->extras; ++e) extra[e] = (ht_extra){call->extra[e].data + at->f * call->extra[e].sf, call->extra[e].sf, 0};
    if (ht_epilogue_run(j->kernel->epilogue, j->kernel->lanes, sums, width, extra, call->extras, 0, 0, at->planes, width) != 0) return -1;
  }
  typed->store(sums, width, (char*)call->y + (at->b * call->yb + at->f * call->yf) * size, call->yf * size, at->planes, call->p * call->q);
  return 0;
}

/* What follows the sums of a band, (plane, row, column) side by side, its first row being `p`. */
static int finish_band(const job* j, const ht_direct_band* at, int64_t p, int64_t rows, float* sums) {
  const int64_t across = at->end - at->q, line = rows_follow(j->call) && across == j->call->q ? rows * across : across;
  for (int64_t done = 0, count; done < at->planes * rows * across; done += count) {
    const int64_t f = done / (rows * across), row = done / across % rows, column = done % across;
    count = min_i64(PIXELS, line - done % line);
    if (finish_line(j, at->b, at->f + f, p + row, at->q + column, count, sums + done) != 0) return -1;
  }
  return 0;
}

/* Vectors [vector, end) of channels, of one image after another. */
static int run_images(const job* j, int64_t vector, int64_t end) {
  const ht_conv* conv = j->conv;
  const ht_direct_lines of = ht_direct_lines_of(conv, j->call, HT_DIRECT_TYPED_ROWS, conv->typed->x.bits / 8);
  const int64_t lanes = conv->lanes, vectors = ceil_div(conv->features, lanes);
  const int joined = rows_follow(j->call) && (j->kernel->epilogue == NULL || ht_conv_reads_channels(j->kernel, j->call));
  ht_direct_taps met[HT_DIRECT_OUTPUT];
  float sums[SUMS];
  ht_direct_taps_of(&of, j->call, met);
  for (; vector < end; ++vector) {
    const int64_t f = vector % vectors * lanes;
    const ht_direct_band at = {.b = vector / vectors, .f = f, .planes = min_i64(lanes, conv->features - f), .last = of.tiles, .end = j->call->q};
    conv->typed->direct->images(conv, j->call, &of, met, &at, sums);
    const int64_t pixels = j->call->p * j->call->q, width = ceil_div(pixels, lanes) * lanes;
    if (joined) {
      if (finish_whole(j, &at, width, sums) != 0) return -1;
      continue;
    }
    for (int64_t plane = 0; plane < at.planes; ++plane) {
      ht_direct_band one = at;
      one.f += plane, one.planes = 1;
      if (finish_band(j, &one, 0, j->call->p, sums + plane * width) != 0) return -1;
    }
  }
  return 0;
}

/* Planes [plane, end) by tiles of rows: several at a time where they are small, else bands of rows and columns. */
static int run_planes(const job* j, int64_t plane, int64_t end) {
  const ht_conv* conv = j->conv;
  const ht_conv_call* call = j->call;
  const ht_direct_lines of = ht_direct_lines_of(conv, call, HT_DIRECT_TYPED_ROWS, conv->typed->x.bits / 8);
  const int64_t wide = min_i64(call->q, WIDEST), tiles = SUMS / wide / HT_DIRECT_TYPED_ROWS, whole = call->p * call->q;
  float sums[SUMS];
  for (ht_direct_band at = {.planes = 1}; plane < end; plane += at.planes) {
    at.b = plane / conv->features, at.f = plane % conv->features;
    at.planes = whole > SUMS / 2 ? 1 : min_i64(SUMS / whole, min_i64(end - plane, conv->features - at.f));
    for (at.first = 0; at.first < of.tiles; at.first = at.last) {
      at.last = at.planes > 1 ? of.tiles : min_i64(of.tiles, at.first + tiles);
      const int64_t p = ht_direct_row(&of, at.first), rows = ht_direct_row(&of, at.last) - p;
      for (at.q = 0; at.q < call->q; at.q = at.end) {
        at.end = min_i64(call->q, at.q + WIDEST);
        conv->typed->direct->planes(conv, call, &of, &at, sums);
        if (finish_band(j, &at, p, rows, sums) != 0) return -1;
      }
    }
  }
  return 0;
}

static int run_plane(const job* j, int64_t plane) {
  float sums[PIXELS];
  const int64_t b = plane / j->conv->features, f = plane % j->conv->features;
  for (int64_t p = 0; p < j->call->p; ++p)
    for (int64_t q = 0; q < j->call->q; q += PIXELS) {
      const int64_t count = min_i64(PIXELS, j->call->q - q);
      memset(sums, 0, (size_t)count * sizeof *sums);
      sum_line(j, b, f, p, q, count, sums);
      if (finish_line(j, b, f, p, q, count, sums) != 0) return -1;
    }
  return 0;
}

static void run_chunk(void* arg, int64_t index) {
  job* j = arg;
  int64_t first = j->all * index / j->chunks, end = j->all * (index + 1) / j->chunks;
  int rc = 0;
  if (j->fours > 0) rc = run_fours(j, first, end);
  else if (j->conv->last) rc = run_last(j, first, end);
  else if (j->images) rc = run_images(j, first, end);
  else if (j->planes) rc = run_planes(j, first, end);
  else
    for (; first < end && rc == 0; ++first) rc = run_plane(j, first);
  if (rc != 0) atomic_store_explicit(&j->failed, 1, memory_order_relaxed);
}

int ht_conv_run_typed_direct(const ht_conv* conv, const ht_kernel* kernel, const ht_conv_call* call, int threads) {
  job j = {.conv = conv, .kernel = kernel, .call = call, .chunks = 4 * (int64_t)threads};
  atomic_init(&j.failed, 0);
  ht_conv_phase(conv, 0, call->p, call->q, &j.phase);
  if (conv->typed->direct != NULL && conv->last && call->p >= 4 && ht_direct_squares(conv)) j.fours = ceil_div(call->p, 4);
  if (conv->typed->direct != NULL && !conv->last) j.planes = ht_direct_is_tiled(conv) && conv->tall.taps <= 5 && call->xw == 1;
  j.images = j.planes && ht_direct_is_small(conv, call);
  j.all = call->batch * (j.images ? ceil_div(conv->features, conv->lanes) : !conv->last ? conv->features : j.fours > 0 ? j.fours : call->p * call->q);
  if (threads == 1) j.chunks = 1;
  if (j.chunks > j.all) j.chunks = j.all;
  if (j.chunks <= 1) run_chunk(&j, 0);
  else ht_pool_run(run_chunk, &j, j.chunks, threads);
  return atomic_load_explicit(&j.failed, memory_order_relaxed) ? -1 : 0;
}
