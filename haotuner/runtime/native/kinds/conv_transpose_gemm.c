/* Transposed convolutions in fp32: one product for all residues of the stride, whose results are woven into the output.
 *
 * Output i * stride + r - before meets taps r, r + stride, ... at inputs i, i - 1, ...: residues r with as many taps see the same windows.
 * Such a class is one product: its windows are laid out once for all its residues, and few features make rows (channels first) or columns
 * (channels last) enough to fill tiles. Rows are packed in the order (feature, tall residue, wide residue), columns in the order (tall
 * residue, wide residue, feature). */
#include <string.h>

#include "conv.h"
#include "turn.h"

#define ROWS_TOGETHER 128 /* rows of outputs that are written for a feature before the next one, at least HT_CONV_RESIDUES */

typedef struct {
  const ht_conv* conv;
  const ht_kernel* kernel;
  const ht_conv_call* call;
  ht_conv_class classes[HT_CONV_CLASSES];
  int64_t count;                 /* of classes */
  int64_t channels, features;    /* of a group */
  int64_t pixels, block, blocks; /* of the grid of i: of all, of a block, blocks */
  int64_t lines, span, spans;    /* channels first: features, of a chunk; channels last: columns of the class that has most */
  atomic_int failed;
} job;

typedef struct { /* of one feature: what pixels side by side make of one row of outputs */
  int64_t y, begin, count;                  /* of the row in y; the output of the first pixel's first residue; pixels */
  const float* lines[2];                    /* of each class its first residue, */
  int64_t next[2];                          /* and from one feature's to the next */
  const ht_conv_class* classes[2];
} out_row;

/* Strides of two, channels first: every other output from a line `apart` or of the other class. */
__attribute__((target("avx512f,bmi2"))) static void pairs_16(const out_row* rows, int64_t count, int64_t features, int64_t apart, int64_t width, float* y,
                                                             int64_t yf) {
  const __m512i left = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23), right = _mm512_add_epi32(left, _mm512_set1_epi32(8));
  for (int64_t f = 0; f < features; ++f, y += yf)
    for (const out_row* row = rows; row < rows + count; ++row) {
      const float *a = row->lines[0] + f * row->next[0], *b = apart > 0 ? a + apart : row->lines[1] + f * row->next[1];
      const int64_t low = max_i64(-row->begin, 0), high = min_i64(2 * row->count, width - row->begin);
      float* to = y + row->y + row->begin;
      int64_t at = 0;
      for (; at + 32 <= high && low == 0; at += 32) {
        const __m512 even = _mm512_loadu_ps(a + at / 2), odd = _mm512_loadu_ps(b + at / 2);
        _mm512_storeu_ps(to + at, _mm512_permutex2var_ps(even, left, odd));
        _mm512_storeu_ps(to + at + 16, _mm512_permutex2var_ps(even, right, odd));
      }
      for (; at < high; at += 32) {
        const uint32_t there = _bzhi_u32(UINT32_MAX, (uint32_t)min_i64(high - at, 32)) & ~_bzhi_u32(UINT32_MAX, (uint32_t)min_i64(max_i64(low - at, 0), 32));
        const __mmask16 read = (__mmask16)_bzhi_u32(0xffff, (uint32_t)min_i64((high - at + 1) / 2, 16));
        const __m512 even = _mm512_maskz_loadu_ps(read, a + at / 2), odd = _mm512_maskz_loadu_ps(read, b + at / 2);
        _mm512_mask_storeu_ps(to + at, (__mmask16)there, _mm512_permutex2var_ps(even, left, odd));
        if (there >> 16 != 0) _mm512_mask_storeu_ps(to + at + 16, (__mmask16)(there >> 16), _mm512_permutex2var_ps(even, right, odd));
      }
    }
}

static void pairs(float* to, const float* a, const float* b, int64_t count) {
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    const __m128 x = _mm_loadu_ps(a + i), y = _mm_loadu_ps(b + i);
    _mm_storeu_ps(to + 2 * i, _mm_unpacklo_ps(x, y));
    _mm_storeu_ps(to + 2 * i + 4, _mm_unpackhi_ps(x, y));
  }
  for (; i < count; ++i) to[2 * i] = a[i], to[2 * i + 1] = b[i];
}

