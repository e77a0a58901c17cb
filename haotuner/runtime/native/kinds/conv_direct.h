/* Depthwise convolutions without a product. Loops over the image are included once for each width of vectors and each type of the image:
 * conv_direct_16.h, _8.h and _4.h say what a vector is, conv_direct_last.h and conv_direct_first.h what is computed with it. A pack has
 * the widths and types that its ops need: each takes a second to compile.
 *
 * HT_V: a vector of fp32; HT_N: its lanes; HT_LOAD(p); HT_LANES(low, high): lanes [low, high), of type lanes_N; HT_PART(p, low, high): these
 * lanes and zeros; HT_STORE(p, v, n): the first n; HT_EVERY(p): a number in all lanes; HT_FMA(a, b, c). Of the lanes that
 * an image has, a sum is HT_FMA_OF(lanes, a, HT_ONLY(lanes, b), c). HT_EVEN(a, b), HT_ODD(a, b): every other element of both, in an
 * order that HT_IN_ORDER(v) mends, and in which HT_MIXED(low, high) are lanes. HT_STORE_OF(p, v, HT_SOME(columns)): a tile's columns. HT_UP_TO:
 * programs for tiles of up to so many rows, channels first. HT_IN_REGISTER(v): is in one from there on.
 *
 * HT_X: an element of the image; HT_LOAD_X(p): a vector of them, widened; HT_LOAD_W(p), HT_EVERY_W(p): of weights; HT_SUM(v): sums as they
 * are stored. HT_PLAIN: all of these are fp32. HT_IF_7(text): the text, where windows of 7 lines have programs, channels first. */
#ifndef HT_CONV_DIRECT_H_
#define HT_CONV_DIRECT_H_

#include <string.h>

#include "conv.h"

#define HT_DIRECT_LINES 4096 /* elements of lines that are laid out for a tile: 24 of 44, or 16 of 4 parts of 32, at most */
#define HT_ROWS 8            /* of the output, in a tile */

/* `of` is told the windows that programs are written for: (kind, lines, stride); those of 7 lines by HT_IF_7. */
#define HT_WINDOWS(of, kind) of(kind, 3, 1) of(kind, 3, 2) of(kind, 5, 1) of(kind, 5, 2) HT_IF_7(of(kind, 7, 1))
#define HT_UP_TO_4(of, kind, r, step) of(kind, r, step, 1) of(kind, r, step, 2) of(kind, r, step, 3) of(kind, r, step, 4)
#define HT_UP_TO_8(of, kind, r, step) \
  HT_UP_TO_4(of, kind, r, step) of(kind, r, step, 5) of(kind, r, step, 6) of(kind, r, step, 7) of(kind, r, step, 8)
