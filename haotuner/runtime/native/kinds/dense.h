/* dense: Y[m,n] = X[m,k] . W[n,k]^T with W packed as panels [panel][k][pw]. */
#ifndef HT_DENSE_H_
#define HT_DENSE_H_

#include "ht.h"
#include "integers.h"
#include "typed.h"

typedef struct { /* one micro-kernel; computes tiles of mr rows x nr columns from panels of pw columns */
  const char* name;
  ht_kernel_fn fn;
  int32_t mr, nr, pw;
  ht_kernel_fn tail; /* the same of only the first nt columns of a tile, for the last one of a row; NULL: fn does that, too */
  int32_t nt;
  ht_kernel_fn epilogue; /* of whole vectors of `lanes` columns, see epilogue.h; NULL: none. The kernels of an op have the same */
  int32_t lanes;
  int32_t tile; /* of a convolution: HT_CONV_TURNED, HT_CONV_LINES, or outputs of a tile each way (conv_winograd.c); 0: image columns as they lie */
  ht_typed_stepped_fn stepped; /* the epilogue of whole sums and the result's type in one pass; NULL: `epilogue`, then ht_typed's store */
} ht_kernel;

typedef struct { /* a row of the plan table: the regions of one m, largest first; tiles[i] == 0 ends the list */
  uint16_t tiles[HT_MAX_REGIONS];
  uint8_t kernel[HT_MAX_REGIONS];
  uint8_t split; /* HT_SERIAL and on */
} ht_entry;

typedef struct { /* of one thread count: entries[m-1] for 1 <= m <= the table's rows */
  const ht_entry* entries;
  int32_t row_block;      /* rows whose X stays in L2 while the weight streams past; 0: do not block */
  int32_t row_block_from; /* blocking pays only from this m on */
} ht_dense_plan;

typedef struct {
  int64_t n, k, panels; /* panels allocated, >= what any kernel of the op reads */
  int32_t pw;
  int32_t col_block; /* columns whose weight stays in L2 between the regions of one shape */
  int32_t k_block;      /* terms of the sum whose weight panel stays in L2 while rows pass; 0: all at once */
  int32_t k_block_from; /* from this m on */
  int32_t k_block_rows; /* row_block where k is blocked: X takes less of L2 there */
  const ht_kernel* kernels;
  int32_t flags; /* HT_WEIGHT_KN, HT_TYPED */
} ht_dense;

enum {
  HT_WEIGHT_KN = 1, /* users store this op's weight as (k, n) instead of (n, k) */
  HT_TYPED = 2      /* not fp32: it is the first part of an ht_typed_dense */
};

typedef struct {
  ht_dense dense;
  const ht_typed* typed;
} ht_typed_dense;

/* The element types of a typed op; NULL: all are fp32. */
static inline const ht_typed* ht_types(const ht_dense* dense) {
  return (dense->flags & HT_TYPED) != 0 ? ((const ht_typed_dense*)dense)->typed : NULL;
}

/* Floats of the packed weight. */
static inline int64_t ht_dense_packed(const ht_dense* dense) {
  const ht_typed* typed = ht_types(dense);
  return typed != NULL ? ht_typed_floats(typed, dense->panels, dense->k, dense->pw) : dense->panels * dense->k * dense->pw;
}

typedef struct {
  const ht_kernel* kernel;
  int64_t tiles;
} ht_part;

typedef struct {
  ht_part part[HT_MAX_PARTS];
  int32_t count;
  int32_t split;
  int32_t row_block;
  int32_t k_block;
} ht_composition;

/* dense_plan.c: the composition that serves m >= 1 rows. Never fails: outside the table it extends the nearest entry. */
void ht_dense_look_up(const ht_dense* dense, const ht_plan* plan, int64_t m, ht_composition* out);

/* dense.c: validate the tensors of a call (bias may be NULL); 0, or -1 with *error filled. */
int ht_dense_check(const char* name, const ht_dense* dense, const DLTensor* x, const DLTensor* w, const DLTensor* y,
                   const DLTensor* bias, ht_dense_call* call, ht_error* error);

/* dense_run.c: compute the call; 0, or -1 when a micro-kernel refused its arguments. Allocates nothing. */
int ht_dense_run(const ht_dense* dense, const ht_composition* composition, const ht_dense_call* call, int threads);

/* typed_run.c: columns [first, last) of so many row tiles of a typed op, finished. */
int ht_typed_region(const ht_dense* dense, const ht_dense_call* call, const ht_kernel* kernel, int64_t row, int64_t tiles, int64_t first,
                    int64_t last);

extern const ht_kind ht_dense_kind;

#endif /* HT_DENSE_H_ */
