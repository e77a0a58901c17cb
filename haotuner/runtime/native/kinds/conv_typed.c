/* Convolutions in other types than fp32: the tiles of typed dense over rows of image columns. Rows are pixels and columns features, with
 * channels last and with channels first, since words hold several terms of one column. Sums of a block stay in cache, where all that
 * follows is done; every sum is taken in the order of its terms, whatever the block: a pixel's bits do not depend on the batch. */
#include <string.h>

#include "conv.h"

#define IMAGE_BYTES (288 * 1024) /* half of the smallest private L2 of server cores, as in conv_run.c */
#define ROWS_MOST 96
#define LINE 64

typedef struct { /* of each thread */
  _Alignas(64) float sums[HT_CONV_SUMS];
  _Alignas(64) char image[IMAGE_BYTES];
} rooms;

#define ROOM ((rooms*)ht_room(HT_ROOM_TYPED, sizeof(rooms)))

typedef struct {
  const ht_conv* conv;
  const ht_kernel* kernel;
  const ht_conv_call* call;
  ht_phase phase;
  int64_t channels, features;    /* of a group */
  int64_t pixels, block, blocks; /* pixels of all, of a block, blocks */
  int64_t span, spans;           /* features of a chunk, and chunks of them */
  int64_t part, width;           /* terms of the sum that are laid out at a time, and bytes from one row to the next */
  int in_place;                  /* rows are those of the image */
  atomic_int failed;
} job;

/* 1x1 with channels last, every pixel of the image one of the output: its rows are read where they are. */
static int evenly_spaced(const job* j) {
  const ht_side *tall = &j->phase.tall, *wide = &j->phase.wide;
  const ht_conv_call* call = j->call;
  return j->conv->last && tall->taps * wide->taps == 1 && tall->move == 1 && wide->move == 1 && tall->at == 0 && wide->at == 0 &&
         tall->count == call->h && wide->count == call->w && (call->h == 1 || call->xh == call->w * call->xw) &&
         (call->batch == 1 || call->xb == call->h * call->w * call->xw);
}

typedef struct {
  int64_t group, pixel, pixels, feature, features;
} box;

typedef struct { /* what the sums of a box become */
  const job* j;
  box at;
  int failed;
} result;

static void finish(void* with, const ht_typed_part* part) {
  result* r = with;
  const job* j = r->j;
  const box* at = &r->at;
  const int64_t pixels = min_i64(part->rows, at->pixels - part->row), features = min_i64(part->columns, at->features - part->column);
  if (pixels <= 0 || features <= 0) return;
  r->failed |= ht_conv_finish_typed(j->conv, j->kernel, j->call, &j->phase, part->sums, part->stride,
                                    at->group * j->features + at->feature + part->column, features, at->pixel + part->row, pixels) != 0;
}

/* Sums of a box, terms [from, from + depth), from rows `x`; after the last of them what they become. */
static void multiply(result* r, const char* x, int64_t x_stride, int64_t from, int64_t depth) {
  const job* j = r->j;
  const box at = r->at;
  const ht_kernel* k = j->kernel;
  const ht_typed* typed = j->conv->typed;
  const int64_t lanes = j->conv->lanes, groups = ceil_div(at.features, k->nr);
  const float* weight = j->call->weight + j->phase.offset + at.group * j->phase.group;
  const ht_typed_tile tile = {
      .x = x,
      .x_stride = x_stride,
      .w = (const char*)(weight + at.feature / lanes * j->phase.stride) + from / typed->terms * lanes * typed->column,
      .panel = j->phase.stride * (int64_t)sizeof(float),
      .sums = ROOM->sums,
      .stride = groups * k->nr,
      .k = depth,
      .tiles = ceil_div(at.pixels, k->mr),
      .groups = groups,
      .first = ht_typed_signed(typed) ? (const int32_t*)(weight + j->phase.first) + at.feature : NULL,
      .add = from > 0,
      .finish = from + depth == j->phase.depth ? finish : NULL,
      .with = r};
  ((ht_typed_fn)(void (*)(void))k->fn)(&tile); /* as the pack says of the op */
}

