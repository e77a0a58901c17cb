/* Products of other types than fp32: words of several terms (typed_tile.h), sums in a block that stays in cache, results of any type. */
#ifndef HT_TYPED_H_
#define HT_TYPED_H_

#include "ht.h"
#include "typed_tile.h"

typedef struct {
  uint8_t code, bits; /* DLPack's element type */
} ht_element;

typedef struct ht_typed {
  ht_element x, weight, y, whole; /* whole: of what an epilogue reads like y */
  int32_t terms, column;          /* of k in a word, and bytes that a column has in a row of a panel */
  ht_typed_store_fn store;        /* fp32 sums as y's type */
  ht_typed_store_fn floats;       /* int32 sums to fp32 in place; NULL where sums are fp32 */
  int32_t raw;                    /* `store` copies int32 sums as they are */
  ht_typed_taps_fn taps;          /* of depthwise convolutions */
  const struct ht_direct_typed* direct; /* of these, where vectors are wide enough; else NULL (conv_direct.h) */
} ht_typed;

/* Bytes with a sign in x: see typed_tile.h. */
static inline int ht_typed_signed(const ht_typed* typed) { return typed->x.code == kDLInt && typed->x.bits == 8; }

static inline int64_t ht_typed_depth(const ht_typed* typed, int64_t k) { return (k + typed->terms - 1) / typed->terms; }

/* Floats of a packed weight of so many panels. */
static inline int64_t ht_typed_floats(const ht_typed* typed, int64_t panels, int64_t k, int64_t pw) {
  return panels * ht_typed_depth(typed, k) * (pw * typed->column / 4) + (ht_typed_signed(typed) ? panels * pw : 0);
}

/* What sums of signed bytes begin with, behind the panels; NULL where x has no sign. */
static inline const int32_t* ht_typed_first(const ht_typed* typed, const void* packed, int64_t panels, int64_t k, int64_t pw) {
  if (!ht_typed_signed(typed)) return NULL;
  return (const int32_t*)packed + panels * ht_typed_depth(typed, k) * pw;
}

/* bf16 or fp16 as fp32; `code` kDLFloat or kDLBfloat. */
float ht_typed_widened(int code, uint16_t bits);

/* typed_pack.c: panels of a weight (n, k), rows and terms any stride (in elements) apart; zero beyond n and k. */
void ht_typed_pack(const ht_typed* typed, int64_t n, int64_t k, int64_t pw, int64_t panels, const char* weight, int64_t row_stride,
                   int64_t term_stride, char* packed);

/* to[column * to_stride + row * size] = from[row * from_stride + column * size]: strides in bytes, elements of 1, 2 or 4. */
void ht_typed_turn(char* to, int64_t to_stride, const char* from, int64_t from_stride, int64_t rows, int64_t columns, int64_t size);

/* What an epilogue reads there, as fp32 in `wide`: rows x columns elements, any strides apart (in elements). */
void ht_typed_widen(ht_element type, const void* data, int64_t down, int64_t right, int64_t rows, int64_t columns, float* wide, int64_t stride);

#endif /* HT_TYPED_H_ */
