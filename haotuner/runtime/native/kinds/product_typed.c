/* batch_matmul in other types than fp32: a block of W is packed as words, as typed dense has its weight, and rows pass over it. Sums of a
 * block stay in cache, where scale, bias and mask follow and the result's type; every sum is taken in the order of its terms. */
#include <emmintrin.h>
#include <string.h>

#include "product.h"
#include "scratchpad.h"

#define W_BYTES (256 * 1024) /* half of the smallest private L2 of server cores */
#define NEAR_W (32 * 1024) /* of what is packed at a time, unless one tile has more: it stays in L1 while rows pass */
#define X_BYTES (64 * 1024)
#define STEP 64 /* bytes of a row that a tile multiplies at most at a time: parts of a sum are whole ones, so sums keep their order */
#define SUMS (16 * 1024)
#define SIDE 32 /* matrices of one element each in a tile at most */

typedef struct {
  _Alignas(64) char w[W_BYTES];
  _Alignas(64) char x[X_BYTES];
  _Alignas(64) float sums[SUMS];
  int32_t first[SUMS];
} rooms;

#define ROOM ((rooms*)ht_room(HT_ROOM_PRODUCT_TYPED, sizeof(rooms)))

typedef struct { /* `columns` of W and `depth` terms of it */
  const char* data;
  int64_t down, right, columns, depth; /* strides in elements */
} block;

/* Words of `terms` rows whose columns lie side by side, four columns at a time. */
static void interleave(char* to, const char* from, int64_t down, int64_t columns, int terms) {
  for (int64_t c = 0; c + 4 <= columns; c += 4, to += 16) {
    int32_t four[4];
    if (terms == 2) {
      __m128i a = _mm_loadl_epi64((const __m128i*)(from + c * 2)), b = _mm_loadl_epi64((const __m128i*)(from + (c + down) * 2));
      _mm_storeu_si128((__m128i*)to, _mm_unpacklo_epi16(a, b));
      continue;
    }
    for (int i = 0; i < 4; ++i) memcpy(&four[i], from + c + i * down, 4);
    __m128i a = _mm_unpacklo_epi8(_mm_cvtsi32_si128(four[0]), _mm_cvtsi32_si128(four[1]));
    __m128i b = _mm_unpacklo_epi8(_mm_cvtsi32_si128(four[2]), _mm_cvtsi32_si128(four[3]));
    _mm_storeu_si128((__m128i*)to, _mm_unpacklo_epi16(a, b));
  }
}

/* One panel of `pw` columns, of which `there` exist. */
static void pack_panel(const ht_typed* typed, const block* b, int64_t column, int64_t there, int64_t pw, char* to) {
  const int64_t terms = typed->terms, size = typed->weight.bits / 8, words = ht_typed_depth(typed, b->depth), whole = b->depth / terms;
  const char* from = b->data + column * b->right * size;
  int64_t done = 0; /* words of all columns */
  if (there < pw || words > whole) memset(to, 0, (size_t)(words * pw * typed->column));
  if (b->down == 1 && typed->column == 4 && (b->right * size) % 4 == 0) {
    ht_product_pack((float*)to, pw, (const float*)from, 1, b->right * size / 4, whole, there, (int)pw);
    done = whole;
  } else if (b->down == 1 && terms == 1) {
    ht_typed_turn(to, pw * size, from, b->right * size, there, whole, size);
    done = whole;
  } else if (b->right == 1 && there == pw) {
    for (; done < whole; ++done) {
      if (terms == 1) memcpy(to + done * pw * size, from + done * b->down * size, (size_t)(pw * size));
      else interleave(to + done * pw * 4, from + done * terms * b->down * size, b->down, pw, (int)terms);
    }
  }
  for (int64_t term = done * terms; term < b->depth; ++term)
    for (int64_t c = 0; c < there; ++c)
      memcpy(to + term / terms * pw * typed->column + c * typed->column + term % terms * size, from + (term * b->down + c * b->right) * size,
             (size_t)size);
}

