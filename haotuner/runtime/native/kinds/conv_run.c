/* One call: every phase and group, cut into chunks of pixels and of features, which threads share. */
#include <string.h>

#include "conv.h"

#define SHORTEST_RUN 32 /* terms: shorter ones are laid out, since a call of a micro-kernel costs some 20 ns */


typedef struct {
  const ht_conv* conv;
  const ht_kernel* kernel;
  const ht_conv_call* call;
  ht_phase phase;
  int64_t channels, features; /* of a group */
  int64_t pixels, block, blocks; /* pixels of all, of a block, blocks */
  int64_t span, spans;           /* features of a chunk, and chunks of them */
  int64_t part;                  /* terms of the sum in a block of image columns */
  int in_place;                  /* y's pixels are evenly spaced */
  atomic_int failed;
} job;

/* Where a pixel's first feature of a group lies in y. */
static float* place(const job* j, int64_t feature, int64_t pixel) {
  const ht_conv_call* call = j->call;
  const ht_side *tall = &j->phase.tall, *wide = &j->phase.wide;
  int64_t row = pixel / wide->count, b = row / tall->count, p = tall->first + row % tall->count * tall->step;
  int64_t q = wide->first + pixel % wide->count * wide->step;
  return call->y + b * call->yb + feature * call->yf + p * call->yh + q * call->yw;
}

/* From scratch memory to y: `rows` x `columns` of the tile, pixels from `pixel`, features from `feature` of all on. */
static void put(const job* j, const float* from, int64_t stride, int64_t feature, int64_t features, int64_t pixel, int64_t pixels) {
  const ht_side* wide = &j->phase.wide;
  const ht_conv_call* call = j->call;
  for (int64_t at = 0; at < pixels;) {
    int64_t length = wide->count - (pixel + at) % wide->count;
    if (length > pixels - at) length = pixels - at;
    float* to = place(j, feature, pixel + at);
    int64_t gap = wide->step * call->yw;
    if (j->conv->last)
      ht_conv_lines(j->conv->lanes, to, gap, from + at * stride, stride, length, features);
    else
      ht_conv_spread(j->conv->lanes, to, call->yf, gap, from + at, stride, features, length);
    at += length;
  }
}

/* Whether rows of the output follow one another without a gap, in all that the epilogue reads, too: an image is one long row then. */
static int rows_joined(const job* j) {
  const ht_conv_call* call = j->call;
  int joined = j->in_place && j->phase.wide.first == 0 && j->phase.tall.first == 0 && call->yh == call->q * call->yw;
  for (int e = 0; e < call->extras; ++e) joined = joined && call->extra[e].sh == call->q * call->extra[e].sw;
  return joined;
}

/* The epilogue on pixels that were written, a row of the output at a time or an image. */
static int finish(const job* j, int64_t feature, int64_t features, int64_t pixel, int64_t pixels) {
  const ht_side *tall = &j->phase.tall, *wide = &j->phase.wide;
  int rc = 0;
  const int64_t image = wide->count * tall->count, joined = j->kernel->epilogue != NULL && rows_joined(j);
  for (int64_t at = 0; at < pixels && rc == 0 && j->kernel->epilogue != NULL;) {
    int64_t row = (pixel + at) / wide->count, column = (pixel + at) % wide->count;
    int64_t length = joined ? image - (pixel + at) % image : wide->count - column;
    if (length > pixels - at) length = pixels - at;
    ht_conv_part part = {row / tall->count, feature, tall->first + row % tall->count * tall->step, wide->first + column * wide->step,
                         features, length, wide->step};
    rc = ht_conv_finish(j->conv, j->kernel, j->call, &part);
    at += length;
  }
  return rc;
}

