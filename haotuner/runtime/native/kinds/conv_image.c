/* Blocks of image columns, in vectors of 16, 8 or 4 lanes: a pack's micro-kernels say which of them the CPU has. */
#include <immintrin.h>
#include <string.h>

#include "conv.h"

#define MOST_GAP (1 << 20) /* elements: 16 of them lie within an int32 */

/* One line, and `count` lines of `length` elements: those of [low, high) lie `gap` apart in memory, the others are zero. */
#define HT_TARGET __attribute__((target("avx512f,bmi2"))) /* no CPU has the first without the second */
#define HT_WIDE(name) name##_16
HT_TARGET static inline void line_16(float* to, const float* from, int64_t length) {
  int64_t i = 0;
  for (; i + 16 <= length; i += 16) _mm512_storeu_ps(to + i, _mm512_loadu_ps(from + i));
  if (i == length) return;
  __mmask16 rest = (__mmask16)((1u << (length - i)) - 1);
  _mm512_mask_storeu_ps(to + i, rest, _mm512_maskz_loadu_ps(rest, from + i));
}

/* That many ones, of 32. */
HT_TARGET static inline uint32_t ones(int64_t count) {
  return _bzhi_u32(UINT32_MAX, (uint32_t)(count < 0 ? 0 : count > 32 ? 32 : count));
}

HT_TARGET static void lines_16(float* to, int64_t step, const float* from, int64_t stride, int64_t count, int64_t low, int64_t high,
                               int64_t length, int64_t gap) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  if (gap < 1 || gap > MOST_GAP) {
    for (int64_t i = 0; i < count; ++i)
      for (int64_t j = 0; j < length; ++j) to[i * step + j] = j >= low && j < high ? from[i * stride + j * gap] : 0;
    return;
  }
  const __m512i every = _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), _mm512_set1_epi32((int)gap));
  for (int64_t j = 0; j < length; j += 16) { /* masks are those of all lines */
    __mmask16 there = (__mmask16)(ones(high - j) & ~ones(low - j)), kept = (__mmask16)ones(length - j);
    const float* source = from + j * gap;
    float* target = to + j;
    if (gap == 1 && there == 0xffff) {
      for (int64_t i = 0; i < count; ++i) _mm512_storeu_ps(target + i * step, _mm512_loadu_ps(source + i * stride));
    } else if (gap == 1) {
      for (int64_t i = 0; i < count; ++i)
        _mm512_mask_storeu_ps(target + i * step, kept, _mm512_maskz_loadu_ps(there, source + i * stride));
    } else if (gap > 2) {
      for (int64_t i = 0; i < count; ++i)
        _mm512_mask_storeu_ps(target + i * step, kept, _mm512_mask_i32gather_ps(_mm512_setzero_ps(), there, every, source + i * stride, sizeof(float)));
    } else { /* every other element of two vectors: lane l comes from element 2 l */
      uint32_t pairs = ones(2 * (high - j) - 1) & ~ones(2 * (low - j));
      __mmask16 first = (__mmask16)pairs, second = (__mmask16)(pairs >> 16);
      for (int64_t i = 0; i < count; ++i) {
        __m512 a = _mm512_maskz_loadu_ps(first, source + i * stride), b = _mm512_maskz_loadu_ps(second, source + i * stride + 16);
        _mm512_mask_storeu_ps(target + i * step, kept, _mm512_permutex2var_ps(a, even, b));
      }
    }
  }
}

/* Every other element of `to`: a vector in two halves. */
HT_TARGET static void spread_16(float* to, int64_t step, const float* from, int64_t stride, int64_t count, int64_t length) {
  const __m512i low = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7), high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  for (int64_t j = 0; j < length; j += 16) {
    const uint32_t pairs = ones(2 * (length - j)) & 0x55555555u;
    for (int64_t i = 0; i < count; ++i) {
      const __m512 some = _mm512_maskz_loadu_ps((__mmask16)ones(length - j), from + i * stride + j);
      float* line = to + i * step + 2 * j;
      _mm512_mask_storeu_ps(line, (__mmask16)pairs, _mm512_permutexvar_ps(low, some));
      _mm512_mask_storeu_ps(line + 16, (__mmask16)(pairs >> 16), _mm512_permutexvar_ps(high, some));
    }
  }
}
#include "conv_image.h"
#undef HT_TARGET
#undef HT_WIDE

#define HT_LINES(lanes)                                                                                                          \
  HT_TARGET static inline void line_##lanes(float* to, const float* from, int64_t length) {                                      \
    typedef float vector __attribute__((vector_size(4 * lanes), aligned(4), may_alias));                                         \
    int64_t i = 0;                                                                                                               \
    for (; i + lanes <= length; i += lanes) *(vector*)(to + i) = *(const vector*)(from + i);                                     \
    for (; i < length; ++i) to[i] = from[i];                                                                                     \
  }                                                                                                                              \
  HT_TARGET static void lines_##lanes(float* to, int64_t step, const float* from, int64_t stride, int64_t count, int64_t low,    \
                                      int64_t high, int64_t length, int64_t gap) {                                               \
    for (int64_t i = 0; i < count; ++i) {                                                                                        \
      float* line = to + i * step;                                                                                               \
      for (int64_t j = 0; j < low; ++j) line[j] = 0;                                                                             \
      if (gap == 1 && low < high) line_##lanes(line + low, from + i * stride + low, high - low);                                 \
      else                                                                                                                       \
        for (int64_t j = low; j < high; ++j) line[j] = from[i * stride + j * gap];                                               \
      for (int64_t j = high; j < length; ++j) line[j] = 0;                                                                       \
    }                                                                                                                            \
  }

#define HT_TARGET __attribute__((target("avx")))
#define HT_WIDE(name) name##_8
HT_LINES(8)
#include "conv_image.h"
#undef HT_TARGET
#undef HT_WIDE

#define HT_TARGET
#define HT_WIDE(name) name##_4
HT_LINES(4)
#include "conv_image.h"

void ht_conv_image(const ht_image* image, int lanes, float* out) {
  if (image->conv->last) (lanes == 16 ? last_16 : lanes == 8 ? last_8 : last_4)(image, out);
  else (lanes == 16 ? first_16 : lanes == 8 ? first_8 : first_4)(image, out);
}

void ht_conv_padded(int lanes, float* to, int64_t step, const float* from, int64_t stride, int64_t gap, int64_t count, int64_t low, int64_t high,
                    int64_t length) {
  (lanes == 16 ? lines_16 : lanes == 8 ? lines_8 : lines_4)(to, step, from, stride, count, low, high, length, gap);
}

void ht_conv_strip(int lanes, float* to, int64_t step, const float* from, int64_t stride, int64_t gap, int64_t count, int64_t length) {
  ht_conv_padded(lanes, to, step, from, stride, gap, count, 0, length, length);
}

void ht_conv_lines(int lanes, float* to, int64_t step, const float* from, int64_t stride, int64_t count, int64_t length) {
  ht_conv_strip(lanes, to, step, from, stride, 1, count, length);
}

void ht_conv_spread(int lanes, float* to, int64_t step, int64_t gap, const float* from, int64_t stride, int64_t count, int64_t length) {
  if (gap == 1) ht_conv_lines(lanes, to, step, from, stride, count, length);
  else if (gap == 2 && lanes == 16) spread_16(to, step, from, stride, count, length);
  else
    for (int64_t i = 0; i < count; ++i)
      for (int64_t j = 0; j < length; ++j) to[i * step + j * gap] = from[i * stride + j];
}
