/* Convolutions with 3x3 windows by transforms: see conv.h. Tiles of outputs are numbered through rows and images. A block of tiles is
 * transformed for all channels, multiplied point by point with the transformed weight, a span of features at a time, and transformed back. */
#include <string.h>

#include "conv.h"
#include "epilogue.h"
#include "turn.h"

/* Of a thread, kept from call to call: points of a block and their products, together what L2 and a share of L3 hold. */
#define POINT_FLOATS (224 * 1024)
#define PRODUCT_FLOATS (96 * 1024)
#define RUN 16          /* tiles side by side in a row of the image that are laid out at a time: they stay in L1 */
#define MOST_LANES 16
#define APART 32        /* floats that ht_conv_apart adds at most */
#define SLACK_PANELS 4  /* the widest tile reads so many panels from the last one on */

#define HT_TARGET __attribute__((target("avx512f")))
#define HT_WIDE(name) name##_16
#define HT_LANES 16
#include "conv_winograd.h"
#undef HT_TARGET
#undef HT_WIDE
#undef HT_LANES
#define HT_TARGET __attribute__((target("avx2,fma")))
#define HT_WIDE(name) name##_8
#define HT_LANES 8
#include "conv_winograd.h"
#undef HT_TARGET
#undef HT_WIDE
#undef HT_LANES
#define HT_TARGET
#define HT_WIDE(name) name##_4
#define HT_LANES 4
#include "conv_winograd.h"

typedef struct { /* of each thread */
  _Alignas(64) float line[6 * ((RUN * 4 + 2) + MOST_LANES) * MOST_LANES];
  _Alignas(64) float turned[4 * RUN * 4 * MOST_LANES]; /* features first */
  _Alignas(64) float product[PRODUCT_FLOATS];
  _Alignas(64) float point[POINT_FLOATS];
} rooms;

#define ROOM ((rooms*)ht_room(HT_ROOM_WINOGRAD, sizeof(rooms)))

typedef struct {
  const ht_conv* conv;
  const ht_kernel* kernel;
  const ht_conv_call* call;
  const float* weight;          /* of the kernel's tile */
  int64_t tile, side, points;
  int64_t down, across, tiles;  /* tiles of an image each way, and of all */
  int64_t panel, group;         /* floats from one panel of a point's weight, and from one point's, to the next */
  int64_t block, blocks, span, spans;
  int64_t row, point;           /* of the transformed block: floats from one tile, and from one point, to the next */
  int shared_spans;
  atomic_int failed;
} job;

int64_t ht_conv_winograd_packed(const ht_conv* conv, int tile) {
  int64_t panels = (int64_t)(tile + 2) * (tile + 2) * up(conv->features, conv->lanes) + SLACK_PANELS;
  return panels * ht_conv_apart((int64_t)conv->channels * conv->lanes);
}

static void points_of(int tile, const double* g, int step, double* out) {
  double sum = g[0] + g[2 * step], middle = g[step];
  if (tile == 2) {
    double of[4] = {g[0], (sum + middle) / 2, (sum - middle) / 2, g[2 * step]};
    memcpy(out, of, sizeof of);
    return;
  }
  double far = g[0] / 24 + g[2 * step] / 6;
  double of[6] = {g[0] / 4, -(sum + middle) / 6, -(sum - middle) / 6, far + middle / 12, far - middle / 12, g[2 * step]};
  memcpy(out, of, sizeof of);
}

void ht_conv_winograd_pack(const ht_conv* conv, int tile, const float* weight, float* packed) {
  const int side = tile + 2;
  const int64_t lanes = conv->lanes, panel = ht_conv_apart(conv->channels * lanes), group = panel * up(conv->features, lanes);
  for (int64_t f = 0; f < conv->features; ++f)
    for (int64_t c = 0; c < conv->channels; ++c, weight += 9) {
      double g[9], half[6 * 3], line[6];
      for (int i = 0; i < 9; ++i) g[i] = weight[i];
      for (int j = 0; j < 3; ++j) {
        points_of(tile, g + j, 3, line);
        for (int i = 0; i < side; ++i) half[i * 3 + j] = line[i];
      }
      float* to = packed + f / lanes * panel + c * lanes + f % lanes;
      for (int i = 0; i < side; ++i) {
        points_of(tile, half + i * 3, 1, line);
        for (int j = 0; j < side; ++j) to[(i * side + j) * group] = (float)line[j];
      }
    }
}

