/* Vectors of HT_LANES (16, 8 or 4) 32-bit lanes by AVX-512, AVX2 or SSE4: what the typed micro-kernels need of them. */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "copy.h"
#include "kinds/typed_tile.h"

#define HT_INLINE static inline __attribute__((always_inline))

#if HT_LANES == 16
typedef __m512 vf;
typedef __m512i vi;
#define V(name, kind) _mm512_##name##_##kind
HT_INLINE vi and_(vi a, vi b) { return _mm512_and_si512(a, b); }
HT_INLINE vi loadi(const void* p) { return _mm512_loadu_si512(p); }
HT_INLINE void storei(void* p, vi v) { _mm512_storeu_si512(p, v); }
HT_INLINE vf madd(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
HT_INLINE vf asf(vi a) { return _mm512_castsi512_ps(a); }
HT_INLINE vi asi(vf a) { return _mm512_castps_si512(a); }
#elif HT_LANES == 8
typedef __m256 vf;
typedef __m256i vi;
#define V(name, kind) _mm256_##name##_##kind
HT_INLINE vi and_(vi a, vi b) { return _mm256_and_si256(a, b); }
HT_INLINE vi loadi(const void* p) { return _mm256_loadu_si256(p); }
HT_INLINE void storei(void* p, vi v) { _mm256_storeu_si256(p, v); }
HT_INLINE vf madd(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
HT_INLINE vf asf(vi a) { return _mm256_castsi256_ps(a); }
HT_INLINE vi asi(vf a) { return _mm256_castps_si256(a); }
#else
typedef __m128 vf;
typedef __m128i vi;
#define V(name, kind) _mm_##name##_##kind
HT_INLINE vi and_(vi a, vi b) { return _mm_and_si128(a, b); }
HT_INLINE vi loadi(const void* p) { return _mm_loadu_si128(p); }
HT_INLINE void storei(void* p, vi v) { _mm_storeu_si128(p, v); }
HT_INLINE vf madd(vf a, vf b, vf c) { return _mm_add_ps(_mm_mul_ps(a, b), c); }
HT_INLINE vf asf(vi a) { return _mm_castsi128_ps(a); }
HT_INLINE vi asi(vf a) { return _mm_castps_si128(a); }
#endif

HT_INLINE vi splat(int32_t value) { return V(set1, epi32)(value); }
HT_INLINE vf splatf(float value) { return V(set1, ps)(value); }

/* `count` words at p, fewer than a vector has, zeros behind them; what lies there is not read. */
HT_INLINE vi load_few(const void* p, int64_t count) {
#if HT_LANES == 16
  return _mm512_maskz_loadu_epi32((__mmask16)((1u << count) - 1), p);
#elif HT_LANES == 8
  return _mm256_maskload_epi32(p, _mm256_cmpgt_epi32(splat((int32_t)count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)));
#else
  int32_t words[4] = {0};
  ht_copy_few(words, p, count * 4);
  return loadi(words);
#endif
}

/* So many bytes of `made`, which has room for a vector, and fewer than that. */
HT_INLINE void store_few(void* p, const void* made, int64_t bytes) {
#if HT_LANES == 16
  _mm512_mask_storeu_epi8(p, ((__mmask64)1 << bytes) - 1, loadi(made));
#else
  ht_copy_few(p, made, bytes);
#endif
}

/* HT_LANES halves at p as fp32. */
HT_INLINE vf from_halves(const void* p) {
#if HT_LANES == 16
  return _mm512_cvtph_ps(_mm256_loadu_si256(p));
#elif HT_LANES == 8
  return _mm256_cvtph_ps(_mm_loadu_si128(p));
#else /* a half's exponent and fraction as a float's, which is 2^112 too small, denormals too; infinities and NaN stay what they are */
  vi h = _mm_cvtepu16_epi32(_mm_loadl_epi64(p));
  vi magnitude = _mm_slli_epi32(_mm_and_si128(h, splat(0x7fff)), 13);
  vf value = _mm_mul_ps(asf(magnitude), splatf(0x1p112f));
  vi beyond = _mm_and_si128(_mm_cmpgt_epi32(_mm_and_si128(h, splat(0x7fff)), splat(0x7bff)), splat(0x7f800000));
  vi sign = _mm_slli_epi32(_mm_and_si128(h, splat(0x8000)), 16);
  return asf(_mm_or_si128(_mm_or_si128(asi(value), beyond), sign));
#endif
}

/* HT_LANES bf16 at p as fp32. */
HT_INLINE vf from_bf16(const void* p) {
#if HT_LANES == 16
  return asf(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p)), 16));
#elif HT_LANES == 8
  return asf(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16));
#else
  return asf(_mm_slli_epi32(_mm_cvtepu16_epi32(_mm_loadl_epi64(p)), 16));
#endif
}

/* The low 16 bits of each lane, side by side. */
HT_INLINE void store_low(void* p, vi v) {
#if HT_LANES == 16
  _mm256_storeu_si256(p, _mm512_cvtepi32_epi16(v));
#elif HT_LANES == 8
  _mm_storeu_si128(p, _mm_packus_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1)));
#else
  _mm_storel_epi64(p, _mm_packus_epi32(v, v));
#endif
}

/* The low 8 bits of each lane, side by side. */
HT_INLINE void store_bytes(void* p, vi v) {
#if HT_LANES == 16
  _mm_storeu_si128(p, _mm512_cvtepi32_epi8(v));
#elif HT_LANES == 8
  __m128i pairs = _mm_packus_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  _mm_storel_epi64(p, _mm_packus_epi16(pairs, pairs));
#else
  __m128i pairs = _mm_packus_epi32(v, v);
  int32_t four = _mm_cvtsi128_si32(_mm_packus_epi16(pairs, pairs));
  memcpy(p, &four, 4);
#endif
}

/* HT_LANES bytes at p, with a sign or without one, as words. */
HT_INLINE vi from_bytes(const void* p, int sign) {
#if HT_LANES == 16
  __m128i bytes = _mm_loadu_si128(p);
  return sign ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes);
#elif HT_LANES == 8
  __m128i bytes = _mm_loadl_epi64(p);
  return sign ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes);
#else
  int32_t four;
  memcpy(&four, p, 4);
  return sign ? _mm_cvtepi8_epi32(_mm_cvtsi32_si128(four)) : _mm_cvtepu8_epi32(_mm_cvtsi32_si128(four));
#endif
}
