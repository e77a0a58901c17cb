/* Panels of words: [panel][k / terms][pw] columns of `terms` terms each; and how blocks of elements are turned and widened. */
#include <emmintrin.h>
#include <string.h>

#include "typed.h"

void ht_typed_pack(const ht_typed* typed, int64_t n, int64_t k, int64_t pw, int64_t panels, const char* weight, int64_t row_stride,
                   int64_t term_stride, char* packed) {
  const int64_t size = typed->weight.bits / 8, depth = ht_typed_depth(typed, k);
  int32_t* first = (int32_t*)ht_typed_first(typed, packed, panels, k, pw);
  memset(packed, 0, (size_t)ht_typed_floats(typed, panels, k, pw) * 4);
  for (int64_t row = 0; row < n; ++row) { /* rows are read front to back: a weight may come from a file */
    char* column = packed + row / pw * depth * pw * typed->column + row % pw * typed->column;
    for (int64_t term = 0; term < k; ++term)
      memcpy(column + term / typed->terms * pw * typed->column + term % typed->terms * size,
             weight + (row * row_stride + term * term_stride) * size, (size_t)size);
    for (int64_t term = 0; term < k && first != NULL; ++term) 
      first[row] = (int32_t)((uint32_t)first[row] - 128u * (uint32_t) * ((const int8_t*)weight + row * row_stride + term * term_stride));
  }
}

/* Squares of 8 bytes or halves, or of 4 words; SSE2 is what every x86-64 has. */
static void square_1(char* to, int64_t to_stride, const char* from, int64_t from_stride) {
  __m128i r[8], t[8];
  for (int i = 0; i < 8; ++i) r[i] = _mm_loadl_epi64((const __m128i*)(from + i * from_stride));
  for (int i = 0; i < 4; ++i) t[i] = _mm_unpacklo_epi8(r[2 * i], r[2 * i + 1]); /* pairs of rows, all columns */
  for (int i = 0; i < 2; ++i) {
    r[2 * i] = _mm_unpacklo_epi16(t[2 * i], t[2 * i + 1]); /* four rows: columns 0 to 3, then 4 to 7 */
    r[2 * i + 1] = _mm_unpackhi_epi16(t[2 * i], t[2 * i + 1]);
  }
  for (int half = 0; half < 2; ++half) {
    t[0] = _mm_unpacklo_epi32(r[half], r[2 + half]);
    t[1] = _mm_unpackhi_epi32(r[half], r[2 + half]);
    for (int i = 0; i < 2; ++i) {
      char* row = to + (4 * half + 2 * i) * to_stride;
      _mm_storel_epi64((__m128i*)row, t[i]);
      _mm_storel_epi64((__m128i*)(row + to_stride), _mm_unpackhi_epi64(t[i], t[i]));
    }
  }
}

static void square_2(char* to, int64_t to_stride, const char* from, int64_t from_stride) {
  __m128i r[8], t[8];
  for (int i = 0; i < 8; ++i) r[i] = _mm_loadu_si128((const __m128i*)(from + i * from_stride));
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm_unpacklo_epi16(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm_unpackhi_epi16(r[2 * i], r[2 * i + 1]);
  }
  for (int high = 0; high < 2; ++high) { /* columns 0 to 3, then 4 to 7 */
    __m128i a = _mm_unpacklo_epi32(t[high], t[2 + high]), b = _mm_unpackhi_epi32(t[high], t[2 + high]);
    __m128i c = _mm_unpacklo_epi32(t[4 + high], t[6 + high]), d = _mm_unpackhi_epi32(t[4 + high], t[6 + high]);
    char* row = to + 4 * high * to_stride;
    _mm_storeu_si128((__m128i*)row, _mm_unpacklo_epi64(a, c));
    _mm_storeu_si128((__m128i*)(row + to_stride), _mm_unpackhi_epi64(a, c));
    _mm_storeu_si128((__m128i*)(row + 2 * to_stride), _mm_unpacklo_epi64(b, d));
    _mm_storeu_si128((__m128i*)(row + 3 * to_stride), _mm_unpackhi_epi64(b, d));
  }
}

static void square_4(char* to, int64_t to_stride, const char* from, int64_t from_stride) {
  __m128 r[4];
  for (int i = 0; i < 4; ++i) r[i] = _mm_castsi128_ps(_mm_loadu_si128((const __m128i*)(from + i * from_stride)));
  _MM_TRANSPOSE4_PS(r[0], r[1], r[2], r[3]);
  for (int i = 0; i < 4; ++i) _mm_storeu_si128((__m128i*)(to + i * to_stride), _mm_castps_si128(r[i]));
}

void ht_typed_turn(char* to, int64_t to_stride, const char* from, int64_t from_stride, int64_t rows, int64_t columns, int64_t size) {
  const int64_t side = size == 4 ? 4 : 8;
  if (rows < side || columns < side) {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c) memcpy(to + c * to_stride + r * size, from + r * from_stride + c * size, (size_t)size);
    return;
  }
  for (int64_t r = 0; r < rows; r += side) { /* the last squares overlap those before them */
    const int64_t down = r + side > rows ? rows - side : r;
    for (int64_t c = 0; c < columns; c += side) {
      const int64_t across = c + side > columns ? columns - side : c;
      (size == 1 ? square_1 : size == 2 ? square_2 : square_4)(to + across * to_stride + down * size, to_stride,
                                                               from + down * from_stride + across * size, from_stride);
    }
  }
}

void ht_typed_widen(ht_element type, const void* data, int64_t down, int64_t right, int64_t rows, int64_t columns, float* wide, int64_t stride) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) {
      const int64_t at = r * down + c * right;
      wide[r * stride + c] = type.bits == 32 ? ((const float*)data)[at] : ht_typed_widened(type.code, ((const uint16_t*)data)[at]);
    }
}

float ht_typed_widened(int code, uint16_t bits) {
  uint32_t word = (uint32_t)bits << 16;
  float value;
  if (code != kDLBfloat) { /* a half: 2^112 too small as its exponent stands; infinities and NaN stay what they are */
    uint32_t magnitude = bits & 0x7fffu;
    word = magnitude << 13;
    memcpy(&value, &word, sizeof value);
    value *= 0x1p112f;
    memcpy(&word, &value, sizeof value);
    if (magnitude > 0x7bff) word |= 0x7f800000;
    word |= (uint32_t)(bits & 0x8000) << 16;
  }
  memcpy(&value, &word, sizeof value);
  return value;
}