/* What the sums of signed bytes begin with: of all `k` terms. */
static void begin_columns(const block* b, int64_t k) {
  for (int64_t c = 0; c < b->columns; ++c) {
    int64_t sum = 0;
    for (int64_t term = 0; term < k; ++term) sum += *((const int8_t*)b->data + term * b->down + c * b->right);
    ROOM->first[c] = (int32_t)(uint32_t)(-128 * sum);
  }
}

static void pack_w(const ht_typed* typed, const block* b, int64_t pw, int64_t panels) {
  const int64_t panel = ht_typed_depth(typed, b->depth) * pw * typed->column;
  for (int64_t p = 0; p < panels; ++p) {
    const int64_t there = min_i64(pw, b->columns - p * pw);
    if (there <= 0) memset(ROOM->w + p * panel, 0, (size_t)panel);
    else pack_panel(typed, b, p * pw, there, pw, ROOM->w + p * panel);
  }
}

/* Rows of X side by side, where the tiles cannot read them as they lie. */
static void copy_x(const char* from, int64_t down, int64_t right, int64_t rows, int64_t depth, int64_t size, int64_t width) {
  if (right == 1)
    for (int64_t r = 0; r < rows; ++r) memcpy(ROOM->x + r * width, from + r * down * size, (size_t)(depth * size));
  else if (down == 1) ht_typed_turn(ROOM->x, width, from, right * size, depth, rows, size);
  else
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t t = 0; t < depth; ++t) memcpy(ROOM->x + r * width + t * size, from + (r * down + t * right) * size, (size_t)size);
}

typedef struct { /* of a call: what the sums of a matrix become from (row, column) on, up to `rows` and `columns` there */
  const ht_typed* typed;
  const ht_call* call;
  const int64_t* offsets;
  ht_product_box at;
  const ht_product* product;
  int beside, failed;
} result;

static void finish(void* with, const ht_typed_part* part) {
  result* r = with;
  const ht_typed* typed = r->typed;
  const ht_view* y = &r->call->product.views[HT_PRODUCT_Y];
  const int64_t size = typed->y.bits / 8, stride = part->stride, row = r->at.row + part->row, column = r->at.column + part->column;
  const int64_t rows = min_i64(part->rows, r->at.rows - part->row), columns = min_i64(part->columns, r->at.columns - part->column);
  char* to = y->data + (r->offsets[HT_PRODUCT_Y] + row * y->strides[0] + column) * size;
  float* sums = part->sums;
  if (rows <= 0 || columns <= 0) return;
  if (typed->floats != NULL && !r->beside && typed->y.code == kDLInt && typed->y.bits == 32) { /* whole sums as they are */
    for (int64_t i = 0; i < rows; ++i) memcpy(to + i * y->strides[0] * 4, sums + i * stride, (size_t)columns * 4);
    return;
  }
  if (typed->floats != NULL) typed->floats(sums, stride, (char*)sums, stride * 4, rows, columns);
  if (r->beside) {
    const ht_product_beside found = ht_product_beside_of(r->call, r->offsets, row, column);
    r->failed |= ht_product_after(sums, stride, rows, columns, &found, r->product) != 0;
  }
  typed->store(sums, stride, to, y->strides[0] * size, rows, columns);
}

typedef struct { /* groups of so many panels side by side, by one program */
  ht_typed_fn fn;
  int64_t groups, panels;
} run;

/* Columns in even groups of vectors, as fp32 has them, so that the last is hardly narrower than those before it: at most two widths. Where a
 * kernel has its own width alone, the last group reaches past the columns. How many runs. */
static int runs_of(const ht_kernel* kernel, const ht_typed_fn* widths, int64_t columns, run runs[2]) {
  const int64_t panels = kernel->nr / kernel->pw, units = ceil_div(columns, kernel->pw), groups = ceil_div(units, panels), size = ceil_div(units, groups);
  runs[0] = (run){(ht_typed_fn)(void (*)(void))kernel->fn, groups, panels};
  if (widths[0] == NULL) return 1;
  const int64_t narrow = groups * size - units;
  runs[0] = (run){widths[size - 1], groups - narrow, size};
  if (narrow > 0) runs[1] = (run){widths[size - 2], narrow, size - 1};
  return narrow > 0 ? 2 : 1;
}