#define HT_PROGRAM(kind, r, step, rows) \
  HT_TARGET static void HT_WIDE(kind##_##r##_##step##_##rows)(const HT_WIDE(kind) * one) { HT_WIDE(kind##_of)(one, rows, r, step); }
#define HT_PROGRAM_NAME(kind, r, step, rows) HT_WIDE(kind##_##r##_##step##_##rows),
#define HT_PROGRAMS_OF(kind, r, step) HT_UP_TO(HT_PROGRAM, kind, r, step)
#define HT_ROW_OF(kind, r, step) {HT_UP_TO(HT_PROGRAM_NAME, kind, r, step)},
/* A program of `kind` for each window and number of rows, from the inlined function kind_of, and a table of them: [window][rows - 1]. */
#define HT_EVERY_PROGRAM(kind, table)  \
  HT_WINDOWS(HT_PROGRAMS_OF, kind)     \
  static void (*const HT_WIDE(table)[][HT_ROWS])(const HT_WIDE(kind) *) = {HT_WINDOWS(HT_ROW_OF, kind)};
#define HT_DIRECT_COLUMNS 16 /* vectors of columns that a call remembers: images of 256 columns in AVX-512 */
#define HT_DIRECT_TAPS 16    /* of a line: what ht_conv_is_direct lets through */
#define HT_DIRECT_PAIR 2     /* `mr` of kernels that take two pixels of four rows, channels last */
#define HT_DIRECT_SMALL 512  /* pixels at most of an image whose channels are lanes (conv_direct_lanes.h), and of its output: */
#define HT_DIRECT_OUTPUT 256
#define HT_DIRECT_MOST_LANES 16

typedef struct { /* of a thread */
  _Alignas(64) float lines[HT_DIRECT_LINES];
  _Alignas(64) float x[HT_DIRECT_SMALL * HT_DIRECT_MOST_LANES], y[HT_DIRECT_OUTPUT * HT_DIRECT_MOST_LANES]; /* channels are lanes */
  _Alignas(64) float turned[HT_DIRECT_SMALL * HT_DIRECT_MOST_LANES];
} ht_direct_room;

static inline ht_direct_room* ht_direct_rooms(void) { return ht_room(HT_ROOM_DIRECT, sizeof(ht_direct_room)); }

typedef struct { /* channels first: what is the same for all planes of a call */
  int taps, r, down, right, top, before;
  int program;                  /* which; -1: none is for such windows, and tiles have one row */
  int pairs, across;            /* every other element of a line as it lies; parts that a line is laid out as */
  int64_t rows, more, tiles;    /* of a tile; the first tiles that have a row more; tiles below one another */
  int64_t length, span;         /* elements of a part: whole vectors; that a tile reads of a line that lies in the image */
  int64_t at[HT_DIRECT_TAPS];   /* of each tap along a line, how far it is from the first */
  int64_t laid[HT_DIRECT_TAPS]; /* the same where lines are laid out in parts */
  const char *begin, *end;      /* where elements of x lie */
  const void* zeros;            /* a line above or below the image */
  void* room;
} ht_direct_lines;

/* Channels in lanes: a column of the output, the taps along a line that meet the image, and the image's column that the first of them does. */
typedef struct {
  int32_t first, count;
  int64_t column;
} ht_direct_taps;

/* Of each column of the output. */
void ht_direct_taps_of(const ht_direct_lines* of, const ht_conv_call* call, ht_direct_taps* met);

/* Whether channels are lanes: there is a program for such windows, the image is small, and lines of its output would fill vectors badly.
 * So does every call of an image's size: which of the two computes it is no question of the batch or of threads. */
int ht_direct_is_small(const ht_conv* conv, const ht_conv_call* call);

/* Tiles of at most so many rows, of elements of `size` bytes. The room is the calling thread's. */
ht_direct_lines ht_direct_lines_of(const ht_conv* conv, const ht_conv_call* call, int64_t most, int64_t size);

/* Channels last: pixels of a row whose windows lie inside the image's columns, [low, high). */
typedef struct {
  int64_t low, high;
} ht_direct_inside;

static inline ht_direct_inside ht_direct_inside_of(const ht_window* wide, const ht_conv_call* call) {
  const int64_t reach = (int64_t)wide->dilation * (wide->taps - 1), room = call->w + wide->before - reach;
  const int64_t end = room > 0 ? (room - 1) / wide->stride + 1 : 0;
  return (ht_direct_inside){(wide->before + wide->stride - 1) / wide->stride, end < call->q ? end : call->q};
}

/* Channels first: whether there are programs for tiles of several rows. */
static inline int ht_direct_is_tiled(const ht_conv* conv) {
  const int r = conv->tall.taps, step = conv->tall.stride, pairs = step == 2 && conv->wide.stride == 2 && conv->wide.dilation == 1;
  return r == 7 ? step == 1 : (r == 3 || r == 5) && (step == 1 || pairs);
}

/* Channels last: whether there is a program for two pixels of four rows. */
static inline int ht_direct_squares(const ht_conv* conv) {
  const ht_window *tall = &conv->tall, *wide = &conv->wide;
  return tall->stride <= 2 && wide->stride == tall->stride && tall->dilation == 1 && wide->dilation == 1 && tall->taps == wide->taps &&
         (tall->taps == 3 || tall->taps == 5) && conv->features >= conv->lanes;
}

/* The first row of a tile. */
static inline int64_t ht_direct_row(const ht_direct_lines* of, int64_t tile) { return tile * of->rows + (tile < of->more ? tile : of->more); }

typedef struct ht_direct_job {
  const ht_conv* conv;
  const ht_kernel* kernel;
  const ht_conv_call* call;
  int64_t all, chunks; /* planes channels first; rows of all images, channels last */
  int lanes;           /* channels are lanes: items are vectors of them */
  atomic_int failed;
} ht_direct_job;

/* The epilogue of `rows` output rows from one on. A call of its program takes longer than a short row does, and columns that fill no vector
 * go through scratch memory: small planes are finished together, and each as one row where nothing lies between its rows. */
#define HT_DIRECT_FINISHED 4096 /* floats, at most, of planes that are finished together: half of the smallest L1 */
#define HT_DIRECT_PLANES 16     /* of them: as HT_LEFT_ROWS */
void ht_direct_finish(ht_direct_job* j, ht_conv_part part, int64_t rows);

/* In fp32 the program of a kernel: items [first, last) of a job. */
typedef void (*ht_direct_fn)(ht_direct_job* j, int64_t first, int64_t last);

/* In other types: sums of an image and weights alone, fp32 or int32 as the op's sums are. */
typedef struct { /* channels first: what is computed at a time */
  int64_t b, f, planes;      /* of features side by side */
  int64_t first, last, q, end; /* tiles of rows, columns */
} ht_direct_band;

typedef struct ht_direct_typed {
  /* Channels last: of two pixels of four rows, whose windows lie inside the image's columns, `features` features. x, w: of the first
   * pixel's first tap, which line `top` has; sums lie `down` and `right` from one another. Where ht_direct_squares says yes. */
  void (*squares)(const ht_conv* conv, const ht_conv_call* call, const void* x, const float* w, float* sums, int64_t down, int64_t right, int64_t top,
                  int64_t features);
  /* Channels first, pixels of an image's line side by side, for windows that ht_direct_lines_of has a program for, of 5 lines at most:
   * tiles of up to HT_DIRECT_TYPED_ROWS rows. Sums (plane, row, column) side by side. */
  void (*planes)(const ht_conv* conv, const ht_conv_call* call, const ht_direct_lines* of, const ht_direct_band* band, float* sums);
  /* The same where ht_direct_is_small says yes: whole planes of the features of one vector, each filled up to whole vectors. */
  void (*images)(const ht_conv* conv, const ht_conv_call* call, const ht_direct_lines* of, const ht_direct_taps* met, const ht_direct_band* band,
                 float* sums);
} ht_direct_typed;

#define HT_DIRECT_TYPED_ROWS 4

#endif /* HT_CONV_DIRECT_H_ */