/* Where tile `index` lies. */
typedef struct {
  int64_t b, y, x; /* image, and first output */
} spot;

static spot spot_of(const job* j, int64_t index) {
  int64_t row = index / j->across;
  return (spot){row / j->down, row % j->down * j->tile, index % j->across * j->tile};
}

/* Tiles from `index` on that lie side by side in one row of tiles. */
static int64_t run_of(const job* j, int64_t index, int64_t end) {
  return least(least(j->across - index % j->across, end - index), RUN);
}

/* What `count` tiles side by side see of `some` channels from `c` on: lines of pixels, each a vector of channels; zeros around. */
static void lay_out(const job* j, spot at, int64_t c, int64_t some, int64_t wide) {
  const ht_conv_call* call = j->call;
  const int64_t lanes = j->conv->lanes, x0 = at.x - j->conv->wide.before;
  const int64_t low = least(wide, x0 < 0 ? -x0 : 0), high = least(wide, call->w - x0 > low ? call->w - x0 : low);
  for (int64_t i = 0; i < j->side; ++i) {
    float* line = ROOM->line + i * wide * lanes;
    int64_t y = at.y - j->conv->tall.before + i;
    if (y < 0 || y >= call->h || low >= high) {
      memset(line, 0, (size_t)(wide * lanes) * sizeof *line);
      continue;
    }
    const float* from = call->x + at.b * call->xb + c * call->xc + y * call->xh + (x0 + low) * call->xw;
    memset(line, 0, (size_t)(low * lanes) * sizeof *line);
    if (j->conv->last)
      for (int64_t p = low; p < high; ++p, from += call->xw) {
        memcpy(line + p * lanes, from, (size_t)some * sizeof *line);
        if (some < lanes) memset(line + p * lanes + some, 0, (size_t)(lanes - some) * sizeof *line);
      }
    else ht_square((int)lanes, from, call->xc, some, high - low, line + low * lanes, lanes, lanes);
    memset(line + high * lanes, 0, (size_t)((wide - high) * lanes) * sizeof *line);
  }
}

static void forward(const job* j, const float* from, int64_t down, int64_t right, int64_t next, int64_t count, float* to) {
  const int lanes = j->conv->lanes, tile = (int)j->tile;
  (lanes >= 16 ? forward_all_16 : lanes >= 8 ? forward_all_8 : forward_all_4)(tile, from, down, right, next, count, to, j->point, j->row);
}

static void inverse(const job* j, const float* from, int64_t row, int64_t point, int64_t count, const float* bias, float* to, int64_t down,
                    int64_t right, int64_t next) {
  const int lanes = j->conv->lanes, tile = (int)j->tile;
  (lanes >= 16 ? inverse_all_16 : lanes >= 8 ? inverse_all_8 : inverse_all_4)(tile, from, point, row, count, bias, to, down, right, next);
}

/* Points of tiles [first, end), a row of channels each. */
static void transform(const job* j, int64_t first, int64_t end) {
  const ht_conv_call* call = j->call;
  const int64_t lanes = j->conv->lanes, channels = j->conv->channels;
  for (int64_t index = first, count; index < end; index += count) {
    spot at = spot_of(j, index);
    count = run_of(j, index, end);
    float* to = ROOM->point + (index - first) * j->row;
    int64_t wide = count * j->tile + 2, y = at.y - j->conv->tall.before, x = at.x - j->conv->wide.before;
    int inside = j->conv->last && y >= 0 && x >= 0 && y + j->side <= call->h && x + wide <= call->w;
    const float* image = call->x + at.b * call->xb + y * call->xh + x * call->xw;
    for (int64_t c = 0; c < channels; c += lanes) {
      int64_t some = least(lanes, channels - c);
      if (inside && some == lanes) {
        forward(j, image + c, call->xh, call->xw, j->tile * call->xw, count, to + c);
        continue;
      }
      lay_out(j, at, c, some, wide);
      forward(j, ROOM->line, wide * lanes, lanes, j->tile * lanes, count, to + c);
    }
  }
}

