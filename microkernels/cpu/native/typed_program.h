/* One typed micro-kernel, HT_PROGRAM: tiles of HT_MR rows x HT_NV vectors of HT_LANES columns, sums in registers.
 *
 * HT_TYPE: 2 bf16, 1 fp16 and (HT_PLAIN) fp32, 4 int8 (weights; x without sign) - terms of a word. HT_DOT: the CPU multiplies whole words
 * (vdpbf16ps, vpdpbusd); without it they are widened: of bf16 and fp16 x once for a run of terms, the weight in registers. Each
 * sum is taken in the order of k by one accumulator, whatever the tile's shape: a row's bits do not depend on its neighbours.
 * HT_SIGNED: bytes of x have a sign, which 128 more takes from them.
 *
 * HT_ROWS(ONE), HT_COLUMNS(ONE) and HT_TILE(ONE) say ONE(i), ONE(j) and ONE(i, j) for each row, vector and sum. As loops, which gcc
 * unrolls behind the pass that knows arrays from registers, all sums went through memory before and after the terms. */

#define HT_NR (HT_NV * HT_LANES)
#define HT_AT(j) (((j)*HT_LANES) / HT_PW * panel + ((j)*HT_LANES) % HT_PW * HT_COLUMN)
#define HT_COLUMN (HT_TYPE == 1 && !HT_PLAIN ? 2 : 4) /* bytes of a column in a row of the panel */
#define HT_RUN 128                       /* terms of x that are widened at a time */
#define HT_FETCH(q)                                                              \
  if (HT_PF)                                                                     \
    for (int line = 0; line < HT_NR * HT_COLUMN; line += 64)                     \
  _mm_prefetch(w + line / (HT_PW * HT_COLUMN) * panel + line % (HT_PW * HT_COLUMN) + ((q) + HT_PF) * HT_PW * HT_COLUMN, _MM_HINT_T0)

#if HT_TYPE == 4 /* in the type of the instruction's own sums: as a vi each word's sums went to memory (gcc 12) */
typedef int32_t HT_NAME(sum) __attribute__((vector_size(4 * HT_LANES)));
#else
typedef vf HT_NAME(sum);
#endif

#if HT_SIGNED
#define HT_WORD(word) ((word) ^ (int32_t)0x80808080)
#else
#define HT_WORD(word) (word)
#endif

#if HT_TYPE != 1
/* A word of a row, of which `left` bytes exist. */
HT_INLINE HT_TARGET int32_t HT_NAME(some)(const char* x, int64_t left) {
  int32_t word = 0;
  memcpy(&word, x, (size_t)left);
  return word;
}
#endif

#if HT_TYPE == 4 || HT_DOT
#define HT_LOAD(j) of_w[j] = loadi(w + HT_AT(j));
#if !HT_DOT /* even and odd bytes as 16 bits: products of two pairs fit 32, where maddubs would saturate at 16 */
#define HT_HALVES(j)                                       \
  even[j] = V(srai, epi16)(V(slli, epi16)(of_w[j], 8), 8); \
  odd[j] = V(srai, epi16)(of_w[j], 8);
#define HT_EVEN(i) and_(splat(words[i]), splat(0x00ff00ff))
#define HT_ODD(i) V(srli, epi16)(splat(words[i]), 8)
#define HT_MADD(i, j) sums[i][j] += (HT_NAME(sum))V(add, epi32)(V(madd, epi16)(HT_EVEN(i), even[j]), V(madd, epi16)(HT_ODD(i), odd[j]));
#elif HT_TYPE == 2
#define HT_MADD(i, j) sums[i][j] = _mm512_dpbf16_ps(sums[i][j], (__m512bh)splat(words[i]), (__m512bh)of_w[j]);
#elif HT_LANES == 16
#define HT_MADD(i, j) sums[i][j] = (HT_NAME(sum))_mm512_dpbusd_epi32((vi)sums[i][j], splat(words[i]), of_w[j]);
#else
#define HT_MADD(i, j) sums[i][j] = (HT_NAME(sum))_mm256_dpbusd_avx_epi32((vi)sums[i][j], splat(words[i]), of_w[j]);
#endif

