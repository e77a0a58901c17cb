/* batch_matmul in other types than fp32: a block of W is packed as words, as typed dense has its weight, and rows pass over it. Sums of a
 * block stay in cache, where scale, bias and mask follow and the result's type; every sum is taken in the order of its terms. */
#include <emmintrin.h>
#include <string.h>

#include "product.h"

#define W_BYTES (256 * 1024) /* half of the smallest private L2 of server cores */
#define X_BYTES (64 * 1024)
#define STEP 64 /* bytes of a row that a tile multiplies at most at a time: parts of a sum are whole ones, so sums keep their order */
#define SUMS (16 * 1024)
#define ROWS 96
#define NEAR_SUMS (6 * 1024) /* of a run of rows, unless one tile has more: half of the smallest L1, so that what follows reads them there */

static _Thread_local struct {
  _Alignas(64) char w[W_BYTES];
  _Alignas(64) char x[X_BYTES];
  _Alignas(64) float sums[SUMS];
  int32_t first[SUMS];
} room;

static int64_t up(int64_t a, int64_t b) { return (a + b - 1) / b; }

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

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
  if (b->down == 1 && there == pw && typed->column == 4 && (b->right * size) % 4 == 0) {
    ht_product_pack((float*)to, pw, (const float*)from, 1, b->right * size / 4, whole, pw, (int)pw);
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
    room.first[c] = (int32_t)(uint32_t)(-128 * sum);
  }
}

static void pack_w(const ht_typed* typed, const block* b, int64_t pw, int64_t panels) {
  const int64_t panel = ht_typed_depth(typed, b->depth) * pw * typed->column;
  for (int64_t p = 0; p < panels; ++p) {
    const int64_t there = least(pw, b->columns - p * pw);
    if (there <= 0) memset(room.w + p * panel, 0, (size_t)panel);
    else pack_panel(typed, b, p * pw, there, pw, room.w + p * panel);
  }
}

/* Rows of X side by side, where the tiles cannot read them as they lie. */
static void copy_x(const char* from, int64_t down, int64_t right, int64_t rows, int64_t depth, int64_t size, int64_t width) {
  if (right == 1)
    for (int64_t r = 0; r < rows; ++r) memcpy(room.x + r * width, from + r * down * size, (size_t)(depth * size));
  else if (down == 1) ht_typed_turn(room.x, width, from, right * size, depth, rows, size);
  else
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t t = 0; t < depth; ++t) memcpy(room.x + r * width + t * size, from + (r * down + t * right) * size, (size_t)size);
}

static void store(const ht_typed* typed, const ht_call* call, const int64_t* offsets, ht_product_box at, int64_t stride, int lanes, int beside,
                  int has_terms) {
  const ht_view* y = &call->product.views[HT_PRODUCT_Y];
  const int64_t size = typed->y.bits / 8;
  char* to = y->data + (offsets[HT_PRODUCT_Y] + at.row * y->strides[0] + at.column) * size;
  if (!has_terms) memset(room.sums, 0, (size_t)(at.rows * stride) * sizeof(float));
  if (typed->floats != NULL && !beside && typed->y.code == kDLInt && typed->y.bits == 32) { /* whole sums as they are */
    for (int64_t r = 0; r < at.rows; ++r) memcpy(to + r * y->strides[0] * 4, room.sums + r * stride, (size_t)at.columns * 4);
    return;
  }
  if (typed->floats != NULL) typed->floats(room.sums, stride, (char*)room.sums, stride * 4, at.rows, at.columns);
  if (beside) {
    const ht_product_beside found = ht_product_beside_of(call, offsets, at.row, at.column);
    ht_product_after(room.sums, stride, at.rows, at.columns, &found, lanes);
  }
  typed->store(room.sums, stride, to, y->strides[0] * size, at.rows, at.columns);
}

int ht_product_run_typed(const ht_product* product, const ht_kernel* kernel, const ht_call* call, const int64_t* offsets, ht_product_box at,
                         int beside) {
  const ht_typed* typed = product->typed;
  const ht_view *x = &call->product.views[HT_PRODUCT_X], *w = &call->product.views[HT_PRODUCT_W];
  const int64_t size = typed->x.bits / 8, k = call->extents[HT_PRODUCT_K], nr = kernel->nr, mr = kernel->mr, pw = kernel->pw;
  int64_t terms = least(W_BYTES / nr, X_BYTES / mr) / STEP * STEP / size; /* of a part: so many that one tile finds room */
  if (terms > k) terms = k;
  const int64_t words = ht_typed_depth(typed, terms > 0 ? terms : 1), x_width = terms * size;
  const int64_t wide = least(W_BYTES / (words * typed->column * nr), SUMS / mr / nr) * nr;
  for (int64_t column = at.column, last = at.column + at.columns; column < last; column += wide) {
    const int64_t columns = least(wide, last - column), groups = up(columns, nr), panels = groups * nr / pw;
    block b = {w->data + (offsets[HT_PRODUCT_W] + column * w->strides[1]) * size, w->strides[0], w->strides[1], columns, terms};
    if (ht_typed_signed(typed)) begin_columns(&b, k);
    if (k > 0 && terms == k) pack_w(typed, &b, pw, panels);
    int64_t most = least(ROWS, NEAR_SUMS / (groups * nr)) / mr * mr, tall;
    if (most < mr) most = mr;
    for (int64_t row = at.row, end = at.row + at.rows; row < end; row += tall) {
      /* Whole tiles, then what is left of one, whose rows are copied: a tile reads all of its own. */
      tall = end - row >= mr ? least(most, (end - row) / mr * mr) : end - row;
      for (int64_t from = 0; from < k; from += terms) {
        b.depth = least(terms, k - from);
        if (terms < k) {
          b.data = w->data + (offsets[HT_PRODUCT_W] + column * w->strides[1] + from * w->strides[0]) * size;
          pack_w(typed, &b, pw, panels);
        }
        const int copied = x->strides[1] != 1 || tall < mr;
        const int64_t step = copied && x_width > 0 ? least(tall, X_BYTES / x_width / mr * mr) : tall;
        for (int64_t r = 0; r < tall; r += step) {
          const int64_t rows = least(step, tall - r);
          const char* source = x->data + (offsets[HT_PRODUCT_X] + (row + r) * x->strides[0] + from * x->strides[1]) * size;
          if (copied) copy_x(source, x->strides[0], x->strides[1], rows, b.depth, size, x_width);
          const ht_typed_tile tile = {.x = copied ? room.x : source,
                                      .x_stride = copied ? x_width : x->strides[0] * size,
                                      .w = room.w,
                                      .panel = ht_typed_depth(typed, b.depth) * pw * typed->column,
                                      .sums = room.sums + r * groups * nr,
                                      .stride = groups * nr,
                                      .k = b.depth,
                                      .tiles = up(rows, mr),
                                      .groups = groups,
                                      .first = ht_typed_signed(typed) ? room.first : NULL,
                                      .add = from > 0};
          ((ht_typed_fn)(void (*)(void))kernel->fn)(&tile);
        }
      }
      store(typed, call, offsets, (ht_product_box){row, tall, column, columns}, groups * nr, product->lanes, beside, k > 0);
    }
  }
  return 0;
}
