/* batch_matmul on CUDA: Y[b] = X[b] . W[b] of matrices whose rows lie as the caller has them, queued on a stream. */
#ifndef HT_CUDA_PRODUCT_H_
#define HT_CUDA_PRODUCT_H_

#include "cuda_epilogue.h"
#include "kinds/product.h"

typedef struct {
  ht_product product; /* how the factors are stored; it has no programs of its own */
  uint8_t dtype;
  ht_cuda_after after; /* of steps that read nothing: what a call brings beside comes ahead of them */
  const int32_t* kernels; /* places in ht_cuda_pack_code.kernels; cells of the plan are ht_sliced_entry, of which the kernel counts */
} ht_cuda_product;

int ht_cuda_product_type(const ht_op* op, const char* name, const DLTensor* t, ht_error* error);

/* Whether a kernel's wide loads reach every matrix of the batch; *error says which does not. */
int ht_cuda_product_fits(const ht_cuda_kernel* kernel, const ht_cuda_args* args, const ht_cuda_batch* batch, ht_error* error);

extern const ht_kind ht_cuda_product_kind; /* its call takes x, w and out, behind them bias, scale and mask where they are wanted */

#endif /* HT_CUDA_PRODUCT_H_ */