/* One word of every row against one of every column. */
HT_INLINE HT_TARGET void HT_NAME(step)(HT_NAME(sum) sums[HT_MR][HT_NV], const int32_t words[HT_MR], const char* w, int64_t panel) {
  vi of_w[HT_NV];
  HT_COLUMNS(HT_LOAD)
#if !HT_DOT
  vi even[HT_NV], odd[HT_NV];
  HT_COLUMNS(HT_HALVES)
#endif
  HT_TILE(HT_MADD)
}

#define HT_WHOLE(i)                                  \
  memcpy(&words[i], x + i * t->x_stride + q * 4, 4); \
  words[i] = HT_WORD(words[i]);
#define HT_PART(i) words[i] = HT_WORD(HT_NAME(some)(x + i * t->x_stride + whole * 4, left * (4 / HT_TYPE)));
HT_INLINE HT_TARGET void HT_NAME(depth)(HT_NAME(sum) sums[HT_MR][HT_NV], const ht_typed_tile* t, const char* x, const char* w) {
  const int64_t panel = t->panel, whole = t->k / HT_TYPE, left = t->k % HT_TYPE;
  int32_t words[HT_MR];
HT_UNROLL
  for (int64_t q = 0; q < whole; ++q) {
    HT_FETCH(q);
    HT_ROWS(HT_WHOLE)
    HT_NAME(step)(sums, words, w + q * HT_PW * 4, panel);
  }
  if (left > 0) {
    HT_ROWS(HT_PART)
    HT_NAME(step)(sums, words, w + whole * HT_PW * 4, panel);
  }
}
#elif HT_PLAIN
#define HT_LOAD(j) of_w[j] = asf(loadi(row + HT_AT(j)));
/* Row by row: all rows' elements at once would need the registers of the sums. */
#define HT_MADD(i, j) sums[i][j] = madd(splatf(*(const float_at*)(x + i * t->x_stride + q * 4)), of_w[j], sums[i][j]);
HT_INLINE HT_TARGET void HT_NAME(depth)(vf sums[HT_MR][HT_NV], const ht_typed_tile* t, const char* x, const char* w) {
  typedef float float_at __attribute__((aligned(1), may_alias));
  const int64_t panel = t->panel;
HT_UNROLL
  for (int64_t q = 0; q < t->k; ++q) {
    const char* row = w + q * HT_PW * HT_COLUMN;
    vf of_w[HT_NV];
    HT_FETCH(q);
    HT_COLUMNS(HT_LOAD)
    HT_TILE(HT_MADD)
  }
}
#else
/* So many terms of every row as fp32. */
HT_INLINE HT_TARGET void HT_NAME(widen)(float wide[HT_MR][HT_RUN], const char* x, int64_t stride, int64_t count) {
  for (int i = 0; i < HT_MR; ++i) {
    const char* row = x + i * stride;
    int64_t at = 0;
    for (; at + HT_LANES <= count; at += HT_LANES)
      V(storeu, ps)(wide[i] + at, HT_TYPE == 1 ? from_halves(row + at * 2) : from_bf16(row + at * 2));
    if (at < count) {
      uint16_t last[HT_LANES] = {0};
      memcpy(last, row + at * 2, (size_t)(count - at) * 2);
      V(storeu, ps)(wide[i] + at, HT_TYPE == 1 ? from_halves(last) : from_bf16(last));
    }
  }
}

#define HT_MADD(i, j) sums[i][j] = madd(splatf(wide[i * HT_RUN]), of_w[j], sums[i][j]);
HT_INLINE HT_TARGET void HT_NAME(term)(vf sums[HT_MR][HT_NV], const float* wide, const vf of_w[HT_NV]) { HT_TILE(HT_MADD) }

#if HT_TYPE == 1
#define HT_FIRST(j) of_w[j] = from_halves(row + HT_AT(j));
#else
#define HT_FIRST(j) of_w[j] = asf(V(slli, epi32)(loadi(row + HT_AT(j)), 16));
#define HT_SECOND(j) of_w[j] = asf(and_(loadi(row + HT_AT(j)), splat((int32_t)0xffff0000)));
#endif

