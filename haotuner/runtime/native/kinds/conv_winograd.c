/* Convolutions by minimal filtering: see conv_winograd.h. Tiles of outputs are numbered through rows and images. A block of tiles is
 * transformed for all terms, multiplied point by point with the transformed weight, a span of features at a time, and transformed back. */
#include <string.h>

#include "conv_winograd.h"
#include "copy.h"
#include "turn.h"

/* Of a thread, kept from call to call: points of a block and their products. NEAR: together what L2 and a share of L3 hold. The weight
 * streams past once for each block: where fewer than ROWS tiles find room so near, a block has more of them, in L3. */
#define NEAR_POINTS (224 * 1024)
#define NEAR_PRODUCTS (96 * 1024)
#define POINT_FLOATS (1280 * 1024)
#define PRODUCT_FLOATS (256 * 1024)
#define ROWS 96
#define VECTORS 320     /* of what tiles side by side in a row of the image see, half transformed: as many at a time stay near L1 */
#define MOST_LANES 16
#define MOST_RESIDUES 16 /* of a transposed convolution (conv_winograd.py) */
#define APART 32        /* floats that ht_conv_apart adds at most */

typedef struct { /* of each thread */
  _Alignas(64) float line[VECTORS * MOST_LANES];
  _Alignas(64) float half[VECTORS * MOST_LANES];
  _Alignas(64) float strip[(VECTORS + MOST_LANES) * MOST_LANES];                        /* a row of the image, channels first */
  _Alignas(64) float turned[(VECTORS + HT_FILTER_OUTPUTS * MOST_RESIDUES * MOST_LANES) * MOST_LANES]; /* features first */
  _Alignas(64) float product[PRODUCT_FLOATS];
  _Alignas(64) float point[POINT_FLOATS];
} rooms;

#define ROOM ((rooms*)ht_room(HT_ROOM_WINOGRAD, sizeof(rooms)))

typedef struct {
  const ht_conv *conv, *own;         /* what is filtered; what was asked: the same unless that is transposed, */
  const ht_kernel* kernel;
  const ht_conv_call *call, *asked; /* and their calls */
  int64_t residues;                  /* of a transposed one: features of what is filtered for one of its own */
  const float* weight;          /* of the kernel's tile */
  ht_winograd f;
  int64_t down, across, tiles;  /* tiles of an image each way, and of all */
  int64_t below, beside;        /* of these, tiles each way that have outputs of one residue of the dilation */
  int64_t run;                  /* tiles side by side that are transformed at a time */
  int64_t block, blocks, span, spans;
  int64_t row, point;           /* of the transformed block: floats from one tile, and from one point, to the next */
  int shared_spans;
  atomic_int failed;
} job;

/* Where tile `index` lies. */
typedef struct {
  int64_t b, y, x; /* image, and first output */
} spot;

/* Tiles go through one residue after the other, `each` of one. */
static int64_t output_of(const ht_winograd_side* s, int64_t tile, int64_t each) { return tile % each * s->tile * s->apart + tile / each; }

static spot spot_of(const job* j, int64_t index) {
  int64_t row = index / j->across;
  return (spot){row / j->down, output_of(&j->f.tall, row % j->down, j->below), output_of(&j->f.wide, index % j->across, j->beside)};
}

/* Tiles from `index` on that lie side by side in one row of tiles. */
static int64_t run_of(const job* j, int64_t index, int64_t end) {
  return min_i64(min_i64(j->beside - index % j->across % j->beside, end - index), j->run);
}

/* Of the `wide` places of a row those that a phase sees of the image, [low, high); `x`: the first one's pixel. */
typedef struct {
  int64_t low, high;
} seen;

static seen seen_of(int64_t x, int64_t step, int64_t extent, int64_t wide) {
  const int64_t low = min_i64(wide, x < 0 ? ceil_div(-x, step) : 0), end = min_i64(wide, x < extent ? ceil_div(extent - x, step) : 0);
  return (seen){low, end > low ? end : low};
}

