/* dense of other types than fp32: words of several terms (typed_tile.h), sums in a block that stays in cache, results of any type. */
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
} ht_typed;

static inline int64_t ht_typed_depth(const ht_typed* typed, int64_t k) { return (k + typed->terms - 1) / typed->terms; }

/* Floats of a packed weight of so many panels. */
static inline int64_t ht_typed_floats(const ht_typed* typed, int64_t panels, int64_t k, int64_t pw) {
  return panels * ht_typed_depth(typed, k) * (pw * typed->column / 4);
}

/* bf16 or fp16 as fp32; `code` kDLFloat or kDLBfloat. */
float ht_typed_widened(int code, uint16_t bits);

/* typed_pack.c: panels of a weight (n, k), rows and terms any stride (in elements) apart; zero beyond n and k. */
void ht_typed_pack(const ht_typed* typed, int64_t n, int64_t k, int64_t pw, int64_t panels, const char* weight, int64_t row_stride,
                   int64_t term_stride, char* packed);

#endif /* HT_TYPED_H_ */
