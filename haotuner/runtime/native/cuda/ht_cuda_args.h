/* What every CUDA kernel of haotuner is passed, by value: 80 bytes, the same on the host and on the device. */
#ifndef HT_CUDA_ARGS_H_
#define HT_CUDA_ARGS_H_

#include <stdint.h>

typedef struct {        /* by value; 80 bytes; the same on host and device */
  const void* x;        /* (m, k), inner stride 1, row stride ldx */
  const void* w;        /* (n, k) compact, or (k, n) compact for kn1 */
  const void* bias;     /* n elements of the op's dtype, or NULL */
  const void* residual; /* (m, n) with row stride ldy, added before the activation; or NULL */
  void* y;              /* (m, n), inner stride 1, row stride ldy */
  float* partial;       /* splits > 1: fp32 [splits][m][n], compact; else NULL */
  int32_t m, n, k, ldx, ldy, splits, act, zero; /* act: 0 none, 1 relu, 2 gelu (erf), 3 gelu (tanh), 4 silu; a uniform branch in the epilogue */
} ht_cuda_args;

#endif /* HT_CUDA_ARGS_H_ */