/* The terms [term, term + some) of a product at `wide` places of a row, `line`: vectors of terms, zeros beyond the image. */
static void lay_out_row(const job* j, spot at, int64_t row, int64_t term, int64_t some, int64_t wide, float* line) {
  const ht_conv_call* call = j->call;
  const ht_winograd_side *t = &j->f.tall, *u = &j->f.wide;
  const int64_t lanes = j->conv->lanes, channels = j->conv->channels, pitch = ceil_div(wide, MOST_LANES) * MOST_LANES;
  if (j->conv->last) memset(line, 0, (size_t)(wide * lanes) * sizeof *line);
  for (int64_t k = 0, count; k < some; k += count) {
    const int64_t phase = (term + k) / channels, c = (term + k) % channels, down = phase / u->phases;
    const int64_t y = at.y * t->move - t->before + row * t->step + down, x = at.x * u->move - u->before + phase % u->phases;
    const int64_t apart = u->step * call->xw;
    count = min_i64(channels - c, some - k);
    seen s = seen_of(x, u->step, call->w, wide);
    if (y < 0 || y >= call->h) s.low = s.high = 0;
    if (!j->conv->last) { /* from a place that may lie before the image: only those that are seen are read */
      const float* from = call->x + (at.b * call->xb + c * call->xc + y * call->xh + x * call->xw);
      ht_conv_padded((int)lanes, ROOM->strip + k * pitch, pitch, from, call->xc, apart, count, s.low, s.high, wide);
      continue;
    }
    const float* from = call->x + (at.b * call->xb + c + y * call->xh + (x + s.low * u->step) * call->xw);
    for (int64_t p = s.low; p < s.high; ++p, from += apart) ht_copy_few(line + p * lanes + k, from, count * (int64_t)sizeof *line);
  }
  if (!j->conv->last) ht_square((int)lanes, ROOM->strip, pitch, some, wide, line, lanes, lanes);
}

/* What tiles side by side see, `wide` places of as many rows as a tile has, `down` and `right` floats apart, to points of `count` tiles. */
static void forward(const job* j, const float* from, int64_t down, int64_t right, int64_t count, int64_t wide, float* to) {
  const ht_winograd_side *t = &j->f.tall, *u = &j->f.wide;
  const int lanes = j->conv->lanes;
  float* half = ROOM->half;
  if (u->points == 1) {
    ht_filter_ahead(lanes, (int)t->points, from, down, right, count, to, j->point, j->row);
    return;
  }
  if (t->points > 1) {
    ht_filter_ahead(lanes, (int)t->points, from, down, right, wide, half, wide * lanes, lanes);
    from = half, down = wide * lanes, right = lanes;
  }
  for (int64_t i = 0; i < t->points; ++i)
    ht_filter_ahead(lanes, (int)u->points, from + i * down, right, u->tile * right, count, to + i * u->points * j->point, j->point, j->row);
}

/* Points of `count` tiles side by side, rows `row` apart, to `pixels` of each of their lines, and what is added to each. */
static void inverse(const job* j, const float* from, int64_t row, int64_t point, int64_t count, int64_t pixels, const float* bias, float* to,
                    int64_t down, int64_t right) {
  static const float none[MOST_LANES] = {0};
  const ht_winograd_side *t = &j->f.tall, *u = &j->f.wide;
  const int lanes = j->conv->lanes, tall = (int)t->points, wide = (int)u->points;
  if (wide == 1) {
    ht_filter_back(lanes, tall, (int)t->tile, from, point, row, count, bias, to, down, right);
    return;
  }
  if (tall == 1) {
    ht_filter_back(lanes, wide, (int)u->tile, from, point, row, count, bias, to, right, u->tile * right);
    return;
  }
  const int64_t width = count * u->tile * lanes;
  float* half = ROOM->half;
  for (int64_t i = 0; i < tall; ++i)
    ht_filter_back(lanes, wide, (int)u->tile, from + i * wide * point, point, row, count, none, half + i * width, lanes, u->tile * lanes);
  ht_filter_back(lanes, tall, (int)t->tile, half, width, lanes, pixels, bias, to, down, right);
}

