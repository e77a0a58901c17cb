/* Channels first, with pixels as rows of the tiles and features as columns: see conv.h. Few pixels fill tiles so, and every weight is
 * read once a block. What a block's windows see is turned once, HT_CONV_TURNED_CHANNELS channels at a time, into a band of padded lines,
 * from which windows are copied; results are turned on their way to y. Phases of a transposed convolution that see the same windows
 * share what is laid out. */
#include <string.h>

#include "conv.h"
#include "turn.h"

/* Of a thread, kept from call to call: what a block's windows see, and its results, together what L2 and a share of L3 hold. */
#define IMAGE_FLOATS (96 * 1024)
#define RESULT_FLOATS (64 * 1024)
#define BAND_FLOATS (64 * 1024) /* conv_pixel_major.py refuses windows that find no room in it */
#define CHANNELS HT_CONV_TURNED_CHANNELS
#define ROWS_MOST 96 /* pixels of a block: the weight streams past once for so many */
#define APART 32     /* floats that ht_conv_apart adds at most */
#define MOST_LANES 16
#define TOGETHER 16  /* phases that share windows */

typedef struct { /* of each thread */
  _Alignas(64) float square[MOST_LANES * MOST_LANES];
  _Alignas(64) float band[BAND_FLOATS];
  _Alignas(64) float result[RESULT_FLOATS];
  _Alignas(64) float image[IMAGE_FLOATS];
} rooms;

#define ROOM ((rooms*)ht_room(HT_ROOM_TURNED, sizeof(rooms)))

typedef struct {
  const ht_conv* conv;
  const ht_kernel* kernel;
  const ht_conv_call* call;
  const float* weight; /* in the form of channels last */
  ht_phase phase[TOGETHER];
  int64_t phases;
  int64_t channels, features;    /* of a group */
  int64_t pixels, block, blocks; /* pixels of all, of a block, blocks */
  int64_t span, spans;           /* features of a chunk, and chunks of them */
  int64_t part, row;             /* channels that are laid out at a time; floats from one pixel's terms to the next */
  int x_joined, y_joined;        /* rows of an image follow one another without a gap */
  atomic_int failed;
} job;

typedef struct {
  int64_t group, pixel, pixels, feature, features;
} box;

/* Pixels from `pixel` on that lie side by side, at most `most`. */
static int64_t run_of(const ht_phase* ph, int joined, int64_t pixel, int64_t most) {
  const int64_t row = joined ? ph->wide.count * ph->tall.count : ph->wide.count;
  return min_i64(row - pixel % row, most);
}

/* `some` channels at `count` pixels of a row of the image become rows of `to`, `row` apart. */
static void turn_in(const job* j, const float* from, int64_t some, int64_t count, float* to, int64_t row) {
  const int lanes = j->conv->lanes;
  const int64_t right = j->call->xc, gap = j->call->xw;
  for (int64_t c = 0; c < some; c += lanes, from += lanes * right) {
    const int64_t few = min_i64(lanes, some - c);
    if (gap == 1) ht_square(lanes, from, right, few, count, to + c, row, few);
    else
      for (int64_t p = 0; p < count; p += lanes) {
        const int64_t now = min_i64(lanes, count - p);
        ht_conv_strip(lanes, ROOM->square, lanes, from + p * gap, right, gap, few, now);
        ht_square(lanes, ROOM->square, lanes, few, now, to + p * row + c, row, few);
      }
  }
}

typedef struct { /* what the windows of some pixels see of one axis: from `low` on, pads included */
  int64_t low, count;
} reach;

static reach reach_of(const ht_side* side, int64_t first, int64_t last) {
  const int64_t far = (side->taps - 1) * side->by, begin = first * side->move + side->at, end = last * side->move + side->at;
  return (reach){begin + (far < 0 ? far : 0), end - begin + (far < 0 ? -far : far) + 1};
}

