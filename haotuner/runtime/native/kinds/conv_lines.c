/* Convolutions in fp32 whose tiles read windows from padded lines of the image, which are copied once: nothing is laid out for each tap.
 *
 * Pixels of a block are numbered along the padded lines, those between the last output of a line and the first of the next, too: these are
 * computed and dropped. Then a tap of all pixels is one run of memory, and a term of the sum is a place from which it starts.
 *
 *   channels first: tiles' columns are pixels. Lines are parted by the residues of the strides, so that pixels lie side by side:
 *                   [channel][residue down][residue across][line][pixel].
 *   channels last:  tiles' rows are pixels, which lie stride x channels apart: [residue down][line][pixel][channel]. */
#include <string.h>

#include "conv.h"
#include "epilogue.h"

#define PASS_FLOATS (8 * 1024) /* of results that are written to y while they are in L1 */


typedef struct {
  const ht_conv* conv;
  const ht_kernel* kernel;
  const ht_conv_call* call;
  ht_phase phase;
  const int64_t* terms;
  int64_t channels, features;                  /* of a group */
  int64_t down, across;                        /* residues of the strides that lines are parted by */
  int64_t wide, lines;                         /* pixels of a padded line; lines of a block, of each residue */
  int64_t step;                                /* floats from a pixel to the next */
  int64_t rows, row_blocks, columns, column_blocks; /* outputs of a block */
  int64_t span, spans;                         /* features of a chunk */
  int here;                                    /* the epilogue reads values of features alone */
  atomic_int failed;
} job;

typedef struct { /* outputs [row, row + rows) x [column, column + columns) of an image, and features of a group */
  int64_t b, group, row, rows, column, columns, feature, features;
} box;

/* Lines, or pixels of one, that windows reach beyond those of their outputs. */
static int64_t beyond(const ht_side* side) { return (side->taps - 1) * side->by / side->move; }
/* Pixels of a padded line of so many outputs. Where these are all, and windows reach into the pad on the right, the pad on the left of the
 * next line serves as such. */
static int64_t pixels_of(const job* j, int64_t columns) {
  const ht_side* wide = &j->phase.wide;
  const int64_t reach = (columns - 1) * wide->move + (wide->taps - 1) * wide->by + 1;
  const int64_t shared = max_i64(j->call->w - wide->at, reach + wide->at); /* elements, of which those beyond are zero in both lines */
  return columns < wide->count ? ceil_div(reach, wide->move) : max_i64(columns, ceil_div(min_i64(reach, shared), wide->move));
}
static int64_t residues(const ht_side* side) { return min_i64(side->move, (side->taps - 1) * side->by + 1); }
static int64_t line_floats(const job* j) { return j->wide * j->step; } /* of a residue down, and of one across, with all channels or of one */
static int64_t parts(const job* j) { return j->down * (j->conv->last ? 1 : j->across * j->channels); }

/* Of a residue: lines, and zeros behind the last one, which its windows reach. */
static int64_t plane_floats(const job* j) { return j->lines * line_floats(j) + beyond(&j->phase.wide) * j->step; }
static void clear_behind(const job* j, float* to) { memset(to, 0, (size_t)(beyond(&j->phase.wide) * j->step) * sizeof *to); }

static void lay_out_first(const job* j, const box* at) {
  const ht_conv_call* call = j->call;
  const ht_side *tall = &j->phase.tall, *wide = &j->phase.wide;
  const int64_t lines = at->rows + beyond(tall), plane = plane_floats(j), channel = j->down * j->across * plane;
  const float* image = call->x + at->b * call->xb + at->group * j->channels * call->xc;
  for (int64_t a = 0; a < j->down; ++a)
    for (int64_t i = 0; i < lines; ++i) {
      const int64_t y = (at->row + i) * tall->move + a + tall->at;
      for (int64_t e = 0; e < j->across; ++e) {
        const int64_t x = at->column * wide->move + e + wide->at;
        int64_t low = x < 0 ? ceil_div(-x, wide->move) : 0, high = x < call->w ? min_i64(ceil_div(call->w - x, wide->move), j->wide) : 0;
        if (y < 0 || y >= call->h || low >= high) low = high = 0;
        ht_conv_padded(j->conv->lanes, ht_conv_rooms()->image + (a * j->across + e) * plane + i * j->wide, channel, image + y * call->xh + x * call->xw,
                       call->xc, wide->move * call->xw, j->channels, low, high, j->wide);
      }
    }
  for (int64_t part = 0; part < parts(j); ++part) clear_behind(j, ht_conv_rooms()->image + part * plane + lines * j->wide);
}

