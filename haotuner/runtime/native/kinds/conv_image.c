/* Blocks of image columns, in vectors of 16, 8 or 4 lanes: a pack's micro-kernels say which of them the CPU has. */
#include <immintrin.h>
#include <string.h>

#include "conv.h"

/* One line, and `count` lines of `length` elements `gap` apart in memory. */
#define HT_TARGET __attribute__((target("avx512f")))
#define HT_WIDE(name) name##_16
HT_TARGET static inline void line_16(float* to, const float* from, int64_t length) {
  int64_t i = 0;
  for (; i + 16 <= length; i += 16) _mm512_storeu_ps(to + i, _mm512_loadu_ps(from + i));
  if (i == length) return;
  __mmask16 rest = (__mmask16)((1u << (length - i)) - 1);
  _mm512_mask_storeu_ps(to + i, rest, _mm512_maskz_loadu_ps(rest, from + i));
}

HT_TARGET static void lines_16(float* to, int64_t step, const float* from, int64_t stride, int64_t count, int64_t length, int64_t gap) {
  if (gap == 1) {
    for (int64_t i = 0; i < count; ++i) line_16(to + i * step, from + i * stride, length);
  } else if (gap == 2) { /* every other element of two vectors */
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    for (int64_t i = 0; i < count; ++i) {
      const float* source = from + i * stride;
      float* target = to + i * step;
      for (int64_t j = 0; j < length; j += 16) {
        int64_t left = length - j, floats = 2 * left - 1;
        __mmask16 kept = left >= 16 ? 0xffff : (__mmask16)((1u << left) - 1);
        __mmask16 low = floats >= 16 ? 0xffff : (__mmask16)((1u << floats) - 1);
        __mmask16 high = floats >= 32 ? 0xffff : floats <= 16 ? 0 : (__mmask16)((1u << (floats - 16)) - 1);
        __m512 a = _mm512_maskz_loadu_ps(low, source + 2 * j), b = _mm512_maskz_loadu_ps(high, source + 2 * j + 16);
        _mm512_mask_storeu_ps(target + j, kept, _mm512_permutex2var_ps(a, even, b));
      }
    }
  } else {
    for (int64_t i = 0; i < count; ++i)
      for (int64_t j = 0; j < length; ++j) to[i * step + j] = from[i * stride + j * gap];
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
  HT_TARGET static void lines_##lanes(float* to, int64_t step, const float* from, int64_t stride, int64_t count, int64_t length, \
                                      int64_t gap) {                                                                             \
    for (int64_t i = 0; i < count; ++i) {                                                                                        \
      if (gap == 1) line_##lanes(to + i * step, from + i * stride, length);                                                      \
      else                                                                                                                       \
        for (int64_t j = 0; j < length; ++j) to[i * step + j] = from[i * stride + j * gap];                                      \
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