static int run_box(const job* j, box at) {
  const ht_kernel* k = j->kernel;
  const int64_t size = j->conv->typed->x.bits / 8, rows = ceil_div(at.pixels, k->mr) * k->mr, wide = HT_CONV_SUMS / rows / k->nr * k->nr;
  const int direct = j->in_place && rows == at.pixels, whole = j->part >= j->phase.depth;
  const char* image = (const char*)j->call->x + (at.pixel * j->call->xw + at.group * j->channels) * size;
  for (int64_t feature = at.feature, end = at.feature + at.features; feature < end; feature += wide) {
    result r = {j, {at.group, at.pixel, at.pixels, feature, min_i64(wide, end - feature)}, 0};
    for (int64_t from = 0; from < j->phase.depth; from += j->part) {
      const int64_t depth = min_i64(j->part, j->phase.depth - from);
      if (!direct && (feature == at.feature || !whole)) {
        const ht_image block = {j->conv, j->call, &j->phase, at.group * j->channels, at.pixel, at.pixels, from, depth, j->width};
        ht_conv_rows(&block, ROOM->image);
      }
      multiply(&r, direct ? image + from * size : ROOM->image, direct ? j->call->xw * size : j->width, from, depth);
    }
    if (j->phase.depth == 0) {
      const ht_typed_part none = {ROOM->sums, r.at.features, 0, at.pixels, 0, r.at.features};
      memset(ROOM->sums, 0, (size_t)(at.pixels * r.at.features) * sizeof(float));
      finish(&r, &none);
    }
    if (r.failed) return -1;
  }
  return 0;
}

/* Chunks in the order of groups, blocks of pixels, spans of features. */
static void run_chunk(void* arg, int64_t index) {
  job* j = arg;
  const int64_t span = index % j->spans, block = index / j->spans % j->blocks, group = index / j->spans / j->blocks;
  const int64_t pixel = block * j->block, first = span * j->span, pixels = min_i64(j->block, j->pixels - pixel);
  box at = {group, pixel, pixels, first, min_i64(j->span, j->features - first)};
  const int64_t whole = pixels / j->kernel->mr * j->kernel->mr;
  int rc = 0;
  if (j->in_place && whole > 0 && whole < pixels) { /* what is left of a tile goes through a copy */
    at.pixels = whole;
    rc = run_box(j, at);
    at.pixel += whole;
    at.pixels = pixels - whole;
  }
  if (rc != 0 || run_box(j, at) != 0) atomic_store_explicit(&j->failed, 1, memory_order_relaxed);
}

/* Blocks of pixels, and spans of features, of one phase. */
static void cut(job* j, int share, int threads) {
  const ht_kernel* k = j->kernel;
  const int64_t size = j->conv->typed->x.bits / 8, depth = j->phase.depth > 0 ? j->phase.depth : 1;
  const int64_t parts = ceil_div(depth * size * k->mr, IMAGE_BYTES - 4 * LINE * k->mr);
  j->part = ceil_div(ceil_div(depth, parts) * size, LINE) * LINE / size; /* whole steps of every tile, so that sums keep their order */
  j->width = (ceil_div(min_i64(j->part, depth) * size, LINE) | 1) * LINE;
  int64_t most = min_i64(IMAGE_BYTES / j->width, ROWS_MOST) / k->mr;
  most = min_i64(most, HT_CONV_SUMS / k->nr / k->mr);
  if (most < 1) most = 1;
  int64_t units = ceil_div(j->pixels, k->mr), blocks = ceil_div(units, most);
  if (share != HT_CONV_F && share != HT_WHOLE) { /* as many for each thread, and four each where there are enough */
    int64_t pieces = units / threads < 4 ? (units / threads > 0 ? units / threads : 1) : 4;
    if (blocks < pieces * threads) blocks = pieces * threads;
    blocks = ceil_div(blocks, threads) * threads;
  }
  if (blocks > units) blocks = units;
  j->block = ceil_div(units, blocks) * k->mr;
  j->blocks = ceil_div(j->pixels, j->block);
  const int64_t tiles = ceil_div(j->features, k->nr), spans = share == HT_CONV_F ? min_i64(tiles, threads) : 1;
  j->span = ceil_div(tiles, spans) * k->nr;
  j->spans = ceil_div(j->features, j->span);
}

int ht_conv_run_typed(const ht_conv* conv, const ht_kernel* kernel, const ht_conv_call* call, int share, int threads) {
  job j = {.conv = conv, .kernel = kernel, .call = call, .channels = conv->channels / conv->groups, .features = conv->features / conv->groups};
  if (share == HT_WHOLE) threads = 1;
  if (ht_conv_is_direct(conv)) return ht_conv_run_typed_direct(conv, kernel, call, threads);
  if (threads == 1) share = HT_WHOLE;
  atomic_init(&j.failed, 0);
  for (int64_t index = 0, phases = ht_conv_phases(conv); index < phases; ++index) {
    ht_conv_phase(conv, index, call->p, call->q, &j.phase);
    j.pixels = call->batch * j.phase.tall.count * j.phase.wide.count;
    if (j.pixels == 0) continue;
    if (ht_conv_has_lines(conv, kernel, call, &j.phase)) {
      if (ht_conv_run_lines(conv, kernel, call, &j.phase, share, threads) != 0) return -1;
      continue;
    }
    j.in_place = evenly_spaced(&j);
    cut(&j, share, threads);
    const int64_t chunks = conv->groups * j.blocks * j.spans;
    ht_pool_run(run_chunk, &j, chunks, threads);
  }
  return atomic_load_explicit(&j.failed, memory_order_relaxed) ? -1 : 0;
}