/* to[i * step + r] = from[r * stride + i], r < lines. */
static void weave(float* to, int64_t step, const float* from, int64_t stride, int64_t lines, int64_t count) {
  int64_t r = 0;
  if (step == 1) memcpy(to, from, (size_t)count * sizeof *to), r = 1;
  for (; r + 4 <= lines; r += 4) ht_square(4, from + r * stride, stride, 4, count, to + r, step, 4);
  for (; r < lines; ++r)
    for (int64_t i = 0; i < count; ++i) to[i * step + r] = from[r * stride + i];
}

typedef struct { /* pixels side by side in the grid: of image b, row and column `i` and `j` as windows count them; `first` of a block */
  int64_t b, i, j, first, count;
} strip;

static strip strip_of(const job* j, int64_t pixel, int64_t first, int64_t pixels) {
  const ht_side *tall = &j->classes[0].phase.tall, *wide = &j->classes[0].phase.wide;
  const int64_t row = (pixel + first) / wide->count, column = (pixel + first) % wide->count;
  return (strip){row / tall->count, row % tall->count + tall->at + tall->taps - 1, column + wide->at + wide->taps - 1, first,
                 min_i64(wide->count - column, pixels - first)};
}

/* Of a strip's pixels those of which outputs first, ..., first + count - 1 are there: [*from, *to). */
static void inside(const job* j, strip at, int64_t first, int64_t count, int64_t* from, int64_t* to) {
  const int64_t s = j->conv->wide.stride, before = j->conv->wide.before;
  *from = min_i64(max_i64(ceil_div(max_i64(before - first, 0), s) - at.j, 0), at.count);
  *to = max_i64(min_i64((j->call->q + before - first - count + s) / s - at.j, at.count), *from);
}

/* A row of outputs of feature `f`, whose plane is at y. */
static void put_row(const job* j, const out_row* row, int64_t f, int64_t stride, float* y) {
  const int64_t s = j->conv->wide.stride, yw = j->call->yw;
  int64_t from = 0, to = 0; /* pixels all of whose residues are there */
  if (yw == 1) {
    from = min_i64(ceil_div(max_i64(-row->begin, 0), s), row->count);
    to = max_i64(min_i64((j->call->q - row->begin) / s, row->count), from);
  }
  float* all = y + row->y + row->begin + from * s;
  const float* lines[2] = {row->lines[0] + f * row->next[0], row->lines[1] + f * row->next[1]};
  const int wides = row->classes[0] == row->classes[1] ? 1 : 2;
  if (s == 2 && yw == 1) pairs(all, lines[0] + from, (wides == 2 ? lines[1] : lines[0] + stride) + from, to - from);
  for (int64_t k = 0; k < wides; ++k) {
    const int64_t first = row->classes[k]->phase.wide.first;
    if (s != 2) weave(all + first, s, lines[k] + from, stride, row->classes[k]->columns, to - from);
    for (int64_t r = 0; r < row->classes[k]->columns; ++r)
      for (int64_t i = 0; i < row->count; ++i) { /* at the ends of the output some residues of a pixel are there */
        if (i == from) i = to;
        const int64_t q = row->begin + i * s + first + r;
        if (i < row->count && q >= 0 && q < j->call->q) y[row->y + q * yw] = lines[k][r * stride + i];
      }
  }
}

/* Channels first: features of a block into y, one after the other, so that what is written lies together. `results`: of each class. */
static void put_first(const job* j, const float* const* results, int64_t stride, const strip* strips, int64_t count, float* y, int64_t features) {
  const ht_conv_call* call = j->call;
  const int64_t wides = j->conv->wide.taps % j->conv->wide.stride == 0 ? 1 : 2, s = j->conv->wide.stride, tall = j->conv->tall.stride;
  out_row rows[ROWS_TOGETHER];
  int64_t some = 0;
  for (const strip* at = strips; at < strips + count; ++at) {
    for (int64_t k = 0; k < j->count; k += wides) {
      const ht_conv_class *one = &j->classes[k], *other = &j->classes[k + wides - 1];
      for (int64_t a = 0; a < one->rows; ++a) {
        const int64_t p = at->i * tall + one->phase.tall.first + a - j->conv->tall.before;
        if (p < 0 || p >= call->p) continue;
        rows[some++] = (out_row){at->b * call->yb + p * call->yh, at->j * s - j->conv->wide.before, at->count,
                                 {results[k] + a * one->columns * stride + at->first, results[k + wides - 1] + a * other->columns * stride + at->first},
                                 {one->rows * one->columns * stride, other->rows * other->columns * stride}, {one, other}};
      }
    }
    if (at + 1 < strips + count && some + tall <= ROWS_TOGETHER) continue;
    if (s == 2 && call->yw == 1 && j->conv->lanes >= 16) pairs_16(rows, some, features, wides == 1 ? stride : 0, call->q, y, call->yf);
    else
      for (int64_t f = 0; f < features; ++f)
        for (int64_t n = 0; n < some; ++n) put_row(j, &rows[n], f, stride, y + f * call->yf);
    some = 0;
  }
}

