/* Depthwise convolutions with channels first: see conv_direct.h.
 *
 * A tile is one vector of columns in several output rows, whose sums stay in registers. Its taps are taken a column of the window at a
 * time: the column's weights stay in registers, and a line of the image that is loaded serves every row whose window it lies in. */

typedef struct { /* of a vector of columns: the same in every plane, and too dear to find again for each */
  int64_t q, left, count;                  /* its first column, and the image's that the first tap of it meets; columns that are stored */
  HT_WIDE(lanes) keep[HT_DIRECT_TAPS + 1]; /* of each tap, the lanes whose columns are in the image */
  HT_WIDE(lanes) stored;                   /* the first `count` */
} HT_WIDE(tile_columns);

typedef struct {
  const HT_X* x; /* of line 0, where the columns of the tile's first tap begin */
  const float* w; /* taps lie a vector apart */
  float* y;
  const ht_direct_lines* of;
  const int64_t* at;    /* of each tap along a line, how far it is from the first */
  int64_t line, stride; /* from one line to the next; from one output row to the next */
  int64_t low, inside;  /* lines [low, low + inside) are in the image */
  const HT_WIDE(tile_columns) * columns;
  float bias;
} HT_WIDE(tile);

/* `rows` rows, windows of `r` lines that move by `step`, down and, where it is 2, along lines too: then every other element counts, and
 * two taps share what is loaded. All three are known when this is compiled. */
HT_TARGET static inline __attribute__((always_inline)) void HT_WIDE(tile_of)(const HT_WIDE(tile) * tile, const int rows, const int r,
                                                                             const int step) {
  const int lines = (rows - 1) * step + r, taps = tile->of->taps;
  const HT_X* zeros = tile->of->zeros;
  const uint64_t inside = (uint64_t)tile->inside;
  const int64_t stride = tile->stride, below = (int64_t)taps * HT_N; /* from one line's taps to the next one's */
  const HT_WIDE(lanes)* keep = tile->columns->keep;
  const HT_WIDE(some) stored = HT_SOME(tile->columns);
  float* y = tile->y;
  int64_t above = -tile->low, line = tile->line;
  HT_V sums[HT_ROWS], w[7], other[7];
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i) sums[i] = HT_EVERY(&tile->bias);
#define HT_ADD(keep, w, v)                                                                                                  \
  _Pragma("GCC unroll 7") for (int t = 0; t < r; ++t) if (k >= t && (k - t) % step == 0 && (k - t) / step < rows) \
      sums[(k - t) / step] = HT_FMA_OF(keep, w[t], v, sums[(k - t) / step]);
  for (int u = 0; u < taps; u += step) {
    const HT_X* x = tile->x + tile->at[u];
    const float* first = tile->w + u * HT_N;
    const int both = step == 2 && u + 1 < taps;
    __asm__("" : "+r"(above), "+r"(line)); /* or the places of all lines are kept for all taps, where there are no registers for them */
#pragma GCC unroll 7
    for (int t = 0; t < r; ++t) {
      w[t] = HT_EVERY_W(first + t * below);
      if (step == 2) other[t] = HT_EVERY_W(first + t * below + both * HT_N);
    }
#pragma GCC unroll 32
    for (int k = 0; k < lines; ++k, x += line) {
      const HT_X* from = (uint64_t)(above + k) < inside ? x : zeros;
      HT_V v = HT_LOAD_X(from), next = v;
      if (step == 2) {
        const HT_V more = HT_LOAD_X(from + HT_N);
        next = HT_ODD(v, more);
        v = HT_EVEN(v, more);
      }
      v = HT_ONLY(keep[u], v);
      HT_IN_REGISTER(v); /* or every sum would load it again */
      HT_ADD(keep[u], w, v)
      if (!both) continue;
      next = HT_ONLY(keep[u + 1], next);
      HT_ADD(keep[u + 1], other, next)
    }
  }
#undef HT_ADD
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i) HT_STORE_OF(y + i * stride, HT_SUM(step == 2 ? HT_IN_ORDER(sums[i]) : sums[i]), stored);
}

#if HT_PLAIN
/* The same for windows of any height, which no program is for: one row. */
HT_TARGET static void HT_WIDE(row_of)(const HT_WIDE(tile) * tile) {
  const int taps = tile->of->taps;
  HT_V sum = HT_EVERY(&tile->bias);
  for (int u = 0; u < taps; ++u)
    for (int64_t t = tile->low; t < tile->low + tile->inside; ++t)
      sum = HT_FMA_OF(tile->columns->keep[u], HT_EVERY(tile->w + (t * taps + u) * HT_N),
                      HT_ONLY(tile->columns->keep[u], HT_LOAD(tile->x + tile->at[u] + t * tile->line)), sum);
  HT_STORE(tile->y, sum, tile->columns->count);
}