int ht_product_run_typed(const ht_product* product, int32_t place, const ht_call* call, const int64_t* offsets, ht_product_box at, int beside) {
  const ht_typed* typed = product->typed;
  const ht_kernel* kernel = &product->typed_kernels[place];
  const ht_view *x = &call->product.views[HT_PRODUCT_X], *w = &call->product.views[HT_PRODUCT_W];
  const int64_t size = typed->x.bits / 8, k = call->extents[HT_PRODUCT_K], nr = kernel->nr, mr = kernel->mr, pw = kernel->pw;
  int64_t terms = min_i64(W_BYTES / nr, X_BYTES / mr) / STEP * STEP / size; /* of a part: so many that one tile finds room */
  if (terms > k) terms = k;
  const int64_t words = ht_typed_depth(typed, terms > 0 ? terms : 1), x_width = terms * size;
  const int64_t near = NEAR_W / (words * typed->column * nr), wide = min_i64(near > 0 ? near : 1, SUMS / mr / nr) * nr;
  for (int64_t column = at.column, last = at.column + at.columns; column < last; column += wide) {
    const int64_t columns = min_i64(wide, last - column);
    run runs[2];
    const int count = runs_of(kernel, product->typed_widths[place], columns, runs);
    int64_t panels = 0;
    for (int i = 0; i < count; ++i) panels += runs[i].groups * runs[i].panels;
    const int64_t stride = panels * pw; /* of sums */
    block b = {w->data + (offsets[HT_PRODUCT_W] + column * w->strides[1]) * size, w->strides[0], w->strides[1], columns, terms};
    if (ht_typed_signed(typed)) begin_columns(&b, k);
    if (k > 0 && terms == k) pack_w(typed, &b, pw, panels);
    /* Rows of a sum in parts are as many as the sums that find ROOM-> */
    const int64_t most = terms == k && k > 0 ? at.rows : SUMS / stride;
    for (int64_t row = at.row, end = at.row + at.rows, tall; row < end; row += tall) {
      /* Whole tiles, then what is left of one, whose rows are copied: a tile reads all of its own. */
      tall = end - row >= mr ? min_i64(most, end - row) / mr * mr : end - row;
      result found = {typed, call, offsets, {row, tall, column, columns}, product, beside, 0};
      if (k == 0) {
        const ht_typed_part none = {ROOM->sums, stride, 0, tall, 0, columns};
        memset(ROOM->sums, 0, (size_t)(tall * stride) * sizeof(float));
        finish(&found, &none);
      }
      for (int64_t from = 0; from < k; from += terms) {
        b.depth = min_i64(terms, k - from);
        if (terms < k) {
          b.data = w->data + (offsets[HT_PRODUCT_W] + column * w->strides[1] + from * w->strides[0]) * size;
          pack_w(typed, &b, pw, panels);
        }
        const int copied = x->strides[1] != 1 || tall < mr;
        const int64_t step = copied && x_width > 0 ? min_i64(tall, X_BYTES / x_width / mr * mr) : tall;
        for (int64_t r = 0; r < tall; r += step) {
          const int64_t rows = min_i64(step, tall - r);
          const char* source = x->data + (offsets[HT_PRODUCT_X] + (row + r) * x->strides[0] + from * x->strides[1]) * size;
          if (copied) copy_x(source, x->strides[0], x->strides[1], rows, b.depth, size, x_width);
          found.at.row = row + r;
          found.at.rows = rows;
          const int64_t panel = ht_typed_depth(typed, b.depth) * pw * typed->column;
          for (int64_t i = 0, first = 0; i < count; first += runs[i].groups * runs[i].panels, ++i) {
            found.at.column = column + first * pw;
            found.at.columns = columns - first * pw;
            const ht_typed_tile tile = {.x = copied ? ROOM->x : source,
                                        .x_stride = copied ? x_width : x->strides[0] * size,
                                        .w = ROOM->w + first * panel,
                                        .panel = panel,
                                        .sums = ROOM->sums + r * stride + first * pw,
                                        .stride = stride,
                                        .k = b.depth,
                                        .tiles = ceil_div(rows, mr),
                                        .groups = runs[i].groups,
                                        .first = ht_typed_signed(typed) ? ROOM->first + first * pw : NULL,
                                        .add = from > 0,
                                        .across = 1,
                                        .finish = from + b.depth == k ? finish : NULL,
                                        .with = &found};
            runs[i].fn(&tile);
          }
        }
      }
      if (found.failed) return -1;
    }
  }
  return 0;
}