static void lay_out_last(const job* j, const box* at) {
  const ht_conv_call* call = j->call;
  const ht_side *tall = &j->phase.tall, *wide = &j->phase.wide;
  const int64_t lines = at->rows + beyond(tall), plane = plane_floats(j), channels = j->channels, pixels = j->wide * wide->move, x = at->column * wide->move + wide->at;
  const float* image = call->x + at->b * call->xb + at->group * channels * call->xc;
  for (int64_t a = 0; a < j->down; ++a)
    for (int64_t i = 0; i < lines; ++i) {
      const int64_t y = (at->row + i) * tall->move + a + tall->at;
      float* to = ht_conv_rooms()->image + a * plane + i * line_floats(j);
      int64_t low = max_i64(0, -x), high = min_i64(pixels, call->w - x);
      if (y < 0 || y >= call->h || low >= high) low = high = 0;
      memset(to, 0, (size_t)(low * channels) * sizeof *to);
      memset(to + high * channels, 0, (size_t)((pixels - high) * channels) * sizeof *to);
      if (low == high) continue;
      const float* from = image + y * call->xh + (x + low) * call->xw;
      if (call->xw == channels) memcpy(to + low * channels, from, (size_t)((high - low) * channels) * sizeof *to);
      else ht_conv_lines(j->conv->lanes, to + low * channels, channels, from, call->xw, high - low, channels);
    }
  for (int64_t a = 0; a < j->down; ++a) clear_behind(j, ht_conv_rooms()->image + a * plane + lines * line_floats(j));
}

/* Where each term of the sum begins, in the order of the plain weight. */
static void place_terms(job* j, int64_t* terms) {
  const ht_side *tall = &j->phase.tall, *wide = &j->phase.wide;
  const int64_t plane = plane_floats(j);
  for (int64_t t = 0; t < tall->taps; ++t)
    for (int64_t u = 0; u < wide->taps; ++u)
      for (int64_t c = 0; c < j->channels; ++c) {
        const int64_t y = t * tall->by, x = u * wide->by, line = y / tall->move * line_floats(j);
        if (j->conv->last)
          terms[(t * wide->taps + u) * j->channels + c] = y % tall->move * plane + line + x * j->channels + c;
        else
          terms[(c * tall->taps + t) * wide->taps + u] =
              ((c * j->down + y % tall->move) * j->across + x % wide->move) * plane + line + x / wide->move;
      }
  j->terms = terms;
}

/* The epilogue where its values are those of features: on results, before they are written. */
static int finish_here(const job* j, float* results, int64_t stride, int64_t feature, int64_t features, int64_t pixels) {
  const ht_conv_call* call = j->call;
  ht_extra extra[HT_MAX_EXTRA];
  for (int e = 0; e < call->extras; ++e)
    extra[e] = (ht_extra){call->extra[e].data + feature * call->extra[e].sf, j->conv->last ? 0 : call->extra[e].sf, j->conv->last};
  return ht_epilogue_run(j->kernel->epilogue, j->kernel->lanes, results, stride, extra, call->extras, 0, 0, j->conv->last ? pixels : features,
                         j->conv->last ? features : pixels);
}

/* Results of pixels [first, first + count) of a block, the line's that are outputs, into y. */
static int put(const job* j, const box* at, const float* from, int64_t stride, int64_t feature, int64_t features, int64_t first, int64_t count) {
  const ht_conv_call* call = j->call;
  int rc = 0;
  for (int64_t i = 0, some; i < count && rc == 0; i += some) {
    const int64_t row = (first + i) / j->wide, column = (first + i) % j->wide;
    some = min_i64(j->wide - column, count - i);
    const int64_t pixels = min_i64(some, at->columns - column);
    if (row >= at->rows) break;
    if (pixels <= 0) continue;
    const ht_conv_part part = {at->b, feature, at->row + row, at->column + column, features, pixels, 1};
    float* y = call->y + part.b * call->yb + feature * call->yf + part.p * call->yh + part.q * call->yw;
    if (j->conv->last) ht_conv_lines(j->conv->lanes, y, call->yw, from + i * stride, stride, pixels, features);
    else if (call->yw == 1)
      for (int64_t f = 0; f < features; ++f) memcpy(y + f * call->yf, from + f * stride + i, (size_t)pixels * sizeof *y);
    else ht_conv_spread(j->conv->lanes, y, call->yf, call->yw, from + i, stride, features, pixels);
    if (!j->here) rc = ht_conv_finish(j->conv, j->kernel, call, &part);
  }
  return rc;
}

