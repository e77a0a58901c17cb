/* One function, HT_STEPPED: a block of whole sums (int32) to the result's type by the cheap steps of an epilogue, in one pass over
 * registers. The bits are those of the three passes that it stands for (whole sums to floats, the epilogue's program, typed_store.h).
 *
 * HT_GIVEN(ONE): ONE(i) for each row of values of a channel that the steps read, in the order of a call. HT_STEPS: statements on `value`,
 * which read g0, g1, ... HT_PUT: how a vector is stored; HT_BYTES: of an element. Blocks of results and of sums do not overlap. */

#define HT_ROW(i) const float* given##i;
#define HT_FIND(i) c.given##i = given[i] + at;
#define HT_COPY(i)                                              \
  memset(room.given##i, 0, sizeof room.given##i);               \
  memcpy(room.given##i, given[i], (size_t)columns * sizeof(float)); \
  c.given##i = room.given##i;
#define HT_ROOM_OF(i) float given##i[HT_LANES];
#define HT_TAKE(i) const vf g##i = asf(loadi(c.given##i));

typedef struct { /* where a vector's values of a channel lie */
  const char* unused;
  HT_GIVEN(HT_ROW)
} HT_NAME_OF(columns);

/* A vector of columns, down all rows: its values of a channel stay in registers. */
HT_INLINE void HT_NAME_OF(down)(HT_NAME_OF(columns) c, const char* from, int64_t stride, char* to, int64_t to_stride, int64_t rows) {
  HT_GIVEN(HT_TAKE)
  for (int64_t r = 0; r < rows; ++r) {
    vf value = V(cvtepi32, ps)(loadi(from + r * stride * 4));
    HT_STEPS
    HT_PUT(to + r * to_stride, asi(value));
  }
}

void HT_STEPPED(const void* sums, int64_t stride, char* to, int64_t to_stride, int64_t rows, int64_t columns, const float* const* given) {
  HT_NAME_OF(columns) c = {0};
  (void)given;
  if (columns >= HT_LANES) { /* the last vector overlaps the one before, and makes the same of the same sums */
    for (int64_t at = 0, next; at < columns; at = next) {
      next = at + HT_LANES;
      if (next > columns) at = columns - HT_LANES;
      HT_GIVEN(HT_FIND)
      HT_NAME_OF(down)(c, (const char*)sums + at * 4, stride, to + at * HT_BYTES, to_stride, rows);
    }
    return;
  }
  struct {
    HT_GIVEN(HT_ROOM_OF)
    char last[HT_LANES * 4], made[HT_LANES * 4];
  } room;
  HT_GIVEN(HT_COPY)
  memset(room.last, 0, sizeof room.last);
  for (int64_t r = 0; r < rows; ++r) {
    memcpy(room.last, (const char*)sums + r * stride * 4, (size_t)columns * 4);
    HT_NAME_OF(down)(c, room.last, 0, room.made, 0, 1);
    memcpy(to + r * to_stride, room.made, (size_t)(columns * HT_BYTES));
  }
}

#undef HT_ROW
#undef HT_FIND
#undef HT_COPY
#undef HT_ROOM_OF
#undef HT_TAKE
