/* Vectors of 8 floats, by AVX2: see conv_direct.h. */
#include <immintrin.h>

#define HT_TARGET __attribute__((target("avx2,fma,f16c")))
#define HT_WIDE(name) name##_8
#define HT_N 8
#define HT_SPECIAL 1
#define HT_V __m256
#define HT_ZERO _mm256_setzero_ps()
#define HT_LOAD(p) _mm256_loadu_ps(p)
#define HT_LANES(low, high) _mm256_castsi256_ps(mask_8(low, high, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)))
#define HT_MIXED(low, high) _mm256_castsi256_ps(mask_8(low, high, _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7)))
#define HT_ONLY(lanes, v) _mm256_and_ps(lanes, v)
#define HT_UP_TO HT_UP_TO_8
#define HT_PART(p, low, high) _mm256_maskload_ps(p, _mm256_castps_si256(HT_LANES(low, high)))
#define HT_STORE(p, v, n) store_8(p, v, n)
#define HT_SOME(columns) ((columns)->count)
#define HT_STORE_OF(p, v, some) store_8(p, v, some)
#define HT_EVERY(p) _mm256_broadcast_ss(p)
#define HT_FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define HT_FMA_OF(lanes, a, b, c) _mm256_fmadd_ps(a, b, c)
#define HT_EVEN(a, b) _mm256_shuffle_ps(a, b, 0x88) /* a0 a2 b0 b2 | a4 a6 b4 b6 */
#define HT_ODD(a, b) _mm256_shuffle_ps(a, b, 0xdd)
#define HT_IN_ORDER(v) _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(v), 0xd8))
#define HT_IN_REGISTER(a) __asm__("" : "+x"(a))
typedef __m256 lanes_8;
typedef int64_t some_8;
HT_TARGET static inline __m256i mask_8(int64_t low, int64_t high, __m256i place) {
  return _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32((int)low), place), _mm256_cmpgt_epi32(_mm256_set1_epi32((int)high), place));
}
HT_TARGET static inline void store_8(float* p, __m256 v, int64_t n) {
  if (n == 8) _mm256_storeu_ps(p, v);
  else _mm256_maskstore_ps(p, _mm256_castps_si256(HT_LANES(0, n)), v);
}
/* As many bf16, fp16, bytes as fp32. */
#define HT_BF16(p) _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)(p))), 16))
#define HT_FP16(p) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p)))
#define HT_INT8(p) _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(p))))
#define HT_UINT8(p) _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)(p))))
#define HT_FLOATS(v) _mm256_cvtepi32_ps(_mm256_castps_si256(v))
#define HT_WHOLES(v) _mm256_castsi256_ps(_mm256_cvtps_epi32(v))