int ht_product_single_typed(const ht_product* product, const ht_kernel* kernel, const ht_call* call, int64_t first, int64_t last, int beside) {
  const ht_typed* typed = product->typed;
  const ht_product_call* p = &call->product;
  const ht_view *x = &p->views[HT_PRODUCT_X], *w = &p->views[HT_PRODUCT_W], *y = &p->views[HT_PRODUCT_Y];
  const int64_t size = typed->x.bits / 8, y_size = typed->y.bits / 8, k = call->extents[HT_PRODUCT_K], nr = kernel->nr, mr = kernel->mr;
  const int64_t most = min_i64(mr, nr), words = ht_typed_depth(typed, k), batched = p->batch_axes == 1;
  const int64_t x_down = batched ? x->strides[2] : 0, w_right = batched ? w->strides[2] : 0, y_right = batched ? y->strides[2] : 0;
  if (p->batch_axes > 1 || k == 0 || words * nr * typed->column > W_BYTES || k * size * mr > X_BYTES || most > SIDE) return 1;
  for (int64_t matrix = first; matrix < last; matrix += most) {
    const int64_t some = min_i64(most, last - matrix);
    int64_t offsets[HT_MAX_OPERANDS];
    ht_product_offsets(call, matrix, offsets);
    const block b = {w->data + offsets[HT_PRODUCT_W] * size, w->strides[0], w_right, some, k};
    if (ht_typed_signed(typed)) begin_columns(&b, k);
    pack_w(typed, &b, kernel->pw, nr / kernel->pw);
    copy_x(x->data + offsets[HT_PRODUCT_X] * size, x_down, x->strides[1], some, k, size, k * size);
    const ht_typed_tile tile = {.x = ROOM->x, .x_stride = k * size, .w = ROOM->w, .panel = words * kernel->pw * typed->column, .sums = ROOM->sums,
                                .stride = nr, .k = k, .tiles = 1, .groups = 1, .first = ht_typed_signed(typed) ? ROOM->first : NULL};
    ((ht_typed_fn)(void (*)(void))kernel->fn)(&tile);
    float line[SIDE];
    char made[SIDE * sizeof(float)];
    for (int64_t i = 0; i < some; ++i) memcpy(&line[i], &ROOM->sums[i * nr + i], sizeof line[i]); /* floats or whole numbers */
    if (typed->floats != NULL && !beside && typed->y.code == kDLInt && typed->y.bits == 32) memcpy(made, line, sizeof line);
    else {
      if (typed->floats != NULL) typed->floats(line, SIDE, (char*)line, sizeof line, 1, some);
      for (int64_t i = 0; beside && i < some; ++i) {
        ht_product_offsets(call, matrix + i, offsets);
        const ht_product_beside more = ht_product_beside_of(call, offsets, 0, 0);
        if (ht_product_after(&line[i], 1, 1, 1, &more, product) != 0) return -1;
      }
      typed->store(line, SIDE, made, sizeof made, 1, some);
    }
    ht_product_offsets(call, matrix, offsets);
    for (int64_t i = 0; i < some; ++i)
      memcpy(y->data + (offsets[HT_PRODUCT_Y] + i * y_right) * y_size, made + i * y_size, (size_t)y_size);
  }
  return 0;
}
