/* Sums of a recurrent layer whose state and weights are bytes: sums[column] = sum over i of (state[i] - HT_STATE_MIDDLE) * w[i][column],
 * less what ht_state_parts gave, exact, in 32 bits. Weights lie in panels of HT_PANEL columns; of each, four i of all columns behind the four before them, the four of
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

#if defined __AVX2__
/* An instruction multiplies unsigned bytes by signed ones and adds two products in 16 bits, where two of 255 * 127 saturate. So a state is
 * s = state - 128 here, as its magnitude, 128 at most, and its sign, by which the weight's bits are turned: of s < 0
 * |s| * ~w = s * w - |s|. The sum of these |s| is what ht_plain_parts gives. Two products of 128 * -128 are the least number of 16 bits. */
#define HT_PLAIN_MIDDLE 128
#define HT_LANES 8
#define HT_SUMS 8
typedef __m256i ht_sums;
typedef struct {
  __m256i size, sign;
} ht_four;
#define HT_ZEROS _mm256_setzero_si256()
#define HT_KEEP(to, v) _mm256_storeu_si256((__m256i*)(void*)(to), v)
HT_INLINE int32_t ht_plain_parts(uint8_t* state, int64_t count, uint8_t* signs) {
  int32_t below = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int s = state[i] - 128;
    signs[i] = s < 0 ? 255 : 0;
    state[i] = (uint8_t)(s < 0 ? -s : s);
    below += s < 0 ? -s : 0;
  }
  return below;
}
HT_INLINE ht_four ht_states(const uint8_t* state, const uint8_t* signs) {
  int32_t size, sign;
  memcpy(&size, state, 4);
  memcpy(&sign, signs, 4);
  return (ht_four){_mm256_set1_epi32(size), _mm256_set1_epi32(sign)};
}
HT_INLINE ht_sums ht_more(ht_sums sums, ht_four states, const int8_t* w) {
  const __m256i turned = _mm256_xor_si256(_mm256_loadu_si256((const __m256i*)(const void*)w), states.sign);
  return _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_maddubs_epi16(states.size, turned), _mm256_set1_epi16(1)));
}
#else
#define HT_PLAIN_MIDDLE 0
#define HT_LANES 4
#define HT_SUMS 8
typedef struct {
  int32_t lanes[4];
} ht_sums;
typedef const uint8_t* ht_four;
#define HT_ZEROS ((ht_sums){{0, 0, 0, 0}})
#define HT_KEEP(to, v) memcpy(to, (v).lanes, sizeof (v).lanes)
HT_INLINE int32_t ht_plain_parts(uint8_t* state, int64_t count, uint8_t* signs) { return (void)state, (void)count, (void)signs, 0; }
HT_INLINE ht_four ht_states(const uint8_t* state, const uint8_t* signs) { return (void)signs, state; }
HT_INLINE ht_sums ht_more(ht_sums sums, ht_four states, const int8_t* w) {
  for (int lane = 0; lane < 4; ++lane)
    for (int i = 0; i < 4; ++i) sums.lanes[lane] += (int32_t)states[i] * w[4 * lane + i];
  return sums;
}
#endif

/* `sides` sequences, 8 at most: states and signs of 4 * quads bytes, sums of whole panels, so many elements apart each. `sides`
 * is a constant at every call, so that sums stay in registers. */
