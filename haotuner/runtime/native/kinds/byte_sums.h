/* Sums of a recurrent layer whose state and weights are bytes: sums[column] = sum over i of (state[i] - middle) * w[i][column], exact, in
 * 32 bits; `middle` is HT_STATE_MIDDLE(lowest), `lowest` whether weights hold -128. Weights lie in panels of HT_PANEL columns; of each, four i of all columns behind the four before them, the four of
 * a column together: (panels, quads, HT_PANEL, 4). What is read for one sequence serves those beside it. */
#ifndef HT_BYTE_SUMS_H_
#define HT_BYTE_SUMS_H_

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define HT_PANEL 64
#define HT_INLINE static inline __attribute__((always_inline))

/* The least and the largest element, 0 among them. `nan`: other than 0 where one is NaN. */
HT_INLINE void ht_state_range(const float* h, int64_t count, float* low, float* high, int* nan) {
  float lows[16] = {0}, highs[16] = {0};
  int odd[16] = {0};
  for (int64_t i = 0; i < count; i += 16) {
    const int64_t left = count - i < 16 ? count - i : 16;
    if (left == 16) {
      for (int j = 0; j < 16; ++j) {
        const float v = h[i + j];
        lows[j] = v < lows[j] ? v : lows[j];
        highs[j] = v > highs[j] ? v : highs[j];
        odd[j] |= v != v;
      }
      continue;
    }
    for (int j = 0; j < left; ++j) {
      const float v = h[i + j];
      lows[j] = v < lows[j] ? v : lows[j];
      highs[j] = v > highs[j] ? v : highs[j];
      odd[j] |= v != v;
    }
  }
  for (int j = 0; j < 16; ++j) {
    *low = lows[j] < *low ? lows[j] : *low;
    *high = highs[j] > *high ? highs[j] : *high;
    *nan |= odd[j];
  }
}

#if defined __AVX512VNNI__ && defined __AVX512VL__
#define HT_STATE_MIDDLE(lowest) 0
#define HT_LANES 16
typedef __m512i ht_sums;
#define HT_ZEROS _mm512_setzero_si512()
#define HT_KEEP(to, v) _mm512_storeu_si512(to, v)
typedef __m512i ht_four; /* four states, for every column */
HT_INLINE ht_four ht_states(const uint8_t* state, int lowest) {
  int32_t four;
  (void)lowest;
  memcpy(&four, state, 4);
  return _mm512_set1_epi32(four);
}
HT_INLINE ht_sums ht_more(ht_sums sums, ht_four states, const int8_t* w, int lowest) {
  (void)lowest;
  return _mm512_dpbusd_epi32(sums, states, _mm512_loadu_si512(w));
}
#elif defined __AVX2__
/* Signed bytes times signed bytes by an instruction that takes one unsigned: |state| times the weight with the state's sign. Two
 * products of at most 128 * 127 fit 16 bits. A weight of -128 has no such sign: then both are widened to 16 bits. */
#define HT_STATE_MIDDLE(lowest) ((lowest) ? 0 : 128)
#define HT_LANES 8
typedef __m256i ht_sums;
#define HT_ZEROS _mm256_setzero_si256()
#define HT_KEEP(to, v) _mm256_storeu_si256((__m256i*)(void*)(to), v)
typedef struct {
  __m256i sign, size;
} ht_four;
HT_INLINE ht_four ht_states(const uint8_t* state, int lowest) {
  int32_t four;
  memcpy(&four, state, 4);
  if (lowest) return (ht_four){_mm256_cvtepu8_epi16(_mm_set1_epi32(four)), _mm256_setzero_si256()};
  const __m256i moved = _mm256_set1_epi32(four ^ (int32_t)0x80808080u);
  return (ht_four){moved, _mm256_abs_epi8(moved)};
}
HT_INLINE ht_sums ht_more(ht_sums sums, ht_four states, const int8_t* w, int lowest) {
  if (lowest) {
    const __m256i first = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)(const void*)w));
    const __m256i second = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)(const void*)(w + 16)));
    const __m256i both = _mm256_hadd_epi32(_mm256_madd_epi16(first, states.sign), _mm256_madd_epi16(second, states.sign));
    return _mm256_add_epi32(sums, _mm256_permute4x64_epi64(both, 0xd8));
  }
  const __m256i signed_w = _mm256_sign_epi8(_mm256_loadu_si256((const __m256i*)(const void*)w), states.sign);
  const __m256i pairs = _mm256_maddubs_epi16(states.size, signed_w);
  return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
#else
#define HT_STATE_MIDDLE(lowest) 0
#define HT_LANES 4
typedef struct {
  int32_t lanes[4];
} ht_sums;
#define HT_ZEROS ((ht_sums){{0, 0, 0, 0}})
#define HT_KEEP(to, v) memcpy(to, (v).lanes, sizeof (v).lanes)
typedef const uint8_t* ht_four;
HT_INLINE ht_four ht_states(const uint8_t* state, int lowest) { return (void)lowest, state; }
HT_INLINE ht_sums ht_more(ht_sums sums, ht_four states, const int8_t* w, int lowest) {
  (void)lowest;
  for (int lane = 0; lane < 4; ++lane)
    for (int i = 0; i < 4; ++i) sums.lanes[lane] += (int32_t)states[i] * w[4 * lane + i];
  return sums;
}
#endif

/* `sides` sequences: states of 4 * quads bytes and sums of whole panels, so many elements apart each. `sides` and `lowest` are constants at
 * every call, so that sums stay in registers. */
HT_INLINE void ht_byte_sums(const int8_t* w, int64_t panels, int64_t quads, int sides, int lowest, const uint8_t* states, int64_t state_stride,
                            int32_t* sums, int64_t sum_stride) {
  enum { VECTORS = HT_PANEL / HT_LANES };
  const int most = sides > 2 ? 2 : sides > 1 ? 4 : 8, block = VECTORS < most ? VECTORS : most;
  for (int64_t p = 0; p < panels; ++p) {
    for (int first = 0; first < VECTORS; first += block) {
      const int8_t* from = w + p * quads * HT_PANEL * 4 + first * HT_LANES * 4;
      ht_sums found[4][8];
#pragma GCC unroll 4
      for (int q = 0; q < sides; ++q)
#pragma GCC unroll 8
        for (int v = 0; v < block; ++v) found[q][v] = HT_ZEROS;
      for (int64_t i = 0; i < quads; ++i, from += HT_PANEL * 4) {
#pragma GCC unroll 4
        for (int q = 0; q < sides; ++q) {
          const ht_four four = ht_states(states + q * state_stride + 4 * i, lowest);
#pragma GCC unroll 8
          for (int v = 0; v < block; ++v) found[q][v] = ht_more(found[q][v], four, from + v * HT_LANES * 4, lowest);
        }
      }
#pragma GCC unroll 4
      for (int q = 0; q < sides; ++q)
#pragma GCC unroll 8
        for (int v = 0; v < block; ++v) HT_KEEP(sums + q * sum_stride + p * HT_PANEL + (first + v) * HT_LANES, found[q][v]);
    }
  }
}

#endif /* HT_BYTE_SUMS_H_ */
