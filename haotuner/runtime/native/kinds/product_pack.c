/* Copies of blocks of a factor, side by side as the programs read them. */
#include <immintrin.h>
#include <string.h>

#include "product.h"

/* Eight rows of eight, across. */
__attribute__((target("avx"))) static inline void turn_8(const float* from, int64_t right, float* to, int64_t width) {
  __m256 r[8], t[8];
  for (int j = 0; j < 8; ++j) r[j] = _mm256_loadu_ps(from + j * right);
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

/* Sixteen columns of `from`, each `right` after the one before, become sixteen rows of `to`: of 16 elements, on both sides. */
__attribute__((target("avx512f"))) static inline void turn_16(const float* from, int64_t right, float* to, int64_t width) {
  __m512 r[16], t[16];
  for (int j = 0; j < 16; ++j) r[j] = _mm512_loadu_ps(from + j * right);
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

static inline void turn_4(const float* from, int64_t right, float* to, int64_t width) {
  __m128 a = _mm_loadu_ps(from), b = _mm_loadu_ps(from + right), c = _mm_loadu_ps(from + 2 * right), d = _mm_loadu_ps(from + 3 * right);
  _MM_TRANSPOSE4_PS(a, b, c, d);
  _mm_storeu_ps(to, a);
  _mm_storeu_ps(to + width, b);
  _mm_storeu_ps(to + 2 * width, c);
  _mm_storeu_ps(to + 3 * width, d);
}

/* Whole squares of `size`; what is left of rows and columns, element by element. */
#define TURN(size, attribute)                                                                                                           \
  attribute static void turn_all_##size(float* to, int64_t width, const float* from, int64_t right, int64_t rows, int64_t columns) {    \
    int64_t across = columns / size * size, down = rows / size * size;                                                                  \
    for (int64_t j = 0; j < across; j += size)                                                                                          \
      for (int64_t i = 0; i < down; i += size) turn_##size(from + j * right + i, right, to + i * width + j, width);                     \
    for (int64_t i = down; i < rows; ++i)                                                                                               \
      for (int64_t j = 0; j < across; ++j) to[i * width + j] = from[j * right + i];                                                     \
    for (int64_t j = across; j < columns; ++j)                                                                                          \
      for (int64_t i = 0; i < rows; ++i) to[i * width + j] = from[j * right + i];                                                       \
  }
TURN(4, )
TURN(8, __attribute__((target("avx"))))
TURN(16, __attribute__((target("avx512f"))))

void ht_product_pack(float* to, int64_t width, const float* from, int64_t down, int64_t right, int64_t rows, int64_t columns, int lanes) {
  if (columns < width)
    for (int64_t i = 0; i < rows; ++i) memset(to + i * width + columns, 0, (size_t)(width - columns) * sizeof(float));
  if (right == 1 || columns == 1) {
    for (int64_t i = 0; i < rows; ++i) memcpy(to + i * width, from + i * down, (size_t)columns * sizeof(float));
  } else if (down == 1 || rows == 1) { /* a pack's vectors are no wider than the CPU's */
    (lanes >= 16 ? turn_all_16 : lanes >= 8 ? turn_all_8 : turn_all_4)(to, width, from, right, rows, columns);
  } else {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j) to[i * width + j] = from[i * down + j * right];
  }
}