/* The epilogue on what a block wrote: whole rows of an image are one where nothing lies between them. */
static int finish_first(const job* j, int64_t feature, int64_t features, const strip* strips, int64_t count) {
  const ht_conv_call* call = j->call;
  const int64_t high = j->conv->tall.stride, low = j->conv->wide.stride;
  int joined = call->yh == call->q * call->yw, rc = 0;
  for (int e = 0; e < call->extras; ++e) joined = joined && call->extra[e].sh == call->q * call->extra[e].sw;
  for (int64_t n = 0, some; n < count && rc == 0; n += some) {
    const strip* at = &strips[n];
    const int64_t q = at->j * low - j->conv->wide.before, p = at->i * high - j->conv->tall.before;
    const int64_t begin = max_i64(q, 0), end = min_i64(q + at->count * low, call->q), first = max_i64(p, 0);
    for (some = 1; joined && begin == 0 && end == call->q && n + some < count && strips[n + some].b == at->b && strips[n + some].count == at->count;) ++some;
    const int64_t last = min_i64(p + some * high, call->p), whole = joined && begin == 0 && end == call->q;
    for (int64_t row = first; row < last && end > begin && rc == 0; row = whole ? last : row + 1) {
      const ht_conv_part part = {at->b, feature, row, begin, features, whole ? (last - first) * call->q : end - begin, 1};
      rc = ht_conv_finish(j->conv, j->kernel, call, &part);
    }
  }
  return rc;
}

static int chunk_first(const job* j, int64_t group, int64_t pixel, int64_t pixels, int64_t first, int64_t count) {
  const ht_kernel* k = j->kernel;
  const int64_t panels = ceil_div(pixels, k->nr), stride = panels * k->nr, phases = (int64_t)j->conv->tall.stride * j->conv->wide.stride;
  const int64_t limit = max_i64(HT_CONV_RESULTS / stride / phases, 1);
  int64_t whole = 1; /* features of which whole tiles are made */
  while (whole < limit && whole * j->classes[0].rows * j->classes[0].columns % k->mr != 0) ++whole;
  const int64_t step = max_i64(limit / whole * whole, 1);
  strip strips[HT_CONV_PIXELS];
  int64_t rows = 0;
  for (int64_t done = 0; done < pixels; done += strips[rows++].count) strips[rows] = strip_of(j, pixel, done, pixels);
  int rc = 0;
  for (int64_t f = first; f < first + count && rc == 0; f += step) {
    const int64_t features = min_i64(step, first + count - f);
    const float* results[HT_CONV_CLASSES];
    float* y = ht_conv_rooms()->results;
    for (int64_t n = 0; n < j->count && rc == 0; ++n) {
      const ht_conv_class* class = &j->classes[n];
      const ht_phase* ph = &class->phase;
      results[n] = y;
      const int64_t lines = class->rows * class->columns, part = ceil_div(ph->depth, ceil_div(ph->depth * stride, HT_CONV_IMAGE - stride));
      for (int64_t from = 0; from < ph->depth && rc == 0; from += part) {
        const int64_t depth = min_i64(part, ph->depth - from);
        if (f == first || j->count > 1 || part < ph->depth) { /* else one layout serves all features */
          const ht_image image = {j->conv, j->call, ph, group * j->channels, pixel, pixels, from, depth, k->nr};
          ht_conv_image(&image, j->conv->lanes, ht_conv_rooms()->image);
        }
        const ht_conv_tile c = {.w = ht_conv_rooms()->image, .w_stride = depth * k->nr, .depth = depth, .groups = panels, .add = from > 0};
        const float* weight = j->call->weight + ph->offset + group * ph->group + f * lines * ph->stride + from;
        rc = ht_conv_down(k, c, weight, ph->stride, features * lines, y, stride);
      }
      for (int64_t i = 0; j->call->bias != NULL && i < features * lines; ++i)
        for (int64_t p = 0; p < pixels; ++p) y[i * stride + p] += j->call->bias[group * j->features + f + i / lines];
      y += features * lines * stride;
    }
    const int64_t all = group * j->features + f;
    if (rc == 0) put_first(j, results, stride, strips, rows, j->call->y + all * j->call->yf, features);
    if (rc == 0 && k->epilogue != NULL) rc = finish_first(j, all, features, strips, rows);
  }
  return rc;
}