/* Whether what follows is computed before outputs are where they belong: with channels first a line of an image seldom fills vectors. */
static int finished_apart(const job* j) {
  if (j->conv->last || j->kernel->epilogue == NULL) return 0;
  for (int i = 0; i < j->call->extras; ++i) {
    const ht_conv_extra* e = &j->call->extra[i];
    if (e->sb != 0 || e->sh != 0 || e->sw != 0) return 0; /* it lies as the output does */
  }
  return 1;
}

/* Lines of `some` features, turned so that features come first, and what follows them, in whole vectors; then to where they belong. */
static int put_finished(const job* j, int64_t feature, int64_t some, int64_t wide, int64_t lines, int64_t pixels, float* y) {
  const ht_conv_call* call = j->call;
  const int64_t lanes = j->conv->lanes, width = up(pixels, lanes) * lanes, row = lines * width;
  float *line = ROOM->line, *turned = ROOM->turned;
  ht_extra extra[HT_MAX_EXTRA];
  for (int64_t i = 0; i < lines; ++i)
    for (int64_t p = 0; p < pixels; p += lanes)
      ht_square((int)lanes, line + (i * wide + p) * lanes, lanes, least(lanes, pixels - p), some, turned + i * width + p, row, lanes);
  for (int i = 0; i < call->extras; ++i) extra[i] = (ht_extra){call->extra[i].data + feature * call->extra[i].sf, call->extra[i].sf, 0};
  if (ht_epilogue_run(j->kernel->epilogue, j->kernel->lanes, turned, row, extra, call->extras, 0, 0, some, row) != 0) return -1;
  for (int64_t f = 0; f < some; ++f)
    for (int64_t i = 0; i < lines; ++i) ht_copy_few(y + f * call->yf + i * call->yh, turned + f * row + i * width, pixels * (int64_t)sizeof *y);
  return 0;
}

/* Outputs of tiles [first, end) from their products, features [feature, feature + features); then what follows them. */
static int put(const job* j, int64_t first, int64_t end, int64_t feature, int64_t features, int64_t row, int64_t point) {
  const ht_conv_call* call = j->call;
  const int64_t lanes = j->conv->lanes;
  const int apart = finished_apart(j);
  int rc = 0;
  for (int64_t index = first, count; index < end && rc == 0; index += count) {
    spot at = spot_of(j, index);
    count = run_of(j, index, end);
    int64_t wide = count * j->tile, pixels = least(wide, call->q - at.x), lines = least(j->tile, call->p - at.y);
    float* image = call->y + at.b * call->yb + at.y * call->yh + at.x * call->yw;
    for (int64_t f = 0; f < features && rc == 0; f += lanes) {
      int64_t some = least(lanes, features - f);
      _Alignas(64) float bias[MOST_LANES] = {0};
      if (call->bias != NULL) memcpy(bias, call->bias + feature + f, (size_t)some * sizeof *bias);
      const float* from = ROOM->product + (index - first) * row + f;
      float* y = image + (feature + f) * call->yf;
      if (j->conv->last && some == lanes && pixels == wide && lines == j->tile) {
        inverse(j, from, row, point, count, bias, y, call->yh, call->yw, j->tile * call->yw);
        continue;
      }
      inverse(j, from, row, point, count, bias, ROOM->line, wide * lanes, lanes, j->tile * lanes);
      if (apart) {
        rc = put_finished(j, feature + f, some, wide, lines, pixels, y);
        continue;
      }
      for (int64_t i = 0; i < lines; ++i, y += call->yh) {
        const float* line = ROOM->line + i * wide * lanes;
        if (j->conv->last)
          for (int64_t p = 0; p < pixels; ++p) memcpy(y + p * call->yw, line + p * lanes, (size_t)some * sizeof *y);
        else
          for (int64_t p = 0; p < pixels; p += lanes)
            ht_square((int)lanes, line + p * lanes, lanes, least(lanes, pixels - p), some, y + p, call->yf, least(lanes, pixels - p));
      }
    }
    for (int64_t i = 0; i < lines && rc == 0 && !apart; ++i) {
      ht_conv_part part = {at.b, feature, at.y + i, at.x, features, pixels, 1};
      rc = ht_conv_finish(j->conv, j->kernel, call, &part);
    }
  }
  return rc;
}