/* Line y of `some` channels: pixels one after the other, each its channels; zeros around the image. */
static void fill_line(const job* j, const float* image, int64_t y, reach across, int64_t some, float* to) {
  const ht_conv_call* call = j->call;
  const int64_t low = min_i64(across.count, across.low < 0 ? -across.low : 0);
  const int64_t room = call->w - across.low, high = room < low ? low : min_i64(across.count, room);
  if (y < 0 || y >= call->h) {
    memset(to, 0, (size_t)(across.count * some) * sizeof *to);
    return;
  }
  memset(to, 0, (size_t)(low * some) * sizeof *to);
  turn_in(j, image + y * call->xh + (across.low + low) * call->xw, some, high - low, to + low * some, some);
  memset(to + high * some, 0, (size_t)((across.count - high) * some) * sizeof *to);
}

/* Windows of `count` pixels of one image from `pixel` on, channels [first, first + some) of a group, to rows from `to` on; of as many
 * pixels as a band finds room for, which are returned. The band is a ring of the lines that a row of outputs sees: they are copied out of
 * L1, and lines that two rows of outputs see are turned once. */
static int64_t windows(const job* j, int64_t group, int64_t pixel, int64_t count, int64_t first, int64_t some, float* to) {
  const ht_side *tall = &j->phase[0].tall, *wide = &j->phase[0].wide;
  const int64_t q_count = wide->count, b = pixel / q_count / tall->count, row = pixel / q_count % tall->count;
  const reach down = reach_of(tall, row, row);
  reach across;
  for (;; count = ceil_div(count, 2)) {
    const int64_t last = (pixel % q_count + count - 1) / q_count;
    across = last == 0 ? reach_of(wide, pixel % q_count, pixel % q_count + count - 1) : reach_of(wide, 0, q_count - 1);
    if (down.count * across.count * CHANNELS <= BAND_FLOATS || count == 1) break;
  }
  const float* image = j->call->x + b * j->call->xb + group * j->channels * j->call->xc;
  for (int64_t c = first; c < first + some; c += CHANNELS, to += tall->taps * wide->taps * CHANNELS) {
    const int64_t few = min_i64(CHANNELS, first + some - c), line = across.count * few, length = wide->taps * few;
    int64_t low = down.low, there = low; /* lines before `there` have been turned */
    for (int64_t i = 0, q = pixel % q_count, p = row, run; i < count; i += run, q = 0, ++p, low += tall->move) {
      run = min_i64(q_count - q, count - i);
      for (there = there < low ? low : there; there < low + down.count; ++there)
        fill_line(j, image + c * j->call->xc, there, across, few, ROOM->band + (there - down.low) % down.count * line);
      for (int64_t t = 0; t < tall->taps; ++t) {
        const int64_t y = p * tall->move + tall->at + t * tall->by - down.low, x = q * wide->move + wide->at - across.low;
        const float* from = ROOM->band + y % down.count * line + x * few;
        float* terms = to + i * j->row + t * length;
        if (wide->by == 1) ht_conv_lines(j->conv->lanes, terms, j->row, from, wide->move * few, run, length);
        else
          for (int64_t u = 0; u < wide->taps; ++u, from += wide->by * few, terms += few)
            ht_conv_lines(j->conv->lanes, terms, j->row, from, wide->move * few, run, few);
      }
    }
  }
  return count;
}

/* Terms of channels [first, first + some) of a block's windows: rows of pixels, in the order of the weight. */
static void lay_out(const job* j, box at, int64_t first, int64_t some) {
  const ht_side *tall = &j->phase[0].tall, *wide = &j->phase[0].wide;
  const ht_conv_call* call = j->call;
  const int single = tall->taps * wide->taps == 1 && wide->move == 1; /* every element is met once: straight into rows */
  const int64_t image = wide->count * tall->count;
  for (int64_t done = 0, run; done < at.pixels; done += run) {
    const int64_t pixel = at.pixel + done, row = pixel / wide->count, column = pixel % wide->count;
    const int64_t y = row % tall->count * tall->move + tall->at, x = column + wide->at;
    float* to = ROOM->image + done * j->row;
    run = run_of(&j->phase[0], j->x_joined, pixel, at.pixels - done);
    if (single && y >= 0 && y < call->h && x >= 0 && (j->x_joined || x + run <= call->w)) {
      const float* from = call->x + row / tall->count * call->xb + (at.group * j->channels + first) * call->xc;
      turn_in(j, from + y * call->xh + x * call->xw, some, run, to, j->row);
    } else run = windows(j, at.group, pixel, min_i64(image - pixel % image, at.pixels - done), first, some, to);
  }
}

