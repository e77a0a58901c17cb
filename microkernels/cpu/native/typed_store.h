/* How a block of sums becomes the result: HT_STORE_NAME(type), one function a type. Floats are rounded to nearest even; integers
 * too, within their range, NaN to the least. */

#define HT_ROWS(bytes, body)                                                                                          \
  for (int64_t r = 0; r < rows; ++r) {                                                                                \
    const char* from = (const char*)sums + r * stride * 4;                                                            \
    char* row = to + r * to_stride;                                                                                   \
    if (columns >= HT_LANES) { /* the last vector overlaps; it is read before others are written, perhaps in place */  \
      int64_t at = 0;                                                                                                 \
      const vi end = loadi(from + (columns - HT_LANES) * 4);                                                          \
      for (; at + HT_LANES < columns; at += HT_LANES) body(row + at * (bytes), loadi(from + at * 4));                 \
      body(row + (columns - HT_LANES) * (bytes), end);                                                                \
    } else {                                                                                                          \
      char made[HT_LANES * 4];                                                                                        \
      body(made, load_few(from, columns));                                                                            \
      store_few(row, made, columns * (bytes));                                                                        \
    }                                                                                                                 \
  }

HT_INLINE void HT_NAME(put_fp32)(void* to, vi bits) { storei(to, bits); }

HT_INLINE void HT_NAME(put_bf16)(void* to, vi bits) { /* half of the last bit that stays, and one where that makes it even; NaN stays one */
  vi odd = and_(V(srli, epi32)(bits, 16), splat(1));
  vi rounded = V(srli, epi32)(V(add, epi32)(V(add, epi32)(bits, splat(0x7fff)), odd), 16);
  vi magnitude = and_(bits, splat(0x7fffffff));
#if HT_LANES == 16
  rounded = _mm512_mask_or_epi32(rounded, _mm512_cmpgt_epi32_mask(magnitude, splat(0x7f800000)), V(srli, epi32)(bits, 16), splat(0x40));
#elif HT_LANES == 8
  vi nan = _mm256_cmpgt_epi32(magnitude, splat(0x7f800000));
  rounded = _mm256_blendv_epi8(rounded, _mm256_or_si256(V(srli, epi32)(bits, 16), splat(0x40)), nan);
#else
  vi nan = _mm_cmpgt_epi32(magnitude, splat(0x7f800000));
  rounded = _mm_blendv_epi8(rounded, _mm_or_si128(V(srli, epi32)(bits, 16), splat(0x40)), nan);
#endif
  store_low(to, rounded);
}