static int chunk_first(job* j, int64_t group, int64_t pixel, int64_t pixels, int64_t first, int64_t count) {
  const ht_kernel* k = j->kernel;
  int64_t panels = ceil_div(pixels, k->nr), all = group * j->features;
  int64_t q0 = pixel / (j->phase.wide.count * j->phase.tall.count), q1 = (pixel + pixels - 1) / (j->phase.wide.count * j->phase.tall.count);
  int direct = j->in_place && q0 == q1 && pixels % k->nr == 0;
  int64_t most = direct ? count : HT_CONV_RESULTS / (panels * k->nr), rc = 0; /* features at a time */
  if (!direct && most < count) most = most / k->mr * k->mr;
  for (int64_t f = first, last; f < first + count && rc == 0; f = last) {
    last = f + most < first + count ? f + most : first + count;
    float* y = direct ? place(j, all + f, pixel) : ht_conv_rooms()->results;
    int64_t ldy = direct ? j->call->yf : panels * k->nr;
    for (int64_t from = 0; from < j->phase.depth && rc == 0; from += j->part) {
      int64_t depth = j->phase.depth - from < j->part ? j->phase.depth - from : j->part;
      if (f == first || j->part < j->phase.depth) {
        ht_image image = {j->conv, j->call, &j->phase, group * j->channels, pixel, pixels, from, depth, k->nr};
        ht_conv_image(&image, j->conv->lanes, ht_conv_rooms()->image);
      }
      ht_conv_tile c = {.w = ht_conv_rooms()->image, .w_stride = depth * k->nr, .depth = depth, .groups = panels, .add = from > 0};
      const float* weight = j->call->weight + j->phase.offset + group * j->phase.group + f * j->phase.stride + from;
      rc = ht_conv_down(k, c, weight, j->phase.stride, last - f, y, ldy);
    }
    if (j->phase.depth == 0)
      for (int64_t i = 0; i < last - f; ++i) memset(y + i * ldy, 0, (size_t)pixels * sizeof *y);
    if (j->call->bias != NULL) ht_conv_add_bias(j->conv, y, ldy, j->call->bias + all + f, last - f, pixels);
    if (!direct) put(j, y, ldy, all + f, last - f, pixel, pixels);
    if (rc == 0) rc = finish(j, all + f, last - f, pixel, pixels);
  }
  return (int)rc;
}

/* Whether windows of `count` pixels from one on lie evenly spaced in the image, so that their rows are read where they are: terms
 * follow one another for all taps of a line, or for the channels of one tap. The terms of one such run; 0 where they do not. */
static int64_t run_in_place(const job* j, int64_t pixel, int64_t count) {
  const ht_side *tall = &j->phase.tall, *wide = &j->phase.wide;
  const ht_conv_call* call = j->call;
  if (tall->taps * wide->taps == 1 && tall->move == 1 && wide->move == 1 && tall->at == 0 && wide->at == 0 && tall->count == call->h &&
      wide->count == call->w && (call->h == 1 || call->xh == call->w * call->xw) && (call->batch == 1 || call->xb == call->h * call->w * call->xw))
    return j->channels;
  int64_t q = pixel % wide->count, x = q * wide->move + wide->at, last = x + (count - 1) * wide->move;
  int64_t low = wide->by < 0 ? (wide->taps - 1) * wide->by : 0, high = wide->by > 0 ? (wide->taps - 1) * wide->by : 0;
  if (q + count > wide->count || x + low < 0 || last + high >= call->w || wide->taps == 0) return 0;
  int64_t run = wide->by == 1 && call->xw == j->channels ? wide->taps * j->channels : j->channels;
  return run >= SHORTEST_RUN ? run : 0;
}

/* The sums of row tiles from the image itself, a run of terms at a time. */
static int rows_in_place(const job* j, ht_conv_tile c, int64_t run, int64_t group, int64_t pixel, int64_t count) {
  const ht_side *tall = &j->phase.tall, *wide = &j->phase.wide;
  const ht_conv_call* call = j->call;
  int64_t row = pixel / wide->count, b = row / tall->count, y0 = row % tall->count * tall->move + tall->at;
  int64_t x0 = pixel % wide->count * wide->move + wide->at, rc = 0, line = wide->taps * j->channels;
  const float* weight = c.w;
  c.ldx = wide->move * call->xw;
  c.add = 0;
  for (int64_t k = 0; k < j->phase.depth && rc == 0; k += run) {
    int64_t t = k / line, u = k % line / j->channels, y = y0 + t * tall->by;
    if (y < 0 || y >= call->h) continue;
    const float* x = call->x + b * call->xb + y * call->xh + (x0 + u * wide->by) * call->xw + group * j->channels;
    for (int64_t from = 0; from < run && rc == 0; from += c.depth, c.add = 1) {
      c.depth = run - from < j->part ? run - from : j->part;
      c.x = x + from;
      c.w = weight + (k + from) * j->conv->lanes;
      rc = ht_conv_across(j->kernel, j->conv->lanes, c, count);
    }
  }
  return c.add ? (int)rc : 1; /* 1: no tap lies inside the image */
}