/* Points of tiles [first, end), a row of terms each. */
static void transform(const job* j, int64_t first, int64_t end) {
  const ht_conv_call* call = j->call;
  const ht_winograd_side *t = &j->f.tall, *u = &j->f.wide;
  const int64_t lanes = j->conv->lanes, channels = j->conv->channels, rows = t->tile + t->taps - 1;
  float* line = ROOM->line;
  for (int64_t index = first, count; index < end; index += count) {
    spot at = spot_of(j, index);
    count = run_of(j, index, end);
    float* to = ROOM->point + (index - first) * j->row;
    const int64_t wide = count * u->tile + u->taps - 1;
    for (int64_t term = 0; term < j->f.depth; term += lanes) {
      const int64_t phase = term / channels, c = term % channels, some = min_i64(lanes, j->f.depth - term);
      const int64_t y = at.y * t->move - t->before + phase / u->phases, x = at.x * u->move - u->before + phase % u->phases;
      if (j->conv->last && c + lanes <= channels && y >= 0 && x >= 0 && y + (rows - 1) * t->step < call->h &&
          x + (wide - 1) * u->step < call->w) {
        const float* image = call->x + at.b * call->xb + y * call->xh + x * call->xw + c;
        forward(j, image, t->step * call->xh, u->step * call->xw, count, wide, to + term);
        continue;
      }
      for (int64_t i = 0; i < rows; ++i) lay_out_row(j, at, i, term, some, wide, line + i * wide * lanes);
      forward(j, line, wide * lanes, lanes, count, wide, to + term);
    }
  }
}

/* Outputs of tiles [first, end) from their products, features [feature, feature + features); then what follows them. */
static int put(const job* j, int64_t first, int64_t end, int64_t feature, int64_t features, int64_t row, int64_t point) {
  const ht_conv_call* call = j->call;
  const int64_t lanes = j->conv->lanes;
  const int apart = !j->conv->last && ht_conv_reads_channels(j->kernel, call); /* finished before they are put: lines seldom fill vectors */
  int rc = 0;
  for (int64_t index = first, count; index < end && rc == 0; index += count) {
    spot at = spot_of(j, index);
    count = run_of(j, index, end);
    if (at.y >= call->p || at.x >= call->q) continue; /* residues have as many tiles as the first, which has the most outputs */
    const int64_t tile = j->f.tall.tile, wide = count * j->f.wide.tile, below = j->f.tall.apart, beside = j->f.wide.apart;
    int64_t pixels = min_i64(wide, ceil_div(call->q - at.x, beside)), lines = min_i64(tile, ceil_div(call->p - at.y, below));
    const int whole = lines == tile && (pixels == wide || tile > 1); /* columns beyond the image are left out, of rows none */
    float* image = call->y + at.b * call->yb + at.y * call->yh + at.x * call->yw;
    for (int64_t f = 0; f < features && rc == 0; f += lanes) {
      int64_t some = min_i64(lanes, features - f);
      _Alignas(64) float bias[MOST_LANES] = {0};
      if (call->bias != NULL) memcpy(bias, call->bias + feature + f, (size_t)some * sizeof *bias);
      const float* from = ROOM->product + (index - first) * row + f;
      float* y = image + (feature + f) * call->yf;
      if (j->conv->last && some == lanes && whole) {
        inverse(j, from, row, point, count, pixels, bias, y, below * call->yh, beside * call->yw);
        continue;
      }
      inverse(j, from, row, point, count, wide, bias, ROOM->line, wide * lanes, lanes);
      if (!j->conv->last) {
        const int64_t together = below > 1 ? 1 : lines; /* lines that follow one another in y */
        for (int64_t i = 0; i < lines && rc == 0; i += together) {
          const ht_conv_part part = {at.b, feature + f, at.y + i * below, at.x, some, pixels, beside};
          rc = ht_conv_put_turned(j->conv, j->kernel, call, &part, together, ROOM->line + i * wide * lanes, wide, apart ? ROOM->turned : NULL);
        }
        continue;
      }
      for (int64_t i = 0; i < lines; ++i, y += below * call->yh)
        for (int64_t p = 0; p < pixels; ++p)
          ht_copy_few(y + p * beside * call->yw, ROOM->line + (i * wide + p) * lanes, some * (int64_t)sizeof *y);
    }
    for (int64_t i = 0; i < lines && rc == 0 && !apart; ++i) {
      ht_conv_part part = {at.b, feature, at.y + i * below, at.x, features, pixels, beside};
      rc = ht_conv_finish(j->conv, j->kernel, call, &part);
    }
  }
  return rc;
}