HT_INLINE void HT_NAME(put_fp16)(void* to, vi bits) {
#if HT_LANES == 16
  _mm256_storeu_si256(to, _mm512_cvtps_ph(asf(bits), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif HT_LANES == 8
  _mm_storeu_si128(to, _mm256_cvtps_ph(asf(bits), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
  uint32_t words[4];
  uint16_t halves[4];
  storei(words, bits);
  for (int i = 0; i < 4; ++i) {
    uint32_t sign = words[i] >> 16 & 0x8000, magnitude = words[i] & 0x7fffffff, half;
    if (magnitude > 0x7f800000) half = 0x7e00;                /* NaN */
    else if (magnitude >= 0x477ff000) half = 0x7c00;          /* from 65520 on: infinity */
    else if (magnitude >= 0x38800000) half = (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
    else { /* denormals: adding 0.5 lets the adder round at 2^-24 */
      float value;
      memcpy(&value, &magnitude, 4);
      value += 0.5f;
      memcpy(&half, &value, 4);
      half -= 0x3f000000;
    }
    halves[i] = (uint16_t)(sign | half);
  }
  memcpy(to, halves, sizeof halves);
#endif
}

/* Floats to whole numbers within a range; the larger comes second, so that NaN becomes `low`. */
HT_INLINE vi HT_NAME(whole)(vi bits, float low, float high) {
  return V(cvtps, epi32)(V(min, ps)(V(max, ps)(asf(bits), splatf(low)), splatf(high)));
}

HT_INLINE void HT_NAME(put_uint8)(void* to, vi bits) { store_bytes(to, HT_NAME(whole)(bits, 0.0f, 255.0f)); }
HT_INLINE void HT_NAME(put_int8)(void* to, vi bits) {
  store_bytes(to, and_(HT_NAME(whole)(bits, -128.0f, 127.0f), splat(0xff)));
}
/* 2147483520 is the largest fp32 under 2^31. */
HT_INLINE void HT_NAME(put_int32)(void* to, vi bits) { storei(to, HT_NAME(whole)(bits, -2147483648.0f, 2147483520.0f)); }

HT_INLINE void HT_NAME(put_floats)(void* to, vi bits) { storei(to, asi(V(cvtepi32, ps)(bits))); }

#define HT_STORES(type, bytes)                                                                                             \
  static void HT_NAME(store_##type)(const void* sums, int64_t stride, char* to, int64_t to_stride, int64_t rows, int64_t columns) { \
    HT_ROWS(bytes, HT_NAME(put_##type))                                                                                    \
  }
HT_STORES(fp32, 4)
HT_STORES(bf16, 2)
HT_STORES(fp16, 2)
HT_STORES(uint8, 1)
HT_STORES(int8, 1)
HT_STORES(int32, 4)
HT_STORES(floats, 4)

#if HT_STORE_BF16
/* As store_bf16, by the CPU's own instruction, two vectors at a time. It takes denormals for zero: where there are some, all is rounded
 * again as it is there. */
__attribute__((target("avx512bf16"))) static void HT_NAME(store_bf16_dot)(const void* sums, int64_t stride, char* to, int64_t to_stride,
                                                                          int64_t rows, int64_t columns) {
  const int64_t whole = columns / 32 * 32, left = columns - whole;
  __mmask16 denormal = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const char* from = (const char*)sums + r * stride * 4;
    char* row = to + r * to_stride;
    for (int64_t at = 0; at < whole; at += 32) {
      const vf low = asf(loadi(from + at * 4)), high = asf(loadi(from + at * 4 + 64));
      denormal = _kor_mask16(denormal, _kor_mask16(_mm512_fpclass_ps_mask(low, 0x20), _mm512_fpclass_ps_mask(high, 0x20)));
      storei(row + at * 2, (vi)_mm512_cvtne2ps_pbh(high, low));
    }
    if (left == 0) continue;
    const vf low = asf(load_few(from + whole * 4, left < 16 ? left : 16)), high = asf(load_few(from + whole * 4 + 64, left > 16 ? left - 16 : 0));
    denormal = _kor_mask16(denormal, _kor_mask16(_mm512_fpclass_ps_mask(low, 0x20), _mm512_fpclass_ps_mask(high, 0x20)));
    _mm512_mask_storeu_epi16(row + whole * 2, ((__mmask32)1 << left) - 1, (vi)_mm512_cvtne2ps_pbh(high, low));
  }
  if (denormal) HT_NAME(store_bf16)(sums, stride, to, to_stride, rows, columns);
}
#endif

/* Taps of a depthwise convolution: a few vectors of sums stay in registers for all of them. The last vector begins before the end
 * of those before it, and computes what they share once more, from the same sums: it is read before and written after them. */
#define HT_TAPS(type, size, vector, load, step)                                                                             \
  HT_INLINE vector HT_NAME(factor_##type)(const float* w, int64_t w_step) {                                                 \
    vi factor = w_step ? loadi(w) : asi(splatf(*w));                                                                        \
    vector found;                                                                                                           \
    memcpy(&found, &factor, sizeof found);                                                                                  \
    return found;                                                                                                           \
  }                                                                                                                         \
  HT_INLINE vector HT_NAME(summed_##type)(const char* sums, int64_t at, const char* const* x, const float* const* w,        \
                                          int64_t w_step, int64_t taps) {                                                   \
    vector sum;                                                                                                             \
    memcpy(&sum, sums + at * 4, sizeof sum);                                                                                \
    for (int64_t tap = 0; tap < taps; ++tap)                                                                                \
      sum = step(load(x[tap] + at * (size)), HT_NAME(factor_##type)(w[tap] + at * w_step, w_step), sum);                    \
    return sum;                                                                                                             \
  }                                                                                                                         \
  HT_INLINE void HT_NAME(few_##type)(char* sums, int64_t count, const char* const* x, const float* const* w, int64_t w_step, \
                                     int64_t taps) { /* less than a vector */                                               \
    char last[HT_LANES * 4] = {0}, of_x[HT_LANES * 4] = {0};                                                                \
    float of_w[HT_LANES] = {0};                                                                                             \
    vector sum;                                                                                                             \
    memcpy(last, sums, (size_t)count * 4);                                                                                  \
    memcpy(&sum, last, sizeof sum);                                                                                         \
    for (int64_t tap = 0; tap < taps; ++tap) {                                                                              \
      for (int64_t i = 0; i < count * (size); ++i) of_x[i] = x[tap][i];                                                     \
      for (int64_t i = 0; i < count; ++i) memcpy(&of_w[i], &w[tap][i * w_step], 4);                                         \
      sum = step(load(of_x), HT_NAME(factor_##type)(of_w, 1), sum);                                                         \
    }                                                                                                                       \
    memcpy(last, &sum, sizeof sum);                                                                                         \
    memcpy(sums, last, (size_t)count * 4);                                                                                  \
  }                                                                                                                         \
  static void HT_NAME(taps_##type)(void* given, int64_t count, const char* const* x, const float* const* w, int64_t w_step, \
                                   int64_t taps) {                                                                          \
    char* sums = given;                                                                                                     \
    if (count < HT_LANES) {                                                                                                 \
      HT_NAME(few_##type)(sums, count, x, w, w_step, taps);                                                                 \
      return;                                                                                                               \
    }                                                                                                                       \
    vector end = HT_NAME(summed_##type)(sums, count - HT_LANES, x, w, w_step, taps);                                        \
    int64_t at = 0;                                                                                                         \
    for (; at + 4 * HT_LANES < count; at += 4 * HT_LANES) {                                                                 \
      vector a, b, c, d;                                                                                                    \
      memcpy(&a, sums + at * 4, sizeof a);                                                                                  \
      memcpy(&b, sums + (at + HT_LANES) * 4, sizeof a);                                                                     \
      memcpy(&c, sums + (at + 2 * HT_LANES) * 4, sizeof a);                                                                 \
      memcpy(&d, sums + (at + 3 * HT_LANES) * 4, sizeof a);                                                                 \
      for (int64_t tap = 0; tap < taps; ++tap) {                                                                            \
        const char* from = x[tap] + at * (size);                                                                            \
        const float* of_w = w[tap] + at * w_step;                                                                           \
        a = step(load(from), HT_NAME(factor_##type)(of_w, w_step), a);                                                      \
        b = step(load(from + HT_LANES * (size)), HT_NAME(factor_##type)(of_w + HT_LANES * w_step, w_step), b);              \
        c = step(load(from + 2 * HT_LANES * (size)), HT_NAME(factor_##type)(of_w + 2 * HT_LANES * w_step, w_step), c);      \
        d = step(load(from + 3 * HT_LANES * (size)), HT_NAME(factor_##type)(of_w + 3 * HT_LANES * w_step, w_step), d);      \
      }                                                                                                                     \
      memcpy(sums + at * 4, &a, sizeof a);                                                                                  \
      memcpy(sums + (at + HT_LANES) * 4, &b, sizeof a);                                                                     \
      memcpy(sums + (at + 2 * HT_LANES) * 4, &c, sizeof a);                                                                 \
      memcpy(sums + (at + 3 * HT_LANES) * 4, &d, sizeof a);                                                                 \
    }                                                                                                                       \
    for (; at + HT_LANES < count; at += HT_LANES) {                                                                         \
      vector one = HT_NAME(summed_##type)(sums, at, x, w, w_step, taps);                                                    \
      memcpy(sums + at * 4, &one, sizeof one);                                                                              \
    }                                                                                                                       \
    memcpy(sums + (count - HT_LANES) * 4, &end, sizeof end);                                                                \
  }
HT_INLINE vf HT_NAME(add_floats)(vf x, vf w, vf sum) { return madd(x, w, sum); }
/* Bytes are in the low halves of words; what is above them counts nothing. */
HT_INLINE vi HT_NAME(add_words)(vi x, vi w, vi sum) { return V(add, epi32)(sum, V(madd, epi16)(and_(x, splat(0xffff)), w)); }
HT_INLINE vi HT_NAME(plain)(const void* p) { return from_bytes(p, 0); }
HT_INLINE vi HT_NAME(with_sign)(const void* p) { return from_bytes(p, 1); }
HT_INLINE vf HT_NAME(floats_at)(const void* p) { return asf(loadi(p)); }
HT_TAPS(fp32, 4, vf, HT_NAME(floats_at), HT_NAME(add_floats))
HT_TAPS(bf16, 2, vf, from_bf16, HT_NAME(add_floats))
HT_TAPS(fp16, 2, vf, from_halves, HT_NAME(add_floats))
HT_TAPS(uint8, 1, vi, HT_NAME(plain), HT_NAME(add_words))
HT_TAPS(int8, 1, vi, HT_NAME(with_sign), HT_NAME(add_words))
