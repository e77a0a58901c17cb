/* batch_matmul of small matrices: a vector holds the elements that lie at one place of as many matrices as it has lanes. Both factors are
 * turned so, a vector is one sum of each matrix in the order of its terms, as the programs compute it, and results are turned back. A
 * tile for each matrix would be mostly padding, calls and waiting for its own sums. */
#include <immintrin.h>
#include <string.h>

#include "product.h"
#include "turn.h"
#include "scratchpad.h"

#define SIDE 4             /* rows and columns of sums that are in registers at once */
#define FLOATS (32 * 1024) /* of both factors: half of the smallest private L2 of server cores; longer sums are computed in parts */
#define SUMS (8 * 1024)    /* of all lanes */
#define FEW 8              /* matrices of one element that are soonest done without turning */

typedef struct {
  _Alignas(64) float factors[FLOATS];
  _Alignas(64) float sums[SUMS];
} rooms;

#define ROOM ((rooms*)ht_room(HT_ROOM_SMALL, sizeof(rooms)))

typedef struct { /* a factor of some matrices, turned: from its first elements to those of the next row, and of the next column */
  const float* data;
  int64_t down, right;
} turned;

typedef void (*sums_fn)(const float* x, const float* w, int64_t x_row, int64_t x_term, int64_t w_column, int64_t w_term, float* y, int64_t y_row,
                        int64_t k, int add_to);

#define HT_SUMS(lanes, attribute, type, zero, load, store, add, rows, columns)                                                          \
  attribute static void sums_##lanes##_##rows##_##columns(const float* x, const float* w, int64_t x_row, int64_t x_term, int64_t w_column, \
                                                          int64_t w_term, float* y, int64_t y_row, int64_t k, int add_to) {                          \
    type sum[rows][columns];                                                                                                             \
    _Pragma("GCC unroll 4") for (int i = 0; i < rows; ++i) _Pragma("GCC unroll 4") for (int j = 0; j < columns; ++j) \
        sum[i][j] = add_to ? load(y + i * y_row + j * lanes) : zero();\
    for (int64_t t = 0; t < k; ++t, x += x_term, w += w_term) {                                                                          \
      type some[columns];                                                                                                                \
      _Pragma("GCC unroll 4") for (int j = 0; j < columns; ++j) some[j] = load(w + j * w_column);                                        \
      _Pragma("GCC unroll 4") for (int i = 0; i < rows; ++i) {                                                                           \
        const type one = load(x + i * x_row);                                                                                            \
        _Pragma("GCC unroll 4") for (int j = 0; j < columns; ++j) sum[i][j] = add(one, some[j], sum[i][j]);                              \
      }                                                                                                                                  \
    }                                                                                                                                    \
    _Pragma("GCC unroll 4") for (int i = 0; i < rows; ++i)                                                                               \
        _Pragma("GCC unroll 4") for (int j = 0; j < columns; ++j) store(y + i * y_row + j * lanes, sum[i][j]);                           \
  }
#define HT_ROW(rows, ...) HT_SUMS(__VA_ARGS__, rows, 1) HT_SUMS(__VA_ARGS__, rows, 2) HT_SUMS(__VA_ARGS__, rows, 3) HT_SUMS(__VA_ARGS__, rows, 4)
#define HT_NAMES(lanes, rows) {sums_##lanes##_##rows##_1, sums_##lanes##_##rows##_2, sums_##lanes##_##rows##_3, sums_##lanes##_##rows##_4}
#define HT_WIDTH(lanes, ...)                                                                                                   \
  HT_ROW(1, lanes, __VA_ARGS__) HT_ROW(2, lanes, __VA_ARGS__) HT_ROW(3, lanes, __VA_ARGS__) HT_ROW(4, lanes, __VA_ARGS__) \
  static const sums_fn sums_of_##lanes[SIDE][SIDE] = {HT_NAMES(lanes, 1), HT_NAMES(lanes, 2), HT_NAMES(lanes, 3), HT_NAMES(lanes, 4)};

#define HT_APART(a, b, sum) _mm_add_ps(_mm_mul_ps(a, b), sum) /* the programs of CPUs that cannot round once for a product and its sum */
HT_WIDTH(16, __attribute__((target("avx512f"))), __m512, _mm512_setzero_ps, _mm512_load_ps, _mm512_store_ps, _mm512_fmadd_ps)
HT_WIDTH(8, __attribute__((target("avx2,fma"))), __m256, _mm256_setzero_ps, _mm256_load_ps, _mm256_store_ps, _mm256_fmadd_ps)
HT_WIDTH(4, , __m128, _mm_setzero_ps, _mm_load_ps, _mm_store_ps, HT_APART)