/* Results of a phase into y, and what follows them. */
static int put(const job* j, const ht_phase* ph, box at, int64_t stride) {
  const ht_conv_call* call = j->call;
  const ht_side *tall = &ph->tall, *wide = &ph->wide;
  const int lanes = j->conv->lanes;
  const int64_t first = at.group * j->features + at.feature, gap = wide->step * call->yw;
  int rc = 0;
  for (int64_t done = 0, run; done < at.pixels && rc == 0; done += run) {
    const int64_t pixel = at.pixel + done, row = pixel / wide->count, b = row / tall->count;
    const int64_t p = tall->first + row % tall->count * tall->step, q = wide->first + pixel % wide->count * wide->step;
    run = run_of(ph, j->y_joined, pixel, at.pixels - done);
    const float* from = ROOM->result + done * stride;
    float* y = call->y + b * call->yb + first * call->yf + p * call->yh + q * call->yw;
    for (int64_t i = 0, now; i < run; i += now) {
      if (run >= lanes && run - i < lanes) i = run - lanes; /* whole vectors: some pixels again */
      now = min_i64(lanes, run - i);
      if (gap == 1) ht_square(lanes, from + i * stride, stride, now, at.features, y + i, call->yf, now);
      for (int64_t f = 0; f < at.features && gap != 1; f += lanes) {
        const int64_t few = min_i64(lanes, at.features - f);
        ht_square(lanes, from + i * stride + f, stride, now, few, ROOM->square, lanes, now);
        ht_conv_spread(lanes, y + f * call->yf + i * gap, call->yf, gap, ROOM->square, lanes, few, now);
      }
    }
    const ht_conv_part part = {b, first, p, q, at.features, run, wide->step};
    rc = ht_conv_finish(j->conv, j->kernel, call, &part);
  }
  return rc;
}

static int run_box(const job* j, box at) {
  const ht_kernel* k = j->kernel;
  const int64_t rows = ceil_div(at.pixels, k->mr) * k->mr, wide = RESULT_FLOATS / rows / k->nr * k->nr;
  const int64_t taps = j->phase[0].tall.taps * j->phase[0].wide.taps, channels = taps > 0 ? j->channels : 0;
  int rc = 0;
  for (int64_t n = 0; n < j->phases; ++n)
    for (int64_t feature = at.feature, end = at.feature + at.features; feature < end && rc == 0; feature += wide) {
      const ht_phase* ph = &j->phase[n];
      const box here = {at.group, at.pixel, at.pixels, feature, min_i64(wide, end - feature)};
      const int64_t stride = ceil_div(here.features, k->nr) * k->nr, all = at.group * j->features + feature;
      const float* weight = j->weight + ph->offset + at.group * ph->group + feature / j->conv->lanes * ph->stride;
      for (int64_t from = 0; from < channels && rc == 0; from += j->part) {
        const int64_t some = min_i64(j->part, channels - from);
        if (j->part < channels || (n == 0 && feature == at.feature)) { /* else one layout serves all features and phases */
          lay_out(j, here, from, some);
          memset(ROOM->image + at.pixels * j->row, 0, (size_t)((rows - at.pixels) * j->row) * sizeof(float));
        }
        const ht_conv_tile c = {.x = ROOM->image, .ldx = j->row, .w = weight + from * taps * j->conv->lanes, .w_stride = ph->stride,
                                .y = ROOM->result, .ldy = stride, .depth = some * taps, .tiles = rows / k->mr, .add = from > 0};
        rc = ht_conv_across(k, j->conv->lanes, c, here.features);
      }
      if (channels == 0) memset(ROOM->result, 0, (size_t)(rows * stride) * sizeof(float));
      for (int64_t i = 0; i < at.pixels && j->call->bias != NULL; ++i)
        for (int64_t f = 0; f < here.features; ++f) ROOM->result[i * stride + f] += j->call->bias[all + f];
      if (rc == 0) rc = put(j, ph, here, stride);
    }
  return rc;
}

