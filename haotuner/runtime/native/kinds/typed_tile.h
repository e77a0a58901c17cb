/* What a micro-kernel of another type than fp32 is called with; its programs (microkernels/cpu/native/) see no more of the runtime.
 *
 * A word is 32 bits of the packed weight in one column: two bf16, four int8, and for fp16 half of two columns. Panels are
 * [panel][k / terms of a word][pw] words, zero beyond column n and beyond k. Signed bytes of x are multiplied as x + 128: a column's sums
 * begin with -128 times the sum of its weights. */
#ifndef HT_TYPED_TILE_H_
#define HT_TYPED_TILE_H_

#include <stdint.h>

#define HT_TYPED_TILE 2048 /* sums of the largest tile */
#define HT_TYPED_HELD 1024 /* of tiles that are finished together: they and what they become stay in L1 */

typedef struct { /* finished sums of a tile, or of several below one another, `stride` elements between rows: rows from `row`, columns from `column` of the call on */
  void* sums;
  int64_t stride, row, rows, column, columns;
} ht_typed_part;

typedef struct { /* tiles row tiles of groups column groups */
  const char* x;    /* (tiles * mr, k), elements side by side */
  int64_t x_stride; /* bytes between rows */
  const char* w;    /* of the first group */
  int64_t panel;    /* bytes between panels */
  void* sums;       /* fp32 or int32 (tiles * mr, groups * nr); unused where `finish` is there and `add` is 0 */
  int64_t stride;   /* elements between rows of sums */
  int64_t k, tiles, groups;
  const int32_t* first; /* what sums of a column begin with, of signed bytes; NULL: nothing */
  int32_t add;          /* these are further terms of what `sums` holds */
  int32_t across;       /* all groups of a row tile in turn, where their weight stays in cache: rows are written from end to end */
  /* Called with each tile's sums while they are in L1, and `with`; columns may lie beyond what there is. NULL: sums go to `sums`. */
  void (*finish)(void* with, const ht_typed_part* part);
  void* with;
  int64_t lines, line; /* terms in several runs: k in each, whole steps of 64 bytes; bytes of x from one to the next. 0 or 1: one run */
} ht_typed_tile;

typedef void (*ht_typed_fn)(const ht_typed_tile* tile);

/* A block of sums as the result's type at `to`, whose rows lie to_stride bytes apart. */
typedef void (*ht_typed_store_fn)(const void* sums, int64_t stride, char* to, int64_t to_stride, int64_t rows, int64_t columns);

/* The same of whole sums by the steps of an epilogue, which read values of a channel alone: `given`, those of column 0 on of each. */
typedef void (*ht_typed_stepped_fn)(const void* sums, int64_t stride, char* to, int64_t to_stride, int64_t rows, int64_t columns,
                                    const float* const* given);

/* Of a depthwise convolution: sums[i] += x[tap][i] * w[tap][i * w_step], for all taps in their order; w as sums are, widened. */
typedef void (*ht_typed_taps_fn)(void* sums, int64_t count, const char* const* x, const float* const* w, int64_t w_step, int64_t taps);

#endif /* HT_TYPED_TILE_H_ */