/* Channels last: features [first, first + count) of a group, a multiple of the tile but at the group's end. */
static int rows_last(job* j, int64_t group, int64_t pixel, int64_t pixels, int64_t first, int64_t count) {
  const ht_kernel* k = j->kernel;
  int64_t all = group * j->features, tiles = ceil_div(pixels, k->mr), rest = count % k->nr;
  int64_t wide = count - rest + (rest == 0 ? 0 : k->tail != NULL && rest <= k->nt ? k->nt : k->nr); /* what the tiles compute */
  int even = pixels % k->mr == 0, direct = j->in_place && even && wide == count;
  int64_t run = even ? run_in_place(j, pixel, pixels) : 0, rc = 0;
  int64_t most = direct ? tiles : HT_CONV_RESULTS / (wide * k->mr); /* row tiles at a time */
  if (most < 1) return -1;                                        /* blocks are made so that one fits */
  for (int64_t tile = 0; tile < tiles && rc == 0; tile += most) {
    int64_t now = tiles - tile < most ? tiles - tile : most, row = pixel + tile * k->mr;
    int64_t rows = now * k->mr < pixels - tile * k->mr ? now * k->mr : pixels - tile * k->mr;
    float* y = direct ? place(j, all + first, row) : ht_conv_rooms()->results;
    int64_t ldy = direct ? j->call->yw : wide;
    const float* weight = j->call->weight + j->phase.offset + group * j->phase.group + first / j->conv->lanes * j->phase.stride;
    ht_conv_tile c = {.w = weight, .w_stride = j->phase.stride, .y = y, .ldy = ldy, .tiles = now};
    int empty = j->phase.depth == 0;
    if (run > 0) {
      rc = rows_in_place(j, c, run, group, row, count);
      empty = rc == 1;
      rc = empty ? 0 : rc;
    }
    for (int64_t from = 0; from < j->phase.depth && rc == 0 && run == 0; from += j->part) {
      c.depth = j->phase.depth - from < j->part ? j->phase.depth - from : j->part;
      c.ldx = (ceil_div(c.depth, 16) | 1) * 16;
      ht_image image = {j->conv, j->call, &j->phase, group * j->channels, row, rows, from, c.depth, c.ldx};
      ht_conv_image(&image, j->conv->lanes, ht_conv_rooms()->image);
      c.x = ht_conv_rooms()->image;
      c.w = weight + from * j->conv->lanes;
      c.add = from > 0;
      rc = ht_conv_across(j->kernel, j->conv->lanes, c, count);
    }
    for (int64_t i = 0; i < rows && empty; ++i) memset(y + i * ldy, 0, (size_t)count * sizeof *y);
    if (j->call->bias != NULL) ht_conv_add_bias(j->conv, y, ldy, j->call->bias + all + first, count, rows);
    if (!direct) put(j, y, ldy, all + first, count, row, rows);
    if (rc == 0) rc = finish(j, all + first, count, row, rows);
  }
  return (int)rc;
}

/* Whole row tiles, which may be read and written in place, then what is left of one. */
static int chunk_last(job* j, int64_t group, int64_t pixel, int64_t pixels, int64_t first, int64_t count) {
  int64_t whole = pixels / j->kernel->mr * j->kernel->mr;
  int rc = whole > 0 ? rows_last(j, group, pixel, whole, first, count) : 0;
  return rc != 0 || whole == pixels ? rc : rows_last(j, group, pixel + whole, pixels - whole, first, count);
}

/* Chunks in the order of groups, blocks of pixels, spans of features. */
static void run_chunk(void* arg, int64_t index) {
  job* j = arg;
  int64_t span = index % j->spans, block = index / j->spans % j->blocks, group = index / j->spans / j->blocks;
  int64_t pixel = block * j->block, first = span * j->span;
  int64_t pixels = j->pixels - pixel < j->block ? j->pixels - pixel : j->block;
  int64_t count = j->features - first < j->span ? j->features - first : j->span;
  int rc = j->conv->last ? chunk_last(j, group, pixel, pixels, first, count) : chunk_first(j, group, pixel, pixels, first, count);
  if (rc != 0) atomic_store_explicit(&j->failed, 1, memory_order_relaxed);
}