static int multiply(const job* j, const box* at) {
  const ht_kernel* k = j->kernel;
  const int last = j->conv->last;
  const int64_t tile = last ? k->nr : k->mr, unit = last ? k->mr : k->nr; /* features, pixels */
  const int64_t pixels = (at->rows - 1) * j->wide + at->columns, end = at->feature + at->features;
  const int64_t some = min_i64(ceil_div(at->features, tile) * tile, PASS_FLOATS / unit / tile * tile), together = max_i64(PASS_FLOATS / some / unit, 1) * unit;
  int rc = 0;
  for (int64_t first = 0; first < pixels && rc == 0; first += together)
    for (int64_t f = at->feature; f < end && rc == 0; f += some) {
      const int64_t count = min_i64(together, ceil_div(pixels - first, unit) * unit), features = min_i64(some, end - f), all = at->group * j->features + f;
      const float* weight = j->call->weight + j->phase.offset + at->group * j->phase.group + (last ? f / j->conv->lanes : f) * j->phase.stride;
      const int64_t stride = last ? ceil_div(features, tile) * tile : ht_conv_apart(count);
      float* results = ht_conv_rooms()->results;
      ht_conv_tile c = {.depth = j->phase.depth, .terms = j->terms};
      if (last) {
        c.x = ht_conv_rooms()->image + first * j->step, c.ldx = j->step, c.tiles = count / unit;
        c.w = weight, c.w_stride = j->phase.stride, c.y = results, c.ldy = stride;
        rc = ht_conv_across(k, j->conv->lanes, c, features);
      } else {
        c.w = ht_conv_rooms()->image + first, c.w_stride = unit, c.groups = count / unit;
        rc = ht_conv_down(k, c, weight, j->phase.stride, features, results, stride);
      }
      if (j->call->bias != NULL) ht_conv_add_bias(j->conv, results, stride, j->call->bias + all, features, count);
      if (rc == 0 && j->here && k->epilogue != NULL) rc = finish_here(j, results, stride, all, features, count);
      if (rc == 0) rc = put(j, at, results, stride, all, features, first, count);
    }
  return rc;
}

/* Chunks in the order of groups, images, blocks of rows, blocks of columns, spans of features. */
static void run_chunk(void* arg, int64_t index) {
  job* j = arg;
  const ht_side *tall = &j->phase.tall, *wide = &j->phase.wide;
  box at;
  at.feature = index % j->spans * j->span, index /= j->spans;
  at.column = index % j->column_blocks * j->columns, index /= j->column_blocks;
  at.row = index % j->row_blocks * j->rows, index /= j->row_blocks;
  at.b = index % j->call->batch, at.group = index / j->call->batch;
  at.rows = min_i64(j->rows, tall->count - at.row);
  at.columns = min_i64(j->columns, wide->count - at.column);
  at.features = min_i64(j->span, j->features - at.feature);
  (j->conv->last ? lay_out_last : lay_out_first)(j, &at);
  if (multiply(j, &at) != 0) atomic_store_explicit(&j->failed, 1, memory_order_relaxed);
}

/* Rows of outputs whose lines find room with what tiles read behind them; below 1 where not even one does. */
static int64_t rows_that_fit(const job* j) {
  const int64_t tile = j->conv->last ? j->kernel->mr * j->step : j->kernel->nr, behind = beyond(&j->phase.wide) * j->step;
  return ((HT_CONV_IMAGE - tile) / parts(j) - behind) / line_floats(j) - beyond(&j->phase.tall);
}