HT_INLINE HT_TARGET void HT_NAME(depth)(vf sums[HT_MR][HT_NV], const ht_typed_tile* t, const char* x, const char* w) {
  const int64_t panel = t->panel;
  float wide[HT_MR][HT_RUN];
  for (int64_t from = 0; from < t->k; from += HT_RUN) {
    int64_t count = t->k - from < HT_RUN ? t->k - from : HT_RUN;
    HT_NAME(widen)(wide, x + from * 2, t->x_stride, count);
HT_UNROLL
    for (int64_t q = 0; q < (count + HT_TYPE - 1) / HT_TYPE; ++q) {
      const char* row = w + (from / HT_TYPE + q) * HT_PW * HT_COLUMN;
      vf of_w[HT_NV];
      HT_FETCH(from / HT_TYPE + q);
      HT_COLUMNS(HT_FIRST)
      HT_NAME(term)(sums, wide[0] + HT_TYPE * q, of_w);
#if HT_TYPE == 2
      if (2 * q + 1 == count) break;
      HT_COLUMNS(HT_SECOND)
      HT_NAME(term)(sums, wide[0] + 2 * q + 1, of_w);
#endif
    }
  }
}
#endif

#define HT_ZERO(i, j) sums[i][j] = (HT_NAME(sum)){0};
#define HT_BEGIN(i, j) memcpy(&sums[i][j], begin + (i * down + j * HT_LANES) * 4, sizeof sums[i][j]);
#define HT_END(i, j) memcpy(out + (i * stride + j * HT_LANES) * 4, &sums[i][j], sizeof sums[i][j]);

HT_TARGET static void HT_PROGRAM(const ht_typed_tile* t) {
  const int64_t panel = t->panel;
  enum { TILE = HT_MR * HT_NR, MOST = HT_TYPED_HELD > TILE ? HT_TYPED_HELD / TILE : 1 };
  _Alignas(64) float own[MOST * TILE];
  int64_t held = 0; /* tiles that wait to be finished together: what follows sums takes as long to begin as a small tile */
  /* They lie below one another, or side by side, as they follow. */
  const int64_t lie = t->across ? HT_NR : TILE, wide = t->across ? MOST * HT_NR : HT_NR;
  (void)panel;
  const int64_t inner = t->across ? t->groups : t->tiles;
  for (int64_t outer = 0; outer < (t->across ? t->tiles : t->groups); ++outer)
    for (int64_t at = 0; at < inner; ++at) {
      const int64_t group = t->across ? at : outer, tile = t->across ? outer : at;
      HT_NAME(sum) sums[HT_MR][HT_NV];
      char* from = (char*)t->sums + (tile * HT_MR * t->stride + group * HT_NR) * 4;
      char* out = t->finish != NULL ? (char*)(own + held * lie) : from;
      const int64_t stride = t->finish != NULL ? wide : t->stride;
      const char* begin = t->add ? from : t->first != NULL ? (const char*)(t->first + group * HT_NR) : NULL;
      const int64_t down = t->add ? t->stride : 0;
      if (begin != NULL) {
        HT_TILE(HT_BEGIN)
      } else {
        HT_TILE(HT_ZERO)
      }
      const char *x = t->x + tile * HT_MR * t->x_stride, *w = t->w + group * (HT_NR / HT_PW) * panel;
      for (int64_t line = 0;;) {
        HT_NAME(depth)(sums, t, x, w);
        if (++line >= t->lines) break;
        x += t->line;
        w += t->k / HT_TYPE * HT_PW * HT_COLUMN;
      }
      HT_TILE(HT_END)
      if (t->finish == NULL || (++held < MOST && at + 1 < inner)) continue;
      const int64_t below = t->across ? 1 : held, beside = t->across ? held : 1; /* tiles */
      const ht_typed_part part = {own, stride, (tile + 1 - below) * HT_MR, below * HT_MR, (group + 1 - beside) * HT_NR, beside * HT_NR};
      t->finish(t->with, &part);
      held = 0;
    }
}

#undef HT_NR
#undef HT_AT
#undef HT_COLUMN
#undef HT_RUN
#undef HT_FETCH
#undef HT_WORD
#undef HT_LOAD
#undef HT_HALVES
#undef HT_EVEN
#undef HT_ODD
#undef HT_MADD
#undef HT_WHOLE
#undef HT_PART
#undef HT_FIRST
#undef HT_SECOND
#undef HT_ZERO
#undef HT_BEGIN
#undef HT_END
