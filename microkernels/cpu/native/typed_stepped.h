/* One function, HT_STEPPED: a block of whole sums (int32) to the result's type by the cheap steps of an epilogue, in one pass over
 * registers. The bits are those of the three passes that it stands for (whole sums to floats, the epilogue's program, typed_store.h).
 *
 * HT_GIVEN(ONE): ONE(i) for each row of values of a channel that the steps read, in the order of a call. HT_STEPS: statements on `value`,
 * which read g0, g1, ... HT_PUT: how a vector is stored; HT_BYTES: of an element. Blocks of results and of sums do not overlap. */

#define HT_TAKE(i) const vf g##i = asf(loadi(given[i] + at));
#define HT_TAKE_FEW(i) const vf g##i = asf(load_few(given[i], columns));

void HT_STEPPED(const void* sums, int64_t stride, char* to, int64_t to_stride, int64_t rows, int64_t columns, const float* const* given) {
  (void)given;
  if (columns < HT_LANES) {
    char made[HT_LANES * 4];
    HT_GIVEN(HT_TAKE_FEW)
    for (int64_t r = 0; r < rows; ++r) {
      vf value = V(cvtepi32, ps)(load_few((const char*)sums + r * stride * 4, columns));
      HT_STEPS
      HT_PUT(made, asi(value));
      ht_copy_few(to + r * to_stride, made, columns * HT_BYTES);
    }
    return;
  }
  for (int64_t first = 0; first < columns; first += HT_LANES) { /* the last vector overlaps the one before, and makes the same of the same sums */
    const int64_t at = first + HT_LANES <= columns ? first : columns - HT_LANES;
    const char* from = (const char*)sums + at * 4;
    char* out = to + at * HT_BYTES;
    HT_GIVEN(HT_TAKE)
    for (int64_t r = 0; r < rows; ++r) {
      vf value = V(cvtepi32, ps)(loadi(from + r * stride * 4));
      HT_STEPS
      HT_PUT(out + r * to_stride, asi(value));
    }
  }
}

#undef HT_TAKE
#undef HT_TAKE_FEW