/* Pixels of lines that are copied for all blocks of so many rows: a block has the lines that its windows reach beyond, too. */
static int64_t copied(const job* j, int64_t rows) {
  const ht_side* tall = &j->phase.tall;
  return ceil_div(tall->count, rows) * (rows + beyond(tall)) * ceil_div(j->phase.wide.count, j->columns) * j->wide;
}

/* Narrower blocks of more rows, where windows reach so far down that most lines of a block are those beyond it; the rows that fit then. */
static int64_t narrowed(job* j, int64_t rows, int64_t unit) {
  const ht_side *tall = &j->phase.tall, *wide = &j->phase.wide;
  for (int64_t blocks = j->column_blocks + 1; rows < tall->count && rows < 2 * beyond(tall) && ceil_div(wide->count, blocks) >= unit; ++blocks) {
    const int64_t columns = j->columns, pixels = j->wide, least = copied(j, rows);
    j->columns = ceil_div(wide->count, blocks);
    j->wide = pixels_of(j, j->columns);
    const int64_t more = rows_that_fit(j);
    if (more >= 1 && copied(j, more) < least) rows = more;
    else j->columns = columns, j->wide = pixels;
  }
  return rows;
}

/* Blocks of outputs, and spans of features; -1 where no block's lines find room, which conv_lines.py refuses. */
static int cut(job* j, int share, int threads) {
  const ht_side *tall = &j->phase.tall, *wide = &j->phase.wide;
  const int64_t unit = j->conv->last ? j->kernel->mr : j->kernel->nr, tile = j->conv->last ? j->kernel->nr : j->kernel->mr;
  const int64_t images = j->call->batch * j->conv->groups, pieces = share == HT_CONV_F || share == HT_WHOLE ? 1 : ceil_div(4 * (int64_t)threads, images);
  int64_t rows = 0;
  for (j->column_blocks = 1;; ++j->column_blocks) {
    j->columns = ceil_div(wide->count, j->column_blocks);
    j->wide = pixels_of(j, j->columns);
    rows = rows_that_fit(j);
    if (j->columns == 1 || (rows >= 1 && (tall->count >= pieces || j->columns <= unit || tall->count * j->column_blocks >= pieces))) break;
  }
  if (rows < 1 || j->phase.depth > HT_CONV_TERMS) return -1;
  rows = narrowed(j, rows, unit);
  j->column_blocks = ceil_div(wide->count, j->columns);
  j->row_blocks = ceil_div(tall->count, rows);
  j->row_blocks = max_i64(j->row_blocks, min_i64(tall->count, pieces));
  j->rows = ceil_div(tall->count, j->row_blocks);
  j->row_blocks = ceil_div(tall->count, j->rows);
  j->lines = j->rows + beyond(tall);
  const int64_t tiles = ceil_div(j->features, tile), spans = share == HT_CONV_F ? min_i64(tiles, threads) : 1;
  j->span = ceil_div(tiles, spans) * tile;
  j->spans = ceil_div(j->features, j->span);
  return 0;
}

int ht_conv_run_from_lines(const ht_conv* conv, const ht_kernel* kernel, const ht_conv_call* call, int share, int threads) {
  job j = {.conv = conv, .kernel = kernel, .call = call, .channels = conv->channels / conv->groups, .features = conv->features / conv->groups, .here = 1};
  ht_conv_phase(conv, 0, call->p, call->q, &j.phase);
  if (call->batch * call->p * call->q == 0) return 0;
  j.down = residues(&j.phase.tall), j.across = residues(&j.phase.wide);
  j.step = conv->last ? j.phase.wide.move * j.channels : 1;
  for (int e = 0; e < call->extras; ++e) j.here = j.here && call->extra[e].sb == 0 && call->extra[e].sh == 0 && call->extra[e].sw == 0;
  atomic_init(&j.failed, 0);
  if (cut(&j, share, threads) != 0) return -1;
  place_terms(&j, ht_room(HT_ROOM_LINES, HT_CONV_TERMS * sizeof(int64_t)));
  ht_pool_run(run_chunk, &j, conv->groups * call->batch * j.row_blocks * j.column_blocks * j.spans, threads);
  return atomic_load_explicit(&j.failed, memory_order_relaxed) ? -1 : 0;
}
