/* Vectors of 16 floats, by AVX-512: see conv_direct.h. */
#include <immintrin.h>

#define HT_TARGET __attribute__((target("avx512f,avx512bw")))
#define HT_WIDE(name) name##_16
#define HT_N 16
#define HT_SPECIAL 1
#define HT_V __m512
#define HT_ZERO _mm512_setzero_ps()
#define HT_LOAD(p) _mm512_loadu_ps(p)
#define HT_LANES(low, high) ((__mmask16)(((1u << (high)) - 1) & ~((1u << (low)) - 1)))
#define HT_MIXED(low, high) HT_LANES(low, high)
#define HT_ONLY(lanes, v) (v)
#define HT_UP_TO HT_UP_TO_8
#define HT_PART(p, low, high) _mm512_maskz_loadu_ps(HT_LANES(low, high), p)
#define HT_STORE(p, v, n) _mm512_mask_storeu_ps(p, HT_LANES(0, n), v)
#define HT_SOME(columns) ((columns)->stored)
#define HT_STORE_OF(p, v, some) _mm512_mask_storeu_ps(p, some, v)
#define HT_EVERY(p) _mm512_set1_ps(*(p))
#define HT_FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define HT_FMA_OF(lanes, a, b, c) _mm512_mask3_fmadd_ps(a, b, c, lanes)
#define HT_EVEN(a, b) _mm512_permutex2var_ps(a, _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30), b)
#define HT_ODD(a, b) _mm512_permutex2var_ps(a, _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31), b)
#define HT_IN_ORDER(v) (v)
#define HT_IN_REGISTER(a) __asm__("" : "+v"(a))
typedef __mmask16 lanes_16, some_16;
/* In the upper half of each lane its number. */
#define HT_UPPER _mm512_slli_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), 16)
/* As many bf16, fp16, bytes as fp32: of bf16 each moves to the upper half of its lane. */
#define HT_BF16(p) \
  _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaa, HT_UPPER, _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i*)(p)))))
#define HT_FP16(p) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)(p)))
#define HT_INT8(p) _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)(p))))
#define HT_UINT8(p) _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)(p))))
#define HT_FLOATS(v) _mm512_cvtepi32_ps(_mm512_castps_si512(v))
#define HT_WHOLES(v) _mm512_castsi512_ps(_mm512_cvtps_epi32(v))