/* Channels last: columns [first, first + columns) of a class into y: features of one residue, or of residues that lie side by side. */
static int put_last(const job* j, const ht_conv_class* class, int64_t group, int64_t first, int64_t columns, int64_t pixel, int64_t pixels, int64_t stride) {
  const ht_conv_call* call = j->call;
  const int64_t F = j->features, s = j->conv->wide.stride, before = j->conv->wide.before;
  const int near = j->conv->groups == 1 && call->yw == F; /* features of neighbours follow one another */
  int rc = 0;
  for (int64_t c = first, some; c < first + columns && rc == 0; c += some) {
    const int64_t phase = c / F, f = c % F, a = phase / class->columns, r = phase % class->columns;
    const int64_t rest = first + columns - c, beside = near && f == 0 ? min_i64(class->columns - r, rest / F) : 0; /* residues */
    some = beside > 0 ? beside * F : min_i64(F - f, rest);
    for (int64_t done = 0; done < pixels && rc == 0;) {
      const strip at = strip_of(j, pixel, done, pixels);
      const int64_t p = at.i * j->conv->tall.stride + class->phase.tall.first + a - j->conv->tall.before;
      const float* from = ht_conv_rooms()->results + done * stride + (c - first);
      done += at.count;
      if (p < 0 || p >= call->p) continue;
      const int64_t feature = group * F + f, here = class->phase.wide.first + r - before, residues = max_i64(beside, 1);
      float* y = call->y + at.b * call->yb + p * call->yh + feature * call->yf;
      int64_t low, high;
      inside(j, at, here + before, residues, &low, &high);
      ht_conv_lines(j->conv->lanes, y + ((at.j + low) * s + here) * call->yw, s * call->yw, from + low * stride, stride, high - low, some);
      for (int64_t i = 0; residues > 1 && i < at.count; ++i) /* at the ends of the output, some residues of a pixel */
        for (int64_t b = 0, q = (at.j + i) * s + here; (i < low || i >= high) && b < residues; ++b, ++q)
          if (q >= 0 && q < call->q) memcpy(y + q * call->yw, from + i * stride + b * F, (size_t)F * sizeof *y);
      for (int64_t b = 0; b < residues && rc == 0; ++b) {
        inside(j, at, here + before + b, 1, &low, &high);
        const ht_conv_part part = {at.b, feature, p, (at.j + low) * s + here + b, beside > 0 ? F : some, high - low, s};
        if (high > low) rc = ht_conv_finish(j->conv, j->kernel, call, &part);
      }
    }
  }
  return rc;
}

static int chunk_last(const job* j, int64_t group, int64_t pixel, int64_t pixels, int64_t first, int64_t count) {
  const ht_kernel* k = j->kernel;
  const int64_t rows = ceil_div(pixels, k->mr) * k->mr, wide = max_i64(HT_CONV_RESULTS / rows / k->nr, 1) * k->nr;
  int rc = 0;
  for (int64_t n = 0; n < j->count && rc == 0; ++n) {
    const ht_conv_class* class = &j->classes[n];
    const ht_phase* ph = &class->phase;
    const int64_t end = min_i64(first + count, j->features * class->rows * class->columns);
    const int64_t part = ceil_div(ph->depth, ceil_div(ph->depth * rows, HT_CONV_IMAGE - 32 * rows));
    for (int64_t column = first; column < end && rc == 0; column += wide) {
      const int64_t columns = min_i64(wide, end - column), stride = ceil_div(columns, k->nr) * k->nr;
      for (int64_t from = 0; from < ph->depth && rc == 0; from += part) {
        const int64_t depth = min_i64(part, ph->depth - from), ldx = ht_conv_apart(depth);
        if (column == first || part < ph->depth) {
          const ht_image image = {j->conv, j->call, ph, group * j->channels, pixel, pixels, from, depth, ldx};
          ht_conv_image(&image, j->conv->lanes, ht_conv_rooms()->image);
        }
        const ht_conv_tile c = {.x = ht_conv_rooms()->image, .ldx = ldx, .depth = depth, .y = ht_conv_rooms()->results, .ldy = stride, .tiles = rows / k->mr, .add = from > 0,
                                .w = j->call->weight + ph->offset + group * ph->group + column / j->conv->lanes * ph->stride + from * j->conv->lanes,
                                .w_stride = ph->stride};
        rc = ht_conv_across(k, j->conv->lanes, c, columns);
      }
      for (int64_t i = 0; j->call->bias != NULL && i < pixels; ++i)
        for (int64_t c = 0; c < columns; ++c) ht_conv_rooms()->results[i * stride + c] += j->call->bias[group * j->features + (column + c) % j->features];
      if (rc == 0) rc = put_last(j, class, group, column, columns, pixel, pixels, stride);
    }
  }
  return rc;
}

