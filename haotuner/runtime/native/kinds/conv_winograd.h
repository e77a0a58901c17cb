/* Transforms of Winograd's filtering, on vectors of channels: included once for each width of vectors, by conv_winograd.c.
 * Of 4 outputs from 6 inputs at the points 0, 1, -1, 2, -2; of 2 from 4 at 0, 1, -1 (Lavin & Gray, sections 4.1 and 4.3). */
typedef float HT_WIDE(vec) __attribute__((vector_size(4 * HT_LANES), aligned(4), may_alias));
#define VEC HT_WIDE(vec)
#define HT_INLINE HT_TARGET static inline __attribute__((always_inline))

HT_INLINE void HT_WIDE(ahead)(int tile, const VEC* d, int step, VEC* out) { /* inputs, `step` apart */
  if (tile == 2) {
    out[0] = d[0] - d[2 * step];
    out[1] = d[step] + d[2 * step];
    out[2] = d[2 * step] - d[step];
    out[3] = d[step] - d[3 * step];
    return;
  }
  VEC a = d[4 * step] - 4.0f * d[2 * step], b = d[3 * step] - 4.0f * d[step];
  VEC c = d[4 * step] - d[2 * step], e = 2.0f * (d[3 * step] - d[step]);
  out[0] = 4.0f * d[0] - 5.0f * d[2 * step] + d[4 * step];
  out[1] = a + b;
  out[2] = a - b;
  out[3] = c + e;
  out[4] = c - e;
  out[5] = 4.0f * d[step] - 5.0f * d[3 * step] + d[5 * step];
}

HT_INLINE void HT_WIDE(back)(int tile, const VEC* m, int step, VEC* out) { /* products, `step` apart */
  VEC a = m[step] + m[2 * step], b = m[step] - m[2 * step];
  if (tile == 2) {
    out[0] = m[0] + a;
    out[1] = b - m[3 * step];
    return;
  }
  VEC c = m[3 * step] + m[4 * step], d = m[3 * step] - m[4 * step];
  out[0] = m[0] + a + c;
  out[1] = b + 2.0f * d;
  out[2] = a + 4.0f * c;
  out[3] = b + 8.0f * d + m[5 * step];
}

/* Inputs of one tile, `down` and `right` floats apart, to its points, `point` floats apart. */
HT_INLINE void HT_WIDE(forward)(int tile, const float* from, int64_t down, int64_t right, float* to, int64_t point) {
  const int side = tile + 2;
  VEC half[6 * 6], line[6];
  for (int j = 0; j < side; ++j) {
    VEC d[6];
    for (int i = 0; i < side; ++i) d[i] = *(const VEC*)(from + i * down + j * right);
    HT_WIDE(ahead)(tile, d, 1, line);
    for (int i = 0; i < side; ++i) half[i * side + j] = line[i];
  }
  for (int i = 0; i < side; ++i) {
    HT_WIDE(ahead)(tile, half + i * side, 1, line);
    for (int j = 0; j < side; ++j) *(VEC*)(to + (i * side + j) * point) = line[j];
  }
}

/* Products of one tile to its outputs, `down` and `right` floats apart, with what is added to each. */
HT_INLINE void HT_WIDE(inverse)(int tile, const float* from, int64_t point, const float* bias, float* to, int64_t down, int64_t right) {
  const int side = tile + 2;
  VEC half[4 * 6], line[4], add = *(const VEC*)bias;
  for (int j = 0; j < side; ++j) {
    VEC m[6];
    for (int i = 0; i < side; ++i) m[i] = *(const VEC*)(from + (i * side + j) * point);
    HT_WIDE(back)(tile, m, 1, line);
    for (int i = 0; i < tile; ++i) half[i * side + j] = line[i];
  }
  for (int i = 0; i < tile; ++i) {
    HT_WIDE(back)(tile, half + i * side, 1, line);
    for (int j = 0; j < tile; ++j) *(VEC*)(to + i * down + j * right) = line[j] + add;
  }
}

HT_TARGET static void HT_WIDE(forward_all)(int tile, const float* from, int64_t down, int64_t right, int64_t next, int64_t count,
                                           float* to, int64_t point, int64_t row) {
  if (tile == 2)
    for (int64_t i = 0; i < count; ++i) HT_WIDE(forward)(2, from + i * next, down, right, to + i * row, point);
  else
    for (int64_t i = 0; i < count; ++i) HT_WIDE(forward)(4, from + i * next, down, right, to + i * row, point);
}

HT_TARGET static void HT_WIDE(inverse_all)(int tile, const float* from, int64_t point, int64_t row, int64_t count, const float* bias,
                                           float* to, int64_t down, int64_t right, int64_t next) {
  if (tile == 2)
    for (int64_t i = 0; i < count; ++i) HT_WIDE(inverse)(2, from + i * row, point, bias, to + i * next, down, right);
  else
    for (int64_t i = 0; i < count; ++i) HT_WIDE(inverse)(4, from + i * row, point, bias, to + i * next, down, right);
}
#undef VEC
#undef HT_INLINE
