/* Blocks of elements turned by shuffles. */
#ifndef HT_TURN_H_
#define HT_TURN_H_

#include <immintrin.h>
#include <stdint.h>

/* Four rows of `to` at a time. Pieces of four elements are gathered by loads, column i, i + 4, ... into one vector, so that only turns
 * within four lanes are left to shuffles: half of those that a square of whole vectors takes, and rows need not fill a square. Loops are
 * written out: at -O2 a compiler keeps arrays of vectors in memory. */
#define HT_PIECE(j) ((j) < count ? _mm_loadu_ps(from + (j) * right) : _mm_setzero_ps())
#define HT_TURN_FOUR(type, unpack, shuffle, store, a, b, c, d)                                                \
  do {                                                                                                        \
    const type ab = unpack##lo_ps(a, b), ab_high = unpack##hi_ps(a, b), cd = unpack##lo_ps(c, d), cd_high = unpack##hi_ps(c, d); \
    store(0, shuffle(ab, cd, 0x44));                                                                          \
    store(1, shuffle(ab, cd, 0xee));                                                                          \
    store(2, shuffle(ab_high, cd_high, 0x44));                                                                \
    store(3, shuffle(ab_high, cd_high, 0xee));                                                                \
  } while (0)

#define HT_TARGET_16 __attribute__((target("avx512f,avx512vl")))
HT_TARGET_16 static inline __attribute__((always_inline)) __m512 ht_pieces_16(const float* from, int64_t right, int64_t count, int64_t i) {
  const __m512 two = _mm512_insertf32x4(_mm512_castps128_ps512(HT_PIECE(i)), HT_PIECE(i + 4), 1);
  return _mm512_insertf32x4(_mm512_insertf32x4(two, HT_PIECE(i + 8), 2), HT_PIECE(i + 12), 3);
}

HT_TARGET_16 static inline __attribute__((always_inline)) void ht_four_16(const float* from, int64_t right, int64_t count, float* to,
                                                                          int64_t width, int64_t kept) {
  const __mmask16 room = (__mmask16)((1u << kept) - 1);
  const __m512 a = ht_pieces_16(from, right, count, 0), b = ht_pieces_16(from, right, count, 1);
  const __m512 c = ht_pieces_16(from, right, count, 2), d = ht_pieces_16(from, right, count, 3);
#define HT_TURN_STORE(i, v) (kept == 16 ? _mm512_storeu_ps(to + (i) * width, v) : _mm512_mask_storeu_ps(to + (i) * width, room, v))
  HT_TURN_FOUR(__m512, _mm512_unpack, _mm512_shuffle_ps, HT_TURN_STORE, a, b, c, d);
#undef HT_TURN_STORE
}

__attribute__((target("avx"))) static inline __attribute__((always_inline)) __m256 ht_pieces_8(const float* from, int64_t right,
                                                                                               int64_t count, int64_t i) {
  return _mm256_insertf128_ps(_mm256_castps128_ps256(HT_PIECE(i)), HT_PIECE(i + 4), 1);
}

__attribute__((target("avx"))) static inline __attribute__((always_inline)) void ht_four_8(const float* from, int64_t right, int64_t count,
                                                                                           float* to, int64_t width, int64_t kept) {
  (void)kept; /* all */
  const __m256 a = ht_pieces_8(from, right, count, 0), b = ht_pieces_8(from, right, count, 1);
  const __m256 c = ht_pieces_8(from, right, count, 2), d = ht_pieces_8(from, right, count, 3);
#define HT_TURN_STORE(i, v) _mm256_storeu_ps(to + (i) * width, v)
  HT_TURN_FOUR(__m256, _mm256_unpack, _mm256_shuffle_ps, HT_TURN_STORE, a, b, c, d);
#undef HT_TURN_STORE
}

static inline __attribute__((always_inline)) void ht_four_4(const float* from, int64_t right, int64_t count, float* to, int64_t width,
                                                            int64_t kept) {
  (void)kept; /* all */
  const __m128 a = HT_PIECE(0), b = HT_PIECE(1), c = HT_PIECE(2), d = HT_PIECE(3);
#define HT_TURN_STORE(i, v) _mm_storeu_ps(to + (i) * width, v)
  HT_TURN_FOUR(__m128, _mm_unpack, _mm_shuffle_ps, HT_TURN_STORE, a, b, c, d);
#undef HT_TURN_STORE
}

/* Rows [0, length), at least four; the last four may be some again. */
#define HT_TURN(size, attribute)                                                                                             \
  attribute static inline __attribute__((always_inline)) void ht_rows_##size(const float* from, int64_t right, int64_t count, \
                                                                             int64_t length, float* to, int64_t width, int64_t kept) { \
    for (int64_t i = 0; i < length; i += 4) {                                                                                \
      if (i + 4 > length) i = length - 4;                                                                                    \
      ht_four_##size(from + i, right, count, to + i * width, width, kept);                                                   \
    }                                                                                                                        \
  }                                                                                                                          \
  attribute static void ht_turn_##size(const float* from, int64_t right, int64_t count, int64_t length, float* to, int64_t width, \
                                       int64_t kept) {                                                                       \
    if (count == size && kept == size) ht_rows_##size(from, right, size, length, to, width, size);                           \
    else ht_rows_##size(from, right, count, length, to, width, kept);                                                        \
  }
HT_TURN(16, HT_TARGET_16)
HT_TURN(8, __attribute__((target("avx"))))
HT_TURN(4, )

/* to[i * width + j] = from[j * right + i], i < length, j < kept; zeros from j = count on. count and kept are at most `lanes`. */
static inline void ht_square(int lanes, const float* from, int64_t right, int64_t count, int64_t length, float* to, int64_t width, int64_t kept) {
  if (length >= 4 && lanes >= 16) ht_turn_16(from, right, count, length, to, width, kept);
  else if (length >= 4 && kept == lanes) (lanes == 8 ? ht_turn_8 : ht_turn_4)(from, right, count, length, to, width, kept);
  else
    for (int64_t i = 0; i < length; ++i)
      for (int64_t j = 0; j < kept; ++j) to[i * width + j] = j < count ? from[j * right + i] : 0;
}

#endif /* HT_TURN_H_ */