/* Chunks in the order of groups, blocks of pixels, spans. */
static void run_chunk(void* arg, int64_t index) {
  job* j = arg;
  const int64_t span = index % j->spans, block = index / j->spans % j->blocks, group = index / j->spans / j->blocks;
  const int64_t pixel = block * j->block, pixels = min_i64(j->block, j->pixels - pixel);
  const int64_t first = span * j->span, count = min_i64(j->span, j->lines - first);
  const int rc = (j->conv->last ? chunk_last : chunk_first)(j, group, pixel, pixels, first, count);
  if (rc != 0) atomic_store_explicit(&j->failed, 1, memory_order_relaxed);
}

static void cut(job* j, int share, int threads) {
  const ht_kernel* k = j->kernel;
  const int64_t phases = (int64_t)j->conv->tall.stride * j->conv->wide.stride, depth = j->classes[0].phase.depth;
  const int64_t unit = j->conv->last ? k->mr : k->nr, limit = j->conv->last ? HT_CONV_ROWS : HT_CONV_PIXELS;
  int64_t room = min_i64(HT_CONV_IMAGE / (min_i64(depth, HT_CONV_IMAGE / unit - 32) + 32), limit) / unit; /* units of a block */
  /* Channels first: one feature's results, or, where classes would be laid out again for others, those of all. */
  if (!j->conv->last) room = min_i64(room, max_i64(HT_CONV_RESULTS / (phases * (j->count > 1 ? j->features : 1)) / unit, 1));
  const int64_t units = ceil_div(j->pixels, unit);
  int64_t blocks = ceil_div(units, max_i64(room, 1));
  if (share != HT_CONV_F && share != HT_WHOLE) { /* as many for each thread, and four each where there are enough */
    const int64_t pieces = min_i64(max_i64(units / threads, 1), 4);
    blocks = ceil_div(max_i64(blocks, pieces * threads), threads) * threads;
  }
  j->block = ceil_div(units, min_i64(blocks, units)) * unit;
  j->blocks = ceil_div(j->pixels, j->block);
  const int64_t tile = j->conv->last ? k->nr : 1;
  j->lines = j->features;
  for (int64_t n = 0; n < j->count && j->conv->last; ++n) j->lines = max_i64(j->lines, j->features * j->classes[n].rows * j->classes[n].columns);
  j->span = ceil_div(ceil_div(j->lines, tile), share == HT_CONV_F ? min_i64(threads, ceil_div(j->lines, tile)) : 1) * tile;
  j->spans = ceil_div(j->lines, j->span);
}

int ht_conv_run_woven(const ht_conv* conv, const ht_kernel* kernel, const ht_conv_call* call, int share, int threads) {
  job j = {.conv = conv, .kernel = kernel, .call = call, .channels = conv->channels / conv->groups, .features = conv->features / conv->groups};
  atomic_init(&j.failed, 0);
  j.count = ht_conv_classes(conv, call->p, call->q, j.classes);
  j.pixels = call->batch * j.classes[0].phase.tall.count * j.classes[0].phase.wide.count;
  if (j.pixels == 0) return 0;
  cut(&j, share, threads);
  const int64_t chunks = conv->groups * j.blocks * j.spans;
  ht_pool_run(run_chunk, &j, chunks, threads);
  return atomic_load_explicit(&j.failed, memory_order_relaxed) ? -1 : 0;
}
