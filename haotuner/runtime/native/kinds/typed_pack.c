/* Panels of words: [panel][k / terms][pw] columns of `terms` terms each. */
#include <string.h>

#include "typed.h"

void ht_typed_pack(const ht_typed* typed, int64_t n, int64_t k, int64_t pw, int64_t panels, const char* weight, int64_t row_stride,
                   int64_t term_stride, char* packed) {
  const int64_t size = typed->weight.bits / 8, depth = ht_typed_depth(typed, k);
  memset(packed, 0, (size_t)(panels * depth * pw * typed->column));
  for (int64_t row = 0; row < n; ++row) { /* rows are read front to back: a weight may come from a file */
    char* column = packed + row / pw * depth * pw * typed->column + row % pw * typed->column;
    for (int64_t term = 0; term < k; ++term)
      memcpy(column + term / typed->terms * pw * typed->column + term % typed->terms * size,
             weight + (row * row_stride + term * term_stride) * size, (size_t)size);
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