static int multiply(const job* j, int64_t rows, int64_t feature, int64_t features, int64_t row, int64_t point) {
  const ht_kernel* k = j->kernel;
  const float* weight = j->weight + feature / j->conv->lanes * j->panel;
  int rc = 0;
  for (int64_t p = 0; p < j->points && rc == 0; ++p, weight += j->group) {
    ht_conv_tile c = {.x = ROOM->point + p * j->point, .ldx = j->row, .w = weight, .w_stride = j->panel, .y = ROOM->product + p * point,
                      .ldy = row, .depth = j->conv->channels, .tiles = rows / k->mr};
    rc = ht_conv_across(k, j->conv->lanes, c, features);
  }
  return rc;
}

/* Chunks in the order of blocks of tiles, and where threads share features, of spans of them. */
static void run_chunk(void* arg, int64_t index) {
  job* j = arg;
  const int64_t mr = j->kernel->mr, nr = j->kernel->nr, each = j->shared_spans ? j->spans : 1;
  const int64_t first = index / each * j->block, end = least(first + j->block, j->tiles), rows = up(end - first, mr) * mr;
  int rc = 0;
  transform(j, first, end);
  for (int64_t p = 0; p < j->points; ++p) /* rows that no tile has: numbers that no output keeps */
    memset(ROOM->point + p * j->point + (end - first) * j->row, 0, (size_t)((rows - (end - first)) * j->row) * sizeof(float));
  int64_t from = j->shared_spans ? index % each : 0, to = j->shared_spans ? from + 1 : j->spans;
  for (int64_t span = from; span < to && rc == 0; ++span) {
    int64_t feature = span * j->span, features = least(j->span, j->conv->features - feature);
    int64_t row = up(features, nr) * nr, point = ht_conv_apart(rows * row);
    rc = multiply(j, rows, feature, features, row, point);
    if (rc == 0) rc = put(j, first, end, feature, features, row, point);
  }
  if (rc != 0) atomic_store_explicit(&j->failed, 1, memory_order_relaxed);
}

/* Blocks of tiles whose points, and spans of features whose products, find room. */
static int cut(job* j, int share, int threads) {
  const int64_t mr = j->kernel->mr, nr = j->kernel->nr, units = up(j->tiles, mr);
  j->row = ht_conv_apart(j->conv->channels);
  const int64_t points = POINT_FLOATS / j->points - APART, products = PRODUCT_FLOATS / j->points - APART;
  int64_t most = least(points / j->row, products / nr) / mr;
  if (most < 1) return -1; /* the family's laws refuse such tiles */
  int64_t blocks = up(units, most), pieces = share == HT_CONV_F || share == HT_WHOLE ? 1 : threads;
  if (pieces > 1) blocks = up(blocks, pieces) * pieces;
  if (blocks > units) blocks = units;
  j->block = up(units, blocks) * mr;
  j->blocks = up(j->tiles, j->block);
  j->point = ht_conv_apart(j->block * j->row);
  int64_t columns = up(j->conv->features, nr), wide = products / j->block / nr;
  int64_t spans = up(columns, wide);
  j->shared_spans = share == HT_CONV_F && threads > 1;
  if (j->shared_spans && spans < threads) spans = least(threads, columns);
  j->span = up(columns, spans) * nr;
  j->spans = up(j->conv->features, j->span);
  return 0;
}

int ht_conv_run_winograd(const ht_conv* conv, const ht_kernel* kernel, const ht_conv_call* call, int share, int threads) {
  job j = {.conv = conv, .kernel = kernel, .call = call, .tile = kernel->tile, .side = kernel->tile + 2};
  j.weight = call->weight + ht_conv_form(conv, kernel->tile);
  j.points = j.side * j.side;
  j.down = up(call->p, j.tile);
  j.across = up(call->q, j.tile);
  j.tiles = call->batch * j.down * j.across;
  j.panel = ht_conv_apart((int64_t)conv->channels * conv->lanes);
  j.group = j.panel * up(conv->features, conv->lanes);
  atomic_init(&j.failed, 0);
  if (j.tiles == 0) return 0;
  if (cut(&j, share, threads) != 0) return -1;
  int64_t chunks = j.blocks * (j.shared_spans ? j.spans : 1);
  ht_pool_run(run_chunk, &j, chunks, threads);
  return atomic_load_explicit(&j.failed, memory_order_relaxed) ? -1 : 0;
}
