/* dense on CUDA: Y[m,n] = act(X[m,k] . W[n,k]^T + bias + residual), with W where the caller has it; and grouped, with a W for each
 * group of rows. */
#ifndef HT_CUDA_DENSE_H_
#define HT_CUDA_DENSE_H_

#include "cuda_epilogue.h"

#define HT_CUDA_REGIONS 2

typedef struct { /* a cell of the plan: the first region takes `tiles` row tiles (0: all rows), the second the rest */
  int32_t tiles;
  int16_t kernel[HT_CUDA_REGIONS]; /* of the op's */
  int16_t splits;                  /* of k, in both regions */
} ht_cuda_entry;

typedef struct {
  int64_t n, k;
  int32_t kn; /* users store this op's weight as (k, n) instead of (n, k) */
  int32_t groups; /* matrices W and biases, one for each group of rows; 0 of dense */
  uint8_t dtype;
  ht_cuda_after after;
  const int32_t* kernels; /* places in ht_cuda_pack_code.kernels */
} ht_cuda_dense;

typedef struct {
  int32_t count, splits;
  int32_t kernel[HT_CUDA_REGIONS];
  int64_t rows[HT_CUDA_REGIONS];
} ht_cuda_regions;

typedef struct { /* a weight on a device; `maps` has one of each kernel of the op, filled where the kernel takes maps */
  uint64_t mark;
  const ht_op* op;
  const ht_cuda_loaded* loaded;
  const void* w;
  ht_cuda_channels channels;
  CUtensorMap maps[];
} ht_cuda_bound;

/* The regions of m >= 1 rows. Never fails: beyond the table the last cell's first region grows. plan->data: entries. */
void ht_cuda_look_up(const ht_cuda_dense* dense, const ht_plan* plan, int64_t m, ht_cuda_regions* out);

/* Type of a tensor of an op, and that it lives on a device; on number `device` where that is not below 0. */
int ht_cuda_check_tensor(const ht_op* op, const char* name, const DLTensor* t, int device, ht_error* error);

extern const ht_kind ht_cuda_dense_kind;
extern const ht_kind ht_cuda_grouped_kind; /* its call takes the offsets behind out: int32, on the device; then a residual */

#endif /* HT_CUDA_DENSE_H_ */
