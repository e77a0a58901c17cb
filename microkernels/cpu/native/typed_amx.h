/* One typed micro-kernel on AMX tiles, HT_PROGRAM: HT_MR rows, 16 in a register and what is left in the last, x HT_NV times 16 columns.
 *
 * HT_TYPE: 2 bf16, 4 int8 - terms of a word. Sixteen words of a row of x are a row of a register as they lie; so are 16 columns of a row of
 * the panel. HT_ROWS(ONE), HT_COLUMNS(ONE) and HT_TILE(ONE) say ONE(i, register), ONE(j, register) and ONE(i, j, of sums, of x, of w) for
 * each register of x, of the weight and of sums; HT_PASS(LOAD, ONE) says LOAD(j, register) and then ONE of its column, since columns may
 * share a register. Each sum is taken in the order of k, 16 words at a time, whatever the tile's shape. Signed bytes are multiplied as
 * they are: what sums of x + 128 begin with is not needed. */

#define HT_AT(j) ((j)*16 / HT_PW * panel + (j)*16 % HT_PW * 4)
#define HT_STEP (16 * HT_TYPE) /* terms */

#if HT_TYPE == 2
#define HT_MULTIPLY HT_TILE_BF16
#elif HT_SIGNED
#define HT_MULTIPLY HT_TILE_SIGNED
#else
#define HT_MULTIPLY HT_TILE_PLAIN
#endif

static const _Alignas(64) ht_tiles HT_NAME(shape) = HT_SHAPE;

#define HT_PUT(i, j, sums, x, w) HT_TILE_STORE(sums, out + ((i)*16 * stride + (j)*16) * 4, stride * 4);
#define HT_TAKE(i, j, sums, x, w) HT_TILE_LOAD(sums, from + ((i)*16 * t->stride + (j)*16) * 4, t->stride * 4);
#define HT_ZERO(i, j, sums, x, w) HT_TILE_ZERO(sums);
#define HT_ADD(i, j, sums, x, w) HT_MULTIPLY(sums, x, w);
#define HT_OF_X(i, of) HT_TILE_LOAD(of, x + (i)*16 * t->x_stride + q * 64, t->x_stride);
#define HT_OF_W(j, of) HT_TILE_LOAD(of, w + HT_AT(j) + q * 16 * HT_PW * 4, HT_PW * 4);
#define HT_LAST_X(i, of) HT_TILE_LOAD(of, last_x[(i)*16], 64);
#define HT_LAST_W(j, of) HT_TILE_LOAD(of, last_w[j], 64);
#define HT_COPY_W(j, of) \
  for (int64_t row = 0; row < rows; ++row) memcpy(last_w[j] + row * 64, w + HT_AT(j) + (whole * 16 + row) * HT_PW * 4, 64);
#define HT_FETCH_X(i, of)                                                      \
  if (HT_PF)                                                                   \
    for (int row = (i)*16; row < HT_MR && row < (i)*16 + 16; ++row) \
      _mm_prefetch(x + row * t->x_stride + (q * 16 + HT_PF) * 4, _MM_HINT_T0);
#define HT_FETCH(j, of)                  \
  if (HT_PF)                             \
    for (int row = 0; row < 16; ++row) \
      _mm_prefetch(w + HT_AT(j) + (q * 16 + HT_PF + row) * HT_PW * 4, _MM_HINT_T0);

HT_TARGET static void HT_PROGRAM(const ht_typed_tile* t) {
  const int64_t panel = t->panel, whole = t->k / HT_STEP, left = t->k % HT_STEP, rows = (left + HT_TYPE - 1) / HT_TYPE;
  _Alignas(64) char last_x[HT_MR][64], last_w[HT_NV][16 * 64]; /* terms behind the last whole step, zero beyond them */
  _Alignas(64) float own[HT_MR * HT_NV * 16];
  ht_typed_part before; /* a tile is finished while the next one's products are under way */
  int waiting = 0;
  (void)panel;
  if (left > 0) {
    memset(last_x, 0, sizeof last_x);
    memset(last_w, 0, sizeof last_w);
  }
  HT_TILES_BEGIN(&HT_NAME(shape));
  const int64_t inner = t->across ? t->groups : t->tiles;
  for (int64_t outer = 0; outer < (t->across ? t->tiles : t->groups); ++outer)
    for (int64_t at = 0; at < inner; ++at) {
      const int64_t group = t->across ? at : outer, tile = t->across ? outer : at;
      const char* w = t->w + group * (HT_NV * 16 / HT_PW) * panel;
      if (at == 0 || t->across) {
        HT_COLUMNS(HT_COPY_W)
      }
      const char* x = t->x + tile * HT_MR * t->x_stride;
      char* from = (char*)t->sums + (tile * HT_MR * t->stride + group * HT_NV * 16) * 4;
      char* out = t->finish != NULL ? (char*)own : from;
      const int64_t stride = t->finish != NULL ? HT_NV * 16 : t->stride;
      if (t->add) {
        HT_WRITTEN();
        HT_TILE(HT_TAKE)
      } else {
        HT_TILE(HT_ZERO)
      }
      for (int64_t line = 0;;) {
        for (int64_t q = 0; q < whole; ++q) {
          HT_ROWS(HT_OF_X)
          HT_ROWS(HT_FETCH_X)
          HT_COLUMNS(HT_FETCH)
          HT_PASS(HT_OF_W, HT_ADD)
        }
        if (++line >= t->lines) break;
        x += t->line;
        w += whole * 16 * HT_PW * 4;
      }
      if (left > 0) {
        for (int row = 0; row < HT_MR; ++row) memcpy(last_x[row], x + row * t->x_stride + whole * 64, (size_t)(left * 4 / HT_TYPE));
        HT_WRITTEN();
        HT_ROWS(HT_LAST_X)
        HT_PASS(HT_LAST_W, HT_ADD)
      }
      if (waiting) t->finish(t->with, &before);
      HT_TILE(HT_PUT)
      HT_WRITTEN();
      before = (ht_typed_part){own, stride, tile * HT_MR, HT_MR, group * HT_NV * 16, HT_NV * 16};
      waiting = t->finish != NULL;
    }
  if (waiting) t->finish(t->with, &before);
  HT_TILES_END();
}

#undef HT_AT
#undef HT_STEP
#undef HT_MULTIPLY
#undef HT_PUT
#undef HT_TAKE
#undef HT_ZERO
#undef HT_ADD
#undef HT_OF_X
#undef HT_OF_W
#undef HT_LAST_X
#undef HT_LAST_W
#undef HT_COPY_W
#undef HT_FETCH
