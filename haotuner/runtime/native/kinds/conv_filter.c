/* Minimal filtering of one axis: see conv_filter.h. */
#include "conv_filter.h"

#include <immintrin.h>
#include <stddef.h>

typedef void ahead_fn(const float* from, int64_t step, int64_t next, int64_t count, float* to, int64_t apart, int64_t each);
typedef void back_fn(const float* from, int64_t step, int64_t next, int64_t count, const float* bias, float* to, int64_t apart, int64_t each);

/* The points but for infinity, powers of those above 0, and of 2, 4, 6 and 8 points the coefficients of M(x) / (x - a) for a = 0, 1, 2, 1/2.
 * tests/ops/test_minimal_filtering.py compares them with those of ops/minimal_filtering.py. */
static const float point_of[HT_FILTER_POINTS - 1] = {0, 1, -1, 2, -2, .5f, -.5f};
static const float power_of[3][HT_FILTER_OUTPUTS] = {{1, 1, 1, 1, 1, 1}, {1, 2, 4, 8, 16, 32}, {1, .5f, .25f, .125f, .0625f, .03125f}};
static const float ahead_of[4][4][HT_FILTER_POINTS] = {
    {{1}},
    {{-1, 0, 1}, {0, 1, 1}},
    {{4, 0, -5, 0, 1}, {0, -4, -4, 1, 1}, {0, -2, -1, 2, 1}},
    {{-1, 0, 5.25f, 0, -5.25f, 0, 1}, {0, 1, 1, -4.25f, -4.25f, 1, 1}, {0, .5f, .25f, -2.5f, -1.25f, 2, 1}, {0, 2, 4, -2.5f, -5, .5f, 1}},
};

#define HT_TARGET __attribute__((target("avx512f")))
#define HT_WIDE(name) name##_16
#define HT_V __m512
#define HT_LOAD(p) _mm512_loadu_ps(p)
#define HT_STORE(p, v) _mm512_storeu_ps(p, v)
#define HT_EVERY(x) _mm512_set1_ps(x)
#define HT_FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#include "conv_filter_wide.h"

#define HT_TARGET __attribute__((target("avx2,fma")))
#define HT_WIDE(name) name##_8
#define HT_V __m256
#define HT_LOAD(p) _mm256_loadu_ps(p)
#define HT_STORE(p, v) _mm256_storeu_ps(p, v)
#define HT_EVERY(x) _mm256_set1_ps(x)
#define HT_FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#include "conv_filter_wide.h"

#define HT_TARGET
#define HT_WIDE(name) name##_4
#define HT_V __m128
#define HT_LOAD(p) _mm_loadu_ps(p)
#define HT_STORE(p, v) _mm_storeu_ps(p, v)
#define HT_EVERY(x) _mm_set1_ps(x)
#define HT_FMA(a, b, c) _mm_add_ps(_mm_mul_ps(a, b), c)
#include "conv_filter_wide.h"

void ht_filter_ahead(int lanes, int points, const float* from, int64_t step, int64_t next, int64_t count, float* to, int64_t apart, int64_t each) {
  (lanes >= 16 ? every_ahead_16 : lanes >= 8 ? every_ahead_8 : every_ahead_4)[points - 3](from, step, next, count, to, apart, each);
}

void ht_filter_back(int lanes, int points, int outputs, const float* from, int64_t step, int64_t next, int64_t count, const float* bias, float* to,
                    int64_t apart, int64_t each) {
  back_fn* const* of = (lanes >= 16 ? every_back_16 : lanes >= 8 ? every_back_8 : every_back_4)[outputs / 2 - 1];
  of[points - 3](from, step, next, count, bias, to, apart, each);
}

void ht_filter_weight(int points, int taps, const double* g, int step, double* out) {
  for (int i = 0; i < points - 1; ++i) {
    double a = point_of[i], value = 0, slope = 1;
    for (int k = taps - 1; k >= 0; --k) value = value * a + g[k * step];
    for (int k = 0; k < points - 1; ++k)
      if (k != i) slope *= a - (double)point_of[k];
    out[i] = value / slope;
  }
  out[points - 1] = g[(taps - 1) * step];
}