/* `some` matrices of a factor, rows x columns of each, from `from` on, turned into `to`. */
static turned turn(const float* from, const ht_view* view, int64_t rows, int64_t columns, int64_t step, int64_t some, int lanes, float* to) {
  const int64_t down = view->strides[0], right = view->strides[1];
  const int by_rows = right == 1 || down != 1; /* elements of a row stay side by side */
  const int64_t inner = by_rows ? columns : rows, outer = by_rows ? rows : columns;
  const int64_t stride = by_rows ? down : right, next = by_rows ? right : down;
  const int whole = outer == 1 || stride == inner * next;
  const int64_t run = whole ? inner * outer : inner, runs = whole ? 1 : outer;
  for (int64_t i = 0; i < runs; ++i)
    ht_product_pack(to + i * run * lanes, lanes, from + i * stride, next, step, run, some, lanes);
  return (turned){to, (by_rows ? columns : 1) * lanes, (by_rows ? 1 : rows) * lanes};
}

/* The sums of `some` matrices, turned back. */
static void put(float* y, int64_t down, int64_t step, int64_t m, int64_t n, int64_t some, int lanes) {
  const int whole = down == n || m == 1;
  const int64_t run = whole ? m * n : n, runs = whole ? 1 : m;
  for (int64_t i = 0; i < runs; ++i)
    for (int64_t e = 0; e < run; e += lanes) {
      const int64_t count = min_i64(lanes, run - e);
      ht_square(lanes, ROOM->sums + (i * run + e) * lanes, lanes, count, some, y + i * down + e, step, count);
    }
}

/* A group of matrices takes as long however many they are: about as long as so many calls of tiles (measured on a Xeon, k = 64 and 80). */
static int64_t worth(int64_t m, int64_t n) { return m * n == 1 ? FEW + 1 : 1 + (8 * (m + n) + m * n) / 14; }

int ht_product_is_small(const ht_product* product, const ht_call* call) {
  const int64_t m = call->extents[HT_PRODUCT_M], n = call->extents[HT_PRODUCT_N], k = call->extents[HT_PRODUCT_K];
  const int64_t lanes = product->lanes;
  if (m > lanes || n > lanes || k == 0 || call->product.batch_axes == 0) return 0;
  return min_i64(lanes, call->product.batch[call->product.batch_axes - 1]) >= worth(m, n);
}

int ht_product_small(const ht_product* product, const ht_call* call, int64_t first, int64_t last, int beside) {
  const ht_product_call* p = &call->product;
  const ht_view *x = &p->views[HT_PRODUCT_X], *w = &p->views[HT_PRODUCT_W], *y = &p->views[HT_PRODUCT_Y];
  const int64_t m = call->extents[HT_PRODUCT_M], n = call->extents[HT_PRODUCT_N], k = call->extents[HT_PRODUCT_K];
  const int lanes = product->lanes, inner = p->batch_axes - 1;
  const sums_fn(*sums)[SIDE] = lanes == 16 ? sums_of_16 : lanes == 8 ? sums_of_8 : sums_of_4;
  const int64_t most = FLOATS / lanes / (m + n), terms = most >= k ? k : most / lanes * lanes;
  for (int64_t matrix = first, some; matrix < last; matrix += some) {
    int64_t offsets[HT_MAX_OPERANDS];
    some = min_i64(min_i64(lanes, last - matrix), p->batch[inner] - matrix % p->batch[inner]); /* evenly spaced */
    ht_product_offsets(call, matrix, offsets);
    const float *from_x = (const float*)x->data + offsets[HT_PRODUCT_X], *from_w = (const float*)w->data + offsets[HT_PRODUCT_W];
    for (int64_t term = 0; term < k; term += terms) {
      const int64_t depth = min_i64(terms, k - term);
      const turned xs = turn(from_x + term * x->strides[1], x, m, depth, x->strides[2 + inner], some, lanes, ROOM->factors);
      const turned ws = turn(from_w + term * w->strides[0], w, depth, n, w->strides[2 + inner], some, lanes, ROOM->factors + m * depth * lanes);
      for (int64_t i = 0; i < m; i += SIDE)
        for (int64_t j = 0; j < n; j += SIDE)
          sums[min_i64(SIDE, m - i) - 1][min_i64(SIDE, n - j) - 1](xs.data + i * xs.down, ws.data + j * ws.right, xs.down, xs.right, ws.right, ws.down,
                                                               ROOM->sums + (i * n + j) * lanes, n * lanes, depth, term > 0);
    }
    put((float*)y->data + offsets[HT_PRODUCT_Y], y->strides[0], y->strides[2 + inner], m, n, some, lanes);
    for (int64_t i = 0; beside && i < some; ++i) {
      ht_product_offsets(call, matrix + i, offsets);
      const ht_product_beside more = ht_product_beside_of(call, offsets, 0, 0);
      if (ht_product_after((float*)y->data + offsets[HT_PRODUCT_Y], y->strides[0], m, n, &more, product) != 0) return -1;
    }
  }
  return 0;
}
