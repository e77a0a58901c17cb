/* Depthwise convolutions in other types than fp32: sums of one vector of pixels or channels stay in a register for all taps. */
#include <string.h>

#include "conv.h"
#include "epilogue.h"

#define SUMS 4096
#define TAPS 64    /* of one call of the program */
#define PIXELS 256 /* of a line, channels first */

typedef struct {
  const ht_conv* conv;
  const ht_kernel* kernel;
  const ht_conv_call* call;
  ht_phase phase;
  int64_t all, chunks;
  atomic_int failed;
} job;

typedef struct { /* taps that are collected for one call */
  const char* x[TAPS];
  const float* w[TAPS];
  int64_t count;
} taps;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

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
  if (x0 >= 0 && x0 + reach < call->w) pixels = least((call->w - 1 - reach - x0) / wide->move + 1, least(left, most));
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
  const int64_t features = j->conv->features, strip = least(features, SUMS / 4), some = SUMS / strip;
  for (; pixel < end; pixel += some)
    for (int64_t first = 0; first < features; first += strip) {
      const int64_t pixels = least(some, end - pixel), count = least(strip, features - first);
      memset(sums, 0, (size_t)(pixels * strip) * sizeof *sums);
      for (int64_t i = 0; i < pixels;) i += sum_pixels(j, pixel + i, pixels - i, first, count, sums + i * strip, strip);
      if (ht_conv_finish_typed(j->conv, j->kernel, j->call, &j->phase, sums, strip, first, count, pixel, pixels) != 0) return -1;
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
  const float* weight = call->weight + f * ht_conv_direct_stride(j->conv);
  char lines[TAPS * PIXELS * 2]; /* of pixels that do not lie side by side */
  for (int64_t i = 0, length; i < count; i += length) {
    const int64_t x0 = (q + i) * wide->move + wide->at;
    length = 1;
    if (x0 >= 0 && x0 + reach < call->w) length = least((call->w - 1 - reach - x0) / wide->move + 1, count - i);
    taps found = {.count = 0};
    for (int64_t t = 0; t < tall->taps; ++t)
      for (int64_t u = 0; u < wide->taps; ++u) {
        const int64_t y = y0 + t * tall->by, x = x0 + u * wide->by;
        if (y < 0 || y >= call->h || x < 0 || x >= call->w) continue;
        const char* from = plane + (y * call->xh + x * call->xw) * size;
        if (gap != 1 && length > 1) {
          char* line = lines + found.count * PIXELS * 2;
          for (int64_t l = 0; l < length; ++l) memcpy(line + l * size, from + l * gap * size, (size_t)size);
          from = line;
        }
        found.x[found.count] = from;
        found.w[found.count++] = weight + t * wide->taps + u;
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

static int run_plane(const job* j, int64_t plane) {
  float sums[PIXELS];
  const int64_t b = plane / j->conv->features, f = plane % j->conv->features;
  for (int64_t p = 0; p < j->call->p; ++p)
    for (int64_t q = 0; q < j->call->q; q += PIXELS) {
      const int64_t count = least(PIXELS, j->call->q - q);
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
  if (j->conv->last) rc = run_last(j, first, end);
  else
    for (; first < end && rc == 0; ++first) rc = run_plane(j, first);
  if (rc != 0) atomic_store_explicit(&j->failed, 1, memory_order_relaxed);
}

int ht_conv_run_typed_direct(const ht_conv* conv, const ht_kernel* kernel, const ht_conv_call* call, int threads) {
  job j = {.conv = conv, .kernel = kernel, .call = call, .chunks = 4 * (int64_t)threads};
  atomic_init(&j.failed, 0);
  ht_conv_phase(conv, 0, call->p, call->q, &j.phase);
  j.all = call->batch * (conv->last ? call->p * call->q : conv->features);
  if (threads == 1) j.chunks = 1;
  if (j.chunks > j.all) j.chunks = j.all;
  if (j.chunks <= 1) run_chunk(&j, 0);
  else ht_pool_run(run_chunk, &j, j.chunks, threads);
  return atomic_load_explicit(&j.failed, memory_order_relaxed) ? -1 : 0;
}
