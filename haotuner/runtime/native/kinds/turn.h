/* Squares of elements turned by shuffles. */
#ifndef HT_TURN_H_
#define HT_TURN_H_

#include <immintrin.h>
#include <stdint.h>

/* Columns [0, count) of `from`, each `right` after the one before, become rows of `to`; the columns that are not there are zeros.
 * Each turns a square of its size. */
__attribute__((target("avx"))) static inline __attribute__((always_inline)) void turn_8(const float* from, int64_t right, int64_t count,
                                                                                        float* to, int64_t width) {
  __m256 r[8], t[8];
  for (int j = 0; j < 8; ++j) r[j] = j < count ? _mm256_loadu_ps(from + j * right) : _mm256_setzero_ps();
  for (int j = 0; j < 8; j += 2) {
    t[j] = _mm256_unpacklo_ps(r[j], r[j + 1]);
    t[j + 1] = _mm256_unpackhi_ps(r[j], r[j + 1]);
  }
  for (int j = 0; j < 8; j += 4) {
    r[j] = _mm256_shuffle_ps(t[j], t[j + 2], 0x44);
    r[j + 1] = _mm256_shuffle_ps(t[j], t[j + 2], 0xee);
    r[j + 2] = _mm256_shuffle_ps(t[j + 1], t[j + 3], 0x44);
    r[j + 3] = _mm256_shuffle_ps(t[j + 1], t[j + 3], 0xee);
  }
  for (int j = 0; j < 4; ++j) {
    _mm256_storeu_ps(to + j * width, _mm256_permute2f128_ps(r[j], r[j + 4], 0x20));
    _mm256_storeu_ps(to + (j + 4) * width, _mm256_permute2f128_ps(r[j], r[j + 4], 0x31));
  }
}

__attribute__((target("avx512f"))) static inline __attribute__((always_inline)) void some_16(const float* from, int64_t right,
                                                                                             int64_t count, int64_t length, float* to,
                                                                                             int64_t width, int64_t kept) {
  const __mmask16 there = (__mmask16)((1u << length) - 1), room = (__mmask16)((1u << kept) - 1);
  __m512 r[16], t[16];
  for (int j = 0; j < 16; ++j) r[j] = j < count ? _mm512_maskz_loadu_ps(there, from + j * right) : _mm512_setzero_ps();
  for (int j = 0; j < 16; j += 2) {
    t[j] = _mm512_unpacklo_ps(r[j], r[j + 1]);
    t[j + 1] = _mm512_unpackhi_ps(r[j], r[j + 1]);
  }
  for (int j = 0; j < 16; j += 4) {
    r[j] = _mm512_shuffle_ps(t[j], t[j + 2], 0x44);
    r[j + 1] = _mm512_shuffle_ps(t[j], t[j + 2], 0xee);
    r[j + 2] = _mm512_shuffle_ps(t[j + 1], t[j + 3], 0x44);
    r[j + 3] = _mm512_shuffle_ps(t[j + 1], t[j + 3], 0xee);
  }
  for (int j = 0; j < 4; ++j) { /* r[4q + j]: element j of each lane, of columns 4q to 4q + 3 */
    __m512 a = _mm512_shuffle_f32x4(r[j], r[4 + j], 0x88), b = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0x88);
    __m512 c = _mm512_shuffle_f32x4(r[j], r[4 + j], 0xdd), d = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0xdd);
    t[j] = _mm512_shuffle_f32x4(a, b, 0x88);
    t[j + 8] = _mm512_shuffle_f32x4(a, b, 0xdd);
    t[j + 4] = _mm512_shuffle_f32x4(c, d, 0x88);
    t[j + 12] = _mm512_shuffle_f32x4(c, d, 0xdd);
  }
  for (int j = 0; j < 16; ++j)
    if (j < length) _mm512_mask_storeu_ps(to + j * width, room, t[j]);
}

__attribute__((target("avx512f"))) static inline __attribute__((always_inline)) void turn_16(const float* from, int64_t right,
                                                                                             int64_t count, float* to, int64_t width) {
  some_16(from, right, count, 16, to, width, 16);
}

static inline __attribute__((always_inline)) void turn_4(const float* from, int64_t right, int64_t count, float* to, int64_t width) {
  __m128 r[4];
  for (int j = 0; j < 4; ++j) r[j] = j < count ? _mm_loadu_ps(from + j * right) : _mm_setzero_ps();
  _MM_TRANSPOSE4_PS(r[0], r[1], r[2], r[3]);
  for (int j = 0; j < 4; ++j) _mm_storeu_ps(to + j * width, r[j]);
}

/* to[i * width + j] = from[j * right + i], i < length, j < kept; zeros from j = count on. All of these are at most `lanes`. */
__attribute__((target("avx512f"))) static inline void square_16(const float* from, int64_t right, int64_t count, int64_t length, float* to,
                                                         int64_t width, int64_t kept) {
  if (count == 16 && length == 16 && kept == 16) turn_16(from, right, 16, to, width);
  else some_16(from, right, count, length, to, width, kept);
}

__attribute__((target("avx"))) static inline void square_8(const float* from, int64_t right, int64_t count, float* to, int64_t width) {
  turn_8(from, right, count, to, width);
}

static inline void ht_square(int lanes, const float* from, int64_t right, int64_t count, int64_t length, float* to, int64_t width, int64_t kept) {
  if (lanes >= 16) square_16(from, right, count, length, to, width, kept);
  else if (lanes == 8 && length == 8 && kept == 8) square_8(from, right, count, to, width);
  else
    for (int64_t i = 0; i < length; ++i)
      for (int64_t j = 0; j < kept; ++j) to[i * width + j] = j < count ? from[j * right + i] : 0;
}

#endif /* HT_TURN_H_ */
