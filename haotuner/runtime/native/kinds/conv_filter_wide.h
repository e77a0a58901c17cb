/* Transforms of conv_filter.h on vectors: included once for each width by conv_filter.c, which defines anew HT_TARGET, HT_WIDE(name), HT_V,
 * HT_LOAD, HT_STORE, HT_EVERY and HT_FMA. Loops go over constants: each size is compiled for its own matrix, without its zeros. */
#define HT_INLINE HT_TARGET static inline __attribute__((always_inline))

HT_INLINE HT_V HT_WIDE(added)(HT_V sum, float by, HT_V v) {
  if (by == 1) return sum + v;
  if (by == -1) return sum - v;
  return HT_FMA(HT_EVERY(by), v, sum);
}

/* Every other element from `first` on, each with its factor. */
HT_INLINE HT_V HT_WIDE(sum_of)(const float* by, const HT_V* d, int first, int end) {
  HT_V sum = d[first];
  if (by[first] == -1) sum = -sum;
  else if (by[first] != 1) sum *= HT_EVERY(by[first]);
#pragma GCC unroll 8
  for (int k = first + 2; k < end; k += 2) sum = HT_WIDE(added)(sum, by[k], d[k]);
  return sum;
}

/* Points 0, pairs of a and -a, and infinity, `n` in all. M(x) is odd: of a pair even and odd terms are the same but for a sign, and
 * infinity's factors are those of 0, one place on. */
HT_INLINE void HT_WIDE(ahead_even)(int n, const HT_V* d, HT_V* out) {
  const float(*by)[HT_FILTER_POINTS] = ahead_of[n / 2 - 1];
  out[0] = HT_WIDE(sum_of)(by[0], d, 0, n - 1);
#pragma GCC unroll 4
  for (int k = 1; k < n / 2; ++k) {
    const HT_V even = HT_WIDE(sum_of)(by[k], d, 2, n - 1), odd = HT_WIDE(sum_of)(by[k], d, 1, n - 1);
    out[2 * k - 1] = even + odd;
    out[2 * k] = even - odd;
  }
  out[n - 1] = HT_WIDE(sum_of)(by[0], d + 1, 0, n - 1);
}

/* A point b without its -b is a factor x - b of all the others: they are those of the differences d[k + 1] - b d[k]. */
HT_INLINE void HT_WIDE(ahead)(int n, const HT_V* d, HT_V* out) {
  if (n % 2 == 0) {
    HT_WIDE(ahead_even)(n, d, out);
    return;
  }
  HT_V apart[HT_FILTER_POINTS];
#pragma GCC unroll 8
  for (int k = 0; k < n - 1; ++k) apart[k] = HT_WIDE(added)(d[k + 1], -point_of[n - 2], d[k]);
  HT_WIDE(ahead_even)(n - 1, apart, out);
  out[n - 1] = out[n - 2];
  out[n - 2] = HT_WIDE(sum_of)(ahead_of[n / 2 - 1][0], d + 1, 0, n - 2);
}

HT_INLINE void HT_WIDE(back)(int n, int outputs, const HT_V* m, HT_V add, HT_V* out) {
  HT_V sum[4], apart[4];
#pragma GCC unroll 4
  for (int k = 0; k < n / 2 - 1; ++k) {
    sum[k] = m[2 * k + 1] + m[2 * k + 2];
    apart[k] = m[2 * k + 1] - m[2 * k + 2];
  }
#pragma GCC unroll 8
  for (int j = 0; j < outputs; ++j) {
    HT_V y = add;
    if (j == 0) y += m[0];
#pragma GCC unroll 4
    for (int k = 0; k < n / 2 - 1; ++k) y = HT_WIDE(added)(y, power_of[k][j], j % 2 == 0 ? sum[k] : apart[k]);
    if (n % 2 == 1) y = HT_WIDE(added)(y, power_of[n / 2 - 1][j], m[n - 2]);
    if (j == outputs - 1) y += m[n - 1];
    out[j] = y;
  }
}

#define HT_AHEAD(n)                                                                                                                   \
  HT_TARGET static void HT_WIDE(ahead_##n)(const float* from, int64_t step, int64_t next, int64_t count, float* to, int64_t apart,    \
                                           int64_t each) {                                                                            \
    for (int64_t i = 0; i < count; ++i, from += next, to += each) {                                                                   \
      HT_V d[n], out[n];                                                                                                              \
      _Pragma("GCC unroll 8") for (int k = 0; k < n; ++k) d[k] = HT_LOAD(from + k * step);                                            \
      HT_WIDE(ahead)(n, d, out);                                                                                                      \
      _Pragma("GCC unroll 8") for (int k = 0; k < n; ++k) HT_STORE(to + k * apart, out[k]);                                           \
    }                                                                                                                                 \
  }
HT_AHEAD(3)
HT_AHEAD(4)
HT_AHEAD(5)
HT_AHEAD(6)
HT_AHEAD(7)
HT_AHEAD(8)
static ahead_fn* const HT_WIDE(every_ahead)[] = {HT_WIDE(ahead_3), HT_WIDE(ahead_4), HT_WIDE(ahead_5),
                                                 HT_WIDE(ahead_6), HT_WIDE(ahead_7), HT_WIDE(ahead_8)};

#define HT_BACK(n, outputs)                                                                                                           \
  HT_TARGET static void HT_WIDE(back_##n##_##outputs)(const float* from, int64_t step, int64_t next, int64_t count, const float* bias, \
                                                      float* to, int64_t apart, int64_t each) {                                       \
    const HT_V add = HT_LOAD(bias);                                                                                                   \
    for (int64_t i = 0; i < count; ++i, from += next, to += each) {                                                                   \
      HT_V m[n], out[outputs];                                                                                                        \
      _Pragma("GCC unroll 8") for (int k = 0; k < n; ++k) m[k] = HT_LOAD(from + k * step);                                            \
      HT_WIDE(back)(n, outputs, m, add, out);                                                                                         \
      _Pragma("GCC unroll 8") for (int k = 0; k < outputs; ++k) HT_STORE(to + k * apart, out[k]);                                     \
    }                                                                                                                                 \
  }
HT_BACK(3, 2)
HT_BACK(4, 2)
HT_BACK(5, 2)
HT_BACK(6, 2)
HT_BACK(7, 2)
HT_BACK(8, 2)
HT_BACK(5, 4)
HT_BACK(6, 4)
HT_BACK(7, 4)
HT_BACK(8, 4)
HT_BACK(7, 6)
HT_BACK(8, 6)
static back_fn* const HT_WIDE(every_back)[][6] = {
    {HT_WIDE(back_3_2), HT_WIDE(back_4_2), HT_WIDE(back_5_2), HT_WIDE(back_6_2), HT_WIDE(back_7_2), HT_WIDE(back_8_2)},
    {NULL, NULL, HT_WIDE(back_5_4), HT_WIDE(back_6_4), HT_WIDE(back_7_4), HT_WIDE(back_8_4)},
    {NULL, NULL, NULL, NULL, HT_WIDE(back_7_6), HT_WIDE(back_8_6)}};
#undef HT_INLINE
#undef HT_AHEAD
#undef HT_BACK
#undef HT_TARGET
#undef HT_WIDE
#undef HT_V
#undef HT_LOAD
#undef HT_STORE
#undef HT_EVERY
#undef HT_FMA