/* Blocks of pixels, and spans of features, of one phase. */
static void cut(job* j, int share, int threads) {
  const ht_kernel* k = j->kernel;
  int64_t depth = j->phase.depth > 0 ? j->phase.depth : 1;
  int64_t unit = j->conv->last ? k->mr : k->nr, tile = j->conv->last ? k->nr : k->mr; /* of pixels, of features */
  int64_t parts = ceil_div(depth * unit, HT_CONV_IMAGE - 32 * unit); /* rows may be two lines longer than their terms */
  j->part = ceil_div(depth, parts);
  int64_t most = HT_CONV_IMAGE / ((j->part + 32) * unit), limit = (j->conv->last ? HT_CONV_ROWS : HT_CONV_PIXELS) / unit;
  if (most > limit) most = limit;
  if (most < 1) most = 1;
  int64_t units = ceil_div(j->pixels, unit);
  int64_t blocks = ceil_div(units, most);
  if (share != HT_CONV_F && share != HT_WHOLE) { /* as many for each thread, and four each where there are enough */
    int64_t pieces = units / threads < 4 ? (units / threads > 0 ? units / threads : 1) : 4;
    if (blocks < pieces * threads) blocks = pieces * threads;
    blocks = ceil_div(blocks, threads) * threads;
  }
  if (blocks > units) blocks = units;
  j->block = ceil_div(units, blocks) * unit;
  j->blocks = ceil_div(j->pixels, j->block);
  int64_t tiles = ceil_div(j->features, tile), spans = 1;
  if (share == HT_CONV_F) spans = tiles < threads ? tiles : threads;
  int64_t wide = HT_CONV_RESULTS / k->mr / k->nr; /* channels last: tiles of features whose results fit beside one another */
  if (j->conv->last && ceil_div(tiles, spans) > wide) spans = ceil_div(tiles, wide);
  j->span = ceil_div(tiles, spans) * tile;
  j->spans = ceil_div(j->features, j->span);
}

int ht_conv_run(const ht_conv* conv, const ht_kernel* kernel, const ht_conv_call* call, int share, int threads) {
  if (conv->typed != NULL) return ht_conv_run_typed(conv, kernel, call, share, threads);
  job j = {.conv = conv, .kernel = kernel, .call = call, .channels = conv->channels / conv->groups, .features = conv->features / conv->groups};
  if (share == HT_WHOLE) threads = 1;
  if (ht_conv_is_direct(conv)) {
    return ht_conv_run_direct(conv, kernel, call, threads);
  }
  if (threads == 1) share = HT_WHOLE;
  if (kernel->tile == 0 && ht_conv_is_woven(conv)) return ht_conv_run_woven(conv, kernel, call, share, threads);
  if (kernel->tile == HT_CONV_LINES) return ht_conv_run_from_lines(conv, kernel, call, share, threads);
  if (kernel->tile == HT_CONV_TURNED) return ht_conv_run_turned(conv, kernel, call, share, threads);
  if (kernel->tile > 0) return ht_conv_run_winograd(conv, kernel, call, share, threads);
  atomic_init(&j.failed, 0);
  ht_phase phase;
  for (int64_t index = 0, phases = ht_conv_phases(conv); index < phases; ++index) {
    ht_conv_phase(conv, index, call->p, call->q, &phase);
    j.phase = phase;
    ht_conv_shorten(conv, call->h, call->w, &j.phase);
    j.pixels = call->batch * j.phase.tall.count * j.phase.wide.count;
    if (j.pixels == 0) continue;
    int even = j.phase.tall.step == 1 && j.phase.wide.step == 1;
    if (conv->last) even = even && (call->p == 1 || call->yh == call->q * call->yw) && (call->batch == 1 || call->yb == call->p * call->q * call->yw);
    else even = even && (call->p == 1 || call->yh == call->q);
    j.in_place = even;
    cut(&j, share, threads);
    int64_t chunks = conv->groups * j.blocks * j.spans;
    ht_pool_run(run_chunk, &j, chunks, threads);
  }
  return atomic_load_explicit(&j.failed, memory_order_relaxed) ? -1 : 0;
}
