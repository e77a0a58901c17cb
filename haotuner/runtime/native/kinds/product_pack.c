/* Copies of blocks of a factor, side by side as the programs read them. */
#include <immintrin.h>
#include <string.h>

#include "product.h"

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

__attribute__((target("avx512f"))) static inline __attribute__((always_inline)) void turn_16(const float* from, int64_t right,
                                                                                             int64_t count, float* to, int64_t width) {
  __m512 r[16], t[16];
  for (int j = 0; j < 16; ++j) r[j] = j < count ? _mm512_loadu_ps(from + j * right) : _mm512_setzero_ps();
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
    _mm512_storeu_ps(to + j * width, _mm512_shuffle_f32x4(a, b, 0x88));
    _mm512_storeu_ps(to + (j + 8) * width, _mm512_shuffle_f32x4(a, b, 0xdd));
    _mm512_storeu_ps(to + (j + 4) * width, _mm512_shuffle_f32x4(c, d, 0x88));
    _mm512_storeu_ps(to + (j + 12) * width, _mm512_shuffle_f32x4(c, d, 0xdd));
  }
}

static inline __attribute__((always_inline)) void turn_4(const float* from, int64_t right, int64_t count, float* to, int64_t width) {
  __m128 r[4];
  for (int j = 0; j < 4; ++j) r[j] = j < count ? _mm_loadu_ps(from + j * right) : _mm_setzero_ps();
  _MM_TRANSPOSE4_PS(r[0], r[1], r[2], r[3]);
  for (int j = 0; j < 4; ++j) _mm_storeu_ps(to + j * width, r[j]);
}

/* All of a block in squares of `size`, which divides `width`; of the last rows, where a square would read past the end of a column,
 * element by element. */
#define TURN(size, attribute)                                                                                                           \
  attribute static void turn_all_##size(float* to, int64_t width, const float* from, int64_t right, int64_t rows, int64_t columns) {    \
    int64_t down = rows / size * size;                                                                                                  \
    for (int64_t j = 0; j < width; j += size) {                                                                                         \
      int64_t count = columns - j;                                                                                                      \
      if (count >= size)                                                                                                                \
        for (int64_t i = 0; i < down; i += size) turn_##size(from + j * right + i, right, size, to + i * width + j, width);             \
      else                                                                                                                              \
        for (int64_t i = 0; i < down; i += size) turn_##size(from + j * right + i, right, count, to + i * width + j, width);            \
      for (int64_t i = down; i < rows; ++i)                                                                                             \
        for (int64_t l = 0; l < size; ++l) to[i * width + j + l] = l < count ? from[(j + l) * right + i] : 0;                           \
    }                                                                                                                                   \
  }
TURN(4, )
TURN(8, __attribute__((target("avx"))))
TURN(16, __attribute__((target("avx512f"))))

void ht_product_pack(float* to, int64_t width, const float* from, int64_t down, int64_t right, int64_t rows, int64_t columns, int lanes) {
  if ((down == 1 || rows == 1) && right != 1 && width % lanes == 0) { /* a pack's vectors are no wider than the CPU's */
    (lanes >= 16 ? turn_all_16 : lanes >= 8 ? turn_all_8 : turn_all_4)(to, width, from, right, rows, columns);
    return;
  }
  for (int64_t i = 0; i < rows; ++i) {
    if (right == 1) memcpy(to + i * width, from + i * down, (size_t)columns * sizeof(float));
    else
      for (int64_t j = 0; j < columns; ++j) to[i * width + j] = from[i * down + j * right];
    if (columns < width) memset(to + i * width + columns, 0, (size_t)(width - columns) * sizeof(float));
  }
}