/* The same of a transposed convolution: each residue's outputs go between those of the others, a vector of features at a time. */
static int put_woven(const job* j, int64_t first, int64_t end, int64_t feature, int64_t features, int64_t row, int64_t point) {
  const ht_conv* own = j->own;
  const ht_conv_call* call = j->asked;
  const int64_t lanes = own->lanes, down = own->tall.stride, across = own->wide.stride;
  const int apart = !own->last && ht_conv_reads_channels(j->kernel, call);
  int rc = 0;
  for (int64_t index = first, count; index < end && rc == 0; index += count) {
    spot at = spot_of(j, index);
    count = run_of(j, index, end);
    const int64_t each = count * j->f.wide.tile, wide = each * across;
    const int64_t y = at.y * down - own->tall.before % down, x = at.x * across - own->wide.before % across;
    const int64_t top = max_i64(-y, 0), left = max_i64(-x, 0), lines = min_i64(j->f.tall.tile * down, call->p - y) - top, pixels = min_i64(wide, call->q - x) - left;
    for (int64_t f = 0; f < features && rc == 0 && lines > 0 && pixels > 0; f += j->residues * lanes) {
      ht_conv_part part = {at.b, (feature + f) / j->residues, y + top, x + left, 0, pixels, 1};
      part.features = min_i64(lanes, own->features - part.f);
      _Alignas(64) float bias[MOST_LANES] = {0};
      if (call->bias != NULL) memcpy(bias, call->bias + part.f, (size_t)part.features * sizeof *bias);
      for (int64_t r = 0; r < j->residues; ++r)
        inverse(j, ROOM->product + (index - first) * row + f + r * lanes, row, point, count, each, bias,
                ROOM->line + (r / across * wide + r % across) * lanes, down * wide * lanes, across * lanes);
      const float* from = ROOM->line + (top * wide + left) * lanes;
      if (!own->last) rc = ht_conv_put_turned(own, j->kernel, call, &part, lines, from, wide, apart ? ROOM->turned : NULL);
      float* to = call->y + part.b * call->yb + part.f * call->yf + part.p * call->yh + part.q * call->yw;
      for (int64_t i = 0; i < lines && own->last; ++i)
        for (int64_t p = 0; p < pixels; ++p) memcpy(to + i * call->yh + p * call->yw, from + (i * wide + p) * lanes, (size_t)part.features * sizeof *to);
      for (int64_t i = 0; i < lines && rc == 0 && !apart; ++i, ++part.p) rc = ht_conv_finish(own, j->kernel, call, &part);
    }
  }
  return rc;
}

/* One point's products of terms [term, term + depth), added to those that are there where `add` says so. */
static int multiply_terms(const job* j, int64_t point, ht_conv_tile c, int64_t term, int64_t depth, int add, int64_t features) {
  c.x += point * j->point + term;
  c.w += point * j->f.group + term * j->conv->lanes;
  c.depth = depth;
  c.add = add;
  return ht_conv_across(j->kernel, j->conv->lanes, c, features);
}

/* All points' products. At infinity only phases with all taps count, which come first, down the image and of each phase down across it. */
static int multiply(const job* j, int64_t rows, int64_t feature, int64_t features, int64_t row, int64_t point) {
  const ht_winograd_side *t = &j->f.tall, *u = &j->f.wide;
  const int64_t channels = j->conv->channels, each = u->phases * channels;
  int rc = 0;
  for (int64_t p = 0; p < j->f.points && rc == 0; ++p) {
    ht_conv_tile c = {.x = ROOM->point, .ldx = j->row, .w = j->weight + feature / j->conv->lanes * j->f.panel, .w_stride = j->f.panel,
                      .y = ROOM->product + p * point, .ldy = row, .tiles = rows / j->kernel->mr};
    const int64_t down = p / u->points == t->points - 1 ? t->whole : t->phases, across = p % u->points == u->points - 1 ? u->whole : u->phases;
    if (across == u->phases) rc = multiply_terms(j, p, c, 0, down * each, 0, features);
    else
      for (int64_t d = 0; d < down && rc == 0; ++d) rc = multiply_terms(j, p, c, d * each, across * channels, d > 0, features);
  }
  return rc;
}

/* Chunks in the order of blocks of tiles, and where threads share features, of spans of them. */
static void run_chunk(void* arg, int64_t index) {
  job* j = arg;
  const int64_t mr = j->kernel->mr, nr = j->kernel->nr, each = j->shared_spans ? j->spans : 1;
  const int64_t first = index / each * j->block, end = min_i64(first + j->block, j->tiles), rows = ceil_div(end - first, mr) * mr;
  int rc = 0;
  transform(j, first, end);
  for (int64_t p = 0; p < j->f.points; ++p) /* rows that no tile has: numbers that no output keeps */
    memset(ROOM->point + p * j->point + (end - first) * j->row, 0, (size_t)((rows - (end - first)) * j->row) * sizeof(float));
  int64_t from = j->shared_spans ? index % each : 0, to = j->shared_spans ? from + 1 : j->spans;
  for (int64_t span = from; span < to && rc == 0; ++span) {
    int64_t feature = span * j->span, features = min_i64(j->span, j->conv->features - feature);
    int64_t row = ceil_div(features, nr) * nr, point = ht_conv_apart(rows * row);
    rc = multiply(j, rows, feature, features, row, point);
    if (rc == 0) rc = (j->own->transposed ? put_woven : put)(j, first, end, feature, features, row, point);
  }
  if (rc != 0) atomic_store_explicit(&j->failed, 1, memory_order_relaxed);
}

