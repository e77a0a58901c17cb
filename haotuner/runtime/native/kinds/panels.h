/* Panels of a dense layer's fp32 weight: [panel][k][pw], zero beyond column n. The pack's library lays them out (dense.c); the C library does
 * it for packs whose library cannot (clib/linear.c). */
#ifndef HT_PANELS_H_
#define HT_PANELS_H_

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define HT_PANEL_AHEAD 16 /* rows that are fetched before they are packed: they lie apart, which the CPU does not foresee */
#define HT_PANEL_TERMS 16 /* packed at a time: a line of cache of every row */

/* Four columns, `stride` floats apart, HT_PANEL_TERMS terms of each. */
static inline void ht_panel_four(const float* columns, int64_t stride, int64_t pw, float* to) {
  for (int k = 0; k < HT_PANEL_TERMS; k += 4, columns += 4, to += 4 * pw) {
    __m128 a = _mm_loadu_ps(columns), b = _mm_loadu_ps(columns + stride), c = _mm_loadu_ps(columns + 2 * stride), d = _mm_loadu_ps(columns + 3 * stride);
    _MM_TRANSPOSE4_PS(a, b, c, d);
    _mm_storeu_ps(to, a);
    _mm_storeu_ps(to + pw, b);
    _mm_storeu_ps(to + 2 * pw, c);
    _mm_storeu_ps(to + 3 * pw, d);
  }
}

/* `count` columns, `stride` floats apart, whose terms lie side by side. */
static inline void ht_panel_transposed(const float* columns, int64_t stride, int64_t depth, int64_t count, int64_t pw, float* to) {
  for (int64_t first = 0; first < depth; first += HT_PANEL_TERMS) {
    const int64_t end = first + HT_PANEL_TERMS < depth ? first + HT_PANEL_TERMS : depth, fours = end - first == HT_PANEL_TERMS ? count / 4 * 4 : 0;
    for (int64_t j = 0; j < count && end < depth; ++j) __builtin_prefetch(columns + j * stride + end);
    for (int64_t j = 0; j < fours; j += 4) ht_panel_four(columns + j * stride + first, stride, pw, to + first * pw + j);
    for (int64_t j = fours; j < count; ++j)
      for (int64_t k = first; k < end; ++k) to[k * pw + j] = columns[j * stride + k];
  }
}

/* `count` columns that lie side by side; their terms are `stride` floats apart. */
static inline void ht_panel_copied(const float* terms, int64_t stride, int64_t depth, int64_t count, int64_t pw, float* to) {
  for (int64_t k = 0; k < depth; ++k, to += pw) {
    if (k + HT_PANEL_AHEAD < depth) __builtin_prefetch(terms + (k + HT_PANEL_AHEAD) * stride);
    memcpy(to, terms + k * stride, (size_t)count * sizeof *to);
  }
}

/* Panels of a weight of n columns and k terms, columns and terms any number of floats apart. */
static inline void ht_pack_panels(const float* weight, int64_t n, int64_t k, int64_t column_stride, int64_t term_stride, int64_t panels, int64_t pw,
                                  float* packed) {
  for (int64_t panel = 0; panel < panels; ++panel) {
    const int64_t left = n - panel * pw, count = left < 0 ? 0 : left < pw ? left : pw;
    const float* columns = weight + (count > 0 ? panel * pw * column_stride : 0);
    float* to = packed + panel * k * pw;
    if (count < pw) memset(to, 0, (size_t)(k * pw) * sizeof *to);
    if (count == 0) continue;
    if (term_stride == 1) ht_panel_transposed(columns, column_stride, k, count, pw, to);
    else if (column_stride == 1) ht_panel_copied(columns, term_stride, k, count, pw, to);
    else
      for (int64_t t = 0; t < k; ++t)
        for (int64_t j = 0; j < count; ++j) to[t * pw + j] = columns[j * column_stride + t * term_stride];
  }
}

#endif /* HT_PANELS_H_ */