/* Chunks in the order of groups, blocks of pixels, spans of features. */
static void run_chunk(void* arg, int64_t index) {
  job* j = arg;
  const int64_t span = index % j->spans, block = index / j->spans % j->blocks, group = index / j->spans / j->blocks;
  const int64_t pixel = block * j->block, first = span * j->span;
  const box at = {group, pixel, min_i64(j->block, j->pixels - pixel), first, min_i64(j->span, j->features - first)};
  if (run_box(j, at) != 0) atomic_store_explicit(&j->failed, 1, memory_order_relaxed);
}

static void cut(job* j, int share, int threads) {
  const int64_t mr = j->kernel->mr, nr = j->kernel->nr, taps = j->phase[0].tall.taps * j->phase[0].wide.taps;
  const int64_t few = min_i64(CHANNELS, j->channels) * (taps > 0 ? taps : 1) + APART; /* floats of a pixel at least */
  int64_t units = ceil_div(j->pixels, mr), most = min_i64(ROWS_MOST, IMAGE_FLOATS / few) / mr, blocks = ceil_div(units, most > 0 ? most : 1);
  if (share != HT_CONV_F && share != HT_WHOLE) blocks = ceil_div(blocks, threads) * threads;
  blocks = min_i64(blocks, units);
  j->block = ceil_div(units, blocks) * mr;
  j->blocks = ceil_div(j->pixels, j->block);
  const int64_t groups = ceil_div(j->channels, CHANNELS), room = (IMAGE_FLOATS / j->block - APART) / (CHANNELS * (taps > 0 ? taps : 1));
  j->part = min_i64(ceil_div(groups, ceil_div(groups, room > 0 ? room : 1)) * CHANNELS, j->channels);
  j->row = ht_conv_apart(j->part * taps);
  const int64_t tiles = ceil_div(j->features, nr), spans = share == HT_CONV_F ? min_i64(tiles, threads) : 1;
  j->span = ceil_div(tiles, spans) * nr;
  j->spans = ceil_div(j->features, j->span);
}

/* Whether windows of the two phases lie in the same places of the image. */
static int same(const ht_phase* a, const ht_phase* b) {
  const ht_side* sides[4] = {&a->tall, &b->tall, &a->wide, &b->wide};
  for (int i = 0; i < 4; i += 2) {
    const ht_side *one = sides[i], *other = sides[i + 1];
    if (one->count != other->count || one->taps != other->taps || one->move != other->move || one->at != other->at || one->by != other->by) return 0;
  }
  return 1;
}

static void run_phases(job* j, int share, int threads) {
  const ht_side *tall = &j->phase[0].tall, *wide = &j->phase[0].wide;
  const ht_conv_call* call = j->call;
  j->pixels = call->batch * tall->count * wide->count;
  if (j->pixels == 0) return;
  j->x_joined = tall->taps * wide->taps == 1 && tall->move == 1 && wide->move == 1 && tall->at == 0 && wide->at == 0 &&
                tall->count == call->h && wide->count == call->w && call->xh == call->w * call->xw;
  j->y_joined = tall->step == 1 && wide->step == 1 && call->yh == call->q * call->yw;
  for (int e = 0; e < call->extras; ++e) j->y_joined = j->y_joined && call->extra[e].sh == call->q * call->extra[e].sw;
  cut(j, share, threads);
  const int64_t chunks = j->conv->groups * j->blocks * j->spans;
  ht_pool_run(run_chunk, j, chunks, threads);
}

int ht_conv_run_turned(const ht_conv* conv, const ht_kernel* kernel, const ht_conv_call* call, int share, int threads) {
  const ht_conv rows = ht_conv_as_turned(conv);
  job j = {.conv = conv, .kernel = kernel, .call = call, .channels = conv->channels / conv->groups, .features = conv->features / conv->groups};
  j.weight = call->weight + ht_conv_form(conv, HT_CONV_TURNED);
  atomic_init(&j.failed, 0);
  ht_phase next;
  for (int64_t index = 0, phases = ht_conv_phases(conv); index < phases; ++index) {
    ht_conv_phase(&rows, index, call->p, call->q, &next);
    if (j.phases == TOGETHER || (j.phases > 0 && !same(&j.phase[0], &next))) {
      run_phases(&j, share, threads);
      j.phases = 0;
    }
    j.phase[j.phases++] = next;
  }
  run_phases(&j, share, threads);
  return atomic_load_explicit(&j.failed, memory_order_relaxed) ? -1 : 0;
}