#endif

HT_EVERY_PROGRAM(tile, programs)

/* What a tile needs of so many lines, one after the other, zeros beside the image: parts of every `across`-th element from `left` on. */
HT_TARGET static void HT_WIDE(lines_of)(const ht_direct_lines* of, const ht_conv_call* call, const HT_X* row, int64_t lines, int64_t left) {
  const int across = of->across;
  HT_X* room = of->room;
  for (int64_t i = 0; i < lines; ++i, row += call->xh)
    for (int part = 0; part < across; ++part)
      for (int64_t j = 0; j < of->length; j += HT_N, room += HT_N) {
        const int64_t from = left + j * across + part, low = from < 0 ? -from : 0, high = call->w - from;
#if HT_PLAIN
        if (across == 1) {
          HT_STORE(room, HT_PART(row + from, low < HT_N ? low : HT_N, high < 0 ? 0 : high < HT_N ? high : HT_N), HT_N);
          continue;
        }
#endif
        for (int64_t l = 0; l < HT_N; ++l) room[l] = l * across >= low && l * across < high ? row[from + l * across] : 0;
      }
}

/* A vector of columns from q on. */
HT_TARGET static void HT_WIDE(columns_of)(const ht_direct_lines* of, const ht_conv_call* call, int64_t q, int64_t count, HT_WIDE(tile_columns) * columns) {
  columns->q = q;
  columns->left = q * of->right - of->before;
  columns->count = count;
  columns->stored = HT_LANES(0, count);
  for (int u = 0; u < of->taps; ++u) {
    int64_t from = columns->left + of->at[u], low = from < 0 ? -from : 0, high = call->w - from;
    if (of->pairs) low = (low + 1) >> 1, high = (high + 1) >> 1;
    low = low < HT_N ? low : HT_N;
    high = high < 0 ? 0 : high < HT_N ? high : HT_N;
    columns->keep[u] = of->across > 1 ? HT_LANES(0, HT_N) : of->pairs ? HT_MIXED(low, high) : HT_LANES(low, high);
  }
}

/* Of one plane of the output the tiles of rows [first, last), and of them columns [q, end); y: of the first of all these. `known`: vectors
 * of columns of planes before, HT_DIRECT_COLUMNS of them. */
HT_TARGET static void HT_WIDE(plane)(HT_WIDE(tile) * tile, const ht_conv_call* call, HT_WIDE(tile_columns) * known, const HT_X* x, float* y, int64_t first,
                                     int64_t last, int64_t q, int64_t end) {
  const ht_direct_lines* of = tile->of;
  for (const int64_t p0 = ht_direct_row(of, first); q < end; q += HT_N, y += HT_N) {
    HT_WIDE(tile_columns)* columns = &known[q / HT_N % HT_DIRECT_COLUMNS];
    if (q != columns->q) HT_WIDE(columns_of)(of, call, q, end - q < HT_N ? end - q : HT_N, columns);
    const int64_t left = columns->left;
    tile->columns = columns;
    for (int64_t p = p0, index = first, rows; index < last; p += rows, ++index) {
      rows = of->rows + (index < of->more);
      const int64_t top = p * of->down - of->top, bottom = top + (rows - 1) * of->down + of->r;
      const int64_t low = top < 0 ? -top : 0, inside = (bottom < call->h ? bottom : call->h) - top - low;
      const HT_X* from = x + top * call->xh + left;
      tile->low = low;
      tile->inside = inside > 0 ? inside : 0;
      tile->x = from;
      tile->line = call->xh;
      tile->at = of->at;
      if (inside > 0 && (of->across > 1 || (const char*)(from + low * call->xh) < of->begin ||
                         (const char*)(from + (low + inside - 1) * call->xh + of->span) > of->end)) {
        HT_WIDE(lines_of)(of, call, from - left + low * call->xh, inside, left);
        tile->line = of->length * of->across;
        tile->x = (const HT_X*)of->room - low * tile->line;
        tile->at = of->laid;
      }
      tile->y = y + (p - p0) * tile->stride;
#if HT_PLAIN
      if (of->program < 0) {
        HT_WIDE(row_of)(tile);
        continue;
      }
#endif
      HT_WIDE(programs)[of->program][rows - 1](tile);
    }
  }
}