/* Blocks of tiles whose points, and spans of features whose products, find room. */
static int cut(job* j, int share, int threads) {
  const int64_t mr = j->kernel->mr, units = ceil_div(j->tiles, mr);
  int64_t nr = j->kernel->nr;
  while (j->own->transposed && nr % (j->own->lanes * j->residues) != 0) nr += j->kernel->nr; /* features with all their residues */
  j->row = ht_conv_apart(j->f.depth);
  int64_t products = NEAR_PRODUCTS / j->f.points - APART, most = min_i64((NEAR_POINTS / j->f.points - APART) / j->row, products / nr) / mr;
  if (most < ceil_div(ROWS, mr)) {
    products = PRODUCT_FLOATS / j->f.points - APART;
    most = min_i64(min_i64((POINT_FLOATS / j->f.points - APART) / j->row, products / nr) / mr, ceil_div(ROWS, mr));
  }
  if (most < 1) return -1; /* the family's laws refuse such tiles */
  int64_t blocks = ceil_div(units, most), pieces = share == HT_CONV_F || share == HT_WHOLE ? 1 : threads;
  if (pieces > 1) blocks = ceil_div(blocks, pieces) * pieces;
  if (blocks > units) blocks = units;
  j->block = ceil_div(units, blocks) * mr;
  j->blocks = ceil_div(j->tiles, j->block);
  j->point = ht_conv_apart(j->block * j->row);
  int64_t columns = ceil_div(j->conv->features, nr), wide = products / j->block / nr;
  int64_t spans = ceil_div(columns, wide);
  j->shared_spans = share == HT_CONV_F && threads > 1;
  if (j->shared_spans && spans < threads) spans = min_i64(threads, columns);
  j->span = ceil_div(columns, spans) * nr;
  j->spans = ceil_div(j->conv->features, j->span);
  return 0;
}

/* Along an axis of a transposed convolution, how many places g have outputs (conv_winograd.h). */
static int64_t places(const ht_window* w, int64_t outputs) { return ceil_div(outputs + w->before % w->stride, w->stride); }

int ht_conv_run_winograd(const ht_conv* conv, const ht_kernel* kernel, const ht_conv_call* asked, int share, int threads) {
  const ht_conv of = ht_winograd_conv(conv);
  ht_conv_call filtered = *asked, *call = &filtered;
  job j = {.conv = &of, .own = conv, .kernel = kernel, .call = call, .asked = asked, .f = ht_winograd_of(&of, kernel->tile)};
  const ht_winograd_side *t = &j.f.tall, *u = &j.f.wide;
  j.residues = ht_winograd_residues(conv);
  if (conv->transposed) call->p = places(&conv->tall, asked->p), call->q = places(&conv->wide, asked->q);
  j.weight = call->weight + ht_conv_form(conv, kernel->tile);
  j.below = ceil_div(ceil_div(call->p, t->apart), t->tile);
  j.beside = ceil_div(ceil_div(call->q, u->apart), u->tile);
  j.down = j.below * min_i64(call->p, t->apart);
  j.across = j.beside * min_i64(call->q, u->apart);
  j.tiles = call->batch * j.down * j.across;
  j.run = (VECTORS / t->points - u->taps + 1) / u->tile;
  if (conv->transposed) j.run = min_i64(j.run, VECTORS / (t->tile * u->tile * j.residues));
  atomic_init(&j.failed, 0);
  if (j.tiles == 0) return 0;
  if (cut(&j, share, threads) != 0) return -1;
  int64_t chunks = j.blocks * (j.shared_spans ? j.spans : 1);
  ht_pool_run(run_chunk, &j, chunks, threads);
  return atomic_load_explicit(&j.failed, memory_order_relaxed) ? -1 : 0;
}
