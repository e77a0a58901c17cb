/* Vectors of 4 floats, by SSE: see conv_direct.h. */
#include <immintrin.h>

#define HT_TARGET
#define HT_WIDE(name) name##_4
#define HT_N 4
#define HT_SPECIAL 0
#define HT_V __m128
#define HT_ZERO _mm_setzero_ps()
#define HT_LOAD(p) _mm_loadu_ps(p)
#define HT_LANES(low, high) mask_4(low, high)
#define HT_MIXED(low, high) mask_4(low, high)
#define HT_ONLY(lanes, v) _mm_and_ps(lanes, v)
#define HT_UP_TO HT_UP_TO_4
#define HT_PART(p, low, high) part_4(p, low, high)
#define HT_STORE(p, v, n) store_4(p, v, n)
#define HT_SOME(columns) ((columns)->count)
#define HT_STORE_OF(p, v, some) store_4(p, v, some)
#define HT_EVERY(p) _mm_set1_ps(*(p))
#define HT_FMA(a, b, c) _mm_add_ps(_mm_mul_ps(a, b), c)
#define HT_FMA_OF(lanes, a, b, c) _mm_add_ps(_mm_mul_ps(a, b), c)
#define HT_EVEN(a, b) _mm_shuffle_ps(a, b, 0x88)
#define HT_ODD(a, b) _mm_shuffle_ps(a, b, 0xdd)
#define HT_IN_ORDER(v) (v)
#define HT_IN_REGISTER(a) __asm__("" : "+x"(a))
typedef __m128 lanes_4;
typedef int64_t some_4;
static inline __m128 mask_4(int64_t low, int64_t high) {
  const __m128i place = _mm_setr_epi32(0, 1, 2, 3);
  return _mm_castsi128_ps(_mm_andnot_si128(_mm_cmpgt_epi32(_mm_set1_epi32((int)low), place), _mm_cmpgt_epi32(_mm_set1_epi32((int)high), place)));
}
static inline __m128 part_4(const float* p, int64_t low, int64_t high) {
  float lanes[4] = {0, 0, 0, 0};
  for (int64_t i = low; i < high; ++i) lanes[i] = p[i];
  return _mm_loadu_ps(lanes);
}
static inline void store_4(float* p, __m128 v, int64_t n) {
  float lanes[4];
  if (n == 4) _mm_storeu_ps(p, v);
  else {
    _mm_storeu_ps(lanes, v);
    for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
  }
}
