/* Convolutions in other types than fp32 whose windows move by one: tiles read lines of the image, padded and with channels last, instead of
 * image columns. The taps of a window in one line lie side by side there, and the next pixel's begin a pixel further on: a tile's rows
 * overlap, and no pixel is copied for each of its taps. Pixels are numbered along the padded lines: at the end of each there are taps - 1
 * whose windows reach into the next line, which are computed and dropped. */
#include <string.h>

#include "conv.h"

#define LINES_BYTES (288 * 1024) /* half of the smallest private L2 of server cores, as in conv_typed.c */
#define STEP 64                  /* bytes that a step of every tile takes: sums keep their order */
#define FEW_PIXELS 36            /* of an image, from which on its own lines are worth a pass of a weight that stays in L2, */
#define MANY_PIXELS 64           /* or of one that does not */
#define SHORT_LINE 8             /* pixels: with channels first, lines of fewer fill no square that is turned; image columns turn all lines at once */
#define MOST_ROWS 12             /* of a tile in vectors; taller ones are in AMX registers, whose products take less time than any copy */
#define MOST_DROPPED 8           /* features of dropped pixels, for each pixel that is kept and 16 lanes: more take longer than laying out columns */
#define MOST_PIXEL 1024          /* bytes of a pixel: rows of a tile that lie further apart meet in few sets of L1 */

#define ROOM ((char*)ht_room(HT_ROOM_TYPED_LINES, LINES_BYTES))

typedef struct {
  const ht_conv* conv;
  const ht_kernel* kernel;
  const ht_conv_call* call;
  const ht_phase* phase;
  int64_t channels, features, pixel; /* of a group; bytes of a pixel's channels */
  int64_t wide, rows, blocks;        /* pixels of a padded line; rows of the output in a block, and blocks of an image */
  int64_t span, spans;               /* features of a chunk, and chunks of them */
  atomic_int failed;
} job;

typedef struct { /* rows [row, row + rows) of an image: what the sums of a block become */
  const job* j;
  int64_t b, row, rows, group, feature, features;
  int failed;
} block;

/* Lines that windows of so many rows see. */
static int64_t lines_of(const ht_side* tall, int64_t rows) { return rows + (tall->taps - 1) * tall->by; }

/* Rows of the output whose lines find room, with what the last tile reads behind them. */
static int64_t rows_of(const ht_side* tall, int64_t wide, int64_t pixel, int64_t tile) {
  return (LINES_BYTES / pixel - tile) / wide - (tall->taps - 1) * tall->by;
}

int ht_conv_has_lines(const ht_conv* conv, const ht_kernel* kernel, const ht_conv_call* call, const ht_phase* phase) {
  const ht_side *tall = &phase->tall, *wide = &phase->wide;
  const int64_t pixel = conv->channels / conv->groups * (conv->typed->x.bits / 8), line = wide->count + wide->taps - 1;
  if (tall->taps * wide->taps < 2 || tall->move != 1 || wide->move != 1 || tall->by < 1 || (wide->by != 1 && wide->taps > 1) ||
      wide->taps * pixel % STEP != 0 || pixel > MOST_PIXEL || (!conv->last && (call->xw != 1 || wide->count < SHORT_LINE)))
    return 0;
  /* With channels last columns are copied line by line: many features of the pixels that lines drop take longer than that. */
  const int64_t dropped = (wide->taps - 1) * (conv->features / conv->groups);
  if (conv->last && kernel->mr <= MOST_ROWS && dropped * 16 > MOST_DROPPED * conv->lanes * wide->count) return 0;
  const int64_t rows = min_i64(rows_of(tall, line, pixel, kernel->mr), tall->count);
  if (rows < 1) return 0;
  /* Image columns of several small images are one block, which the weight passes once. */
  const int64_t weight = phase->depth * (conv->features / conv->groups) * (conv->typed->weight.bits / 8);
  return call->batch == 1 || rows * wide->count >= (weight <= LINES_BYTES ? FEW_PIXELS : MANY_PIXELS);
}

/* One line of the image, zeros beside it. */
static void lay_out(const job* j, int64_t b, int64_t group, int64_t y, char* to) {
  const ht_conv_call* call = j->call;
  const ht_side* wide = &j->phase->wide;
  const int64_t size = j->conv->typed->x.bits / 8, pixel = j->pixel;
  int64_t low = max_i64(0, -wide->at), high = min_i64(j->wide, call->w - wide->at);
  if (y < 0 || y >= call->h || low >= high) low = high = 0;
  memset(to, 0, (size_t)(low * pixel));
  memset(to + high * pixel, 0, (size_t)((j->wide - high) * pixel));
  const char* from = (const char*)call->x + (b * call->xb + group * j->channels * call->xc + y * call->xh + (low + wide->at) * call->xw) * size;
  to += low * pixel;
  if (!j->conv->last) ht_typed_turn(to, pixel, from, call->xc * size, j->channels, high - low, size);
  else if (call->xw == j->channels) memcpy(to, from, (size_t)((high - low) * pixel));
  else
    for (int64_t i = 0; i < high - low; ++i) memcpy(to + i * pixel, from + i * call->xw * size, (size_t)pixel);
}