#define HT_POWER(n) ((n) >= 16 ? 16 : (n) >= 8 ? 8 : (n) >= 4 ? 4 : (n) >= 2 ? 2 : 1)
#define HT_BYTE_LOOP(name, target, of)                                                                                               \
  target HT_INLINE void name(const int8_t* w, int64_t panels, int64_t quads, int sides, const uint8_t* states, const uint8_t* signs, \
                             int64_t state_stride, int32_t* sums, int64_t sum_stride) {                                              \
    enum { VECTORS = HT_PANEL / HT_LANES##of };                                                                                      \
    const int most = HT_POWER(HT_SUMS##of / sides), block = VECTORS < most ? VECTORS : most; /* VECTORS is a multiple of it */       \
    for (int64_t p = 0; p < panels; ++p) {                                                                                           \
      for (int first = 0; first < VECTORS; first += block) {                                                                         \
        const int8_t* from = w + p * quads * HT_PANEL * 4 + first * HT_LANES##of * 4;                                                \
        ht_sums##of totals[8][8];                                                                                                    \
        _Pragma("GCC unroll 8") for (int q = 0; q < sides; ++q)                                                                      \
          _Pragma("GCC unroll 8") for (int v = 0; v < block; ++v) totals[q][v] = HT_ZEROS##of;                                       \
        for (int64_t i = 0; i < quads; ++i, from += HT_PANEL * 4) {                                                                  \
          _Pragma("GCC unroll 8") for (int q = 0; q < sides; ++q) {                                                                  \
            const ht_four##of four = ht_states##of(states + q * state_stride + 4 * i, signs + q * state_stride + 4 * i);             \
            _Pragma("GCC unroll 8") for (int v = 0; v < block; ++v)                                                                  \
              totals[q][v] = ht_more##of(totals[q][v], four, from + v * HT_LANES##of * 4);                                           \
          }                                                                                                                          \
        }                                                                                                                            \
        _Pragma("GCC unroll 8") for (int q = 0; q < sides; ++q)                                                                      \
          _Pragma("GCC unroll 8") for (int v = 0; v < block; ++v)                                                                    \
            HT_KEEP##of(sums + q * sum_stride + p * HT_PANEL + (first + v) * HT_LANES##of, totals[q][v]);                            \
      }                                                                                                                              \
    }                                                                                                                                \
  }
HT_BYTE_LOOP(ht_plain_loop, , )
#define HT_BY_SIDES(loop, ...)                             \
  switch (sides) {                                         \
    case 1: loop(w, panels, quads, 1, __VA_ARGS__); break; \
    case 2: loop(w, panels, quads, 2, __VA_ARGS__); break; \
    case 3: loop(w, panels, quads, 3, __VA_ARGS__); break; \
    case 4: loop(w, panels, quads, 4, __VA_ARGS__); break; \
    case 5: loop(w, panels, quads, 5, __VA_ARGS__); break; \
    case 6: loop(w, panels, quads, 6, __VA_ARGS__); break; \
    case 7: loop(w, panels, quads, 7, __VA_ARGS__); break; \
    default: loop(w, panels, quads, 8, __VA_ARGS__);       \
  }

#if defined __AVX512VL__
/* A level of instruction sets names no VNNI: whether this CPU has it shows at the call. */
#define HT_VNNI __attribute__((target("avx512vnni")))
#define HT_HAS_VNNI __builtin_cpu_supports("avx512vnni")
#define HT_LANES_vnni 16
#define HT_SUMS_vnni 16 /* in registers, of which there are 32: two chains of five cycles want ten at least */
#define HT_ZEROS_vnni _mm512_setzero_si512()
#define HT_KEEP_vnni(to, v) _mm512_storeu_si512(to, v)
typedef __m512i ht_sums_vnni;
typedef __m512i ht_four_vnni; /* four states, for every column */
HT_VNNI HT_INLINE ht_four_vnni ht_states_vnni(const uint8_t* state, const uint8_t* signs) {
  int32_t four;
  (void)signs;
  memcpy(&four, state, 4);
  return _mm512_set1_epi32(four);
}
HT_VNNI HT_INLINE ht_sums_vnni ht_more_vnni(ht_sums_vnni sums, ht_four_vnni states, const int8_t* w) {
  return _mm512_dpbusd_epi32(sums, states, _mm512_loadu_si512(w));
}
HT_BYTE_LOOP(ht_vnni_loop, HT_VNNI, _vnni)
static HT_VNNI __attribute__((unused)) void ht_vnni_sums(const int8_t* w, int64_t panels, int64_t quads, int sides, const uint8_t* states,
                                                         int64_t state_stride, int32_t* sums, int64_t sum_stride) {
  HT_BY_SIDES(ht_vnni_loop, states, states, state_stride, sums, sum_stride)
}
#else
#define HT_HAS_VNNI 0
#endif

#define HT_STATE_MIDDLE (HT_HAS_VNNI ? 0 : HT_PLAIN_MIDDLE)

HT_INLINE int32_t ht_state_parts(uint8_t* state, int64_t count, uint8_t* signs) {
  return HT_HAS_VNNI ? 0 : ht_plain_parts(state, count, signs);
}

static __attribute__((unused)) void ht_byte_sums(const int8_t* w, int64_t panels, int64_t quads, int sides, const uint8_t* states, const uint8_t* signs,
                            int64_t state_stride, int32_t* sums, int64_t sum_stride) {
#if defined __AVX512VL__
  if (HT_HAS_VNNI) {
    ht_vnni_sums(w, panels, quads, sides, states, state_stride, sums, sum_stride);
    return;
  }
#endif
  HT_BY_SIDES(ht_plain_loop, states, signs, state_stride, sums, sum_stride)
}

#endif /* HT_BYTE_SUMS_H_ */