static void finish(void* with, const ht_typed_part* part) {
  block* at = with;
  const job* j = at->j;
  const int64_t count = j->phase->wide.count, features = min_i64(part->columns, at->features - part->column);
  if (features <= 0) return;
  for (int64_t i = 0, some; i < part->rows; i += some) {
    const int64_t row = (part->row + i) / j->wide, column = (part->row + i) % j->wide;
    some = min_i64(j->wide - column, part->rows - i);
    const int64_t pixels = min_i64(some, count - column);
    if (row >= at->rows) return;
    if (pixels <= 0) continue;
    const int64_t first = (at->b * j->phase->tall.count + at->row + row) * count + column;
    at->failed |= ht_conv_finish_typed(j->conv, j->kernel, j->call, j->phase, (float*)part->sums + i * part->stride, part->stride,
                                       at->group * j->features + at->feature + part->column, features, first, pixels) != 0;
  }
}

/* Chunks in the order of groups, images, blocks of rows, spans of features. */
static void run_chunk(void* arg, int64_t index) {
  job* j = arg;
  const ht_kernel* k = j->kernel;
  const ht_typed* typed = j->conv->typed;
  const ht_side *tall = &j->phase->tall, *wide = &j->phase->wide;
  const int64_t span = index % j->spans, image = index / j->spans / j->blocks, row = index / j->spans % j->blocks * j->rows;
  const int64_t lanes = j->conv->lanes, feature = span * j->span;
  block at = {j, image % j->call->batch, row, min_i64(j->rows, tall->count - row), image / j->call->batch, feature,
              min_i64(j->span, j->features - feature), 0};
  for (int64_t y = 0, lines = lines_of(tall, at.rows); y < lines; ++y)
    lay_out(j, at.b, at.group, at.row + tall->at + y, ROOM + y * j->wide * j->pixel);
  const float* weight = j->call->weight + j->phase->offset + at.group * j->phase->group;
  const ht_typed_tile tile = {
      .x = ROOM,
      .x_stride = j->pixel,
      .w = (const char*)(weight + feature / lanes * j->phase->stride),
      .panel = j->phase->stride * (int64_t)sizeof(float),
      .k = wide->taps * j->channels,
      .lines = tall->taps,
      .line = tall->by * j->wide * j->pixel,
      .tiles = ceil_div(at.rows * j->wide - (wide->taps - 1), k->mr),
      .groups = ceil_div(at.features, k->nr),
      .first = ht_typed_signed(typed) ? (const int32_t*)(weight + j->phase->first) + feature : NULL,
      .finish = finish,
      .with = &at};
  ((ht_typed_fn)(void (*)(void))k->fn)(&tile); /* as the pack says of the op */
  if (at.failed) atomic_store_explicit(&j->failed, 1, memory_order_relaxed);
}

int ht_conv_run_lines(const ht_conv* conv, const ht_kernel* kernel, const ht_conv_call* call, const ht_phase* phase, int share, int threads) {
  job j = {.conv = conv, .kernel = kernel, .call = call, .phase = phase, .channels = conv->channels / conv->groups,
           .features = conv->features / conv->groups};
  j.pixel = j.channels * (conv->typed->x.bits / 8);
  j.wide = phase->wide.count + phase->wide.taps - 1;
  atomic_init(&j.failed, 0);
  const int64_t rows = phase->tall.count, images = conv->groups * call->batch, tiles = ceil_div(j.features, kernel->nr);
  const int64_t spans = share == HT_CONV_F ? min_i64(tiles, threads) : 1;
  int64_t blocks = ceil_div(rows, rows_of(&phase->tall, j.wide, j.pixel, kernel->mr));
  if (threads > 1 && spans == 1) /* enough for a free thread to help a late one, of a tile at least */
    blocks = max_i64(blocks, min_i64(ceil_div(4 * (int64_t)threads, images), min_i64(rows, ceil_div(rows * j.wide, kernel->mr))));
  j.rows = ceil_div(rows, blocks);
  j.blocks = ceil_div(rows, j.rows);
  j.span = ceil_div(tiles, spans) * kernel->nr;
  j.spans = ceil_div(j.features, j.span);
  const int64_t chunks = images * j.blocks * j.spans;
  ht_pool_run(run_chunk, &j, chunks, threads);
  return atomic_load_explicit(&j.failed, memory_order_relaxed) ? -1 : 0;
}
